"""A kill, half a write or an error in every file operation of the saves and of the end of a run."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fault_runs import QUICK, RESUME, ROWS, STEPS_PER_EPOCH, argv, logging_rows
from faults import Faults, differences, row_problems
from file_faults import DEADLY, FAULTS, Operation, read_log
from forked import Ended, ForkServer

from toolkit.base.files import is_temporary
from toolkit.checkpoint.manifest import verify
from toolkit.checkpoint.store import steps

pytestmark = [pytest.mark.faults, pytest.mark.timeout(5400)]

SHORT = ("train.max_steps=7", "checkpoint.save_steps=3", "checkpoint.save_total_limit=1")
"""Three saves, two of which remove the one before, and the end of the run."""
SHARDED = ("parallel.fsdp=2", "checkpoint.format=sharded")
GOES_ON = "finished"
"""The layout in which a finished run goes on for more steps."""
LAYOUTS: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "loop": (1, 0, ()),
    "trainer": (1, 0, ("engine=trainer",)),
    "async": (1, 0, ("checkpoint.async_save=true",)),
    "sharded-rank-0": (2, 0, SHARDED),
    "sharded-rank-1": (2, 1, SHARDED),
    GOES_ON: (1, 0, (RESUME, "train.lr_scheduler_type=constant", "train.warmup_steps=0")),
}
"""Number of processes, the one with the fault, and settings."""
PART = {"loop": 1.0, "trainer": 0.2, "async": 0.4, "sharded-rank-0": 0.2, "sharded-rank-1": 0.3, GOES_ON: 0.15}
"""The share of the operations that a complete run tries: those of `loop` differ little from those of the others."""
HALVED = ("write", "pwrite", "pwrite64", "writev", "mkdir", "ftruncate", "ftruncate64")
"""Operations of which half can be done; a kill in the middle of any other is one before the next."""


@dataclass(frozen=True)
class Reference:
    """A run without a fault.

    Args:
        layout: its entry of `LAYOUTS`.
        folder: its folder.
        operations: those from its first save on; of a finished run that goes on, all.
        former: the folder of the finished run that it goes on with, or None.
    """

    layout: str
    folder: Path
    operations: list[Operation]
    former: Path | None


def run(server: ForkServer, folder: Path, layout: str, *more: str, **arguments: Any) -> Ended:
    """Runs a layout in `folder/run`, with the fault or the log of operations on one rank."""
    processes, rank, settings = LAYOUTS[layout]
    (folder / "run").mkdir(parents=True, exist_ok=True)
    arm = {rank: [("arm", {"roots": [str(folder / "run")], **arguments})]} if arguments else {}
    return server.run(
        argv(folder / "run", *SHORT, *settings, *more),
        processes=processes,
        hooks=[*QUICK, logging_rows(folder)],
        rank_hooks=arm,
    )


@pytest.fixture(scope="module")
def references(injecting: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reference]:
    found = {}
    for layout in LAYOUTS:
        folder, former = tmp_path_factory.mktemp(f"reference-{layout}"), None
        if layout == GOES_ON:
            former = tmp_path_factory.mktemp("former")
            ended = run(injecting, former, layout, "train.max_steps=4")
            assert ended.codes == [0], ended.output
            shutil.copytree(former, folder, dirs_exist_ok=True)
        ended = run(injecting, folder, layout, log=str(folder / "operations"))
        assert ended.codes == [0] * len(ended.codes), ended.output
        operations = read_log(folder / "operations")
        first = next((each.number for each in operations if former is None and "checkpoints" in each.path), 1)
        found[layout] = Reference(layout, folder, [each for each in operations if each.number >= first], former)
    return found


def is_explained(ended: Ended, fault: str, run: Path) -> bool:
    """Whether a run that an error ended said so, once for each thing that it could not write, and what is free."""
    number = getattr(errno, fault)
    messages = [line for line in ended.output.splitlines() if os.strerror(number) in line]
    if number in (errno.ENOSPC, errno.EDQUOT) and not all(f" are free in {run}" in line for line in messages):
        return False
    return bool(messages) and len(messages) == len(set(messages))


def only_leaves_more(operation: Operation, fault: str) -> bool:
    """Whether an error only keeps a temporary file or folder from being removed, which the next run does."""
    is_removal = operation.name in ("unlink", "rmdir") and fault not in DEADLY
    return is_removal and any(is_temporary(Path(part)) for part in Path(operation.path).parts)


def after_fault(server: ForkServer, folder: Path, reference: Reference, fault: str, ended: Ended) -> list[str]:
    """Returns what is wrong after a fault, and after the resume."""
    wrong = []
    root = folder / "run" / "checkpoints"
    for _, checkpoint in steps(root):
        wrong += [f"{checkpoint.name}: {problem}" for problem in verify(checkpoint)]
    if fault not in DEADLY and ended.code != 0 and not is_explained(ended, fault, folder / "run"):
        wrong.append(f"no message, or several:\n{ended.output}")
    checked = server.run(["toolkit", "verify", folder / "run"])
    if checked.code != 0:
        wrong.append(f"toolkit verify: {checked.output}")
    if any(ended.codes):
        again = run(server, folder, reference.layout, RESUME)
        if any(again.codes) or "Traceback" in again.output:
            return [*wrong, f"the resume failed with {again.codes}:\n{again.output}"]
    wrong += differences(reference.folder / "run", folder / "run")
    return wrong + row_problems(folder / "rows.jsonl", ROWS, STEPS_PER_EPOCH)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_is_lost_by_a_fault_in_any_operation(injecting, references, faults: Faults, tmp_path, layout, fault):
    reference, found = references[layout], list[str]()
    named = [each for each in reference.operations if fault != "half" or each.name in HALVED]
    named = [each for each in named if not only_leaves_more(each, fault)]
    part = faults.random(layout, fault).sample(named, round(PART[layout] * len(named)))
    for operation in faults.sample(part, layout, fault):
        folder = tmp_path / str(operation.number)
        where = f"{fault} at {operation.name} of {Path(operation.path).relative_to(reference.folder / 'run')}"
        if reference.former is not None:
            shutil.copytree(reference.former, folder)
        ended = run(injecting, folder, layout, fault=fault, nth=operation.number)
        faults.count("operations")
        faults.count("kills", fault in DEADLY)
        found += faults.problems(ended, where)
        wrong = after_fault(injecting, folder, reference, fault, ended)
        found += faults.wrong([f"{where}: {each}" for each in wrong])
    assert not found, "\n".join(found)
