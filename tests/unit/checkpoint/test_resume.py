"""Output folders: which run may write to them, and which checkpoint is resumed."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import save

from toolkit.api.mesh import Mesh
from toolkit.base.errors import CheckpointError, RunError
from toolkit.base.files import temporary_name
from toolkit.checkpoint import lock, manifest
from toolkit.checkpoint.lock import OutputLock, in_use
from toolkit.checkpoint.output_folder import probe
from toolkit.checkpoint.resume import decide_resume
from toolkit.checkpoint.state import changed_layout, changed_settings, changed_versions, layout, require_same_settings
from toolkit.checkpoint.store import new_checkpoint, prune
from toolkit.tracking.jsonl import mark_of, read_metrics, truncate_metrics, wrong_lines

HOLDER = """
import os, sys, time
from pathlib import Path
from toolkit.checkpoint.lock import OutputLock
with OutputLock(Path(sys.argv[1])):
    worker = os.fork()
    if worker:
        print(worker, flush=True)
    time.sleep(60)
"""
REPOSITORY = Path(__file__).resolve().parents[3]


def save_steps(run: Path, *numbers: int) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    for number in numbers:
        save(run / "checkpoints", number, model, optimizer, {"step": number})


def damage(run: Path, number: int) -> None:
    (run / "checkpoints" / f"step-{number}" / "state.json").write_text("{}")


def no_locks(monkeypatch: pytest.MonkeyPatch, number: int = errno.ENOLCK) -> None:
    """Makes the file system refuse all locks."""

    def refuse(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.lockf", refuse)


def test_a_lock_keeps_other_processes_out_until_its_holder_dies(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        worker = int(holder.stdout.readline())
        try:
            for _ in range(2):  # a refused attempt must not loosen the lock
                with pytest.raises(CheckpointError) as caught, OutputLock(tmp_path):
                    pass
            message = str(caught.value)
            assert f"{tmp_path} is in use by process {holder.pid} on {socket.gethostname()} since 2" in message
            assert "another output_dir" in message
            holder.kill()
            holder.wait()
            with OutputLock(tmp_path):  # although a worker of the dead holder lives on
                assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
        finally:
            holder.kill()
            os.kill(worker, signal.SIGKILL)


def test_a_lock_is_rejected_twice_in_one_process_and_freed_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    with OutputLock(tmp_path / "run"):
        for same in ("run", "link"):
            with pytest.raises(CheckpointError, match="this process already runs in"), OutputLock(tmp_path / same):
                pass
    with pytest.raises(KeyError), OutputLock(tmp_path / "run"):
        raise KeyError
    with OutputLock(tmp_path / "link"):
        pass


def test_a_full_disk_is_told_of_the_lock_and_leaves_it_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.pwrite", full)
        reason = rf"cannot lock {tmp_path}/\.lock: No space left on device; \d+ B are needed, .* are free in {tmp_path}"
        with pytest.raises(CheckpointError, match=reason), OutputLock(tmp_path):
            pass
    with OutputLock(tmp_path):
        assert in_use(tmp_path) is not None


def test_a_lock_that_cannot_be_written_is_not_in_use_by_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("os.ftruncate", refuse)
    with pytest.raises(CheckpointError, match=rf"{tmp_path}/\.lock: Permission denied"):
        OutputLock(tmp_path).__enter__()


def test_without_posix_locks_a_file_stands_for_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_locks(monkeypatch)
    owner = tmp_path / ".lock.owner"
    with OutputLock(tmp_path):
        assert json.loads(owner.read_text())["pid"] == os.getpid()
    assert not owner.exists()
    here = {**lock.identity(os.getppid()), "since": "2026-01-01T00:00:00+00:00"}
    for alive in (here, here | {"host": "elsewhere", "pid": 2**22 + 1}):
        owner.write_text(json.dumps(alive))
        with pytest.raises(CheckpointError, match=rf"process {alive['pid']} on .*delete"):
            OutputLock(tmp_path).__enter__()
        assert owner.exists()
        assert f"on {alive['host']} since" in str(in_use(tmp_path))
    # Above the highest number of a process; and a process of the same number before a container was started again.
    for dead in (2**22 + 1, os.getpid()):
        owner.write_text(json.dumps(here | {"pid": dead}))
        assert in_use(tmp_path) is None
        with OutputLock(tmp_path):
            assert json.loads(owner.read_text())["since"] != here["since"]


@pytest.mark.parametrize("other", [{"namespace": "pid:[1]"}, {"boot": "another"}, {"host": "elsewhere"}])
def test_a_process_that_may_be_in_another_container_is_not_taken_for_dead(other, tmp_path, monkeypatch) -> None:
    no_locks(monkeypatch)
    dead = {**lock.identity(2**22 + 1), "started": "1", "since": "2026"}
    (tmp_path / ".lock.owner").write_text(json.dumps(dead | other))
    with pytest.raises(CheckpointError, match="in use by process"):
        OutputLock(tmp_path).__enter__()
    (tmp_path / ".lock.owner").write_text(json.dumps(dead))
    with OutputLock(tmp_path):
        pass


def write_step(root: Path, step: int, meanwhile: Callable[[], object] = lambda: None) -> None:
    with new_checkpoint(root, step):
        meanwhile()


def moved(run: Path) -> None:
    run.rename(run.with_name("moved"))


def replaced(run: Path) -> None:
    moved(run)
    run.mkdir()
    (run / ".lock").touch()


def unlocked(run: Path) -> None:
    (run / ".lock").unlink()


def taken(run: Path) -> None:
    unlocked(run)
    (run / ".lock").touch()


@pytest.mark.parametrize("change", [moved, replaced, unlocked, taken])
def test_a_run_whose_folder_is_no_longer_its_own_writes_nothing_there(change, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with OutputLock(run):
        checkpoints = run / "checkpoints"
        write_step(checkpoints, 1)
        write_step(checkpoints, 2)
        change(run)
        before = sorted(run.rglob("*"))
        for write in (partial(write_step, checkpoints, 3), partial(prune, checkpoints, 1)):
            with pytest.raises(RunError, match="no longer belongs to this run"):
                write()
        assert sorted(run.rglob("*")) == before


def test_a_folder_that_is_replaced_during_a_save_keeps_its_files(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()

    def take() -> None:
        replaced(run)
        (run / "checkpoints/.tmp-step-1").mkdir(parents=True)  # the other run saves, too

    with OutputLock(run):
        with pytest.raises(RunError, match="no longer belongs"):
            write_step(run / "checkpoints", 1, take)
        assert (run / "checkpoints/.tmp-step-1").is_dir()


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux who has a lock")
def test_a_lock_that_is_not_permitted_is_not_in_use_by_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        no_locks(patched, errno.EACCES)
        with OutputLock(tmp_path, patience_seconds=600.0):  # it does not wait for nobody
            assert json.loads((tmp_path / ".lock.owner").read_text())["pid"] == os.getpid()
        assert in_use(tmp_path) is None
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        worker = int(holder.stdout.readline())
        try:
            no_locks(monkeypatch, errno.EACCES)
            assert f"in use by process {holder.pid}" in str(in_use(tmp_path))
            with pytest.raises(CheckpointError, match=f"process {holder.pid}"):
                OutputLock(tmp_path).__enter__()
        finally:
            holder.kill()
            os.kill(worker, signal.SIGKILL)


def test_a_process_that_was_killed_while_it_removed_a_dead_lock_does_not_stop_a_rerun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_locks(monkeypatch)
    owner, removal = tmp_path / ".lock.owner", tmp_path / ".lock.owner.removal"
    owner.write_text(json.dumps({**lock.identity(2**22 + 1), "started": "1", "since": "2026"}))
    removal.touch()
    assert decide_resume(tmp_path, "none") == (None, [])
    with pytest.raises(CheckpointError, match="in use by process"):  # it may be alive
        OutputLock(tmp_path).__enter__()
    os.utime(removal, (1, 1))
    with OutputLock(tmp_path, patience_seconds=600.0):
        assert json.loads(owner.read_text())["pid"] == os.getpid()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock"]


def test_of_two_runs_that_see_a_dead_one_only_one_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second has read the dead run's file before the first replaces it, and acts after that."""
    no_locks(monkeypatch)
    owner, dead = tmp_path / ".lock.owner", lock.is_of_dead_process
    former = {**lock.identity(2**22 + 1), "started": "1", "since": "2026-01-01T00:00:00+00:00"}
    owner.write_text(json.dumps(former))
    first = []

    def seen_dead(file: Path) -> bool:
        if not first:  # this is the second run, which has read the file; now the first one takes the folder
            first.append(OutputLock(tmp_path))
            first[0].__enter__()
            lock.held_folders.clear()  # the runs are different processes
            owner.write_text(json.dumps(former | lock.identity(os.getppid())))
            return True
        return dead(file)

    monkeypatch.setattr(lock, "is_of_dead_process", seen_dead)
    with pytest.raises(CheckpointError, match="in use by process"):
        OutputLock(tmp_path).__enter__()
    assert json.loads(owner.read_text())["pid"] == os.getppid()
    first[0].__exit__(None, None, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", ".lock.owner"]  # of another process now


def test_an_owner_file_without_content_is_that_of_a_dead_run_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_locks(monkeypatch)
    owner = tmp_path / ".lock.owner"
    owner.touch()
    with pytest.raises(CheckpointError, match="in use by another process"):
        OutputLock(tmp_path).__enter__()
    os.utime(owner, (1, 1))
    with OutputLock(tmp_path):
        assert json.loads(owner.read_text())["pid"] == os.getpid()


def test_a_lock_that_is_a_link_or_a_pipe_is_not_opened(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("content")
    (tmp_path / ".lock").symlink_to(target)
    for reason in ("Too many levels of symbolic links", "not a regular file"):
        assert reason in str(in_use(tmp_path))
        with pytest.raises(CheckpointError, match=f"lock file .*: {reason}"):
            OutputLock(tmp_path).__enter__()
        (tmp_path / ".lock").unlink()
        os.mkfifo(tmp_path / ".lock")
    assert target.read_text() == "content"


def test_a_folder_that_cannot_be_locked_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"missing/\.lock: No such file"):
        OutputLock(tmp_path / "missing").__enter__()


def test_probe_makes_the_folder_and_leaves_nothing(tmp_path: Path) -> None:
    probe(tmp_path / "a" / "b")
    probe(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


@pytest.mark.parametrize("inside", ["", "run"])
def test_probe_tells_that_a_file_is_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        probe(Path("file") / inside)
    assert f"cannot write into {tmp_path / 'file' / inside}: " in str(caught.value)
    assert "file is a file;" in str(caught.value)


@pytest.mark.parametrize(("number", "reason"), [(13, "Permission denied"), (30, "Read-only file system")])
def test_probe_tells_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str) -> None:
    def refuse(path: Path, _: bytes) -> None:
        raise OSError(number, reason, str(path))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(CheckpointError, match=f"{tmp_path}: {reason}.*output_dir"):
        probe(tmp_path)


def test_none_wants_an_empty_folder(tmp_path: Path) -> None:
    assert decide_resume(tmp_path / "new", "none") == (None, [])
    (tmp_path / ".lock").write_text("{}")
    temporary_name(tmp_path / "run.json").touch()  # a killed run left it
    assert decide_resume(tmp_path, "none") == (None, [])
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(CheckpointError) as caught:
        decide_resume(tmp_path, "none")
    for part in (str(tmp_path), "checkpoints, metrics.jsonl", "another output_dir", "checkpoint.resume=auto", "delete"):
        assert part in str(caught.value)


def test_a_full_folder_is_not_listed_whole(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number:02d}").touch()
    with pytest.raises(CheckpointError, match="00, 01, 02, 03, 04, 05, 06, 07 and 12 more"):
        decide_resume(tmp_path, "none")


def test_auto_goes_on_from_the_newest_valid_checkpoint(tmp_path: Path) -> None:
    assert decide_resume(tmp_path / "new", "auto") == (None, [])
    save_steps(tmp_path, 3, 6)
    found, messages = decide_resume(tmp_path, "auto")
    assert found is not None
    assert (found.step, found.state, messages) == (6, {"step": 6}, [])
    damage(tmp_path, 6)
    found, messages = decide_resume(tmp_path, "auto")
    assert found is not None
    assert found.step == 3
    assert len(messages) == 1
    assert messages[0].startswith("checkpoints/step-6 is damaged (state.json: size differs")
    assert messages[0].endswith("; using step-3")


def test_a_checkpoint_that_is_known_to_be_damaged_is_not_used_again(tmp_path: Path) -> None:
    save_steps(tmp_path / "one", 3, 6)
    root = tmp_path / "one" / "checkpoints"
    known = {root / "step-6": "model.safetensors: sha256 differs"}
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "metrics.jsonl").touch()  # written before the damage was found
    for output_dir, resume in ((tmp_path / "one", "auto"), (tmp_path / "new", str(tmp_path / "one"))):
        found, messages = decide_resume(output_dir, resume, known)
        assert found is not None
        assert found.step == 3
        assert messages[0] == "checkpoints/step-6 is damaged (model.safetensors: sha256 differs); using step-3"
    with pytest.raises(CheckpointError, match=r"step-6 .*model\.safetensors: sha256"):
        decide_resume(tmp_path / "new", str(root / "step-6"), known)


def test_auto_never_starts_from_the_beginning_where_checkpoints_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_steps(tmp_path, 3)
    with monkeypatch.context() as patched:
        patched.setattr(manifest, "FORMATS", {"full": 3, "sharded": 4})
        save_steps(tmp_path, 6)
    found, messages = decide_resume(tmp_path, "auto")
    assert found is not None
    assert found.step == 3
    assert "step-6 is damaged (manifest.json: has format 3, this version of the toolkit reads 1 and 2)" in messages[0]
    damage(tmp_path, 3)
    with pytest.raises(CheckpointError) as caught:
        decide_resume(tmp_path, "auto")
    assert caught.value.exit_code == 2
    for part in ("has checkpoints, but none can be used", "state.json: size differs", "has format 3", "output_dir"):
        assert part in str(caught.value)


def test_auto_starts_a_run_again_that_saved_nothing(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / ".tmp-step-3").mkdir(parents=True)
    (tmp_path / "metrics.jsonl").touch()
    found, messages = decide_resume(tmp_path, "auto")
    assert found is None
    assert messages[0].endswith("holds checkpoints, metrics.jsonl, but no checkpoint; starting from the beginning")


def test_a_path_names_the_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    save_steps(run, 3, 6)
    found, messages = decide_resume(tmp_path / "new", str(run / "checkpoints" / "step-3"))
    assert found is not None
    assert (found.step, messages) == (3, [])
    found, messages = decide_resume(run, str(run / "checkpoints" / "step-3"))
    assert found is not None
    assert (found.step, messages) == (3, ["going back to step 3: the next save will remove step-6"])


@pytest.mark.parametrize("folder", [".", "checkpoints"])
def test_a_path_may_be_a_run(tmp_path: Path, folder: str) -> None:
    save_steps(tmp_path, 3, 6)
    found, messages = decide_resume(tmp_path, str(tmp_path / folder))
    assert found is not None
    assert found.step == 6
    assert messages == [f"using the newest valid checkpoint in {tmp_path / folder}, step-6"]
    damage(tmp_path, 3)
    damage(tmp_path, 6)
    with pytest.raises(CheckpointError, match=r"checkpoints:(.|\n)*step-6(.|\n)*step-3"):
        decide_resume(tmp_path, str(tmp_path / folder))


def test_a_path_without_a_checkpoint_or_into_another_run_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere .*no such folder"):
        decide_resume(tmp_path / "run", str(tmp_path / "nowhere"))
    save_steps(tmp_path / "one", 3)
    save_steps(tmp_path / "other", 9)
    with pytest.raises(CheckpointError, match=r"other .*checkpoints"):
        decide_resume(tmp_path / "other", str(tmp_path / "one"))
    damage(tmp_path / "one", 3)
    with pytest.raises(CheckpointError, match=r"state\.json: size differs"):
        decide_resume(tmp_path / "one", str(tmp_path / "one" / "checkpoints" / "step-3"))


SAVED: dict[str, Any] = {
    "output_dir": "runs/one",
    "engine": "loop",
    "seed": 42,
    "model.name_or_path": None,
    "task.labels": ["a", "b"],
    "train.gradient_accumulation_steps": 3,
    "train.max_tokens_per_batch": None,
    "train.per_device_train_batch_size": 4,
    "train.strategy": "sync",
    "train.max_steps": 10,
    "train.num_train_epochs": 3.0,
    "train.dataloader_num_workers": 0,
    "train.ddp_timeout": 1800,
    "train.heartbeat_timeout": 120.0,
    "train.non_finite": "stop",
    "train.max_non_finite_steps": 10,
    "eval.eval_steps": None,
    "checkpoint.save_steps": 5,
    "tracking.project": "x",
    "data.train_file": "a.csv",
    "data.validation_file": "b.csv",
    "data.test_file": None,
    "data.fingerprint.train": "aa",
    "data.fingerprint.validation": "bb",
    "data.preprocessing_num_workers": None,
    "data.max_eval_samples": None,
    "num_processes": 2,
    "versions.torch": "2.13.0",
}


def test_free_settings_may_change() -> None:
    kept = {
        "seed",
        "model.name_or_path",
        "task.labels",
        "train.gradient_accumulation_steps",
        "data.fingerprint.train",
        "num_processes",
        *(
            key
            for key in SAVED
            if key.startswith("train.")
            and "max" not in key
            and "num" not in key
            and key not in ("train.heartbeat_timeout", "train.non_finite")
        ),
    }
    current = {key: value if key in kept else "changed" for key, value in SAVED.items()}
    del current["data.fingerprint.validation"]
    current["data.fingerprint.test"] = "new"
    current["task.labels"] = ("a", "b")
    assert changed_settings(SAVED, current) == []
    require_same_settings(SAVED, current)


def test_every_other_change_is_named() -> None:
    current = {
        **SAVED,
        "train.gradient_accumulation_steps": 4,
        "model.name_or_path": "näme",
        "data.fingerprint.train": "cc",
        "task.extra": None,
        "task.labels": ["b", "a"],
    }
    del current["seed"]
    expected = [
        'data.fingerprint.train: the run was started with "aa", now "cc"',
        'model.name_or_path: the run was started with null, now "näme"; set model.name_or_path=null',
        "seed: the run was started with 42, now it is not set; set seed=42",
        "task.extra: the run was started without it, now null",
        'task.labels: the run was started with ["a", "b"], now ["b", "a"]; set task.labels=["a", "b"]',
        f"{WINDOW}: the run was started with 24 rows per step, now 32; set {WINDOW}=24",
    ]
    assert changed_settings(SAVED, current) == expected
    with pytest.raises(CheckpointError) as caught:
        require_same_settings(SAVED, current)
    assert all(f"\n  - {message}\n" in str(caught.value) for message in expected)
    assert "another output_dir" in str(caught.value)


WINDOW = "train.global_batch_size"


def split(batch: int, accumulation: int | None, mesh: Mesh, **others: Any) -> dict[str, Any]:
    """Returns the identity of a run with windows of this split, in the words of this version."""
    sizes = {"train.per_device_train_batch_size": batch, "train.gradient_accumulation_steps": accumulation}
    return {**SAVED, **sizes, **layout(mesh), "parallel.fsdp": mesh.fsdp, "checkpoint.format": "sharded", **others}


def test_a_resume_with_other_versions_is_said() -> None:
    before = {"seed": 1, "versions.torch": "2.8.0", "versions.transformers": "5.10.0"}
    now = {"seed": 1, "versions.torch": "2.13.0", "versions.transformers": "5.10.0", "versions.peft": "0.17.0"}
    assert changed_versions(before, now) == (
        "resumed with other versions: torch 2.8.0 -> 2.13.0; results can differ by rounding or more"
    )
    assert changed_versions(before, before) is None


@pytest.mark.parametrize(
    ("batch", "accumulation", "mesh"),
    [
        (24, None, Mesh()),
        (4, 3, Mesh(fsdp=2)),
        (12, 2, Mesh(tensor=4)),
        (3, 2, Mesh(replicas=2, fsdp=2, tensor=2)),
        (1, 8, Mesh(replicas=3, pipeline=2)),
    ],
)
def test_processes_may_share_a_window_and_the_model_in_another_way(
    batch: int, accumulation: int | None, mesh: Mesh
) -> None:
    current = split(batch, accumulation, mesh)
    assert changed_settings(SAVED, current) == []
    note = changed_layout(SAVED, current)
    assert note is not None
    assert note.startswith(
        "the checkpoint was saved by 2 processes (replicas 2) with 4 x 3 rows per data rank; this run"
    )
    assert changed_layout(current, current) is None
    assert changed_layout(SAVED, split(4, 3, Mesh(replicas=2))) is None


@pytest.mark.parametrize(
    ("batch", "mesh", "rows"), [(2, Mesh(replicas=4), 8), (5, Mesh(fsdp=3), 15), (1, Mesh(replicas=5), 5)]
)
def test_another_window_is_rejected_with_what_to_set(batch: int, mesh: Mesh, rows: int) -> None:
    (problem,) = changed_settings(SAVED, split(batch, 1, mesh))
    assert problem == f"{WINDOW}: the run was started with 24 rows per step, now {rows}; set {WINDOW}=24"
    assert changed_settings(SAVED, split(batch, 1, mesh, **{WINDOW: 24})) == []  # uneven parts of a window, too


def test_padding_may_come_back_only_where_the_model_is_split_in_another_way() -> None:
    started = split(4, 3, Mesh(replicas=2), **{"train.unpadded": True, "parallel.backend": "torch"})
    padded = {**started, "train.unpadded": False}
    other_rows = split(6, 2, Mesh(replicas=2), **{"train.max_tokens_per_batch": 64})
    (problem,) = changed_settings(started, padded | other_rows)
    assert problem == "train.unpadded: the run was started with true, now false; set train.unpadded=true"
    for split_otherwise in (split(4, 6, Mesh(pipeline=2)), {"parallel.backend": "deepspeed"}):
        assert changed_settings(started, padded | split_otherwise) == []


def test_local_sgd_keeps_its_processes() -> None:
    local = {**SAVED, "train.strategy": "local_sgd"}
    assert changed_settings(local, split(4, 3, Mesh(replicas=2), **{"train.strategy": "local_sgd"})) == []
    problems = changed_settings(local, split(6, 4, Mesh(), **{"train.strategy": "local_sgd"}))
    assert [problem.split(":")[0] for problem in problems] == [
        "mesh.replicas",
        "train.gradient_accumulation_steps",
        "train.per_device_train_batch_size",
    ]
    assert "mesh.replicas: the run was started with 2, now 1" in problems
    cut = {"train.strategy": "local_sgd", "train.max_tokens_per_batch": 64}
    (problem,) = changed_settings(local, split(4, 3, Mesh(replicas=2), **cut))
    assert problem.startswith("train.max_tokens_per_batch: the run was started with null, now 64")


def test_runs_from_before_there_were_budgets_go_on() -> None:
    for strategy in ("sync", "local_sgd"):
        saved = {name: value for name, value in SAVED.items() if name != "train.max_tokens_per_batch"}
        now = split(4, 3, Mesh(replicas=2), **{"train.strategy": strategy})
        assert changed_settings(saved | {"train.strategy": strategy}, now) == []
        assert changed_layout(saved | {"train.strategy": strategy}, now) is None


@pytest.mark.parametrize("torn", [b"", b'{"step": 3, "lo', b'{"step": 2}', b"\xff\xfe\n", b'"step"\n{"loss": 1}\n\n'])
def test_metrics_are_cut_back(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    kept = b'{"step": 1, "loss": 0.30000000000000004}\n{"step": 2, "eval_loss": NaN}\n{ "step":2 }\n'
    path.write_bytes(kept + b'{"step": 3}\n{"step": 10}\n' + torn)
    truncate_metrics(path, 2)
    assert path.read_bytes() == kept + (torn + b"\n" if torn == b'{"step": 2}' else b"")
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_damaged_line_before_the_checkpoint_is_kept_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo\n{"step": 3}\n{"step": 4}\n')
    truncate_metrics(path, 3)
    assert path.read_text() == '{"step": 1}\n{"step": 3}\n'
    assert (
        tmp_path / "metrics.jsonl.damaged"
    ).read_text() == '{"step": 1}\n{"step": 2, "lo\n{"step": 3}\n{"step": 4}\n'
    assert caplog.messages == [f"{path}: line 2 cannot be read; the file as it was is kept in metrics.jsonl.damaged"]


def test_a_changed_last_line_of_the_checkpoint_is_kept_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, aside = tmp_path / "metrics.jsonl", tmp_path / "metrics.jsonl.damaged"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    mark = mark_of(path)
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    truncate_metrics(path, 2, mark)
    assert (path.read_text(), aside.exists()) == ('{"step": 1}\n{"step": 2}\n', False)
    damaged = '{"step": 1}\n{"step": 2\n{"step": 3}\n'
    path.write_text(damaged)
    truncate_metrics(path, 2, mark)
    assert (path.read_text(), aside.read_text()) == ('{"step": 1}\n', damaged)
    what = "lines before step 2 have changed; the file as it was is kept in metrics.jsonl.damaged"
    assert caplog.messages == [f"{path}: {what}"]
    truncate_metrics(path, 2, mark)
    assert aside.read_text() == damaged + '{"step": 1}\n', "what was kept before stays"
    path.unlink()
    truncate_metrics(path, 2, mark)
    assert caplog.messages[-1] == f"{path} is missing: the lines before step 2 are lost"


@pytest.mark.parametrize(
    "line",
    [f'{{"step": {"9" * 400}}}', f'{{"step": 1, "a": {"[" * 200_000}', '{"step": "1.5"}', '{"step": -Infinity}',
     f'{{"step": 1, "a": {"[" * 500 + "]" * 500}}}'],
)  # fmt: skip
def test_a_line_that_the_toolkit_does_not_write_is_a_damaged_one(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{line}\n{{"step": 1, "a": "\u2028"}}\n')
    assert wrong_lines(path, whole=True) == [1]
    truncate_metrics(path, 2)
    assert read_metrics(path) == [{"step": 1, "a": "\u2028"}]


def test_metrics_need_not_be_there_but_must_be_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    truncate_metrics(path, 5)
    assert not path.exists()
    path.write_text('{"step": 1}\n{"step": 9}\n')

    def refuse(self: Path, _: Path) -> None:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(RunError, match=r"metrics\.jsonl .*step 5: No space left"):
        truncate_metrics(path, 5)
    assert path.read_text() == '{"step": 1}\n{"step": 9}\n'
