"""`toolkit push`: says what is uploaded first, refuses what is not whole, and uploads the model with its card."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
from commands import run_command
from runs import train
from uploads import record_uploads

FEW = ("train.max_steps=1", "data.max_train_samples=8", "data.max_eval_samples=4")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("reviews") / "mine"
    train("reviews", run, *FEW)
    return run


@pytest.fixture
def run(finished, tmp_path) -> Path:
    shutil.copytree(finished, tmp_path / "mine")
    return tmp_path / "mine"


@pytest.fixture
def calls(monkeypatch, capsys) -> list[tuple]:
    """Returns the calls to the Hub, with what was printed before the upload."""
    return record_uploads(monkeypatch, lambda: (capsys.readouterr().out,))


def test_the_model_is_pushed_with_its_card_after_what_goes_is_said(run, calls, capsys):
    assert run_command("push", run) == 0
    (_, name, private, said), (_, repository, files, revision) = calls
    assert (name, private, repository, revision) == ("mine", None, "me/mine", None)
    assert files == sorted(path.name for path in (run / "model").iterdir())
    assert {"README.md", "model.safetensors", "tokenizer.json"} <= set(files)
    assert f"{len(files)} files (" in said
    assert "go to mine; if it is new, it is of your default visibility:" in said
    assert all(f"  {file} (" in said for file in files)
    assert "pushed to https://hub/me/mine" in capsys.readouterr().out
    assert run_command("push", run, "--repo", "lab/model", "--private") == 0
    assert calls[2][:3] == ("create", "lab/model", True)
    assert "go to lab/model; if it is new, it is private:" in calls[2][3]


def test_the_settings_of_the_run_name_the_repository_and_the_branch(run, calls, capsys):
    settings = (run / "config.yaml").read_text()
    own = {"hub_model_id": "lab/own", "hub_private_repo": "true", "hub_revision": "second"}
    for name, value in own.items():
        assert f"  {name}: null\n" in settings
        settings = settings.replace(f"  {name}: null\n", f"  {name}: {value}\n")
    (run / "config.yaml").write_text(settings)
    assert run_command("push", run) == 0
    created, branch, uploaded = calls
    assert created[:3] == ("create", "lab/own", True)
    assert "go to lab/own, branch second; if it is new, it is private:" in created[3]
    assert branch == ("branch", "lab/own", "second")
    assert uploaded[3] == "second"


def test_a_run_that_is_not_whole_is_not_pushed(run, calls, monkeypatch, capsys):
    def refused(message: str, *arguments: str) -> None:
        assert run_command("push", run, *arguments) == 2
        assert message in capsys.readouterr().err

    refused("--repo: received 'a/b/c', which is no name of a repository", "--repo", "a/b/c")
    card = (run / "model/README.md").read_text()
    (run / "model/README.md").unlink()
    refused("README.md is missing; a model is not pushed without its card")
    (run / "model/README.md").write_text(f"{card}\nEdited.\n")
    (run / "model/notes.txt").write_text("not of the run")
    refused("the model is damaged: model/notes.txt is not of the run")
    (run / "model/notes.txt").unlink()
    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        refused("toolkit push: uploads a model, but HF_HUB_OFFLINE=1 disables access to the Hub")
    with monkeypatch.context() as patch:
        patch.setattr(huggingface_hub, "get_token", lambda: None)
        refused("you are not logged in; run `hf auth login`, or set HF_TOKEN")
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**facts, "num_processes": 7}))
    refused("run.json is not as it was written")
    facts.pop("sha256")
    facts.pop("result")
    (run / "run.json").write_text(json.dumps(facts))
    refused("the run is not finished, so its model is not complete; resume it with checkpoint.resume=auto")
    assert calls == []


def test_an_upload_that_fails_says_so_and_adapters_of_a_local_model_are_warned_of(finished, tmp_path, calls,
                                                                                 monkeypatch, capsys):  # fmt: skip
    def refuse(*arguments, **more):
        raise OSError("no route to host")

    base = (f"model.name_or_path={finished / 'model'}", "model.peft.method=lora")
    train("reviews", tmp_path / "adapters", *FEW, *base)
    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", refuse)
    assert run_command("push", tmp_path / "adapters") == 1
    shown = capsys.readouterr()
    assert "OSError: no route to host" in shown.err
    assert "Nothing of the run has changed." in shown.err
    assert f"name the base model {finished / 'model'}, which is on this machine only" in shown.out + shown.err
