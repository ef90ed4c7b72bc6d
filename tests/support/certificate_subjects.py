"""The experiment that the tests of certificates share."""

from __future__ import annotations

from pathlib import Path

from runs import ROOT

from toolkit.lab.certify.trainings import Experiment
from toolkit.recipe import load_settings, load_task_type

RECIPE, CONFIG = ROOT / "recipes/reviews.py", ROOT / "recipes/configs/reviews/smoke.yaml"


def experiment(tmp_path: Path, *overrides: str, recipe: Path = RECIPE, config: Path = CONFIG) -> Experiment:
    settings = [*overrides, f"output_dir={tmp_path / 'run'}"]
    cfg = load_settings(load_task_type(recipe), config, settings).config
    return Experiment(str(recipe), str(config), settings, cfg, rows=37, kill_at=None, kill_after=1.5)
