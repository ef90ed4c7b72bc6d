"""Complete copies of split tensors: in a file that is mapped into memory."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from toolkit.base.errors import RunError
from toolkit.base.files import is_temporary
from toolkit.checkpoint import writing
from toolkit.checkpoint.writing import collected


def own_memory() -> int:
    """Returns the bytes of this process that are not those of a file."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def test_tensors_come_back_and_tied_ones_once(tmp_path: Path) -> None:
    tied = nn.Parameter(torch.arange(6.0).reshape(2, 3))
    tensors = {"embed": tied, "head": tied, "half": torch.ones(3, dtype=torch.bfloat16), "count": torch.tensor(4)}
    found = collected(tmp_path, tensors)
    assert found.keys() == {"embed", "half", "count"}
    assert all(
        torch.equal(value, tensors[name]) and value.dtype == tensors[name].dtype for name, value in found.items()
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process as Linux tells it")
def test_complete_tensors_are_not_held_in_memory(tmp_path: Path) -> None:
    tensors = {str(number): torch.full((1 << 22,), float(number)) for number in range(8)}
    before = own_memory()
    found = collected(tmp_path, tensors)
    assert sum(float(tensor[-1]) for tensor in found.values()) == sum(range(8))
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in found.items())
    assert own_memory() - before < sum(tensor.nbytes for tensor in tensors.values()) / 4


def test_a_copy_that_a_kill_leaves_is_removed_by_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, seen = writing.write_complete, []

    def watched(peers: Any, file: Path, plan: Any) -> None:
        write(peers, file, plan)
        seen.extend(is_temporary(path) for path in tmp_path.iterdir())

    monkeypatch.setattr(writing, "write_complete", watched)
    collected(tmp_path, {"a": torch.zeros(1)})
    assert seen == [True]


def test_a_full_disk_is_told_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writing, "write_complete", full)
    with pytest.raises(RunError, match=r"No space left.*; 4 B .*\d.* free in .* intact"):
        collected(tmp_path, {"a": torch.zeros(1)})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RunError, match=f"into {tmp_path}/missing: "):
        collected(tmp_path / "missing", {"a": torch.zeros(1)})
