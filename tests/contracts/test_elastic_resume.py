"""C9: a run may stop under one layout of processes and continue under another; formats of checkpoints do not matter."""

from __future__ import annotations

import json
from pathlib import Path

import layouts
import pytest
from launching import fork
from layouts import LAYOUTS, PAIRS, SAVED_STEP
from runs import assert_close, assert_same_weights, lines, weights
from tolerances import FLOAT64

from toolkit.checkpoint.manifest import read_manifest, verify

TASK = "reviews"
SEVERAL = sorted({processes for processes, _, _ in LAYOUTS.values() if processes > 1})

SLOW = (pytest.mark.slow, pytest.mark.distributed)


def marked(function):
    """Marks a test that launches processes of its own."""
    for mark in SLOW:
        function = mark(function)
    return function


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the runs of all layouts, and those that resume them; one launch per number of processes."""
    folder = tmp_path_factory.mktemp("layouts")
    for action in ("save", "resume"):
        layouts.main(action, folder, TASK)
        for processes in SEVERAL:
            fork([Path(layouts.__file__), action, folder, TASK], processes)
    return folder


def assert_same_run(one: Path, other: Path) -> None:
    assert_close(lines(one, "loss"), lines(other, "loss"), FLOAT64)
    expected, found = weights(one), weights(other)
    assert_close({k: v.tolist() for k, v in expected.items()}, {k: v.tolist() for k, v in found.items()}, FLOAT64)


@pytest.mark.distributed
def test_one_process_continues_from_the_shards_of_two(many_runs: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / f"{TASK}-fsdp2").symlink_to(many_runs / f"{TASK}-fsdp2")
    layouts.resume(tmp_path, TASK, "fsdp2", "one")
    resumed = tmp_path / f"{TASK}-fsdp2-then-one"
    assert_same_run(many_runs / f"{TASK}-fsdp2", resumed)
    note = (
        "the checkpoint was saved by 2 processes (fsdp 2) with 2 x 2 rows per data rank; this run uses 1 process with 2"
    )
    assert note in capsys.readouterr().out


@marked
@pytest.mark.parametrize(("writer", "reader"), PAIRS)
def test_a_run_ends_the_same_under_another_layout(runs: Path, writer: str, reader: str) -> None:
    one, resumed = runs / f"{TASK}-one", runs / f"{TASK}-{writer}-then-{reader}"
    assert_same_run(one, resumed)
    if writer == reader:
        assert_same_weights(runs / f"{TASK}-{writer}", resumed)


@marked
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_process_writes_a_part_of_a_sharded_checkpoint(runs: Path, layout: str) -> None:
    folder = runs / f"{TASK}-{layout}" / "checkpoints" / f"step-{SAVED_STEP}"
    assert verify(folder) == []
    manifest = read_manifest(folder)
    assert manifest.format == layouts.FORMATS[layout]
    processes = LAYOUTS[layout][0]
    shards = {name: entry.size for name, entry in manifest.files.items() if name.startswith("optimizer/")}
    assert len(shards) == (processes if manifest.format == "sharded" else 0)
    state = json.loads((folder / "state.json").read_text())
    assert state["identity"]["num_processes"] == processes
    if shards and "pipeline" not in layout:  # what several processes hold is shared out; stages differ in size
        assert max(shards.values()) < 1.5 * min(shards.values())
