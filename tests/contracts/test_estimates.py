"""What `toolkit plan` says about split models is what processes hold and send."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import estimate_runs
import pytest
from estimate_runs import MODELS, SHORT, STEPS, STRATEGIES
from launching import fork
from runs import ROOT

from toolkit.footprint.simulate import simulate
from toolkit.lab.plan.estimates import Estimate, estimated
from toolkit.lab.plan.subject import subject_of
from toolkit.recipe import load_settings, load_task_type

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

ALL = {
    2: [
        *(f"llama:{strategy}" for strategy in (
            "ddp", "local_sgd", "zero1", "zero2", "fsdp", "tensor", "recomputed", "gpipe", "1f1b")),
        *(f"{model}:{strategy}" for model in ("bert", "gpt2", "vit") for strategy in ("fsdp", "tensor", "1f1b")),
    ],
    4: [f"llama:{strategy}" for strategy in (
        "ddp", "zero1", "hsdp", "replicas-tensor", "fsdp-tensor", "replicas-pipeline", "tensor-pipeline")],
    8: ["llama:replicas-tensor-pipeline"],
}  # fmt: skip
"""Runs by the number of processes."""
PARTS = ("parameters", "gradients", "optimizer_state")


def estimate(name: str, processes: int, folder: Path) -> Estimate:
    model, _, strategy = name.partition(":")
    config, sizes = MODELS[model]
    recipe, _, yaml = config.partition("/")
    task_type = load_task_type(ROOT / f"recipes/{recipe}.py")
    file = ROOT / f"recipes/configs/{recipe}/{yaml or 'smoke'}.yaml"
    settings = [*sizes, *SHORT, *STRATEGIES[strategy], f"output_dir={folder}"]
    cfg = load_settings(task_type, file, settings).config
    return estimated(simulate(subject_of(cfg, task_type(cfg))), cfg, processes)


@pytest.mark.parametrize("processes", ALL)
def test_bytes_are_those_counted_and_memory_is_that_held(tmp_path, processes):
    fork([Path(estimate_runs.__file__), tmp_path / "counted.json", *ALL[processes]], processes)
    counted = json.loads((tmp_path / "counted.json").read_text())
    for name in ALL[processes]:
        found, ranks = estimate(name, processes, tmp_path), counted[name]
        sent = fmean(rank["exchange_bytes"] for rank in ranks) / STEPS
        assert found.sent == pytest.approx(sent, rel=0.02), name  # the estimate is for one token less
        for part in PARTS:
            assert getattr(found, part) == pytest.approx(max(rank[part] for rank in ranks), rel=0.1), (name, part)
