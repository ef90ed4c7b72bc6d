"""Pushing the final model: the same with both engines, and refused before a run if it would fail."""

from __future__ import annotations

from types import SimpleNamespace

import huggingface_hub
import pytest
from runs import train

from toolkit.base.errors import ConfigError, RunError

FEW = ("train.max_steps=1", "data.max_train_samples=8", "data.max_eval_samples=4", "checkpoint.push_to_hub=true")


@pytest.fixture
def calls(monkeypatch) -> list[tuple]:
    """Records the calls to the hub."""
    made: list[tuple] = []

    class Api:
        def create_repo(self, name, private, exist_ok):
            made.append(("create", name, private))
            return SimpleNamespace(repo_id=f"me/{name}" if "/" not in name else name)

        def create_branch(self, repository, branch, exist_ok):
            made.append(("branch", repository, branch))

        def upload_folder(self, repo_id, folder_path, commit_message, revision):
            made.append(("upload", repo_id, sorted(path.name for path in folder_path.iterdir()), revision))
            return SimpleNamespace(repo_url=SimpleNamespace(url=f"https://hub/{repo_id}"))

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "token")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return made


@pytest.mark.parametrize("engine", ["loop", "trainer"])
def test_the_model_is_pushed_under_both_engines(engine, tmp_path, calls, capsys):
    train("reviews", tmp_path / "mine", *FEW, f"engine={engine}")
    (_, repository, files, revision) = calls[-1]
    assert calls[0] == ("create", "mine", None)
    assert (repository, revision) == ("me/mine", None)
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= set(files)
    assert "pushed to https://hub/me/mine" in capsys.readouterr().out


def test_repository_branch_and_privacy_are_settings(tmp_path, calls):
    train("reviews", tmp_path / "run", *FEW, "checkpoint.hub_model_id=lab/model", "checkpoint.hub_revision=second",
          "checkpoint.hub_private_repo=true")  # fmt: skip
    assert calls[:2] == [("create", "lab/model", True), ("branch", "lab/model", "second")]
    assert calls[2][1] == "lab/model"
    assert calls[2][3] == "second"


def test_a_push_that_fails_loses_nothing(tmp_path, calls, monkeypatch):
    def refuse(*arguments, **more):
        raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", refuse)
    with pytest.raises(RunError, match=r"no route to host(.|\n)*toolkit push .*/run"):
        train("reviews", tmp_path / "run", *FEW)
    assert (tmp_path / "run/model/model.safetensors").exists()
    assert (tmp_path / "run/report.md").exists()


def test_what_cannot_work_is_said_before_the_run(tmp_path, calls, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(ConfigError, match="not logged in"):
        train("reviews", tmp_path / "run", *FEW)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE=1"):
        train("reviews", tmp_path / "run", *FEW)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="it has no effect unless push_to_hub is true"):
        train("reviews", tmp_path / "run", "checkpoint.hub_model_id=lab/model")
