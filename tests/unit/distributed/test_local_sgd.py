"""Local SGD: equality with synchronous training, bytes sent, stopping, resuming and failing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from local_sgd_runs import EMPTY, EXACT, LOCAL, ROWS
from runs import assert_close, assert_same_weights, lines, train, weights
from tolerances import FLOAT64, float32_tolerance

from toolkit.distributed.exchange import PIECES, SMALL_PIECE, pieces


def assert_close_weights(one: Path, other: Path, tolerance: float) -> None:
    left, right = ({name: value.tolist() for name, value in weights(run).items()} for run in (one, other))
    assert_close(left, right, tolerance)


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in lines(run, "loss")]


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("one", "other", "tolerance"),
    [
        ("local-sync", "local-1", FLOAT64),
        ("local-sync-float", "local-1-float", float32_tolerance(steps=6)),
        ("local-sync", "local-warm", FLOAT64),
        ("local-nesterov", "local-outer", FLOAT64),
    ],
)
def test_period_1_and_the_warm_up_are_synchronous_sgd(many_runs, one, other, tolerance):
    """With weight decay and momentum, either of the inner or of the outer optimizer."""
    assert_close_weights(many_runs / one, many_runs / other, tolerance)
    assert losses(many_runs / one) == pytest.approx(losses(many_runs / other), rel=tolerance)


@pytest.mark.distributed
def test_a_process_counts_by_its_items(many_runs, tmp_path):
    alone = ("train.per_device_train_batch_size=8", "train.gradient_accumulation_steps=1")
    train("reviews", tmp_path / "one", *EXACT, *EMPTY, *alone, double=True)
    assert_close_weights(tmp_path / "one", many_runs / "local-empty", FLOAT64)


@pytest.mark.distributed
def test_period_8_sends_an_eighth_and_all_ranks_are_equal_after_each_average(many_runs):
    often, seldom = (lines(many_runs / f"period-{period}", "loss") for period in (1, 8))
    parameters = sum(value.numel() * 4 for value in weights(many_runs / "period-8").values())
    # Synchronous training would send a gradient as large as the parameters in each of the 16 steps.
    assert seldom[-1]["local_sgd_bytes_sent"] == 2 * parameters == 16 * parameters / 8
    assert often[-1]["local_sgd_bytes_sent"] == 16 * parameters
    assert seldom[-1]["local_sgd_collectives"] == 2
    assert json.loads((many_runs / "averages-8.json").read_text()) == [8, 16]
    assert next(line["step"] for line in seldom if line["local_sgd_bytes_sent"]) == 8
    assert seldom[-1]["local_sgd_drift"] > often[-1]["local_sgd_drift"] > 0
    assert losses(many_runs / "period-1") != losses(many_runs / "period-8")


@pytest.mark.distributed
def test_buffers_are_averaged_and_frozen_parameters_are_not_sent(many_runs):
    """The run itself asserts that all ranks are equal and frozen parameters are unchanged."""
    assert json.loads((many_runs / "averages-buffers.json").read_text()) == [2, 3, 4, 5]
    saved = weights(many_runs / "local-buffers")
    assert saved["unused"].tolist() == [1.0, 1.0, 1.0]
    assert saved["classifier.0.num_batches_tracked"] == 10  # two micro-batches in each of five steps
    means = saved["classifier.0.running_mean"]
    assert torch.isfinite(means).all()
    assert means.abs().max() > 0
    trained = sum(v.numel() for name, v in saved.items() if not name.startswith("bert.emb") and v.is_floating_point())
    running, unused = 2 * 32, 3
    first, second, third, *_ = (line["local_sgd_bytes_sent"] for line in lines(many_runs / "local-buffers", "loss"))
    tensors = sum(not name.startswith("bert.emb") and "classifier.0.num" not in name for name in saved) - 2
    assert first == 4 * (trained + tensors)  # each rank also says which of the tensors have a gradient
    # The checkpoint of step 2 had the parameters, buffers and both moments averaged; step 3 ends the period.
    assert (second, third) == (first, first + 2 * 4 * (3 * trained - 2 * (running + unused)))


@pytest.mark.distributed
def test_engines_and_resumed_runs_end_with_the_same_bits(many_runs):
    for other in ("local-trainer", "local-parts"):
        assert_same_weights(many_runs / "local-loop", many_runs / other)
        assert lines(many_runs / "local-loop") == lines(many_runs / other)


@pytest.mark.distributed
def test_bf16_trains_to_a_like_loss(many_runs):
    assert losses(many_runs / "local-bf16") == pytest.approx(losses(many_runs / "local-loop"), rel=0.02)


@pytest.mark.distributed
@pytest.mark.parametrize("engine", ["loop", "trainer"])
def test_a_gradient_that_is_not_finite_on_one_rank_stops_all(many_runs, engine):
    messages = {(many_runs / f"nan-{engine}-{rank}").read_text() for rank in (0, 1)}
    (message,) = messages
    assert "step 3: the gradient's norm is nan" in message
    assert len(message.split("training file: ")[1].splitlines()[0].split(", ")) == 4  # that rank's part of the window
    assert not (many_runs / f"local-nan-{engine}" / "model").exists()


def test_one_process_trains_plainly_and_says_so(tmp_path, capsys):
    train("reviews", tmp_path / "plain", *ROWS, "train.max_steps=3")
    train("reviews", tmp_path / "local", *ROWS, "train.max_steps=3", LOCAL, "train.local_sgd_outer_lr=0.5")
    assert "warning: train.strategy local_sgd needs several processes" in capsys.readouterr().out
    assert_same_weights(tmp_path / "plain", tmp_path / "local")


def test_tensors_travel_in_few_pieces():
    many = [torch.empty(SMALL_PIECE // 3, device="meta") for _ in range(40)]
    cut = list(pieces([*many, torch.empty(7, dtype=torch.bfloat16, device="meta")]))
    assert len(cut) <= PIECES + 2
    assert sum(len(piece) for piece in cut) == 41
    assert [len(piece) for piece in pieces(many[:2])] == [2]
    assert list(pieces([])) == []
