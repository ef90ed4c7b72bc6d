"""`toolkit plan`: strategies, fitting settings and calibration, from the command line and as functions."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from planning_subjects import settings, subject
from runs import ROOT

from toolkit.api.batch import IGNORE_INDEX
from toolkit.base.console import format_bytes
from toolkit.base.errors import ConfigError, InputError
from toolkit.commands.cli import main
from toolkit.config.keys import with_values
from toolkit.config.sections import ModelConfig, ParallelConfig
from toolkit.footprint.predict import stretched, with_rows
from toolkit.footprint.simulate import Footprint, simulate
from toolkit.lab.plan import report
from toolkit.lab.plan.estimates import Estimate, estimated, scaling
from toolkit.lab.plan.fit import Planner, fitting_splits, smallest_fit
from toolkit.lab.plan.measure import Correction, Measured, fitted, serial_seconds
from toolkit.lab.plan.report import parse_bytes, show_flops
from toolkit.recipe import load_settings, load_task_type
from toolkit.tasks.tokens import labelled_positions

pytestmark = pytest.mark.usefixtures("forked_trials")

RECIPE, CONFIG = ROOT / "recipes/reviews.py", ROOT / "recipes/configs/reviews/smoke.yaml"
ADAM = Footprint(
    parameters=4000, buffers=0, gradients=4000, optimizer_state=8000, copies=0, weight_copies=0, activations=900,
    logits=0, batch=0, working=0, peak=14000, step_peak=16000, trained=1000, total=1000,
    flops=10**6, recomputed=0, rows=4, layers=8, layer_parameters=500, in_layers=4000, boundary=10, crossing=70,
    phases=({"parameters": 4000, "gradients": 1000, "activations": 900, "working": 100},),
)  # fmt: skip


def call(capsys, *arguments: Any) -> tuple[int, str, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["plan", str(RECIPE), "--config", str(CONFIG), *map(str, arguments)])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


LAYERS = {"stage_layers": (500,) * 6, "stage_costs": (5,) * 6, "stage_front": 800, "stage_back": 400}
"""Weights of a model with six layers, whose embeddings are tied: 200 of 800 bytes are those of the last stage too."""


def costs(f: Footprint, processes: int = 4, window: int = 4, parallel: Any = None, **train: Any) -> Estimate:
    cfg = settings(gradient_accumulation_steps=window, **train)
    return estimated(f, replace(cfg, parallel=ParallelConfig(**(parallel or {}))), processes)


def test_replicas_follow_their_formulas() -> None:
    ring = 2 * 3 / 4 * 4000
    assert (costs(ADAM).peak, costs(ADAM).sent, costs(ADAM).speed) == (16000 + 4000, ring, 4)
    assert costs(ADAM).parameters == costs(ADAM).gradients == 4000
    local = costs(ADAM, strategy="local_sgd", local_sgd_steps=8)
    assert (local.peak, local.sent) == (costs(ADAM).peak - 4000, ring / 8)
    # Owners send the weights that they update. The peak is that of the optimizer's step, and the gradients' buckets.
    one = costs(ADAM, parallel={"zero_stage": 1})
    assert (one.sent, one.optimizer_state, one.peak) == (ring + 3 / 4 * 4000, 2000, 10000 + 4000)
    assert costs(replace(ADAM, largest=1600), parallel={"zero_stage": 1}).optimizer_state == 8000 * 1600 / 4000
    assert costs(replace(ADAM, buffers=80)).sent == ring + 3 / 4 * 80


def test_local_sgd_sends_moments_and_keeps_anchors_where_asked() -> None:
    train = {"local_sgd_average_moments": True, "local_sgd_outer_lr": 0.7, "local_sgd_steps": 8}
    found = costs(ADAM, strategy="local_sgd", **train)
    assert found.sent == 2 * 3 / 4 * (4000 + 8000) / 8
    assert found.peak == costs(ADAM, strategy="local_sgd").peak + 2 * 4000


def test_shards_follow_their_formulas() -> None:
    # Weights are gathered once for the window, or twice for each micro-batch; gradients are exchanged after each.
    zero2, fsdp, by_window = {"zero_stage": 2}, {"fsdp": 4}, {"gradient_sync": "window"}
    assert costs(ADAM, parallel=zero2).sent == 3 / 4 * (4000 + 4 * 4000)
    assert costs(ADAM, parallel=fsdp).sent == 3 / 4 * (4 * 2 * 4000 + 4 * 4000)
    assert costs(ADAM, parallel=fsdp | by_window).sent == 3 / 4 * (4 * 2 * 4000 + 4000)
    assert costs(ADAM, parallel=fsdp, mixed_precision="bf16").sent == 3 / 4 * (4 * 4000 + 4 * 4000)
    assert costs(ADAM, parallel=fsdp | {"reshard_after_forward": False}) == costs(ADAM, parallel=zero2)
    shards = costs(ADAM, parallel=fsdp)
    assert (shards.parameters, shards.gradients, shards.optimizer_state) == (1000, 1000, 2000)
    # A quarter of weights, state and gradients, activations, and what is gathered: all weights, or layers, of which one
    # has ended its backward pass.
    left = 900 * 7 / 8
    layers = (4 + 1 / 4) * 500
    assert costs(ADAM, window=1, parallel=zero2).peak == 1000 + 2000 + 250 + 900 + 4000
    assert costs(ADAM, window=1, parallel=fsdp).peak == round(1000 + 2000 + 250 + left) + layers
    # Those of earlier micro-batches are there at the peak of the last one.
    last = replace(ADAM, phases=({"gradients": 4000, "activations": 900, "working": 100},))
    shards = costs(last, parallel=fsdp)
    assert shards.peak == round(1000 + 2000 + 1000 + left) + layers
    complete = costs(last, parallel=fsdp | by_window).peak
    assert complete == round(1000 + 2000 + 4000 + left) + layers - 500, "complete gradients, and none that is sent"
    assert costs(last, parallel=fsdp, mixed_precision="bf16").peak == shards.peak - 1.5 * 500
    again = replace(last, recomputed=10, largest=30)  # whose gradient is beside the layers that are gathered
    full = {"activation_checkpointing": "full"}
    assert costs(again, parallel=fsdp, **full).peak == 1000 + 2000 + 1000 + 900 + layers + 100 - 30
    wide = replace(last, layers=2, in_layers=1000)  # and 3,000 bytes that are in no layer
    assert costs(wide, parallel=fsdp, mixed_precision="bf16").peak == 1000 + 2000 + 1000 + 450 + 4000, "all weights"
    hybrid = costs(ADAM, parallel={"replicas": 2, "fsdp": 2})
    assert hybrid.sent == 1 / 2 * (4 * 2 * 4000 + 4 * 4000) + 2 * 1 / 2 * 4000 / 2
    # On the device: gathered layers, activations, and the gradients that are accumulated.
    offloaded = costs(last, parallel=fsdp | {"offload": True})
    assert (offloaded.states, offloaded.parameters) == (0, 1000)
    assert costs(ADAM, window=1, parallel=fsdp | {"offload": True}).peak < offloaded.peak < shards.peak
    # A weight with one row is held by one process, and padded in collectives.
    rows = costs(replace(ADAM, single_rows=400), parallel=zero2)
    assert (rows.parameters, rows.sent) == (3600 / 4 + 400, 3 / 4 * (3600 + 4 * 400) * 5)


def test_sharded_gradients_move_the_peak_to_where_the_backward_pass_begins() -> None:
    half = replace(ADAM, weight_copies=2000, activations=3070, peak=12000 + 4500)
    found = costs(half, window=1, parallel={"fsdp": 4}, mixed_precision="bf16")
    assert found.peak == round(1000 + 2000 + 3070 * 7 / 8) + (2.5 + 1 / 4) * 500
    split = costs(replace(half, tensor_parameters=4000), window=1, parallel={"tensor": 4})
    assert split.peak == 1000 + 2000 + (70 + 3000 / 4 + 2000 / 4), "and those of a split layer are split"


def test_split_layers_follow_their_formulas() -> None:
    f = replace(ADAM, tensor_parameters=3000, tensor_summed=90)
    found = costs(f, parallel={"tensor": 4})
    assert (found.parameters, found.sent) == (1000 + 3000 / 4, 2 * 3 / 4 * 90 * 4)
    mixed = costs(f, parallel={"replicas": 2, "tensor": 2})
    assert mixed.sent == 90 * 4 + 2 * 1 / 2 * (1000 + 3000 / 2)


def test_stages_follow_their_formulas() -> None:
    f = replace(ADAM, **LAYERS)
    found = costs(f, 2, parallel={"pipeline": 2})
    assert found.parameters == max(800 + 1500, 1500 + 400)
    assert found.sent == 10 * 4 + 200, "the mean of two processes: one sends forward, the other one backward"
    assert math.isclose(costs(f, 3, parallel={"pipeline": 3}).speed, 3 * 4 / (4 + 2))
    high = replace(f, phases=({"activations": 900, "working": 30000},))
    early, late = (costs(high, 2, parallel={"pipeline": 2, "schedule": name}).peak for name in ("1f1b", "gpipe"))
    assert late - early == 900 * (4 - 2) / 2, "activations of four micro-batches, and not of two"
    chunks = costs(f, 2, parallel={"pipeline": 2, "schedule": "interleaved_1f1b"})
    assert chunks.sent == 3 * 10 * 4 + 200
    assert math.isclose(chunks.speed, 2 * 8 / (8 + 1))
    cube = replace(f, tensor_parameters=1200, tensor_summed=90)
    found = costs(cube, 8, parallel={"tensor": 2, "pipeline": 2})
    assert found.parameters == 800 + (3000 - 600) / 2
    stages = (4000 + 200 - 600) / 2
    assert found.sent == 10 * 4 + 200 + 90 * 4 / 2 + 2 * 1 / 2 * stages


SIX = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 4, "vocab_size": 400}


def test_splits_that_fit_are_sorted_by_time() -> None:
    planned = subject("bert", rows=2, gradient_accumulation_steps=2)
    planned.config.update({name: SIX[name] for name in ("num_hidden_layers", "num_attention_heads")})
    planner = Planner(planned, 8, loaded)
    splits = [*planner.splits(), *planner.splits(offloaded=True)]
    found = fitting_splits([((), splits)], 10**9, lambda each: each.memory)
    assert {"DDP", "ZeRO-1", "FSDP2 (ZeRO-3)", "FSDP2, offload", "HSDP", "2D", "3D"} <= {
        split.name for split in found.fitting
    }
    plain = [split for split in found.fitting if "offload" not in split.name]
    assert found.fitting[: len(plain)] == plain
    assert [split.seconds for split in plain] == sorted(split.seconds for split in plain)
    for split in plain:
        assert math.prod(split.sizes.values()) == 8
        stages, ranks = split.sizes["pipeline"], split.sizes["replicas"] * split.sizes["fsdp"]
        window = 32 // ranks // 2  # micro-batches of two rows: the rows of a step stay the same
        assert split.waiting == pytest.approx((stages - 1) / (window + stages - 1))
    assert found.smallest.memory == min(split.memory for split in found.fitting)
    few = fitting_splits([((), splits)], found.smallest.memory, lambda each: each.memory)
    assert {split.memory for split in few.fitting} == {found.smallest.memory}
    none = fitting_splits([((), splits), (("train.mixed_precision=bf16",), splits)], 1, lambda each: each.memory)
    assert not none.fitting
    assert "No split over 8 devices of 1 B" in next(report.split_blocks(none, 8, 1)).text
    choices = [((), splits), (("train.optim=adafactor",), [replace(splits[-1], memory=0)])]
    (blocks, table) = list(report.split_blocks(fitting_splits(choices, 1, lambda each: each.memory), 8, 1))[:2]
    assert "these do with train.optim=adafactor" in blocks.text
    assert len(table.rows) == 1


@pytest.mark.slow
def test_strategies_have_the_fastest_hybrid_and_3d_split() -> None:
    planned = subject("bert", rows=2, gradient_accumulation_steps=2)
    planned.config.update({name: SIX[name] for name in ("num_hidden_layers", "num_attention_heads")})
    planner = Planner(planned, 8, loaded)
    splits = planner.splits()
    found, refused = planner.strategies(splits)
    for name in ("HSDP", "3D"):
        (row,) = (each for each in found if each.name == name)
        assert row.seconds == min(split.seconds for split in splits if split.name == name)
    assert "needs at least 8 layers" in refused["pipeline, 1F1B"]


def loaded(overrides: Sequence[str]) -> Any:
    """Returns a configuration of a BERT, and refuses what the rules refuse."""
    named = dict(text.split("=") for text in overrides)
    if "parallel.fsdp" in named and "parallel.pipeline" in named:
        raise ConfigError(["refused"])
    cfg = settings(gradient_accumulation_steps=2, per_device_train_batch_size=2)
    cfg = replace(cfg, model=ModelConfig(from_config=SIX))
    return with_values(cfg, overrides)


@pytest.mark.fast(1)
@pytest.mark.parametrize("switches", [
    {}, {"mixed_precision": "bf16", "activation_checkpointing": "full"}, {"activation_checkpointing": "selective"},
    {"optim": "adafactor", "gradient_accumulation_steps": 2},
])  # fmt: skip
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_few_layers_say_what_many_need(kind, switches, monkeypatch) -> None:
    planned = subject(kind, rows=2, **switches)
    planned.config.num_hidden_layers = 17
    found = asdict(simulate(planned))
    monkeypatch.setattr("toolkit.footprint.simulate.DEEP", 17)
    whole = asdict(simulate(planned))
    assert found["stage_layers"] == whole["stage_layers"]
    assert found["stage_costs"] == whole["stage_costs"]
    for name in ("peak", "step_peak", "activations", "parameters", "optimizer_state", "flops", "recomputed", "working"):
        assert found[name] == pytest.approx(whole[name], rel=1e-3), name


@pytest.mark.slow
def test_layers_that_differ_are_all_simulated(monkeypatch) -> None:
    planned = subject("llama", rows=2)
    planned.config.num_hidden_layers = 14
    planned.config.layer_types = ["full_attention"] * 13 + ["sliding_attention"]
    asked = []
    monkeypatch.setattr("toolkit.footprint.simulate._shallow", lambda *given: asked.append(given))
    assert simulate(planned).layers == 14
    assert not asked


def test_scaling_is_that_of_amdahl_and_gustafson() -> None:
    instant = {each.processes: each for each in scaling(10.0, 2.0, 100, math.inf, 6)}
    assert list(instant) == [1, 2, 4, 6]
    assert instant[1].amdahl == instant[1].gustafson == 1.0
    assert math.isclose(instant[4].amdahl, 1 / (0.2 + 0.8 / 4))
    assert math.isclose(instant[4].gustafson, 0.2 + 4 * 0.8)
    slow = scaling(10.0, 0.0, 100, 10.0, 2)[-1]
    assert math.isclose(slow.amdahl, 10 / (5 + 10))
    assert math.isclose(slow.gustafson, 20 / 20)


def test_a_correction_explains_both_measurements() -> None:
    def run(passing: int, peak: int, seconds: float) -> Measured:
        footprint = replace(ADAM, peak=ADAM.states + passing, flops=passing)
        return Measured(footprint, 4000, 4000, 8000, peak, seconds, "cpu")

    mib = 2**20
    small = run(100 * mib, ADAM.states + 120 * mib + 300, 1.0)
    large = run(500 * mib, ADAM.states + 600 * mib + 300, 3.0)
    correction = fitted((small.peak, small.footprint), (large.peak, large.footprint))
    assert math.isclose(correction.factor, 1.2)
    assert abs(correction.constant - 300) <= 1
    assert all(abs(correction.peak(each.footprint) - each.peak) <= 1 for each in (small, large))
    assert math.isclose(serial_seconds([small, large]), 0.5)
    # Measurements that are too near to each other tell no factor.
    near = run(490 * mib, ADAM.states, 1.0)
    assert fitted((near.peak, near.footprint), (large.peak, large.footprint)) == Correction(1.0, 100 * mib + 300)


def test_batches_are_stretched_where_they_are_long() -> None:
    def batch(source: int, target: int) -> dict[str, Any]:
        tensor = torch.arange(2 * source).view(2, source)
        return {"inputs": {"input_ids": tensor, "decoder_input_ids": torch.ones(2, target)},
                "labels": torch.ones(2, target), "row_ids": torch.arange(2), "start": None}  # fmt: skip

    long = stretched(batch(3, 4), batch(2, 1), 7, 5)
    assert long["inputs"]["input_ids"][0].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert long["inputs"]["decoder_input_ids"].shape == long["labels"].shape == (2, 5)
    assert with_rows(long, 5)["inputs"]["input_ids"].shape == (5, 7)
    assert with_rows(long, 1)["row_ids"].tolist() == [0]


def test_labelled_positions_are_those_of_the_resized_labels() -> None:
    def batch(length: int) -> dict[str, Any]:
        labels = torch.full((2, length), IGNORE_INDEX).index_fill(1, torch.tensor([0]), 5)
        return {"inputs": {"input_ids": torch.ones(2, length)}, "labels": labels, "row_ids": torch.arange(2),
                "labelled": labelled_positions(labels)}  # fmt: skip

    long = stretched(batch(3), batch(2), 6, None)
    assert long["labelled"].tolist() == [0, 3, 6, 9]
    assert with_rows(long, 1)["labelled"].tolist() == [0, 3]
    assert with_rows(long, 3)["labelled"].tolist() == [0, 3, 6, 9, 12, 15]


@pytest.mark.slow
def test_the_cheapest_switches_that_fit_are_found() -> None:
    planned = subject("bert", rows=8, length=48)
    task_type = load_task_type(RECIPE)

    def load(more: list[str]) -> Any:
        overrides = ["train.global_batch_size=8", *more]
        cfg = load_settings(task_type, CONFIG, overrides, check_files=False).config
        return replace(planned.cfg, train=cfg.train)

    def peak(found: Footprint) -> int:
        return found.peak

    whole = simulate(planned)
    same, fits = smallest_fit(planned, load, whole.peak, peak)
    assert (same.overrides, fits) == ((), True)
    fit, fits = smallest_fit(planned, load, whole.peak - 1, peak)
    assert fits
    assert fit.overrides == ("train.per_device_train_batch_size=4", "train.gradient_accumulation_steps=2")
    assert fit.footprint.peak < whole.peak


@pytest.mark.slow
def test_a_smaller_budget_is_found_where_there_is_one() -> None:
    planned = replace(subject("bert", rows=8, length=48, max_tokens_per_batch=400), longest=48)
    assert planned.window == 1

    def load(more: list[str]) -> Any:
        tokens = int(next((text.partition("=")[2] for text in more if "tokens" in text), 400))
        return replace(planned.cfg, train=replace(planned.cfg.train, max_tokens_per_batch=tokens))

    def peak(found: Footprint) -> int:
        return found.peak

    fit, fits = smallest_fit(planned, load, simulate(planned).peak - 1, peak)
    assert fits
    assert (fit.overrides, fit.footprint.rows) == (("train.max_tokens_per_batch=192",), 4)


@pytest.mark.slow
def test_a_budget_decides_about_the_rows_and_the_micro_batches_of_the_plan(capsys, tmp_path) -> None:
    for budget, rows, window in ((64 * 5 + 1, 5, 4), (10, 1, 16), (10**6, 16, 1)):
        code, out, err = call(capsys, f"train.max_tokens_per_batch={budget}", "--output", tmp_path / f"{budget}.json")
        assert code == 0, err
        assert f"micro-batches of {rows} rows (input_ids 64), {window} in a step" in out
        assert json.loads((tmp_path / f"{budget}.json").read_text())["footprint"]["rows"] == rows


def test_if_nothing_fits_the_nearest_is_named(monkeypatch) -> None:
    monkeypatch.setattr("toolkit.lab.plan.fit.SWITCHES", (((1.0, "train.activation_checkpointing=full"),),))
    planned = subject("bert", rows=2)

    def load(more: list[str]) -> Any:
        return replace(planned.cfg, train=replace(planned.cfg.train, per_device_train_batch_size=1))

    fit, fits = smallest_fit(planned, load, 1000, lambda found: found.peak)
    assert not fits
    assert fit.footprint.rows == 1


def test_the_command_says_it_in_80_columns(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    code, out, err = call(capsys, "--processes", 4, "--gpu-memory", "600MiB", "--output", tmp_path / "plan.json")
    assert code == 0, err
    assert max(map(len, out.splitlines()[:-1])) <= 80  # the last names a file
    for words in (
        "optimizer state (adamw_torch_fused)",
        "peak of a step",
        "FSDP2 (ZeRO-3)",
        "needs at least 4 layers",
        "Splits that fit 4 x 600 MiB",
        "Settings of the first:",
    ):
        assert words in out
    found = json.loads((tmp_path / "plan.json").read_text())
    assert found["splits"]["fitting"]
    assert found["footprint"]["rows"] == 8
    assert "inputs of this task" not in out


def test_lengths_and_wrong_options(capsys, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    code, out, _ = call(capsys, "--length", 16)
    assert (code, "input_ids 16" in out) == (0, True)
    for arguments, words in (
        (("--length", 65), "has 64 positions"),
        (("--gpu-memory", "big"), "--gpu-memory: received 'big'"),
        (("--processes", 0), "--processes: received 0, must be a whole number of at least 1"),
        (("--bandwidth", "1GB/s"), "no effect without --calibrate"),
        (("--output", "nowhere/plan.json"), "there is no folder"),
    ):
        code, _, err = call(capsys, *arguments)
        assert (code, words in err) == (2, True), err


def test_units_are_read_and_written() -> None:
    assert [parse_bytes(text, "--x") for text in ("16GiB", "1.5 kB")] == [16 * 2**30, 1500]
    assert [format_bytes(size) for size in (12, 2**20, 150 * 2**30)] == ["12 B", "1 MiB", "150 GiB"]
    assert show_flops(2.5e9) == "2.5 GFLOP"
    for text in ("16", "GiB", "0GiB", "-1GiB", "1ib"):
        with pytest.raises(InputError, match="--x"):
            parse_bytes(text, "--x")
    assert parse_bytes("25GB/s", "--bandwidth") == 25 * 10**9
    for text in ("25Gb/s", "25GB"):
        with pytest.raises(InputError, match="bytes: a network of 200 Gbit/s"):
            parse_bytes(text, "--bandwidth")


@pytest.mark.slow
def test_calibration_measures_and_corrects(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(ROOT)
    code, out, err = call(capsys, "--calibrate", "--processes", 2, "--output", tmp_path / "plan.json")
    assert code == 0, err
    found = json.loads((tmp_path / "plan.json").read_text())
    assert [run["rows"] for run in found["calibration"]["measured"]] == [2, 8]
    assert all(run["seconds"] > 0 and run["peak"] > 0 for run in found["calibration"]["measured"])
    assert found["scaling"]["bytes_per_second"] > 0
    assert "Amdahl" in out
