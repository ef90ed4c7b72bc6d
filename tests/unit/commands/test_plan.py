"""`toolkit plan`: strategies, fitting settings and calibration, from the command line and as functions."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from planning_subjects import subject
from runs import ROOT

from toolkit.base.console import format_bytes
from toolkit.base.errors import InputError
from toolkit.commands.cli import main
from toolkit.config.sections import TrainConfig
from toolkit.footprint.footprint import Footprint
from toolkit.footprint.rows import stretched, with_rows
from toolkit.footprint.simulate import simulate
from toolkit.lab.plan.calibrate import Correction, Measured, fitted, serial_seconds
from toolkit.lab.plan.fit import smallest_fit
from toolkit.lab.plan.strategies import scaling, strategies
from toolkit.lab.plan.units import parse_bytes, show_flops
from toolkit.recipe import load_settings, load_task_type

RECIPE, CONFIG = ROOT / "recipes/reviews.py", ROOT / "recipes/configs/reviews/smoke.yaml"
ADAM = Footprint(
    parameters=4000, buffers=0, gradients=4000, optimizer_state=8000, copies=0, weight_copies=0, activations=900,
    logits=0, batch=0, working=0, gradients_at_peak=1000, peak=14000, step_peak=16000, trained=1000, total=1000,
    flops=10**6, recomputed=0, rows=4, layers=8, layer_parameters=500, boundary=10, crossing=70,
)  # fmt: skip


def call(capsys, *arguments: Any) -> tuple[int, str, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["plan", str(RECIPE), "--config", str(CONFIG), *map(str, arguments)])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def test_strategies_follow_their_formulas() -> None:
    train = TrainConfig(gradient_accumulation_steps=4, local_sgd_steps=8)
    found = {each.name.split(" (")[0]: each for each in strategies(ADAM, train, 4)}
    ring = 2 * 3 / 4 * 4000
    assert found["DDP"].memory == 14000 + 4000
    assert found["DDP"].sent == found["ZeRO-1"].sent == ring
    # Weights are gathered once for the window, or twice for each micro-batch; gradients are exchanged once.
    assert found["ZeRO-2"].sent == 3 / 4 * (4000 + 4000)
    assert found["FSDP / ZeRO-3"].sent == 3 / 4 * (4 * 2 * 4000 + 4000)
    assert found["local SGD"].sent == ring / 8
    # Weights and a fourth of what is shared out, and the peak of the pass or of the optimizer's step.
    assert found["ZeRO-1"].memory == 10000
    assert found["ZeRO-2"].memory == found["ZeRO-1"].memory, "gradients are accumulated"
    train = replace(train, gradient_accumulation_steps=1)
    found |= {each.name.split(" (")[0]: each for each in strategies(ADAM, train, 4) if "Ze" in each.name}
    assert found["ZeRO-2"].memory == 4000 + 2000 + (1000 + 1000 / 4)
    assert found["FSDP / ZeRO-3"].memory == 1000 + 2000 + (1000 + 1000 / 4) + 2 * 500
    assert found["tensor parallel"].sent == 2 * 3 / 4 * 4 * 70 * 4
    assert math.isclose(found["pipeline parallel"].speed, 4 * 4 / (4 + 3))
    assert [each.name for each in strategies(ADAM, train, 1)] == ["single device"]


def test_sharded_gradients_move_the_peak_to_where_the_backward_pass_begins() -> None:
    half = replace(ADAM, weight_copies=2000, activations=3000, gradients_at_peak=4000, peak=12000 + 4500)
    found = {each.name.split(" (")[0]: each for each in strategies(half, TrainConfig(), 4)}
    assert found["ZeRO-2"].memory == 4000 + 2000 + 3000 + 2000
    assert found["FSDP / ZeRO-3"].memory == 1000 + 2000 + 3000 + 2000 / 4 + 2 * 500


def test_local_sgd_sends_moments_and_keeps_anchors_where_asked() -> None:
    train = TrainConfig(local_sgd_average_moments=True, local_sgd_outer_lr=0.7, local_sgd_steps=8)
    found = {each.name.split(" (")[0]: each for each in strategies(ADAM, train, 4)}
    assert found["local SGD"].sent == 2 * 3 / 4 * (4000 + 8000) / 8
    assert found["local SGD"].memory == 16000 + 2 * 4000


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
    correction = fitted(small, large)
    assert math.isclose(correction.factor, 1.2)
    assert abs(correction.constant - 300) <= 1
    assert all(abs(correction.peak(each.footprint) - each.peak) <= 1 for each in (small, large))
    assert math.isclose(serial_seconds([small, large]), 0.5)
    # Measurements that are too near to each other tell no factor.
    near = run(490 * mib, ADAM.states, 1.0)
    assert fitted(near, large) == Correction(1.0, 100 * mib + 300)


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


def test_the_cheapest_switches_that_fit_are_found() -> None:
    planned = subject("bert", rows=8, length=48)
    task_type = load_task_type(RECIPE)

    def load(more: list[str]) -> Any:
        overrides = ["train.gradient_accumulation_steps=1", *more]
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
        "pipeline parallel",
        "It fits 600 MiB as it",
    ):
        assert words in out
    found = json.loads((tmp_path / "plan.json").read_text())
    assert found["fit"]["fits"]
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
