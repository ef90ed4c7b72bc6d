"""One flipped bit in any file that is read again: it is found and the file is named, or it changes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fault_runs import QUICK, RESUME, argv
from faults import Faults, differences
from forked import ForkServer, Hook

from toolkit.checkpoint.manifest import verify
from toolkit.deploy.verify import damages

pytestmark = [pytest.mark.faults, pytest.mark.timeout(5400)]

OF_CHECKPOINT, OF_RUN, RESUMES, CACHED, PREDICTED = 4000, 1500, 120, 60, 60
"""Number of flips in a complete run; of a manifest, every bit is flipped."""
NOT_READ_AGAIN = (".lock", "model/README.md")
"""The lock's text is for people; a model card is meant to be edited."""


@pytest.fixture(scope="module")
def finished(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _run(server, tmp_path_factory.mktemp("finished"))


@pytest.fixture(scope="module")
def stopped(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a run that was killed when training had ended; it resumes from its last checkpoint."""
    return _run(server, tmp_path_factory.mktemp("stopped"), ("kill_at", {"place": "toolkit.run.write_results"}))


def _run(server: ForkServer, folder: Path, *hooks: Hook) -> Path:
    ended = server.run(argv(folder / "run"), hooks=[*QUICK, *hooks])
    assert ended.code == 0 or hooks, ended.output
    return folder / "run"


def flipped(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


def places(root: Path, number: int, random: Random) -> Iterator[tuple[str, int]]:
    """Yields files of a folder in turn, by their path in it, and a bit of each."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
    files = [path for path in files if path.relative_to(root).as_posix() not in NOT_READ_AGAIN]
    for index in range(number):
        file = files[index % len(files)]
        yield file.relative_to(root).as_posix(), random.randrange(8 * file.stat().st_size)


def test_every_bit_of_a_checkpoint_is_verified(faults: Faults, finished, tmp_path):
    checkpoint = tmp_path / "step-12"
    shutil.copytree(finished / "checkpoints" / "step-12", checkpoint)
    manifest = checkpoint / "manifest.json"
    every = [("manifest.json", bit) for bit in range(8 * manifest.stat().st_size)]
    every += places(checkpoint, OF_CHECKPOINT, faults.random())
    assert verify(checkpoint) == []
    missed = []
    for name, bit in faults.sample(every):
        faults.count("flips")
        flipped(checkpoint / name, bit)
        if not any(problem.startswith(f"{name}: ") for problem in verify(checkpoint)):
            missed.append((name, bit))
        flipped(checkpoint / name, bit)
    assert faults.wrong([f"bit {bit} of {name} was not found" for name, bit in missed]) == []


@pytest.mark.parametrize("state", ["finished", "stopped"])
def test_every_bit_of_a_run_is_verified(faults: Faults, request: pytest.FixtureRequest, tmp_path, state):
    whole, run = request.getfixturevalue(state), tmp_path / "run"
    shutil.copytree(whole, run)
    assert list(damages(run)) == []
    wrong = []
    read = "checkpoints" if state == "stopped" else ""
    for name, bit in faults.sample(list(places(run / read, OF_RUN, faults.random(state))), state):
        file = run / read / name
        faults.count("flips")
        flipped(file, bit)
        found = list(damages(run))
        if not any(file.name in problem for problem in found):
            wrong.append(f"bit {bit} of {name} was not found: {found}")
        flipped(file, bit)
    assert faults.wrong(wrong) == []


def outcome(
    server: ForkServer, faults: Faults, words: list[Any], where: Any, *hooks: Hook
) -> tuple[int, str, list[str]]:
    faults.count("flips")
    ended = server.run(words, hooks=[*QUICK, *hooks])
    return ended.code, ended.output, faults.problems(ended, where)


def test_a_resume_names_what_is_damaged_or_ends_as_without(server, faults: Faults, finished, stopped, tmp_path):
    wrong = []
    for number, (name, bit) in enumerate(faults.sample(list(places(stopped, RESUMES, faults.random("resume"))))):
        run = tmp_path / str(number) / "run"
        shutil.copytree(stopped, run)
        flipped(run / name, bit)
        code, output, problems = outcome(server, faults, argv(run, RESUME), (name, bit))
        wrong += problems
        is_named = Path(name).name in output or "is damaged" in output
        # An earlier checkpoint is not read, and stays as it is.
        found = [output] if code else [each for each in differences(finished, run) if each != f"{name} differs"]
        if found and not is_named:
            wrong += faults.wrong([f"bit {bit} of {name}: {found}"])
    assert wrong == []


def test_a_damaged_cache_of_rows_is_made_again(server, faults: Faults, finished, tmp_path):
    cache, wrong = tmp_path / "cache", []
    _run(server, tmp_path / "filled", ("use_cache", {"path": str(cache)}))
    for number, (name, bit) in enumerate(faults.sample(list(places(cache, CACHED, faults.random("cache"))))):
        own, run = tmp_path / f"cache-{number}", tmp_path / str(number) / "run"
        shutil.copytree(cache, own)
        flipped(own / name, bit)
        hook = ("use_cache", {"path": str(own)})
        code, output, problems = outcome(server, faults, argv(run), (name, bit), hook)
        wrong += problems
        if code != 0 or differences(finished, run):
            wrong += faults.wrong([f"bit {bit} of {name}: {output}"])
    assert wrong == []


def test_predictions_of_a_damaged_run_are_rejected_or_the_same(server, faults: Faults, finished, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("text\nvery good and solid\nit broke at once\n")
    command = ["toolkit", "predict", "RUN", "--input", rows, "--output", "OUT"]

    def predicted(run: Path, where: Any) -> tuple[int, str, list[str], bytes]:
        out = run.with_name("predicted.jsonl")
        words = [run if word == "RUN" else out if word == "OUT" else word for word in command]
        found = outcome(server, faults, words, where)
        return *found, out.read_bytes() if out.exists() else b""

    code, output, _, expected = predicted(finished, "whole")
    assert code == 0, output
    wrong = []
    files = [(name, bit) for name, bit in places(finished, 8 * PREDICTED, faults.random("predict"))
             if not name.startswith(("checkpoints", "report", "predictions", "curves"))]  # fmt: skip
    for number, (name, bit) in enumerate(faults.sample(files[:PREDICTED])):
        run = tmp_path / str(number) / "run"
        shutil.copytree(finished, run)
        flipped(run / name, bit)
        code, output, problems, found = predicted(run, (name, bit))
        wrong += problems
        if Path(name).name not in output and (code != 0 or found != expected):
            wrong += faults.wrong([f"bit {bit} of {name}: exit code {code}, {output}"])
    assert wrong == []
