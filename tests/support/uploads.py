"""The Hub's interface, replaced by one that records what it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import huggingface_hub
import pytest


def record_uploads(monkeypatch: pytest.MonkeyPatch, said: Callable[[], tuple[str, ...]] = tuple) -> list[tuple]:
    """Returns the calls to the Hub, to which each new one is added.

    Args:
        monkeypatch: replaces the interface.
        said: returns what is recorded with the creation of a repository, for instance what was printed until then.
    """
    made: list[tuple] = []

    class Api:
        def create_repo(self, name, private, exist_ok):
            made.append(("create", name, private, *said()))
            return SimpleNamespace(repo_id=name if "/" in name else f"me/{name}")

        def create_branch(self, repo_id, branch, exist_ok):
            made.append(("branch", repo_id, branch))

        def upload_folder(self, repo_id, folder_path, commit_message, revision):
            made.append(("upload", repo_id, sorted(path.name for path in folder_path.iterdir()), revision))
            return SimpleNamespace(repo_url=SimpleNamespace(url=f"https://hub/{repo_id}"))

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "token")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return made
