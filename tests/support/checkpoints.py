"""A model with tied weights, its optimizer, and checkpoints of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from toolkit.api.run import Checkpoint
from toolkit.checkpoint.contents import model_group, optimizer_group, state_file
from toolkit.checkpoint.manifest import FileEntry
from toolkit.checkpoint.planning import Group, planned
from toolkit.checkpoint.store import latest, new_checkpoint
from toolkit.checkpoint.writing import write_groups
from toolkit.distributed.collectives import Peers
from toolkit.optim.state import optimizer_state


class Tied(nn.Module):
    """Input and output embedding are one tensor; `scale` is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding, self.hidden = nn.Embedding(6, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.hidden(self.embedding(ids))) * self.scale


def make(optimizer: Callable[..., Any] = torch.optim.AdamW, **settings: Any) -> tuple[Tied, Any]:
    model = Tied()
    return model, optimizer(model.parameters(), lr=0.05, **settings)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, numbers: range) -> None:
    for number in numbers:
        optimizer.zero_grad()
        model(torch.tensor([number % 6, 1, 2])).logsumexp(-1).sum().backward()
        optimizer.step()


def save(
    root: Path,
    step: int,
    model: nn.Module,
    optimizer: Any,
    state: Mapping[str, Any],
    extra: Callable[[Path], None] = lambda _: None,
    groups: Iterable[Group] = (),
    sharded: bool = False,
) -> Path:
    """Writes the checkpoint of a step, with further tensors and what `extra` adds to it; returns its folder."""
    own = [model_group(model.state_dict(keep_vars=True)), optimizer_group(*optimizer_state(optimizer, model))]
    written: dict[str, FileEntry] = {}
    with new_checkpoint(root, step, written) as folder:
        for name, content in state_file(state).items():
            (folder / name).write_bytes(content)
        plans = [planned(Peers(), group, spread=sharded) for group in [*own, *groups]]
        written |= write_groups(Peers(), folder, plans, sharded)
        extra(folder)
    return root / f"step-{step}"


def newest(root: Path) -> tuple[Checkpoint, list[str]]:
    found, messages = latest(root)
    assert found is not None
    return found, messages
