"""The workflow of GitHub Actions: what can be checked without running it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from deployed import read_yaml
from launching import ROOT

NAME = ".github/workflows/ci.yml"
TEXT = (ROOT / NAME).read_text(encoding="utf-8")
WORKFLOW: dict[str, Any] = read_yaml(NAME)
JOBS: dict[str, dict[str, Any]] = WORKFLOW["jobs"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def steps(key: str) -> Iterator[Any]:
    """Yields what the steps of all jobs have under a key."""
    for job in JOBS.values():
        yield from (step[key] for step in job["steps"] if key in step)


def test_it_runs_what_ci_runs_here_and_targets_of_the_makefile() -> None:
    assert [step["run"] for step in JOBS["tests"]["steps"] if "run" in step] == [".ci/run"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert set(steps("run")) == {".ci/run", 'make "$TARGET"'}
    assert {"docs", "wheel"} == set(JOBS["build"]["strategy"]["matrix"]["target"]) <= TARGETS


def test_it_may_only_read_and_its_actions_are_commits() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert not any("permissions" in job for job in JOBS.values())
    used = list(steps("uses"))
    assert used
    assert [each for each in used if not re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", each)] == []
    assert len(re.findall(r"uses: \S+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", TEXT, re.M)) == len(used)
    assert all(step["persist-credentials"] is False for step in steps("with") if "persist-credentials" in step)
    assert TEXT.count("persist-credentials: false") == TEXT.count("uses: actions/checkout@")
    assert "secrets." not in TEXT
    assert not re.search(r"run:.*\$\{\{", TEXT)  # a value that a stranger chooses would be run


def test_runs_of_one_branch_do_not_pile_up_and_all_end() -> None:
    assert "github.ref" in WORKFLOW["concurrency"]["group"]
    assert all(0 < job["timeout-minutes"] <= 180 for job in JOBS.values())
    assert not JOBS["tests"]["strategy"]["fail-fast"]


@pytest.mark.parametrize("job", JOBS)
def test_packages_are_cached_by_the_constraints(job: str) -> None:
    (python,) = (step["with"] for step in JOBS[job]["steps"] if "setup-python" in step.get("uses", ""))
    assert (python["cache"], python["cache-dependency-path"]) == ("pip", "constraints.txt")
    assert (ROOT / python["cache-dependency-path"]).is_file()
    assert JOBS[job]["runs-on"].startswith("ubuntu-2")
