"""Merges the optimizers of a pipeline's stages into what one process would have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def merged_scalars(stages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the plain values of an optimizer state as `toolkit.optim.state.optimizer_state` would for one process.

    Args:
        stages: what it returned on each process. All have the parameter groups of the complete model, each with their
            own parameters only; the settings of a group are taken from the first process that has some of them.
    """
    groups = []
    for parts in zip(*(stage["groups"] for stage in stages), strict=True):
        names = dict.fromkeys(name for part in parts for name in part["params"])
        settings = next((part["settings"] for part in parts if part["params"]), parts[0]["settings"])
        groups.append({"params": list(names), "settings": settings})
    merged = {
        key: {name: value for stage in reversed(stages) for name, value in stage[key].items()}
        for key in ("values", "shapes")
    }
    return {"optimizer": stages[0]["optimizer"], "groups": groups, **merged}
