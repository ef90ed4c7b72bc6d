"""Certificates pass if promises hold, and otherwise report the right cause."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from certificate_subjects import CONFIG, RECIPE, experiment
from runs import ROOT, TINY
from safetensors.torch import save_file

from toolkit.base.errors import ConfigError
from toolkit.base.files import write_json
from toolkit.commands.cli import main
from toolkit.commands.runs import NAMES
from toolkit.config.keys import written
from toolkit.lab.certify import load_promises as promises
from toolkit.lab.certify import promises as engines
from toolkit.lab.certify import promises as loss_scale
from toolkit.lab.certify import promises as ranks
from toolkit.lab.certify import promises as resume
from toolkit.lab.certify.certificate import FAILED, OK, OPEN, Certificates
from toolkit.lab.certify.strategy import strategies_of
from toolkit.lab.certify.trainings import Experiment, Training, check_trainings, outcome_file
from toolkit.lab.jobs.jobs import Launch
from toolkit.lab.tool import Request
from toolkit.recipe import load_settings, load_task_type
from toolkit.report.runs import folder_of
from toolkit.report.sections import state_of

pytestmark = pytest.mark.usefixtures("forked_trials")

SMOKES = sorted((ROOT / "recipes/configs").glob("*/smoke*.yaml"))
STEPS = 4


# What the judges make of what runs left behind, written here by hand


def step(number: int, **changes) -> dict:
    rows = [[number, number + 10], [number + 20]]
    return {"step": number, "rows": rows, "learning_rate": 0.1 / number, "num_items": 3.0, "random": "ab",
            "loss_sum": 1.5, "grad_norm": 0.5, **changes}  # fmt: skip


def write_trace(folder: Path, job: str, steps: list[dict], rank: int = 0) -> None:
    trace = folder / "traces" / job
    trace.mkdir(parents=True, exist_ok=True)
    (trace / f"rank-{rank}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in steps))
    for file in ("model/model", *(f"checkpoints/step-{STEPS}/{name}" for name in ("model", "optimizer"))):
        path = folder / job / f"{file}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({"weight": torch.ones(2)}, path)


@pytest.fixture
def engine_runs(tmp_path) -> Path:
    for engine in ("loop", "trainer"):
        write_trace(tmp_path, f"{engine}-1", [step(n) for n in range(1, STEPS + 1)])
        for rank in (0, 1):
            write_trace(
                tmp_path, f"{engine}-2", [step(n, rows=[step(n)["rows"][rank]]) for n in range(1, STEPS + 1)], rank
            )
    return tmp_path


def test_engines_that_agree_are_certified(engine_runs):
    assert engines.engines_judge(engine_runs, None).verdict == OK


@pytest.mark.parametrize(
    ("job", "changes", "finger"),
    [
        ("trainer-1", {"rows": [[9]]}, "loop against trainer on one process: step 3: rows .* the order of the rows"),
        ("trainer-1", {"loss_sum": 2.0, "grad_norm": 1.0}, "step 3: loss sum 1.5 against 2.0: the loss"),
        ("trainer-1", {"random": "cd"}, "something draws from the global random numbers"),
        ("loop-1", {"learning_rate": 0.5}, "one process against two, step 3: .* stepped once per process"),
    ],
)
def test_engines_that_differ_are_told_apart_by_the_first_cause(engine_runs, job, changes, finger):
    jobs = ["loop-1", "trainer-1"] if job == "loop-1" else [job]
    for name in jobs:
        steps = [step(n, **(changes if n >= 3 else {})) for n in range(1, STEPS + 1)]
        write_trace(engine_runs, name, steps)
    found = engines.engines_judge(engine_runs, None)
    assert found.verdict == FAILED
    (problem,) = found.problems
    assert re.search(finger, problem), problem


def test_parameters_that_differ_in_the_end_are_named(engine_runs):
    save_file(
        {"weight": torch.tensor([1.0, 1.25])}, engine_runs / f"trainer-2/checkpoints/step-{STEPS}/model.safetensors"
    )
    (problem,) = engines.engines_judge(engine_runs, None).problems
    assert problem.endswith("model.safetensors: weight differs by up to 0.25")


def resumed(folder: Path, *steps: dict, before: int = 3) -> Path:
    write_trace(folder, "loop-1", [step(n) for n in range(1, STEPS + 1)])
    write_trace(folder, "killed", [step(n) for n in range(1, before + 1)])
    write_trace(folder, "resumed", list(steps))
    return folder


def test_a_resume_is_certified_or_its_first_wrong_step_named(tmp_path):
    assert resume.resume_judge(resumed(tmp_path, step(3), step(4)), None).verdict == OK
    found = resume.resume_judge(resumed(tmp_path, step(3, rows=[[1, 2]]), step(4)), None)
    assert found.verdict == FAILED
    assert found.problems[0].startswith("after the resume at step 2: step 3: rows")
    missing = resume.resume_judge(resumed(tmp_path, step(3)), None)
    assert "2 steps against 1: one of them ended early" in missing.problems[0]
    begun = resume.resume_judge(resumed(tmp_path, *(step(n) for n in range(1, 5)), before=1), None)
    assert begun.verdict == OPEN
    assert "before its first checkpoint" in begun.problems[0]


def test_an_optimizer_that_was_not_restored_is_named(tmp_path):
    folder = resumed(tmp_path, step(3), step(4))
    save_file({"weight": torch.zeros(2)}, folder / f"killed/checkpoints/step-{STEPS}/optimizer.safetensors")
    (problem,) = resume.resume_judge(folder, None).problems
    assert "optimizer.safetensors: weight differs by up to 1" in problem


def write_gradients(folder: Path, job: str, *gradients: list[float]) -> None:
    (folder / job).mkdir(exist_ok=True)
    trace = folder / "traces" / job
    trace.mkdir(parents=True, exist_ok=True)
    for number, gradient in enumerate(gradients, start=1):
        np.savez(trace / f"gradient-{number}.npz", sample=np.array(gradient), norm=np.linalg.norm(gradient))
    (trace / loss_scale.DEPENDENCE).write_text("[]")


@pytest.fixture
def splits(tmp_path) -> Path:
    for training in loss_scale.loss_scale_trainings(experiment(tmp_path)):
        scale = 4.0 if training.name == "plain-2x4" else 1.0
        write_gradients(tmp_path, training.name, [scale, 2 * scale], [3.0, 1.0])
    return tmp_path


def test_equal_updates_are_certified_beside_the_plain_trainer_s(splits, tmp_path):
    found = loss_scale.loss_scale_judge(splits, experiment(tmp_path))
    assert found.verdict == OK
    assert found.figures["2x4"] == {"ratio": 1.0, "cosine": pytest.approx(1.0), "windows": 2}
    assert found.figures["transformers.Trainer 2x4"]["ratio"] == pytest.approx(4.0)


def test_an_update_of_another_size_or_direction_is_not(splits, tmp_path):
    write_gradients(splits, "split-4x2", [1.0, 2.0], [3.0, 1.5])
    found = loss_scale.loss_scale_judge(splits, experiment(tmp_path))
    assert found.verdict == FAILED
    (problem,) = found.problems
    assert problem.startswith("4x2 against 8x1: in 1 of 2 windows the update differs: ratio 1.061, cosine 0.98")
    (splits / "traces" / "split-8x1" / loss_scale.DEPENDENCE).write_text('["batch normalisation"]')
    open_ = loss_scale.loss_scale_judge(splits, experiment(tmp_path))
    assert (open_.verdict, open_.problems) == (OPEN, ["this model depends on the batch: batch normalisation"])


def write_evaluation(folder: Path, processes: int, rows: list[float], accuracy: float = 0.5) -> None:
    run = folder / f"ranks-{processes}"
    run.mkdir(exist_ok=True)
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "eval_loss": 1.0, "eval_accuracy": accuracy}) + "\n")
    (run / "predictions.jsonl").write_text(
        "".join(json.dumps({"text": "x", "scores": {"a": row}}) + "\n" for row in rows)
    )


@pytest.mark.parametrize(
    ("rows", "accuracy", "finger"),
    [
        ([0.1, 0.2, 0.3000001], 0.5, None),
        ([0.2, 0.1, 0.3], 0.5, "2 of 3 rows have other predictions, first row 1: the same predictions are"),
        ([0.1, 0.1, 0.3], 0.5, "1 of 3 rows have other predictions, first row 2: some rows were lost"),
        ([0.1, 0.2], 0.5, "predicted 2 rows instead of 3"),
        ([0.1, 0.2, 0.3], 0.6, "the same predictions, but eval_accuracy is 0.6 instead of 0.5"),
    ],
)
def test_predictions_of_several_processes_are_compared_row_by_row(tmp_path, rows, accuracy, finger):
    (tmp_path / "loop-1").mkdir()
    write_evaluation(tmp_path, 1, [0.1, 0.2, 0.3])
    write_evaluation(tmp_path, 2, [0.1, 0.2, 0.3])
    write_evaluation(tmp_path, 3, rows, accuracy)
    found = ranks.ranks_judge(tmp_path, experiment(tmp_path))
    assert found.verdict == (FAILED if finger else OK)
    assert not finger or finger in found.problems[0]


def test_without_validation_rows_nothing_is_said_of_metrics(tmp_path):
    bare = experiment(tmp_path)
    data = replace(bare.cfg.data, validation_file=None, validation_split=0.0)
    assert ranks.ranks_judge(tmp_path, replace(bare, cfg=replace(bare.cfg, data=data))).verdict == OPEN


def test_a_training_that_failed_fails_what_needs_it(tmp_path):
    (tmp_path / "loop-1").mkdir()
    outcome_file(tmp_path, "loop-1").write_text('{"error": "ValueError: no"}')
    found = resume.resume_judge(tmp_path, experiment(tmp_path))
    assert (found.verdict, found.problems) == (FAILED, ["the run loop-1 failed: ValueError: no"])


# Files and the command


def test_the_command_knows_all_certificates():
    assert tuple(promises()) == NAMES


def test_a_run_s_report_shows_the_newest_certificate_of_its_settings(tmp_path):
    made = experiment(tmp_path)
    assert state_of(made.cfg).startswith("none for this configuration")
    found = [resume.resume_judge(resumed(tmp_path / "runs", step(3), step(4)), made)]
    folder = folder_of(made.cfg)
    folder.mkdir(parents=True)
    task_type = load_task_type(RECIPE)
    request = Request(RECIPE, CONFIG, [], task_type, made.cfg, Launch(None, 1, {}), folder, "toolkit certify")
    Certificates.of(found, request, 37, 1.0).save(folder)
    assert state_of(made.cfg).startswith("resume ok (")
    assert state_of(replace(made.cfg, seed=1)) == state_of(made.cfg)
    other = replace(made.cfg, train=replace(made.cfg.train, learning_rate=0.1))
    assert state_of(other).startswith("none for this configuration")
    assert "| resume | ok |" in (folder / "certificate.md").read_text()
    assert json.loads((folder / "certificate.json").read_text())["passed"] is True
    write_json(folder / "certificate.json", [])
    assert "cannot be read" in state_of(made.cfg)


@pytest.mark.parametrize(("option", "message"), [(["--rows", "5"], "at least 9"), (["--kill-at", "0"], "at least 1")])
def test_numbers_that_make_no_sense_are_rejected(option, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["certify", str(RECIPE), "--config", str(CONFIG), *option])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_what_is_wrong_is_named_before_any_training_starts(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("toolkit.lab.jobs.jobs.run_processes", None)
    (tmp_path / "train.csv").write_text("text,label\na,good\nb,bad\n")
    (tmp_path / "validation.csv").write_text("text,label\nnice,neutral\n")
    files = [f"data.{name}_file={tmp_path / name}.csv" for name in ("train", "validation")]
    settings = [*files, "model.freeze=[bart.*]", f"output_dir={tmp_path / 'run'}"]
    with pytest.raises(SystemExit) as ended:
        main(["certify", str(RECIPE), "--config", str(CONFIG), "--only", "resume", "--output", f"{tmp_path}/out",
              *settings])  # fmt: skip
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert message.count("model.freeze: 'bart.*' matches no parameter") == 1
    assert message.count("row 2: label 'neutral' is not one of bad, good") == 1
    assert not (tmp_path / "out").exists()


def test_several_processes_are_checked_by_the_one_that_starts_them(tmp_path):
    sizes = "d_model: 8, encoder_layers: 1, decoder_layers: 1, encoder_attention_heads: 2, decoder_attention_heads: 2"
    made = experiment(tmp_path, f"model.from_config={{model_type: bart, encoder_layerdrop: 0.1, {sizes}}}")
    one, two = Training("one"), Training("two", processes=2)
    check_trainings([one], made)
    with pytest.raises(ConfigError, match=r"1 setting is wrong:\n  - train\.ddp_find_unused_parameters: received"):
        check_trainings([one, two], made)


@pytest.mark.slow
def test_a_killed_run_is_certified(tmp_path, capsys):
    settings = [*TINY, f"output_dir={tmp_path / 'run'}"]
    with pytest.raises(SystemExit) as ended:
        main(["certify", str(RECIPE), "--config", str(CONFIG), "--only", "resume", "--kill-at", "7", *settings])
    assert ended.value.code == 0, capsys.readouterr()
    output = capsys.readouterr().out
    # A save that the signal has met in flight is not resumed from.
    assert re.search(r"killed with SIGKILL at the end of step 7, resumed from step [46]:", " ".join(output.split()))
    assert max(map(len, output.split("\n\n")[0].splitlines())) <= 80


LARGE = (
    "engine=trainer trainer.callbacks=[callbacks_for_tests.Recorder] train.early_stopping_patience=2 eval.eval_steps=1",
    "checkpoint.push_to_hub=true checkpoint.hub_model_id=lab/model train.warmup_steps=500 train.max_time=00:01:00:00",
    "tracking.report_to=[tensorboard] tracking.run_name=mine train.torch_compile=true",
    "train.strategy=local_sgd train.local_sgd_outer_lr=0.7 train.local_sgd_warmup_steps=2",
    "train.lr_scheduler_type=reduce_lr_on_plateau eval.eval_steps=epoch",
    "train.lr_scheduler_type=cosine_with_restarts train.snapshot_ensemble=true train.lr_scheduler_kwargs.num_cycles=2",
    "train.optim=adafactor_relative train.learning_rate=5.0e-5 train.lr_scheduler_type=constant train.warmup_steps=0",
    "train.optim=schedule_free_adamw train.lr_scheduler_type=constant_with_warmup train.layerwise_lr_decay=0.9",
    "train.mixed_precision=fp16 train.tf32=true train.activation_offload=true model.peft.method=lora",
)


@pytest.mark.fast(1)
@pytest.mark.parametrize("words", LARGE)
def test_a_small_run_leaves_out_what_it_must_not_do(words, tmp_path):
    made = experiment(tmp_path, *words.split())
    for promise in promises().values():
        for training in promise.trainings(made):
            settings = [*made.settings(), *written({"engine": "loop"} | dict(training.settings))]
            on_cpu = {"ACCELERATE_USE_CPU": "true"}
            cfg = load_settings(load_task_type(RECIPE), CONFIG, settings, on_cpu).config
            assert not cfg.checkpoint.push_to_hub
            assert cfg.trainer.callbacks == []
            assert cfg.train.warmup_steps <= 0.1
            assert cfg.train.strategy == "sync"
            assert cfg.train.mixed_precision == "no"
            assert cfg.tracking.report_to == []


@pytest.mark.parametrize(
    ("recipe", "setting", "left_out"),
    [
        ("language_modeling", "train.unpadded=auto", set()),
        ("language_modeling", "train.unpadded=true", {"pipeline=2"}),
        ("reviews", "task.long_texts=windows", {"pipeline=2"}),
    ],
)
def test_strategies_that_the_settings_exclude_are_not_certified(recipe, setting, left_out):
    task_type = load_task_type(ROOT / "recipes" / f"{recipe}.py")
    cfg = load_settings(task_type, ROOT / f"recipes/configs/{recipe}/smoke.yaml", [setting]).config
    assert {"fsdp=2", "zero_stage=1", "tensor=2", "pipeline=2"} - {*strategies_of(cfg, task_type(cfg))} == left_out


@pytest.mark.parametrize(("long_texts", "compared"), [("truncate", True), ("windows", False)])
def test_a_task_with_its_own_forward_pass_is_not_compared_with_the_plain_trainer(long_texts, compared):
    recipe, config = ROOT / "recipes/reviews.py", ROOT / "recipes/configs/reviews/smoke.yaml"
    cfg = load_settings(load_task_type(recipe), config, [f"task.long_texts={long_texts}"]).config
    made = Experiment(str(recipe), str(config), [], cfg, rows=16, kill_at=None, kill_after=1.5)
    assert any(training.plain for training in promises()["loss-scale"].trainings(made)) == compared
