"""C1 and C4: training and metrics do not depend on the split over processes and micro-batches."""

from __future__ import annotations

import json
from pathlib import Path

import many_processes
import pytest
import reference_schedules
import torch
from launching import fork
from runs import SGD, assert_close, assert_same_weights, lines, predictions, train, weights
from small_memory import RUN as SMALL_MEMORY
from tolerances import FLOAT64, float32_tolerance

from toolkit.base.files import file_sha256
from toolkit.report.system import read_samples

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def runs(many_runs) -> Path:
    """Returns the output folders of `many_processes` on 1, 2 and 3 processes."""
    many_processes.main(many_runs, 1)
    fork([Path(many_processes.__file__), many_runs], 3)
    return many_runs


def assert_same_run(one: Path, other: Path, tolerance: float) -> None:
    assert_close(lines(one, "loss"), lines(other, "loss"), tolerance)
    left, right = weights(one), weights(other)
    assert_close({k: v.tolist() for k, v in left.items()}, {k: v.tolist() for k, v in right.items()}, tolerance)


@pytest.fixture(scope="module")
def further_runs(tmp_path_factory) -> Path:
    """Returns the output folders of the further tasks on 1, 2 and 3 processes."""
    folder = tmp_path_factory.mktemp("further")
    many_processes.train_tasks(folder, 1, many_processes.FURTHER)
    for processes in (2, 3):
        fork([Path(many_processes.__file__), folder, "further"], processes)
    return folder


@pytest.mark.parametrize("task", many_processes.TASKS)
def test_every_split_of_a_window_gives_the_same_training(runs, task):
    assert_every_split_agrees(runs, task, many_processes.C1_SPLITS)


def assert_every_split_agrees(runs: Path, task: str, expected: dict) -> None:
    splits = sorted(runs.glob(f"c1-{task}-*"))
    assert len(splits) == sum(map(len, expected.values())) > 1
    reference = runs / f"c1-{task}-1x8x1"
    # 21 rows (7 where a row gives several features) do not divide by 8: the last window of an epoch is short.
    steps = lines(reference, "loss")
    assert len(steps) >= 6
    assert steps[-1]["num_items"] < steps[0]["num_items"]
    for split in splits:
        assert_same_run(reference, split, FLOAT64)


@pytest.mark.parametrize("task", many_processes.TASKS)
def test_both_engines_do_the_same_on_two_processes(runs, task):
    assert_same_weights(runs / f"c1-{task}-2x2x2", runs / f"trainer-{task}-2")
    assert lines(runs / f"c1-{task}-2x2x2") == lines(runs / f"trainer-{task}-2")


def test_a_process_without_rows_changes_nothing(runs, tmp_path):
    alone = (*many_processes.C1_RUN, "data.max_train_samples=3", "train.per_device_train_batch_size=8",
             "train.gradient_accumulation_steps=1")  # fmt: skip
    train("reviews", tmp_path / "one", *alone, double=True)
    assert_same_run(tmp_path / "one", runs / "c1-empty-2", FLOAT64)


def test_class_weights_keep_the_equality_and_matter(runs, tmp_path):
    alone = (*many_processes.C1_RUN, "train.per_device_train_batch_size=8", "train.gradient_accumulation_steps=1")
    train("reviews", tmp_path / "balanced", *alone, "task.class_weights=balanced", double=True)
    assert_same_run(tmp_path / "balanced", runs / "weights-2", FLOAT64)
    plain = lines(runs / "c1-reviews-1x8x1", "loss")
    assert abs(lines(tmp_path / "balanced", "loss")[0]["loss"] - plain[0]["loss"]) > 1e-4


def test_schedules_do_not_know_how_many_processes_there_are(runs):
    for rank in range(2):
        rates = json.loads((runs / f"rates-2-{rank}.json").read_text())
        assert rates == {case: reference_schedules.ours(case) for case in reference_schedules.CASES}


def test_two_optimizers_in_one_and_a_plateau_are_the_same_under_both_engines(runs):
    assert_same_weights(runs / "optim-loop-2", runs / "optim-trainer-2")
    assert lines(runs / "optim-loop-2") == lines(runs / "optim-trainer-2")
    assert len({line["learning_rate"] for line in lines(runs / "optim-loop-2", "learning_rate")}) > 1


def test_masks_are_the_same_on_every_process(runs, tmp_path):
    alone = (*many_processes.C1_RUN, "train.per_device_train_batch_size=8", "train.gradient_accumulation_steps=1")
    train("language_modeling/smoke_masked", tmp_path / "one", *alone, double=True)
    assert_same_run(tmp_path / "one", runs / "masked-2", FLOAT64)


@pytest.mark.parametrize("name", many_processes.TRANSFER)
def test_adapters_and_freezing_are_the_same_on_every_process(name, runs, tmp_path):
    task, *settings = many_processes.TRANSFER[name]
    alone = ("train.per_device_train_batch_size=8", "train.gradient_accumulation_steps=1")
    train(task, tmp_path / "one", *many_processes.C1_RUN, *alone, *settings, double=True)
    # Virtual tokens stay float32 whatever the model is in.
    tolerance = float32_tolerance(steps=10) if name == "prompt" else FLOAT64
    assert_same_run(tmp_path / "one", runs / f"{name}-loop-2", tolerance)
    assert_same_weights(runs / f"{name}-loop-2", runs / f"{name}-trainer-2")
    assert lines(runs / f"{name}-loop-2") == lines(runs / f"{name}-trainer-2")


@pytest.mark.parametrize("when", ["forward", "backward"])
@pytest.mark.parametrize("engine", ["loop", "trainer"])
def test_memory_that_gives_out_on_one_process_changes_nothing(runs, when, engine, tmp_path):
    train("reviews", tmp_path / "enough", *SMALL_MEMORY, double=True)
    assert_same_run(tmp_path / "enough", runs / f"memory-{when}-{engine}-2", FLOAT64)


def test_trackers_get_the_numbers_of_several_processes_once(runs):
    assert (runs / "tracked-2" / "model" / "model.safetensors").exists()
    assert len(list((runs / "tracked-2" / "tracking").rglob("events.out.tfevents*"))) >= 1


def test_each_process_samples_itself(runs):
    sealed = json.loads((runs / "tracked-2" / "run.json").read_text())["files"]
    for rank, name in enumerate(("system.jsonl", "system-rank1.jsonl")):
        samples = read_samples(runs / "tracked-2" / name)
        assert {sample["rank"] for sample in samples} == {rank}
        assert len(samples) >= 2
        assert file_sha256(runs / "tracked-2" / name) == sealed[name]


def test_float32_agrees_to_its_own_precision(tmp_path):
    for batch, accumulation in ((8, 1), (2, 4)):
        split = (f"train.per_device_train_batch_size={batch}", f"train.gradient_accumulation_steps={accumulation}")
        for task in many_processes.TASKS:
            train(task, tmp_path / f"{task}{batch}", *many_processes.C1_RUN, *split, "train.num_train_epochs=1")
    for task in many_processes.TASKS:
        one, other = tmp_path / f"{task}8", tmp_path / f"{task}2"
        for left, right in zip(lines(one, "loss"), lines(other, "loss"), strict=True):
            tolerance = float32_tolerance(left["step"])
            assert left["loss"] == pytest.approx(right["loss"], rel=tolerance)
            assert left["grad_norm"] == pytest.approx(right["grad_norm"], rel=10 * tolerance)  # of small differences


@pytest.mark.parametrize("task", many_processes.TASKS)
def test_metrics_and_predictions_do_not_depend_on_processes_or_batch_size(runs, task):
    assert_metrics_agree(runs, task, 41, len(many_processes.C4_BATCHES) + 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "rows"), [("token_classification", 41), ("summarization", 14), ("language_modeling/smoke_chat", 14)]
)
def test_further_tasks_do_not_depend_on_processes_either(further_runs, task, rows):
    assert_every_split_agrees(further_runs, task, many_processes.FURTHER_SPLITS)
    assert_metrics_agree(further_runs, task, rows, 3)


def assert_metrics_agree(runs: Path, task: str, rows: int, expected: int) -> None:
    folders = sorted(runs.glob(f"c4-{task}-*"))
    assert len(folders) == expected
    reference = folders[0]
    assert len(predictions(reference)) == rows
    for other in folders[1:]:
        assert_close(lines(reference, "eval_loss"), lines(other, "eval_loss"), float32_tolerance())
        assert_close(predictions(reference), predictions(other), float32_tolerance())


def test_the_first_step_is_the_textbook_update(tmp_path):
    """One SGD step equals that of plain PyTorch with transformers' own loss on the whole window."""
    from runs import ROOT, TINY
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from toolkit.recipe import load_settings, load_task_type

    step = ("train.max_steps=1", "data.max_train_samples=8", "train.gradient_accumulation_steps=2",
            "train.per_device_train_batch_size=4", "train.max_grad_norm=0")  # fmt: skip
    train("reviews", tmp_path / "run", *SGD, *step, double=True)
    task_type = load_task_type(ROOT / "recipes/reviews.py")
    settings = [*TINY, *SGD, *step, f"output_dir={tmp_path / 'run'}"]
    cfg = load_settings(task_type, ROOT / "recipes/configs/reviews/smoke.yaml", settings).config
    import csv

    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run" / "model", dtype=torch.float64)
    torch.manual_seed(cfg.seed)
    fresh = AutoModelForSequenceClassification.from_config(model.config, dtype=torch.float32).double()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    with (ROOT / "recipes/data/reviews/train.csv").open() as file:
        rows = [row for row, _ in zip(csv.DictReader(file), range(8), strict=False)]
    inputs = tokenizer([row["text"] for row in rows], truncation=True, max_length=64, padding=True, return_tensors="pt")
    labels = torch.tensor([model.config.label2id[row["label"]] for row in rows])
    fresh.train()
    fresh(**inputs, labels=labels).loss.backward()
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter -= 0.5 * parameter.grad
    expected = fresh.state_dict()
    for name, value in weights(tmp_path / "run").items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=FLOAT64)
