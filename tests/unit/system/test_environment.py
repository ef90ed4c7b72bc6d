"""The state of a git checkout, and its uncommitted changes."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from toolkit.system.environment import checkout


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", str(folder), *who, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path) -> Path:
    root = tmp_path / "root"
    (root / "below").mkdir(parents=True)
    git(root, "init", "-q")
    (root / "top.py").write_bytes(b"one\n\xff\n")  # not UTF-8
    (root / "below" / "recipe.py").write_text("two\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    return root


def test_a_clean_checkout_has_no_diff(repository):
    state = checkout(repository / "below")
    assert state is not None
    assert (state.commit, state.changed_files, state.diff) == (git(repository, "rev-parse", "HEAD"), 0, b"")
    assert state.diff_sha256 is None


def test_the_diff_of_a_whole_checkout_applies_to_its_commit(repository, tmp_path):
    git(repository, "config", "diff.noprefix", "true")
    git(repository, "config", "diff.relative", "true")
    (repository / "top.py").write_bytes(b"other\n\xfe\n")
    (repository / "below" / "recipe.py").write_text("staged\n")
    git(repository, "add", "below/recipe.py")
    (repository / "new file.py").write_text("not tracked\n")
    state = checkout(repository / "below")
    assert state is not None
    assert (state.changed_files, state.untracked) == (3, ["../new file.py"])
    assert state.diff_sha256 == hashlib.sha256(state.diff).hexdigest()
    clone, diff = tmp_path / "clone", tmp_path / "uncommitted.diff"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    diff.write_bytes(state.diff)
    git(clone, "apply", str(diff))
    for name in ("top.py", "below/recipe.py"):
        assert (clone / name).read_bytes() == (repository / name).read_bytes()


def test_a_folder_outside_of_git_has_no_state(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "plain").mkdir()
    assert checkout(tmp_path / "plain") is None
    git(tmp_path / "plain", "init", "-q")  # without a commit
    assert checkout(tmp_path / "plain") is None
