"""D1, D12, D16, D18: a finished run is changed by what goes on with it, and by nothing that is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import run_command
from runs import ROOT, TINY, train
from stopping import StoppedError, stopper

from toolkit.base.errors import CheckpointError, RunError
from toolkit.distributed.stop import DeferredStop

FEW = (*TINY, "data.max_train_samples=24", "data.max_eval_samples=9", "train.lr_scheduler_type=constant",
       "train.warmup_steps=0", "checkpoint.save_steps=2", "checkpoint.save_total_limit=null")  # fmt: skip
MORE = (*FEW, "train.max_steps=8", "checkpoint.resume=auto")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    assert train("reviews", folder / "run", *FEW, "train.max_steps=4").steps == 4
    return folder / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def contents(run: Path) -> dict[str, bytes]:
    """Returns the bytes of all files but the lock."""
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.name != ".lock")
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in files}


def facts(run: Path) -> dict:
    return json.loads((run / "run.json").read_text())


def full_disk(run: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**20))


def damaged_checkpoints(run: Path, patch: pytest.MonkeyPatch) -> None:
    """Damages all checkpoints such that it is found only while they are loaded."""
    patch.setattr("toolkit.checkpoint.manifest.HASHED_BYTES", 0)
    for file in run.glob("checkpoints/*/optimizer.safetensors"):
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)


def no_server(run: Path, patch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object) -> None:
        raise RunError("tracking.report_to: tensorboard cannot be started")

    patch.setattr("toolkit.tracking.tracker.RunTrackers.start", refused)


@pytest.mark.parametrize(
    ("obstacle", "setting", "message"),
    [
        (full_disk, "train.max_steps=1000000", "has 1 MiB of free space, but this run needs"),
        (damaged_checkpoints, "train.max_steps=8", "none can be used(.|\n)*Nothing was changed"),
        (no_server, "tracking.report_to=[tensorboard]", "tensorboard cannot be started"),
    ],
)
def test_a_resume_that_is_rejected_changes_nothing(
    run: Path, monkeypatch: pytest.MonkeyPatch, obstacle: Callable, setting: str, message: str
) -> None:
    obstacle(run, monkeypatch)
    before = contents(run)
    with pytest.raises((CheckpointError, RunError), match=message):
        train("reviews", run, *MORE, setting)
    assert contents(run) == before


def test_a_rejected_resume_of_new_adapters_leaves_no_base_model_behind(tmp_path, monkeypatch):
    adapters = ("model.peft.method=lora", "train.learning_rate=0.01")
    train("reviews", tmp_path / "run", *FEW, *adapters, "train.max_steps=2")
    before = contents(tmp_path / "run")
    assert "model/base/model.safetensors" in before
    no_server(tmp_path / "run", monkeypatch)
    with pytest.raises(RunError, match="tensorboard"):
        train("reviews", tmp_path / "run", *MORE, *adapters, "tracking.report_to=[tensorboard]")
    assert contents(tmp_path / "run") == before


def test_a_resume_with_other_rows_does_not_change_the_list_of_bad_ones(tmp_path: Path) -> None:
    file, run = tmp_path / "train.csv", tmp_path / "run"
    labels = {"good": "positive", "bad": "negative"}
    rows = [f"a {word} book of {number} pages,{labels[word]}" for number in range(12) for word in labels]
    file.write_text("\n".join(["text,label", *rows, ",positive", ""]))
    settings = (*MORE, f"data.train_file={file}", "data.validation_file=null", "data.bad_rows=skip",
                "data.max_bad_rows=0.5")  # fmt: skip
    train("reviews", run, *settings, "train.max_steps=2")
    before = contents(run)
    assert "bad_rows.jsonl" in before
    file.write_text("\n".join(["text,label", *rows, ",positive", ",negative", ""]))
    with pytest.raises(CheckpointError, match="fingerprint"):
        train("reviews", run, *settings)
    assert contents(run) == before


def stopped(*arguments: object) -> None:
    raise StoppedError


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("place", "finishes"),
    [
        pytest.param("toolkit.report.facts.checkout", 4, id="start"),
        pytest.param("toolkit.engine.training.Session.begin_window", 4, id="step"),
        pytest.param("toolkit.models.save.write_model", 4, id="before the model"),
        pytest.param("toolkit.report.card.model_card", None, id="after the model"),
        pytest.param("toolkit.distributed.stop.DeferredStop.model_is_kept", None, id="stop signal"),
    ],
)
def test_a_finished_run_that_goes_on_and_is_ended_anywhere_is_never_called_damaged(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, place: str, finishes: int | None
) -> None:
    """It has its former results until another model is there."""
    before = facts(run)
    with monkeypatch.context() as patch:
        patch.setattr(place, stopped)
        with pytest.raises((StoppedError, RunError)):
            train("reviews", run, *MORE)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')  # as a run that was killed
    assert run_command("verify", run) == 0, capsys.readouterr().err
    assert run_command("predict", run, "--input-text", "good") == 0, capsys.readouterr().err
    found = facts(run)
    assert found.get("result") == (before["result"] if finishes else None)
    train("reviews", run, *MORE)
    assert facts(run)["result"]["steps"] == 8
    assert run_command("verify", run) == 0, capsys.readouterr().err


def test_a_complete_model_of_a_run_without_checkpoints_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    run, settings = tmp_path / "run", (*FEW, "train.max_steps=2", "checkpoint.save_steps=null")
    with monkeypatch.context() as patch:
        patch.setattr(DeferredStop, "model_is_kept", stopped)
        with pytest.raises(StoppedError):
            train("reviews", run, *settings)
    before = contents(run)
    with pytest.raises(CheckpointError, match=r"`toolkit evaluate` and `toolkit predict`"):
        train("reviews", run, *settings, "checkpoint.resume=auto")
    assert contents(run) == before
    assert run_command("verify", run) == 0, capsys.readouterr().err
    rows = ROOT / "recipes/data/reviews/validation.csv"
    assert run_command("evaluate", run, "--data", rows) == 0, capsys.readouterr().err
    content = bytearray((run / "model/model.safetensors").read_bytes())
    content[-1] ^= 1
    (run / "model/model.safetensors").write_bytes(content)
    assert run_command("verify", run) == 1


def test_a_resume_removes_what_was_not_complete_at_any_place(run: Path) -> None:
    for name in (
        *(".run.json.1.toolkit-tmp", "model/.README.md.1.toolkit-tmp", "snapshots/.step-3.safetensors.1.toolkit-tmp"),
        *("checkpoints/.tmp-step-2/model.safetensors", "checkpoints/.old-step-4/model.safetensors"),
    ):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).touch()
    train("reviews", run, *MORE, "train.max_steps=4")
    assert [path for path in run.rglob(".*") if path.name != ".lock"] == []


def test_a_resume_with_other_versions_is_said(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    train("reviews", run, *MORE, "train.max_steps=4")
    assert "other versions" not in capsys.readouterr().out
    monkeypatch.setattr("toolkit.prepare.inputs.versions", lambda: {"torch": "2.0.0"})
    train("reviews", run, *MORE, "train.max_steps=4")
    assert re.search(r"warning: resumed with other versions: torch \S+ -> 2\.0\.0;", capsys.readouterr().out)


def test_the_end_of_a_run_stays_known_in_the_middle_of_the_next(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A file of the former results that changes meanwhile is found."""
    stop_before = stopper(monkeypatch)
    stop_before(6)
    with pytest.raises(StoppedError):
        train("reviews", run, *MORE)
    (run / "predictions.jsonl").write_text("")
    assert run_command("verify", run) == 1
    assert "predictions.jsonl is not as it was written" in capsys.readouterr().err
