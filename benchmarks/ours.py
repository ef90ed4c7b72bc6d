"""The toolkit's side of a comparison: a recipe with its YAML, timed by step."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairs import ROOT, Clock, Side, calling

from toolkit.api.training import Callback

if TYPE_CHECKING:
    pass

STEPS_ONLY = (
    *("checkpoint.save_steps=null", "eval.eval_steps=null", "data.validation_split=0"),
    "train.global_batch_size=null",  # benchmarks state the rows of each process
)
"""Only steps: no evaluation, no checkpoints."""


def no_waste(max_tokens: int | None = None) -> list[str]:
    """Returns overrides for unpadded batches, fast dropout on a CPU and, if given, a token budget."""
    budget = [] if max_tokens is None else [f"train.max_tokens_per_batch={max_tokens}"]
    return ["train.unpadded=true", "train.fast_dropout=auto", *budget]


class Steps(Callback):
    """Times each step and keeps its mean loss."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.losses: list[float] = []

    def after_step(self, record: Mapping[str, float]) -> None:
        """Notes a step."""
        self.clock.tick()
        self.losses.append(record["loss_sum"] / record["num_items"])


def fresh(folder: str) -> str:
    """Returns a new output folder of this round in a scratch folder, the same for all ranks of a launch."""
    return f"{folder}/{os.getppid()}" if "LOCAL_RANK" in os.environ else tempfile.mkdtemp(dir=folder)


def train(recipe: str, config: str, overrides: Sequence[str], folder: str, warm_up: int) -> dict[str, Any]:
    """Trains in this process.

    Args:
        recipe: name of the recipe.
        config: the YAML, from the repository's folder.
        overrides: `section.key=value` strings.
        folder: a scratch folder.
        warm_up: steps that are not counted, at least 1.

    Returns:
        The `seconds` of the other steps together, the `losses` of all, and the memory of training, in `mib`.
    """
    from toolkit.lab.jobs.training import trained

    steps, settings = Steps(), [*STEPS_ONLY, f"output_dir={fresh(folder)}", *overrides]
    job = {"recipe": str(ROOT / "recipes" / f"{recipe}.py"), "config": str(ROOT / config), "overrides": settings}
    with trained(job, steps) as (_, result):
        measured, mib = steps.clock.steps(warm_up - 1), result.memory.train_peak / 2**20
        return {"seconds": sum(measured), "steps": len(measured), "losses": steps.losses, "mib": mib}


def recipe_side(name: str, recipe: str, config: str, overrides: Sequence[str], folder: Path, warm_up: int) -> Side:
    """Returns a side that trains a recipe, into a new output folder in every round; arguments as for `train`."""
    return calling(
        name, train, recipe=recipe, config=config, overrides=list(overrides), folder=str(folder), warm_up=warm_up
    )
