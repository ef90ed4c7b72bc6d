"""C3: an interrupted and resumed run ends bit-identical to an uninterrupted one."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pytest
import torch
from launching import kill_tree, run
from random_runs import ALL, FURTHER, RANDOM
from runs import SGD, assert_same_weights, lines, predictions, train, weights
from safetensors.torch import load_file
from stopping import DROPOUT, LONG, StoppedError, command, start, stopper, wait_for_step

from toolkit.base.errors import CheckpointError, ConfigError
from toolkit.checkpoint.lock import OutputLock

PLAIN = ("eval.eval_steps=4",)
GROUPED = ("train.train_sampling_strategy=group_by_length", "train.dataloader_num_workers=2", "eval.eval_steps=10")
"""Each epoch and evaluation starts worker processes, which takes longer than what they do."""
OTHER_LENGTHS = ("qa", "translation", "reviews/smoke_audio")
"""Tasks whose rows have lengths of another kind than texts with a label: windows of a row, two sides, samples."""


@pytest.fixture
def stop_before(monkeypatch):
    """Returns a function that makes runs in this process stop before a given step, as if killed."""
    return stopper(monkeypatch)


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("task", "extra"),
    [
        *(pytest.param(task, PLAIN, id=f"{task}-plain") for task in RANDOM),
        pytest.param("reviews", GROUPED, id="reviews-grouped"),
        *(pytest.param(task, GROUPED, marks=pytest.mark.slow, id=f"{task}-grouped") for task in OTHER_LENGTHS),
        *(pytest.param(task, PLAIN, marks=pytest.mark.slow, id=f"{task}-plain") for task in FURTHER),
    ],
)
def test_a_run_stopped_twice_ends_like_one_that_was_not(task, extra, tmp_path, stop_before):
    settings = (*ALL[task], *extra, "tracking.logging_steps=3")
    whole = train(task, tmp_path / "whole", *settings)
    for step in (6, 12):
        stop_before(step)
        with pytest.raises(StoppedError):
            train(task, tmp_path / "parts", *settings, "checkpoint.resume=auto")
    stop_before(None)
    parts = train(task, tmp_path / "parts", *settings, "checkpoint.resume=auto")
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    assert lines(tmp_path / "whole") == lines(tmp_path / "parts")
    assert parts.train_loss == whole.train_loss
    assert predictions(tmp_path / "whole") == predictions(tmp_path / "parts")


def test_the_files_of_a_resumed_run_are_the_same(tmp_path, stop_before):
    """Also the order of the tensors in them."""
    train("reviews", tmp_path / "whole", *DROPOUT, "train.max_steps=8")
    stop_before(5)
    with pytest.raises(StoppedError):
        train("reviews", tmp_path / "parts", *DROPOUT, "train.max_steps=8")
    stop_before(None)
    train("reviews", tmp_path / "parts", *DROPOUT, "train.max_steps=8", "checkpoint.resume=auto")
    for file in ("optimizer.safetensors", "model.safetensors"):
        whole, parts = (tmp_path / run / "checkpoints" / "step-8" / file for run in ("whole", "parts"))
        assert whole.read_bytes() == parts.read_bytes(), file


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    ("first", "then", "rates"),
    [
        (("train.max_steps=4",), ("train.max_steps=8",), ("8 steps instead of 4", "0.00025 in step 4, 0.0005 from")),
        (("train.num_train_epochs=1", "train.max_steps=-1"), ("train.num_train_epochs=2", "engine=trainer"),
         ("steps instead of", "0.0005 from step")),
        (("train.max_steps=4", "train.lr_scheduler_type=constant"), ("train.max_steps=8",), ()),
        (("train.max_steps=4",), ("tracking.logging_steps=2",), ()),
    ],
)  # fmt: skip
def test_a_resume_with_another_length_says_how_the_rate_jumps(tmp_path, capsys, first, then, rates):
    settings = ("train.learning_rate=1e-3", "train.warmup_steps=0", "train.lr_scheduler_type=linear",
                "tracking.logging_steps=1", *first)  # fmt: skip
    ended = train("reviews", tmp_path / "run", *SGD, *settings).steps
    capsys.readouterr()
    train("reviews", tmp_path / "run", *SGD, *settings, *then, "checkpoint.resume=auto")
    said = " ".join(capsys.readouterr().out.split())
    assert ("its learning rate follows" in said) is bool(rates)
    assert all(part in said for part in rates), said
    if rates:
        used = [line["learning_rate"] for line in lines(tmp_path / "run", "learning_rate")]
        assert f"{used[ended - 1]:.3g} in step {ended}, {used[ended]:.3g} from step {ended + 1} on" in said


def test_the_resume_test_has_power(tmp_path, stop_before, monkeypatch):
    """Checks that the test above would notice if the seed were not set before each step."""
    train("reviews", tmp_path / "whole", *DROPOUT)
    stop_before(6)
    with pytest.raises(StoppedError):
        train("reviews", tmp_path / "parts", *DROPOUT)
    stop_before(None)
    monkeypatch.setattr("toolkit.engine.training.seed_all", lambda *key: None)
    train("reviews", tmp_path / "parts", *DROPOUT, "checkpoint.resume=auto")
    with pytest.raises(AssertionError):
        assert_same_weights(tmp_path / "whole", tmp_path / "parts")


def test_best_model_and_finished_runs_survive_a_resume(tmp_path, stop_before, monkeypatch, capsys):
    best = ("checkpoint.load_best_model_at_end=true", "checkpoint.save_total_limit=1", "eval.eval_steps=3")
    settings = (*DROPOUT, *best, "eval.metric_for_best_model=eval_loss", "train.learning_rate=0.02")  # fmt: skip
    whole = train("reviews", tmp_path / "whole", *settings)
    stop_before(14)
    with pytest.raises(StoppedError):
        train("reviews", tmp_path / "parts", *settings)
    stop_before(None)
    parts = train("reviews", tmp_path / "parts", *settings, "checkpoint.resume=auto")
    assert (parts.best, parts.best_step) == (whole.best, whole.best_step)
    assert whole.best_step not in (None, whole.steps)
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    kept = {path.name for path in (tmp_path / "whole" / "checkpoints").iterdir()}
    assert kept == {f"step-{whole.best_step}", f"step-{whole.steps}"}
    again = train("reviews", tmp_path / "parts", *settings, "checkpoint.resume=auto")
    assert again.steps == whole.steps
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")

    monkeypatch.setattr("toolkit.checkpoint.manifest.HASHED_BYTES", 0)
    checkpoints = tmp_path / "parts" / "checkpoints"
    damage(checkpoints / f"step-{whole.best_step}" / "model.safetensors")
    capsys.readouterr()
    train("reviews", tmp_path / "parts", *settings, "checkpoint.resume=auto")
    output = capsys.readouterr().out
    assert "is damaged (model.safetensors: sha256 differs); keeping the model of the last step" in output
    last = load_file(checkpoints / f"step-{whole.steps}" / "model.safetensors")
    final = weights(tmp_path / "parts")
    assert final.keys() == last.keys()
    assert all(torch.equal(tensor, last[name]) for name, tensor in final.items())


def test_the_results_of_a_finished_run_stay_until_there_are_others(tmp_path, stop_before):
    def results(run: Path) -> dict:
        facts = json.loads((run / "run.json").read_text())
        return {name: facts[name] for name in ("result", "memory")}

    run, settings = tmp_path / "run", (*DROPOUT, "train.lr_scheduler_type=constant", "train.warmup_steps=0")
    train("reviews", run, *settings, "train.max_steps=4")
    first, config = results(run), (run / "config.yaml").read_bytes()
    with pytest.raises(ConfigError, match="step 4"):
        train("reviews", run, *settings, "train.max_steps=2", "checkpoint.resume=auto")
    assert (results(run), (run / "config.yaml").read_bytes()) == (first, config)
    stop_before(6)
    with pytest.raises(StoppedError):
        train("reviews", run, *settings, "train.max_steps=8", "checkpoint.resume=auto")
    assert results(run) == first
    stop_before(None)
    train("reviews", run, *settings, "train.max_steps=8", "checkpoint.resume=auto")
    assert results(run)["result"]["steps"] == 8


def damage(file: Path) -> None:
    """Flips a bit of the last byte of a file."""
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_changed_settings_are_rejected_by_name_and_free_ones_are_not(tmp_path):
    few = (*DROPOUT, "train.max_steps=4")
    train("reviews", tmp_path / "run", *few)
    changes = ("seed=7", "train.gradient_accumulation_steps=2", "train.per_device_train_batch_size=4",
               "model.config_overrides.hidden_dropout_prob=0.2", "data.max_train_samples=36")  # fmt: skip
    with pytest.raises(CheckpointError) as refused:
        train("reviews", tmp_path / "run", *few, *changes, "checkpoint.resume=auto")
    for key in ("seed", "train.global_batch_size", *(change.split("=")[0] for change in changes[3:])):
        assert key in str(refused.value)
    result = train("reviews", tmp_path / "run", *few, "train.max_steps=6", "tracking.logging_steps=2",
                   "checkpoint.resume=auto")  # fmt: skip
    assert result.steps == 6


def test_a_run_cannot_go_back_or_get_other_training_rows(tmp_path):
    few = (*DROPOUT, "train.max_steps=4")
    train("reviews", tmp_path / "run", *few, "data.validation_file=null", "data.max_train_samples=null")
    with pytest.raises(CheckpointError, match=r"data\.num_train_rows: .*504, .*560"):
        train("reviews", tmp_path / "run", *few, "data.max_train_samples=null", "checkpoint.resume=auto")
    with pytest.raises(ConfigError, match="step 4"):
        train("reviews", tmp_path / "run", *few, "data.validation_file=null", "data.max_train_samples=null",
              "train.max_steps=3", "checkpoint.resume=auto")  # fmt: skip


def test_the_best_is_looked_for_anew_where_its_checkpoint_is_not(tmp_path):
    few = (*DROPOUT, "eval.eval_steps=1", "train.learning_rate=0.02", "eval.metric_for_best_model=loss")
    first = train("reviews", tmp_path / "run", *few, "train.max_steps=5", "checkpoint.save_steps=5")
    assert first.best_step != 5
    again = train("reviews", tmp_path / "run", *few, "train.max_steps=8", "checkpoint.load_best_model_at_end=true",
                  "checkpoint.save_steps=5", "checkpoint.resume=auto")  # fmt: skip
    assert again.best_step in (6, 7, 8)


def test_damage_that_is_found_while_a_checkpoint_is_loaded_leads_to_the_one_before(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("toolkit.checkpoint.manifest.HASHED_BYTES", 0)
    saving = ("checkpoint.save_steps=2", "checkpoint.save_total_limit=null", "checkpoint.resume=auto")
    settings = (*DROPOUT, *saving, "train.ema_decay=0.5")
    train("reviews", tmp_path / "run", *settings, "train.max_steps=6")
    before = load_file(tmp_path / "run" / "model" / "model.safetensors")
    metrics = lines(tmp_path / "run")
    root = tmp_path / "run" / "checkpoints"
    for step, name in ((6, "model"), (4, "ema")):
        damage(root / f"step-{step}" / f"{name}.safetensors")
    train("reviews", tmp_path / "run", *settings, "train.max_steps=6")
    output = capsys.readouterr().out
    assert "checkpoints/step-6 is damaged (model.safetensors: sha256 differs); using step-2" in output
    assert "checkpoints/step-4 is damaged (ema.safetensors: sha256 differs); using step-2" in output
    after = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert lines(tmp_path / "run") == metrics


def test_a_non_empty_folder_is_rejected_and_a_locked_one_too(tmp_path):
    few = (*DROPOUT, "train.max_steps=1")
    train("reviews", tmp_path / "run", *few)
    with pytest.raises(CheckpointError, match=r"checkpoint\.resume=auto"):
        train("reviews", tmp_path / "run", *few)
    with OutputLock(tmp_path / "run"), pytest.raises(CheckpointError, match=r"in the output folder|in use"):
        train("reviews", tmp_path / "run", *few, "checkpoint.resume=auto")


def test_nothing_is_written_into_a_folder_of_others(tmp_path):
    (tmp_path / "mine.txt").touch()
    before = tmp_path.stat().st_mtime_ns
    with pytest.raises(CheckpointError, match=r"mine\.txt"):
        train("reviews", tmp_path, *DROPOUT, "train.max_steps=1")
    assert (tmp_path.stat().st_mtime_ns, [path.name for path in tmp_path.iterdir()]) == (before, ["mine.txt"])


@pytest.mark.slow
@pytest.mark.distributed
def test_kill_9_three_times_on_two_processes(tmp_path):
    """At random steps; each part is resumed with the other engine. Faults kill one process in every phase of a run."""
    whole = start(tmp_path / "whole", tmp_path / "whole.log", *LONG, processes=2)
    assert whole.wait(200) == 0, (tmp_path / "whole.log").read_text()
    seed = random.randrange(10**6)
    print(f"random steps of seed {seed}")
    steps = sorted(random.Random(seed).sample(range(7, 22), 3))
    log = tmp_path / "parts.log"
    for step, engine in zip(steps, ("loop", "trainer", "loop"), strict=True):
        going = (*LONG, f"engine={engine}", "checkpoint.resume=auto")
        run = start(tmp_path / "parts", log, *going, processes=2)
        wait_for_step(run, tmp_path / "parts", step, log)
        kill_tree(run.pid)
        run.wait(60)
    run = start(tmp_path / "parts", log, *LONG, "engine=trainer", "checkpoint.resume=auto", processes=2)
    assert run.wait(200) == 0, log.read_text()
    # On a busy machine, the first kill may come before the first checkpoint is complete.
    resumed, anew = (log.read_text().count(what) for what in ("resuming from ", "but no checkpoint; starting"))
    assert resumed + anew == len(steps), log.read_text()
    assert resumed > 1
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    assert lines(tmp_path / "whole") == lines(tmp_path / "parts")


KILLED = """
import os, pathlib, runpy, signal, sys

moment, rename = sys.argv[1], pathlib.Path.rename

def rename_or_die(path, target):
    if pathlib.Path(target).name == "model":
        if moment == "after":
            rename(path, target)
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(path, target)

pathlib.Path.rename = rename_or_die
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_run_without_checkpoints_that_was_killed_while_it_wrote_its_model_starts_again(tmp_path, moment):
    settings = ("checkpoint.save_steps=null", "train.max_steps=4")
    python, *script = command(tmp_path / "killed", *settings)
    killed = run([python, "-c", KILLED, moment, *script], check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (tmp_path / "killed" / "model").exists() == (moment == "after")
    for name, resume in (("killed", "auto"), ("whole", "none")):
        train("reviews", tmp_path / name, *DROPOUT, *settings, f"checkpoint.resume={resume}")
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")
    assert predictions(tmp_path / "whole") == predictions(tmp_path / "killed")
    assert {path.name for path in (tmp_path / "killed").iterdir()} == {
        path.name for path in (tmp_path / "whole").iterdir()
    }


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "trainer"])
def test_sigterm_saves_the_step_and_exits_143(tmp_path, engine):
    log = tmp_path / "log"
    run = start(tmp_path / "run", log, *LONG, "checkpoint.save_steps=null", f"engine={engine}")
    wait_for_step(run, tmp_path / "run", 5, log)
    run.send_signal(signal.SIGTERM)
    assert run.wait(120) == 143
    (saved,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert f"Stopped by SIGTERM at {saved.name.replace('-', ' ')} of " in log.read_text()
    assert "Traceback" not in log.read_text()
