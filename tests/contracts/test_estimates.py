"""What `toolkit plan` says about split models is what processes hold and send."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from statistics import fmean

import bench_sharding
import estimate_runs
import pytest
from estimate_runs import MODELS, SHORT, STEPS, STRATEGIES
from launching import fork
from runs import ROOT, SMALL, train

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
        *(f"moe:{strategy}" for strategy in ("ddp", "expert", "fsdp-expert")),
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
        # The estimate is for one token less, and for a router that chooses all experts alike.
        assert found.sent == pytest.approx(sent, rel=0.05 if "expert" in name else 0.02), name
        for part in PARTS:
            assert getattr(found, part) == pytest.approx(max(rank[part] for rank in ranks), rel=0.1), (name, part)


@pytest.mark.parametrize("setting", ["segments", "nested_segments"])
def test_the_peak_of_segments_is_that_counted(tmp_path, setting):
    model = (*SMALL, "model.from_config={model_type: llama, vocab_size: 100, hidden_size: 64, num_hidden_layers: 32, "
             "num_attention_heads: 2, num_key_value_heads: 2, intermediate_size: 64}")  # fmt: skip
    rows = ("train.per_device_train_batch_size=16", "train.gradient_accumulation_steps=1", "train.optim=sgd")
    settings = (*model, *SHORT, *rows, f"train.activation_checkpointing={setting}", "tracking.count_memory=true")
    counted = train("language_modeling", tmp_path / "run", *settings).further["counted_peak_bytes"][0]
    task_type = load_task_type(ROOT / "recipes/language_modeling.py")
    file = ROOT / "recipes/configs/language_modeling/smoke.yaml"
    cfg = load_settings(task_type, file, [*settings, f"output_dir={tmp_path / 'new'}"]).config
    planned = simulate(subject_of(cfg, task_type(cfg)))
    assert planned.peak == pytest.approx(counted, rel=0.1)
    assert planned.passing > planned.states / 2  # what is recomputed decides


CELLS = {
    2: ("DDP", "ZeRO-2", "FSDP2", "tensor, sequence", "context", "pipeline, 1F1B"),
    4: ("HSDP", "FSDP2, tensor", "FSDP2, context", "FSDP2, pipeline", "replicas, tensor", "ZeRO-1"),
}
"""Strategies of bench_sharding.py by the number of processes."""
KINDS = [*itertools.product(("full", "none", "selective"), ("bf16", "float32"))]
"""Recomputation and precision, each for one of them."""


@pytest.mark.parametrize("processes", CELLS)
def test_peaks_of_strategies_are_those_counted(processes):
    cases = {}
    for strategy, (recomputed, precision) in zip(CELLS[processes], KINDS, strict=True):
        values = strategy, str(processes), precision, recomputed, "4"
        case = dict(zip(bench_sharding.FACTORS, values, strict=True))
        cases[", ".join(values)] = bench_sharding.settings_of(case)
    counted = bench_sharding.measured(cases, processes)
    for name, settings in cases.items():
        planned = bench_sharding.planned(settings, processes)["planned"]
        assert planned == pytest.approx(counted[name]["counted"], rel=0.1), name
