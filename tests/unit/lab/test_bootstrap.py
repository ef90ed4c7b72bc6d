"""Bootstrapped metrics."""

from __future__ import annotations

import numpy as np
import pytest
from runs import ROOT, SIZES, TINY

from toolkit.engine import fit
from toolkit.recipe import load_settings, load_task_type
from toolkit.report import subsets
from toolkit.run import prepared_run


class EachOnce:
    """A random generator that draws every example once, in order."""

    def integers(self, count: int, size: int) -> np.ndarray:
        return np.arange(size)


@pytest.mark.fast(2)
@pytest.mark.parametrize("name", ["qa", "translation", "language_modeling", "reviews", "token_classification"])
def test_all_rows_drawn_once_give_the_metric_itself(name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    recipe, config = ROOT / f"recipes/{name}.py", ROOT / f"recipes/configs/{name}/smoke.yaml"
    task_type = load_task_type(recipe)
    settings = [*SIZES.get(name, TINY), "train.max_steps=2", f"output_dir={tmp_path / 'run'}"]
    cfg = load_settings(task_type, config, settings).config
    with prepared_run(cfg, task_type(cfg), recipe) as job:
        evaluation = fit(job).evaluations["validation"]
    metric = job.best.name.removeprefix("eval_")

    def draw(count: int) -> list[float]:
        drawn = subsets.resampled(job.task, evaluation.predictions, job.data.evals["validation"], count)
        return [metrics[metric] for metrics in drawn]

    values = draw(5)
    assert values == draw(5)
    monkeypatch.setattr(np.random, "default_rng", lambda seed: EachOnce())
    (value,) = draw(1)
    assert value == pytest.approx(evaluation.metrics[metric], rel=1e-9, abs=1e-12)
    if value:  # an untrained model may score nothing at all
        assert len(set(values)) > 1
