"""Checkpoints of a model and its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from toolkit.checkpoint.contents import write_model, write_optimizer, write_state
from toolkit.checkpoint.store import new_checkpoint


def save(
    root: Path,
    step: int,
    model: nn.Module,
    optimizer: Any,
    state: Mapping[str, Any],
    extra: Callable[[Path], None] = lambda _: None,
) -> Path:
    """Writes the checkpoint of a step, with what `extra` adds to it; returns its folder."""
    with new_checkpoint(root, step) as folder:
        write_state(folder, state)
        write_model(folder, model)
        write_optimizer(folder, optimizer, model)
        extra(folder)
    return root / f"step-{step}"
