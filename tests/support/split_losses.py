"""Passes of heads that are split over two processes, and decisions of the fp16 scaler: `split_losses.py FOLDER`."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from finishing import finish
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from toolkit.api.batch import logits_at_labels
from toolkit.base.shards import full
from toolkit.distributed.placement import Delivery
from toolkit.distributed.strategies.split import SplitScaler
from toolkit.distributed.tensor.vocabulary import split_vocabulary
from toolkit.models.chunked import Deferred, chunk_head
from toolkit.models.parts import head_at_labels
from toolkit.tasks.tokens import are_correct, labelled_positions, token_losses

CLASSES, SIZE = 44, 12


class Small(nn.Module):
    """A language model of embeddings, a norm, and a head, which may be tied."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(CLASSES, SIZE)
        self.norm = nn.LayerNorm(SIZE)
        self.head = nn.Linear(SIZE, CLASSES)
        if tied:
            self.head.weight = self.embeddings.weight

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(self.norm(self.embeddings(ids))) * 0.5}


def split(model: Any, kind: str) -> None:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    if kind == "tensor":
        split_vocabulary(model, mesh, Delivery(torch.device("cpu")))
        return
    if model.head.weight is model.embeddings.weight:
        fully_shard([model.embeddings, model.head], mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)


def passes(model: Any, how: str, chunked: bool) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Returns the gradients, the losses of a pass without gradients, and whether the likeliest tokens are right."""
    ids = torch.randint(CLASSES, (3, 7), generator=torch.Generator().manual_seed(1))
    labels = ids.roll(1, 1).masked_fill(ids % 3 == 0, -100)
    positions = labelled_positions(labels)
    with logits_at_labels({"inputs": {}, "labels": labels, "labelled": positions}):
        logits = model(ids)["logits"]
        assert isinstance(logits, Deferred) == chunked
        if how == "whole":
            loss = torch.logsumexp(logits.whole() if chunked else logits + 0, -1).sum()
        else:
            losses = token_losses(logits, labels, how, 0.1, positions)
            loss = (losses * torch.linspace(0.5, 2, losses.numel(), dtype=torch.float64).view_as(losses)).sum()
        loss.backward()
        with torch.no_grad():
            logits = model(ids)["logits"]
            evaluated = token_losses(logits, labels, "none", 0.1, positions)
            correct = are_correct(logits, labels, positions)
    return {name: full(each.grad) for name, each in model.named_parameters()}, evaluated, correct


def check_losses() -> None:
    for tied in (True, False):
        torch.manual_seed(0)
        plain = Small(tied).double()
        head_at_labels(plain)
        for how in ("sum", "none", "whole"):
            plain.zero_grad()
            expected = passes(plain, how, chunked=False)
            for kind in ("fsdp", "tensor"):
                model = copy.deepcopy(plain)
                model.zero_grad()
                chunk_head(model)
                split(model, kind)
                for _ in range(2):  # the second pass finds what the first has left
                    model.zero_grad()
                    found = passes(model, how, chunked=True)
                    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12, msg=f"{tied} {how} {kind}")


def check_scaler() -> None:
    """Both ranks skip an update if one has a gradient that is not finite, and make it otherwise."""
    weight = nn.Parameter(torch.ones(3))
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), SplitScaler("cpu", init_scale=8.0)
    for bad in (None, 1, None, 0):
        before, scale = weight.detach().clone(), scaler.get_scale()
        scaler.scale(weight.sum()).backward()
        if bad == dist.get_rank():
            weight.grad[1] = torch.inf
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(weight, before if bad is not None else before - 1)
        assert scaler.get_scale() == (scale if bad is None else scale / 2)
        optimizer.zero_grad()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    with patch("toolkit.models.chunked.CHUNK", 4):
        check_losses()
    check_scaler()
    Path(sys.argv[1], f"done-{dist.get_rank()}").write_text("")
    dist.destroy_process_group()
    finish()
