"""Automatic batch size: smaller passes with the same steps, saved in checkpoints and shared by all processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from runs import assert_close, assert_same_weights, lines, train, weights
from small_memory import AUTO, RUN, small_memory
from stopping import StoppedError, stopper
from tolerances import FLOAT64

import toolkit.models.build
from toolkit.base.errors import RunError
from toolkit.distributed.strategies.auto_batch_size import is_out_of_memory


def assert_same_training(one: Path, other: Path) -> None:
    left, right = weights(one), weights(other)
    assert_close(lines(one), lines(other), FLOAT64)
    assert_close({k: v.tolist() for k, v in left.items()}, {k: v.tolist() for k, v in right.items()}, FLOAT64)


@pytest.mark.fast(1)
@pytest.mark.parametrize("engine", ["loop", "trainer"])
@pytest.mark.parametrize("when", ["forward", "backward"])
def test_training_is_what_it_would_be_with_enough_memory(engine, when, tmp_path, monkeypatch, capsys):
    train("reviews", tmp_path / "enough", *RUN, double=True)
    passes = small_memory(monkeypatch, lambda: 2, when)
    train("reviews", tmp_path / "small", *RUN, AUTO, f"engine={engine}", double=True)
    assert_same_training(tmp_path / "enough", tmp_path / "small")
    assert passes[:3] == [6, 3, 2]
    assert max(passes[3:]) == 2
    told = [line for line in capsys.readouterr().out.splitlines() if "out of memory" in line]
    assert [line.split("(")[0] for line in told] == [
        "step 1: out of memory with 6 rows; splitting each micro-batch of 6 into 2 of 3 from now on ",
        "step 1: out of memory with 3 rows; splitting each micro-batch of 6 into 3 of 2 from now on ",
    ]


@pytest.mark.fast(1)
@pytest.mark.parametrize("task", ["qa", "translation", "language_modeling", "reviews/smoke_image"])
def test_every_task_s_rows_can_be_parted(task, tmp_path, monkeypatch):
    few = ("train.max_steps=3", "train.num_train_epochs=1")
    train(task, tmp_path / "enough", *RUN, *few, double=True)
    small_memory(monkeypatch, lambda: 3)
    train(task, tmp_path / "small", *RUN, *few, AUTO, double=True)
    assert_same_training(tmp_path / "enough", tmp_path / "small")


def test_memory_that_gives_out_later_and_in_the_middle_of_a_step(tmp_path, monkeypatch):
    """The second micro-batch of a step runs out of memory: the gradient of the first is discarded and recomputed."""
    train("reviews", tmp_path / "enough", *RUN, double=True)
    passes: list[int] = []
    passes = small_memory(monkeypatch, lambda: 6 if len(passes) < 6 else 3)
    train("reviews", tmp_path / "small", *RUN, AUTO, double=True)
    assert passes[:10] == [6] * 6 + [3] * 4
    assert_same_training(tmp_path / "enough", tmp_path / "small")


@pytest.mark.slow
def test_what_was_found_is_kept_and_resumed_bit_for_bit(tmp_path, monkeypatch):
    """Uses dropout and the default optimizer."""
    dropout = (*RUN, AUTO, "train.optim=adamw_torch", "train.learning_rate=1.0e-3",
               "model.config_overrides.hidden_dropout_prob=0.1")  # fmt: skip
    small_memory(monkeypatch, lambda: 3)
    built = toolkit.models.build.build_model
    train("reviews", tmp_path / "whole", *dropout)
    stop_before = stopper(monkeypatch)
    stop_before(5)
    monkeypatch.setattr(toolkit.models.build, "build_model", built)
    with pytest.raises(StoppedError):
        train("reviews", tmp_path / "parts", *dropout)
    stop_before(None)
    passes = small_memory(monkeypatch, lambda: 3)
    train("reviews", tmp_path / "parts", *dropout, "checkpoint.resume=auto", "engine=trainer")
    assert max(passes) == 3  # six rows are not tried again
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    assert lines(tmp_path / "whole") == lines(tmp_path / "parts")


BUDGET = ("train.max_tokens_per_batch=400", "train.unpadded=false")
HALF = "out of memory with train.max_tokens_per_batch 400; it is 200 from now on "


@pytest.mark.slow
def test_a_token_budget_is_halved(tmp_path, monkeypatch, capsys):
    train("reviews", tmp_path / "enough", *RUN, double=True)
    passes = small_memory(monkeypatch, lambda: 4)
    for engine in ("loop", "trainer"):
        train("reviews", tmp_path / engine, *RUN, AUTO, *BUDGET, f"engine={engine}", double=True)
        assert_same_training(tmp_path / "enough", tmp_path / engine)
    assert passes[0] > 4
    assert max(passes[1 : len(passes) // 2]) <= 4
    told = [line for line in capsys.readouterr().out.splitlines() if "out of memory" in line]
    assert [line.split("(")[0] for line in told] == [f"step 1: {HALF}"] * 2


@pytest.mark.slow
def test_a_smaller_budget_is_kept_by_a_resume_and_never_raised(tmp_path, monkeypatch, caplog):
    small_memory(monkeypatch, lambda: 4)
    built = toolkit.models.build.build_model
    train("reviews", tmp_path / "whole", *RUN, AUTO, *BUDGET)
    stop_before = stopper(monkeypatch)
    stop_before(4)
    monkeypatch.setattr(toolkit.models.build, "build_model", built)
    with pytest.raises(StoppedError):
        train("reviews", tmp_path / "parts", *RUN, AUTO, *BUDGET)
    stop_before(None)
    caplog.clear()
    small_memory(monkeypatch, lambda: 4)
    train("reviews", tmp_path / "parts", *RUN, AUTO, *BUDGET, "checkpoint.resume=auto")
    assert "out of memory" not in caplog.text
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.slow
def test_one_row_is_the_end_of_a_budget(tmp_path, monkeypatch):
    small_memory(monkeypatch, lambda: 0)
    with pytest.raises(RunError, match=r"step 1: memory does not suffice for a single row \(simulated: 1 rows\)"):
        train("reviews", tmp_path / "run", *RUN, AUTO, *BUDGET)


def test_one_row_is_the_end(tmp_path, monkeypatch):
    small_memory(monkeypatch, lambda: 0)
    with pytest.raises(RunError, match=r"step 1: memory does not suffice for a single row \(simulated: 1 rows\)"):
        train("reviews", tmp_path / "run", *RUN, AUTO)


def test_without_it_and_for_other_errors_nothing_is_tried_again(tmp_path, monkeypatch):
    small_memory(monkeypatch, lambda: 3)
    with pytest.raises(torch.OutOfMemoryError):
        train("reviews", tmp_path / "run", *RUN)
    assert not is_out_of_memory(RuntimeError("shapes differ"))
    assert is_out_of_memory(
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")
    )
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
