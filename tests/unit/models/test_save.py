"""Pushing the final model: the same with both engines, and refused before a run if it would fail."""

from __future__ import annotations

import huggingface_hub
import pytest
from runs import train
from uploads import record_uploads

from toolkit.base.errors import ConfigError, RunError

FEW = ("train.max_steps=1", "data.max_train_samples=8", "data.max_eval_samples=4", "checkpoint.push_to_hub=true")


@pytest.fixture
def calls(monkeypatch) -> list[tuple]:
    return record_uploads(monkeypatch)


@pytest.mark.fast(1)
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
