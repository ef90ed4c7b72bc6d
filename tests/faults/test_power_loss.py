"""Power loss: whatever was not flushed is gone, and what is then found is whole or not there.

A run's operations are logged, with the content of each file at each flush. For every flush, the disk is made again as
it would be after a power loss just before the next one, in the two extremes that a file system may choose, as
CrashMonkey does (Mohan et al. 2018, Finding Crash-Consistency Bugs with Bounded Black-Box Crash Testing).
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fault_runs import QUICK, RESUME, argv
from faults import Faults, differences
from file_faults import Operation, read_log
from forked import ForkServer

from toolkit.checkpoint.manifest import verify
from toolkit.checkpoint.store import latest, steps
from toolkit.deploy.verify import damages

pytestmark = [pytest.mark.faults, pytest.mark.timeout(5400)]

RESUMES = 60
"""Number of losses in a complete run after which the run is also resumed."""
Identity = tuple[int, int]
OLD_NAMES, NEW_NAMES = "names of the last flush of each folder", "all names, also of files that were not flushed"
SETTINGS = ("train.max_steps=9", "checkpoint.save_steps=3", "checkpoint.save_total_limit=1")


@dataclass
class Disk:
    """What would be on the disk after a power loss.

    Args:
        root: the run's folder.
        kept: the bytes that flushes kept.
        bytes_of: content of each file at its last flush.
        names: identity and kind (whether it is a folder) of each path now.
        durable: those of each folder at its last flush, by the folder's identity.
        lives: how often each inode was given to a new file or folder; with it, an inode is an identity.
    """

    root: str
    kept: bytes
    bytes_of: dict[Identity, bytes] = field(default_factory=dict)
    names: dict[str, tuple[Identity, bool]] = field(default_factory=dict)
    durable: dict[Identity, dict[str, tuple[Identity, bool]]] = field(default_factory=dict)
    lives: Counter[int] = field(default_factory=Counter)

    def apply(self, operation: Operation) -> None:
        """Replays an operation."""
        path, other = operation.path, operation.other
        if operation.name == "mkdir" or (operation.name == "open" and path not in self.names):
            self.lives[operation.inode] += 1
        inode = operation.inode, self.lives[operation.inode]
        if operation.name in ("mkdir", "open"):
            self.names[path] = inode, operation.name == "mkdir"
        elif operation.name == "link":
            self.names[other] = inode, False
        elif operation.name == "rename":
            below = {name: found for name, found in self.names.items() if name == path or name.startswith(f"{path}/")}
            self.names = {name: found for name, found in self.names.items()
                          if name not in below and name != other and not name.startswith(f"{other}/")}  # fmt: skip
            self.names |= {other + name.removeprefix(path): found for name, found in below.items()}
        elif operation.name in ("unlink", "rmdir"):
            self.names.pop(path, None)
        elif operation.name == "fsync" and operation.place >= 0:
            if path not in self.names:  # renamed by a system call that no library sees
                self.names = {name: found for name, found in self.names.items() if found[0] != inode}
                self.names[path] = inode, False
            self.bytes_of[inode] = self.kept[operation.place : operation.place + operation.length]
        elif operation.name == "fsync":
            inside = {name: found for name, found in self.names.items() if os.path.dirname(name) == path}  # noqa: PTH120
            self.durable[inode] = {os.path.basename(name): found for name, found in inside.items()}  # noqa: PTH119

    def write(self, target: Path, names: str) -> None:
        """Makes the folder as it is after a power loss now.

        Args:
            target: the new folder.
            names: `OLD_NAMES` or `NEW_NAMES`.
        """
        target.mkdir(parents=True)
        if names == NEW_NAMES:
            for name, (inode, is_folder) in sorted(self.names.items()):
                place = target / os.path.relpath(name, self.root)
                place.mkdir(exist_ok=True) if is_folder else place.write_bytes(self.bytes_of.get(inode, b""))
        else:
            self._write_durable(target, self.names[self.root][0])

    def _write_durable(self, target: Path, folder: Identity) -> None:
        for name, (inode, is_folder) in self.durable.get(folder, {}).items():
            if is_folder:
                (target / name).mkdir()
                self._write_durable(target / name, inode)
            else:
                (target / name).write_bytes(self.bytes_of.get(inode, b""))


def losses(folder: Path, root: Path) -> list[tuple[str, int, Disk]]:
    """Returns the disk after each flush of a logged run."""
    operations, kept, found = read_log(folder / "operations"), (folder / "kept").read_bytes(), []
    disk = Disk(str(root), kept)
    for operation in operations:
        disk.apply(operation)
        if operation.name in ("fsync", "rename"):
            copy = Disk(disk.root, kept, dict(disk.bytes_of), dict(disk.names), dict(disk.durable), disk.lives)
            found.append((f"after {operation.name} of {os.path.relpath(operation.path, root)}", operation.number, copy))
    return found


@pytest.mark.parametrize("settings", [(), ("engine=trainer",)], ids=["loop", "trainer"])
def test_after_a_power_loss_all_is_whole_or_not_there(injecting: ForkServer, faults: Faults, tmp_path, settings):
    reference = tmp_path / "reference"
    logged = {"roots": [str(reference)], "log": str(tmp_path / "operations"), "kept": str(tmp_path / "kept")}
    ended = injecting.run(argv(reference, *SETTINGS, *settings), hooks=[*QUICK, ("arm", logged)])
    assert ended.code == 0, ended.output
    wrong, saved = list[str](), 0
    cases = [(names, *loss) for loss in losses(tmp_path, reference) for names in (OLD_NAMES, NEW_NAMES)]
    resumed = {case[:3] for case in faults.random("resumed").sample(cases, round(RESUMES * faults.share) or 1)}
    for names, where, number, disk in faults.sample(cases, settings, least=4):
        run = tmp_path / "run"
        shutil.rmtree(run, ignore_errors=True)
        disk.write(run, names)
        faults.count("operations")
        found = [f"{path.name}: {problem}" for _, path in steps(run / "checkpoints") for problem in verify(path)]
        newest, messages = latest(run / "checkpoints")
        saved = max(saved, newest.step if newest else 0)
        found += messages
        if (run / "run.json").exists() and (run / "model").exists():
            found += [each for each in damages(run) if "metrics.jsonl" not in each]
        if (names, where, number) in resumed:
            again = injecting.run(argv(run, *SETTINGS, *settings, RESUME), hooks=QUICK)
            found += [again.output] if again.code else differences(reference, run)
        wrong += faults.wrong([f"{where} ({number}), {names}: {each}" for each in found])
    assert not wrong, "\n".join(wrong)
    assert saved in (0, 3, 6, 9)
