"""The toolkit's side of a comparison: a recipe with its YAML, timed by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairs import ROOT, Clock, Side, calling

if TYPE_CHECKING:
    from torch import nn

    from toolkit.api.task import Batch

STEPS_ONLY = ("checkpoint.save_steps=null", "eval.eval_steps=null", "data.validation_split=0")
"""Only steps: no evaluation, no checkpoints."""
NO_WASTE = {"unpadded": "true", "fast_dropout": "true"}
"""Settings of `train` that leave waste out; those that this version does not have are left out."""


def setting(name: str, value: object) -> list[str]:
    """Returns a setting of `train` as an override; nothing where this version does not have it."""
    from toolkit.config.sections import TrainConfig

    return [f"train.{name}={value}"] if name in {field.name for field in fields(TrainConfig)} else []


def no_waste(max_tokens: int | None = None) -> list[str]:
    """Returns overrides for unpadded batches, fast dropout and, if given, a token budget."""
    found = [override for name, value in NO_WASTE.items() for override in setting(name, value)]
    return found if max_tokens is None else found + setting("max_tokens_per_batch", max_tokens)


class Steps:
    """Times each step and keeps its mean loss; a `toolkit.api.run.Observer`."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.losses: list[float] = []

    def gradient(self, step: int, model: nn.Module) -> None:
        """Does nothing."""

    def step(self, step: int, batches: Sequence[Batch], record: Mapping[str, float]) -> None:
        """Notes a step."""
        self.clock.tick()
        self.losses.append(record["loss_sum"] / record["num_items"])


def train(recipe: str, config: str, overrides: Sequence[str], warm_up: int) -> dict[str, Any]:
    """Trains in this process.

    Args:
        recipe: name of the recipe.
        config: the YAML, from the repository's folder.
        overrides: `section.key=value` strings.
        warm_up: steps that are not counted.

    Returns:
        The `seconds` of the other steps together, the `losses` of all, and the memory of training, in MiB.
    """
    from toolkit.lab.training import trained

    steps = Steps()
    job = {"recipe": str(ROOT / "recipes" / f"{recipe}.py"), "config": str(ROOT / config), "overrides": overrides}
    with trained(job, steps) as (_, result):
        measured, mib = steps.clock.steps(warm_up - 1), result.memory.train_peak / 2**20
        return {"seconds": sum(measured), "steps": len(measured), "losses": steps.losses, "mib": mib}


def recipe_side(name: str, recipe: str, config: str, overrides: Sequence[str], folder: Path, warm_up: int) -> Side:
    """Returns a side that trains a recipe; its output folder is new in every round.

    Args:
        name: the side's name in the results.
        recipe: name of the recipe.
        config: the YAML, from the repository's folder.
        overrides: further `section.key=value` strings; later ones win.
        folder: a scratch folder.
        warm_up: steps that are not counted, at least 1.
    """
    place = folder / f"outputs-{name.replace(' ', '-').replace(',', '')}"
    settings = [*STEPS_ONLY, f"output_dir={place}", *overrides]
    return calling(name, train_afresh, recipe=recipe, config=config, overrides=settings, warm_up=warm_up)


def train_afresh(recipe: str, config: str, overrides: Sequence[str], warm_up: int) -> dict[str, Any]:
    """Trains as `train` does, after removing the output folder of the round before."""
    import shutil

    (place,) = (override.removeprefix("output_dir=") for override in overrides if override.startswith("output_dir="))
    shutil.rmtree(place, ignore_errors=True)
    return train(recipe, config, overrides, warm_up)
