"""A checkpoint is complete or absent, whenever a run dies and however its files are damaged."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import Tied, make, newest, save, train
from torch import nn

from toolkit.base.errors import CheckpointError, RunError
from toolkit.base.files import file_sha256
from toolkit.checkpoint import manifest, writing
from toolkit.checkpoint.contents import load_model_into, load_optimizer_into
from toolkit.checkpoint.manifest import verify
from toolkit.checkpoint.planning import Group, planned
from toolkit.checkpoint.store import latest, open_checkpoint, prune, prune_behind, steps, sweep
from toolkit.checkpoint.writing import NewCheckpoint, commit
from toolkit.distributed.collectives import Peers

FILES = ("manifest.json", "model.safetensors", "optimizer.safetensors", "processor/vocab.txt", "state.json")
ONES = torch.ones(3)


def write_processor(folder: Path) -> None:
    (folder / "processor").mkdir()
    (folder / "processor" / "vocab.txt").write_text("hello\nworld\n")


def save_steps(root: Path, *numbers: int) -> tuple[Tied, Any]:
    model, optimizer = make()
    done = 0
    for number in numbers:
        train(model, optimizer, range(done, number))
        save(root, number, model, optimizer, {"epoch": number / 10}, write_processor)
        done = number
    return model, optimizer


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        (torch.optim.AdamW, {}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.SGD, {}),
        (torch.optim.SGD, {"momentum": 0.9}),
    ],
)
def test_training_goes_on_bit_identically_from_disk(
    tmp_path: Path, optimizer: Callable[..., Any], settings: dict[str, Any]
) -> None:
    model, optim = make(optimizer, **settings)
    train(model, optim, range(4))
    model.scale.fill_(0.25)
    save(tmp_path, 4, model, optim, {})
    train(model, optim, range(4, 9))

    resumed, other = make(optimizer, **settings)
    found, messages = newest(tmp_path)
    assert (found.step, messages) == (4, [])
    load_model_into(found, resumed)
    load_optimizer_into(found, other, resumed)
    train(resumed, other, range(4, 9))
    assert resumed.head.weight is resumed.embedding.weight
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


def test_state_comes_back_exactly(tmp_path: Path) -> None:
    model, optimizer = make()
    state = {
        "loss": 0.1 + 0.2,
        "tiny": 5e-324,
        "best_metric": None,
        "text": "ü\u2028",
        "seen": [1, 2.5],
        "bad": math.nan,
        "up": math.inf,
        "down": -math.inf,
    }
    found = open_checkpoint(save(tmp_path / "run" / "checkpoints", 7, model, optimizer, state))
    assert found.step == 7
    assert math.isnan(found.state.pop("bad"))
    assert found.state == {key: value for key, value in state.items() if key != "bad"}


def test_layout_and_manifest(tmp_path: Path) -> None:
    save_steps(tmp_path, 5)
    folder = tmp_path / "step-5"
    assert tuple(sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())) == FILES
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["format"], manifest["step"]) == (1, 5)
    sizes = {name: entry["size"] for name, entry in manifest["files"].items()}
    assert sizes == {name: (folder / name).stat().st_size for name in FILES if name != "manifest.json"}
    modes = {stat.S_IMODE((folder / name).stat().st_mode) for name in FILES}
    assert len(modes) == 1, "weights are as readable as the rest"
    assert verify(folder) == []


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("bit", [0, 5])
def test_one_flipped_bit_anywhere_is_found(tmp_path: Path, name: str, bit: int) -> None:
    save_steps(tmp_path, 9, 12)
    path = tmp_path / "step-12" / name
    content = path.read_bytes()
    for position in {0, len(content) // 3, len(content) // 2, len(content) - 1}:
        damaged = bytearray(content)
        damaged[position] ^= 1 << bit
        path.write_bytes(damaged)
        found, messages = newest(tmp_path)
        assert found.path == tmp_path / "step-9"
        reason = f"{name}: damaged" if name == "manifest.json" else f"{name}: sha256 differs"
        assert messages == [f"{tmp_path.name}/step-12 is damaged ({reason}); using step-9"]


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_or_missing_file_is_found(tmp_path: Path, name: str) -> None:
    save_steps(tmp_path, 9, 12)
    path = tmp_path / "step-12" / name
    os.truncate(path, path.stat().st_size - 1)
    (problem,) = verify(tmp_path / "step-12")
    assert problem.startswith(f"{name}: {'damaged' if name == 'manifest.json' else 'size differs'}")
    path.unlink()
    assert verify(tmp_path / "step-12") == [f"{name}: missing"]
    assert newest(tmp_path)[0].step == 9


def test_verify_reports_every_problem(tmp_path: Path) -> None:
    save_steps(tmp_path, 1)
    (tmp_path / "step-1" / "state.json").unlink()
    (tmp_path / "step-1" / "processor" / "notes.txt").touch()
    assert verify(tmp_path / "step-1") == ["state.json: missing", "processor/notes.txt: unexpected file"]


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b"{}", b'{"sha256": 1}', b"\xff\xfe"])
def test_any_manifest_that_is_none_is_damage(tmp_path: Path, content: bytes) -> None:
    save_steps(tmp_path, 1)
    (tmp_path / "step-1" / "manifest.json").write_bytes(content)
    assert verify(tmp_path / "step-1") == ["manifest.json: damaged"]


def test_a_manifest_of_another_format_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(manifest, "FORMATS", {"full": 3, "sharded": 4})
        save_steps(tmp_path, 1)
    assert verify(tmp_path / "step-1") == ["manifest.json: has format 3, this version of the toolkit reads 1 and 2"]


def test_nothing_valid(tmp_path: Path) -> None:
    assert latest(tmp_path / "checkpoints") == (None, [])
    (tmp_path / "step-3").mkdir()
    found, messages = latest(tmp_path)
    assert found is None
    assert messages == [f"{tmp_path.name}/step-3 is damaged (manifest.json: missing); no valid checkpoint is left"]


class Killed(BaseException):
    """Raised when the process dies."""


def die_at(monkeypatch: pytest.MonkeyPatch, fatal: int) -> list[str]:
    """Makes the process die before its `fatal`-th change of the disk; returns the changes that were begun."""
    calls: list[str] = []

    def deadly(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            if len(calls) > fatal:
                raise Killed
            return function(*args, **kwargs)

        return call

    for owner, name in [
        (os, "fsync"),
        (shutil, "rmtree"),
        (Path, "mkdir"),
        (Path, "rename"),
        (Path, "chmod"),
        (Path, "write_text"),
        (Path, "open"),
    ]:
        monkeypatch.setattr(owner, name, deadly(name, getattr(owner, name)))
    return calls


@pytest.mark.parametrize("number", [12, 9], ids=["a new step", "the same step again"])
def test_a_kill_at_any_moment_leaves_a_valid_newest_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    for fatal in range(100):
        root = tmp_path / str(fatal)
        model, optimizer = save_steps(root, 9)
        train(model, optimizer, range(3))
        with monkeypatch.context() as patched:
            calls = die_at(patched, fatal)
            try:
                save(root, number, model, optimizer, {"epoch": 7.0}, write_processor)
                died = False
            except Killed:
                died = True
        found, messages = newest(root)
        assert messages == []
        assert (found.step, found.state["epoch"]) in [(9, 0.9), (number, 7.0)], calls
        save(root, number, model, optimizer, {"epoch": 8.0}, write_processor)
        assert names(root) == {"step-9", f"step-{number}"}, "what a dead run left behind is cleaned up"
        assert newest(root)[0].state == {"epoch": 8.0}
        if not died:
            assert fatal > 15, "the simulation saw every write"
            return
    pytest.fail("the save never came to its end")


def test_damaged_and_abandoned_checkpoints_give_way_to_new_ones(tmp_path: Path) -> None:
    model, optimizer = save_steps(tmp_path, 3, 6, 9)
    (tmp_path / "step-9" / "state.json").unlink()
    save(tmp_path, 9, model, optimizer, {})
    assert verify(tmp_path / "step-9") == []
    save(tmp_path, 4, model, optimizer, {})
    assert names(tmp_path) == {"step-3", "step-4"}, "the run went back behind steps 6 and 9"


@pytest.mark.parametrize(
    ("keep", "protect", "left"),
    [
        (None, [], [2, 4, 10, 12]),
        (1, [], [12]),
        (2, [], [10, 12]),
        (2, [4], [4, 10, 12]),
        (1, [12], [12]),
        (9, [], [2, 4, 10, 12]),
    ],
)
def test_rotation(tmp_path: Path, keep: int | None, protect: list[int], left: list[int]) -> None:
    save_steps(tmp_path, 2, 4, 10, 12)
    removed = prune(tmp_path, keep, protect)
    assert removed == [tmp_path / f"step-{step}" for step in (2, 4, 10, 12) if step not in left]
    assert names(tmp_path) == {f"step-{step}" for step in left}


def test_a_rotation_cut_short_leaves_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = save_steps(tmp_path, 2, 4)
    with monkeypatch.context() as patched:
        die_at(patched, 1)  # after the rename, before the removal
        with pytest.raises(Killed):
            prune(tmp_path, 1)
    assert [step for step, _ in steps(tmp_path)] == [4]
    save(tmp_path, 6, model, optimizer, {})
    assert names(tmp_path) == {"step-4", "step-6"}


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = save_steps(tmp_path, 3)

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    free = rf"are free in {tmp_path}\. Earlier checkpoints are intact"
    with pytest.raises(RunError, match=rf"step-6: .*No space left on device.*; \d.* {free}"):
        save(tmp_path, 6, model, optimizer, {}, full)
    monkeypatch.setattr(writing, "bytes_of", lambda tensor: full(tmp_path))
    with pytest.raises(RunError, match=rf"checkpoint /.*/step-6: .*No space left on device.* are needed, \d.* {free}"):
        save(tmp_path, 6, model, optimizer, {})
    assert names(tmp_path) == {"step-3"}
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="file/step-6"):
        save(tmp_path / "file", 6, model, optimizer, {})


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("place", ["os.fsync", "toolkit.checkpoint.manifest.sync"])
def test_a_full_disk_is_told_with_the_bytes_of_the_checkpoint(place, sharded, tmp_path: Path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    group = Group("model", {"weight": torch.zeros(100)})
    plans, files = [planned(Peers(), group, spread=sharded)], {"state.json": b"{}"}
    monkeypatch.setattr(place, full)
    with pytest.raises(RunError, match=r"; 40[02] B are needed, \d") as raised:
        commit(Peers(), NewCheckpoint(tmp_path, 6, plans, files, sharded=sharded, keep=None, best=None))
    assert str(raised.value).startswith(f"cannot write the checkpoint {tmp_path}/step-6: a disk is full (")


def test_open_checkpoint_rejects_what_is_not_whole(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"step-1 .*no such folder"):
        open_checkpoint(tmp_path / "step-1")
    save_steps(tmp_path, 1)
    (tmp_path / "step-1" / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"state\.json: size differs"):
        open_checkpoint(tmp_path / "step-1")


def test_another_model_is_rejected(tmp_path: Path) -> None:
    save_steps(tmp_path, 1)
    found = open_checkpoint(tmp_path / "step-1")
    other = nn.Linear(4, 4)
    with pytest.raises(CheckpointError, match=r"missing: weight\n(.|\n)*unexpected: hidden"):
        load_model_into(found, other)
    with pytest.raises(CheckpointError, match=r"hidden\.weight: was saved"):
        load_optimizer_into(found, torch.optim.AdamW(other.parameters()), other)
    wider = Tied()
    wider.hidden = nn.Linear(4, 5)
    with pytest.raises(CheckpointError, match=r"size .*hidden\.weight"):
        load_model_into(found, wider)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"files": []}, "has entries that are no size and sha256"),
        ({"files": {"model.safetensors": None}}, "has entries that are no size and sha256"),
        ({"files": {"../x": {"size": 1, "sha256": ""}}}, "has values that the toolkit does not write"),
        ({"files": {"/etc/passwd": {"size": 1, "sha256": ""}}}, "has values that the toolkit does not write"),
        ({"files": {"a\0b": {"size": 1, "sha256": ""}}}, "has values that the toolkit does not write"),
        ({"files": {"a": {"size": "1", "sha256": ""}}}, "has values that the toolkit does not write"),
        ({"step": "1"}, "has values that the toolkit does not write"),
        ({"format": "1"}, "has no format, step or files"),
        ({"step": None}, "has values that the toolkit does not write"),
    ],
)
def test_a_manifest_with_the_right_hash_and_other_values_is_rejected(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    save_steps(tmp_path, 1, 2)
    rewrite_manifest(tmp_path / "step-2", change)
    assert verify(tmp_path / "step-2") == [f"manifest.json: {message}"]
    found, messages = latest(tmp_path)
    assert found is not None
    assert found.step == 1
    assert message in messages[0]


def test_a_manifest_of_shards_without_any_is_damage(tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 2)
    rewrite_manifest(tmp_path / "step-2", {"format": 2})
    assert "model/shard-00001-of-00001.safetensors: not in the manifest" in verify(tmp_path / "step-2")
    assert latest(tmp_path)[0] == open_checkpoint(tmp_path / "step-1")


def test_a_state_of_another_step_is_damage(tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 2)
    state = tmp_path / "step-2" / "state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"train": {"step": 1}}))
    (tmp_path / "step-2" / "manifest.json").unlink()
    manifest.write_manifest(tmp_path / "step-2", 2, {})
    found, messages = latest(tmp_path)
    assert found is not None
    assert found.step == 1
    assert "state.json: is of step 1, not of the folder's" in messages[0]


def test_readers_rename_nothing(tmp_path: Path) -> None:
    """Between the two renames of a save that writes a step again, and after a kill there."""
    save_steps(tmp_path, 1, 2)
    (tmp_path / "step-2").rename(tmp_path / ".old-step-2")
    before = sorted(tmp_path.rglob("*"))
    found, _ = latest(tmp_path)
    assert found is not None
    assert found.step == 2
    assert sorted(tmp_path.rglob("*")) == before
    sweep(tmp_path)  # by the run that owns the folder
    assert latest(tmp_path)[0] == open_checkpoint(tmp_path / "step-2")


def test_an_old_checkpoint_that_cannot_be_removed_ends_no_run(tmp_path: Path, monkeypatch, caplog) -> None:
    save_steps(tmp_path, 1, 2, 3)

    def refuse(*arguments: object, **settings: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", "step-1")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", refuse)
        prune(tmp_path, 1)
    assert caplog.text.count("cannot remove an old checkpoint: step-1: Operation not permitted") == 2
    save_steps(tmp_path, 4)
    prune(tmp_path, 1)
    assert [step for step, _ in steps(tmp_path)] == [4]


def rewrite_manifest(folder: Path, change: dict[str, Any]) -> None:
    content = json.loads((folder / "manifest.json").read_text()) | change
    del content["sha256"]
    (folder / "manifest.json").write_text(json.dumps(content | {"sha256": manifest.own_sha256(content)}))


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"[" * 200_000, "nested too deeply"), (b"{", "Expecting property name"), (b"\xff", "can't decode byte")],
)
def test_a_state_with_the_right_hash_that_cannot_be_read_is_damage(
    tmp_path: Path, content: bytes, message: str
) -> None:
    save_steps(tmp_path, 1, 2)
    folder = tmp_path / "step-2"
    (folder / "state.json").write_bytes(content)
    files = json.loads((folder / "manifest.json").read_text())["files"]
    entry = {"size": len(content), "sha256": file_sha256(folder / "state.json")}
    rewrite_manifest(folder, {"files": files | {"state.json": entry}})
    assert verify(folder) == []
    found, messages = latest(tmp_path)
    assert found is not None
    assert found.step == 1
    assert f"state.json: {message}" in messages[0] or message in messages[0]
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)


def test_a_checkpoint_of_another_step_is_rejected(tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 2)
    rewrite_manifest(tmp_path / "step-2", {"step": 1})
    assert verify(tmp_path / "step-2") == ["manifest.json: is of step 1, not of the folder's"]


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    save_steps(tmp_path, 1)
    (tmp_path / "step-1" / "processor" / "vocab.txt").unlink()
    os.mkfifo(tmp_path / "step-1" / "processor" / "vocab.txt")
    assert verify(tmp_path / "step-1") == ["processor/vocab.txt: not a regular file"]


def test_what_a_run_that_ended_before_the_removal_has_left_is_removed_by_the_one_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_steps(tmp_path, 1, 2, 3, 4)
    prune_behind(tmp_path / "step-3", keep=1)  # goes back on purpose: the newer one may be wanted again
    assert [step for step, _ in steps(tmp_path)] == [1, 2, 3, 4]
    prune_behind(tmp_path / "step-4", keep=2, protect={1})
    assert [step for step, _ in steps(tmp_path)] == [1, 3, 4]

    def refuse(*arguments: object) -> None:
        raise OSError

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", refuse)
        prune_behind(tmp_path / "step-4", keep=1)
    assert [step for step, _ in steps(tmp_path)] == [1, 3, 4]
