"""A token budget changes how a step's rows are cut into micro-batches, and no result."""

from __future__ import annotations

import json
from pathlib import Path

import budget_runs
import pytest
from budget_runs import BUDGET, ONE, RUN, STRATEGIES, TASKS
from launching import fork
from random_runs import RANDOM
from runs import assert_close, assert_same_weights, lines, predictions, train, weights
from stopping import StoppedError, stopper
from tolerances import FLOAT64

from toolkit.base.errors import CheckpointError, ConfigError

BUDGETS = {
    "reviews": 150,
    "qa": 300,
    "token_classification": 100,
    "translation": 110,
    "language_modeling": 200,
    "reviews/smoke_audio": 9000,
}
SLOW = [task for task in BUDGETS if task not in ("reviews", "translation")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Returns the output folders of `budget_runs` on two processes, and of one process without a budget."""
    folder = tmp_path_factory.mktemp("budget")
    fork([Path(budget_runs.__file__), folder], 2)
    for task in TASKS:
        train(task, folder / f"{task}-one", *budget_runs.settings_of(task), *ONE, double=True)
    layers = STRATEGIES["interleaved_1f1b"][-1]
    train("reviews", folder / "layers-one", *RUN, *ONE, layers, double=True)
    uneven = (*budget_runs.UNEVEN, budget_runs.uneven_rows(folder), "train.per_device_train_batch_size=4")
    train("reviews", folder / "uneven-one", *uneven, "train.gradient_accumulation_steps=1", double=True)
    return folder


@pytest.fixture(scope="module")
def counts(runs) -> list[dict[str, list[int]]]:
    """Returns for each process the number of micro-batches in each step of each run."""
    return [json.loads((runs / f"counts-{rank}.json").read_text()) for rank in range(2)]


def assert_same_run(one: Path, other: Path) -> None:
    assert_close(lines(one, "loss"), lines(other, "loss"), FLOAT64)
    left, right = ({name: value.tolist() for name, value in weights(run).items()} for run in (one, other))
    assert_close(left, right, FLOAT64)


@pytest.mark.distributed
@pytest.mark.parametrize("task", TASKS)
def test_two_processes_with_a_budget_train_like_one_without(runs, counts, task):
    assert_same_run(runs / f"{task}-one", runs / task)
    assert all(max(rank[task]) > 1 for rank in counts)


@pytest.mark.distributed
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_trains_with_a_budget(runs, counts, strategy):
    one = "layers-one" if strategy == "interleaved_1f1b" else "reviews-one"
    assert_same_run(runs / one, runs / strategy)
    if strategy == "interleaved_1f1b":
        assert all(count % 2 == 0 for count in counts[0][strategy])


@pytest.mark.distributed
def test_one_process_may_have_three_micro_batches_while_another_has_one(runs, counts):
    first, second = (rank["uneven"] for rank in counts)
    assert {*zip(first, second, strict=True)} == {(1, 3)}
    assert_same_run(runs / "uneven-one", runs / "uneven")
    assert_same_weights(runs / "uneven", runs / "uneven-trainer")


@pytest.mark.distributed
def test_processes_that_gather_parameters_get_stand_ins(runs, counts):
    assert [{*rank["uneven-fsdp"]} for rank in counts] == [{3}, {3}]
    assert_same_run(runs / "uneven-one", runs / "uneven-fsdp")


@pytest.mark.distributed
@pytest.mark.parametrize(("loop", "trainer"), [("reviews", "trainer"), ("local-loop", "local-trainer")])
def test_both_engines_do_the_same_on_two_processes(runs, loop, trainer):
    assert_same_weights(runs / loop, runs / trainer)
    assert lines(runs / loop) == lines(runs / trainer)


@pytest.mark.distributed
def test_a_budget_is_halved_on_all_processes_when_one_runs_out_of_memory(runs):
    assert_same_run(runs / "reviews-one", runs / "memory")


@pytest.mark.parametrize(
    "task", ["reviews", *(pytest.param(task, marks=pytest.mark.slow) for task in ("translation", *SLOW))]
)
def test_both_engines_end_with_the_same_bits_after_a_stop(task, tmp_path, monkeypatch):
    """With dropout; the run that is stopped goes on under the other engine."""
    settings = (*RANDOM[task], f"{BUDGET}={BUDGETS[task]}", "eval.eval_steps=4", "tracking.logging_steps=3")
    stop_before = stopper(monkeypatch)
    train(task, tmp_path / "loop", *settings)
    for step, engine in ((6, "trainer"), (11, "loop"), (None, "trainer")):
        stop_before(step)
        try:
            train(task, tmp_path / "parts", *settings, f"engine={engine}", "checkpoint.resume=auto")
            assert step is None
        except StoppedError:
            assert step is not None
    assert_same_weights(tmp_path / "loop", tmp_path / "parts")
    assert lines(tmp_path / "loop") == lines(tmp_path / "parts")
    assert predictions(tmp_path / "loop") == predictions(tmp_path / "parts")


@pytest.mark.slow
def test_workers_load_the_same_micro_batches(tmp_path):
    settings = (*RANDOM["reviews"], f"{BUDGET}=150", "checkpoint.save_steps=null", "train.num_train_epochs=2")
    train("reviews", tmp_path / "none", *settings)
    for engine, persistent in (("loop", "true"), ("trainer", "false")):
        train("reviews", tmp_path / engine, *settings, f"engine={engine}", "train.dataloader_num_workers=2",
              f"train.dataloader_persistent_workers={persistent}", "train.dataloader_prefetch_factor=3")  # fmt: skip
        assert_same_weights(tmp_path / "none", tmp_path / engine)
        assert lines(tmp_path / "none") == lines(tmp_path / engine)


@pytest.mark.fast(1)
@pytest.mark.parametrize("task", ["qa", "translation"])
def test_metrics_do_not_depend_on_the_budget_of_evaluation(task, tmp_path):
    settings = (*RUN, *ONE, "train.max_steps=1", "data.max_eval_samples=41", "eval.per_device_eval_batch_size=16")
    train(task, tmp_path / "none", *settings, double=True)
    train(task, tmp_path / "some", *settings, "eval.max_tokens_per_batch=150", double=True)
    assert_close(lines(tmp_path / "none", "eval_loss"), lines(tmp_path / "some", "eval_loss"), FLOAT64)
    assert_close(predictions(tmp_path / "none"), predictions(tmp_path / "some"), 1e-6)


def test_a_resume_may_change_the_budget(tmp_path, monkeypatch, caplog):
    """As it may change the micro-batches: updates stay the same, the random numbers of dropout do not."""
    settings = (*RUN, *ONE, "checkpoint.save_steps=1")
    train("reviews", tmp_path / "whole", *settings, double=True)
    stop_before = stopper(monkeypatch)
    stop_before(3)
    with pytest.raises(StoppedError):
        train("reviews", tmp_path / "parts", *settings, f"{BUDGET}=150", double=True)
    stop_before(None)
    train("reviews", tmp_path / "parts", *settings, f"{BUDGET}=300", "checkpoint.resume=auto", double=True)
    assert f"rows per data rank, cut by {BUDGET} 150; this run uses" in caplog.text
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    rows = ("train.per_device_train_batch_size=6", f"{BUDGET}=150", "checkpoint.resume=auto")
    with pytest.raises(CheckpointError, match="12 rows per step, now 6"):
        train("reviews", tmp_path / "parts", *settings, *rows, double=True)


def test_rows_beyond_a_budget_are_said_once(tmp_path, caplog):
    train("reviews", tmp_path / "run", *RUN, *ONE, f"{BUDGET}=60", "eval.max_tokens_per_batch=60", "train.max_steps=2")
    said = [record.message for record in caplog.records if "max_tokens_per_batch" in record.message]
    assert [message.split(":")[0] for message in said] == [BUDGET, "eval.max_tokens_per_batch"]
    assert " of 37 rows have more than 60 tokens (up to 64); each is a batch of its own" in said[0]


def test_images_have_no_budget(tmp_path):
    with pytest.raises(ConfigError) as refused:
        train("reviews/smoke_image", tmp_path / "run", f"{BUDGET}=60", "eval.max_tokens_per_batch=8")
    assert [problem.split("; ")[1] for problem in refused.value.problems] == [
        "set train.per_device_train_batch_size",
        "set eval.per_device_eval_batch_size",
    ]
