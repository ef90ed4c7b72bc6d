"""How processes end: by Ctrl-C, without a home, and when the system gives no more threads or memory."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from launching import ROOT

from toolkit.base import processes
from toolkit.base.cli_errors import EXIT_INTERRUPT, unexpected
from toolkit.base.errors import InputError
from toolkit.base.processes import Thread
from toolkit.base.trust import require_trusted, trust

SLOW_TO_STOP = """
import signal, time
from toolkit.base.cli_errors import guarded
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
def work():
    try:
        print("working", flush=True)
        time.sleep(60)
    finally:
        print("stopping", flush=True)
        time.sleep(60)
guarded(work)
"""


def test_a_second_interrupt_ends_the_process_without_a_traceback() -> None:
    command = [sys.executable, "-c", SLOW_TO_STOP]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in ("working\n", "stopping\n"):
                assert process.stdout.readline() == line
                process.send_signal(signal.SIGINT)
            time.sleep(1.2)  # what comes within a second is an echo
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=10)
        finally:
            process.kill()
    assert process.returncode == EXIT_INTERRUPT
    assert "Traceback" not in errors


def test_an_account_without_a_home_has_no_recipes_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    recipe = tmp_path / "mine.py"
    recipe.write_text("TASK = None")
    trust(recipe, {})
    with pytest.raises(InputError, match="its recipe"):
        require_trusted(recipe, "run", "with --recipe", {})


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("DataLoader worker (pid 7) is killed by signal: Killed.", "Lower train.dataloader_num_workers"),
        ("value cannot be converted to type float without overflow", "lower train.learning_rate"),
        ("One of the subprocesses has abruptly died during map operation.", "Lower data.preprocessing_num_workers"),
        ("[unbound_buffer.cc:78] Timed out waiting 9ms for recv operation to complete", "raise train.ddp_timeout"),
        ("Timed out after 1801 seconds waiting for clients. 1/2 clients joined.", "look for one that is stopped"),
        ("wait timeout after 1800000ms, keys: /worker/1", "cannot reach MASTER_ADDR and MASTER_PORT"),
        ("failed to listen. port: 15102, code: -98, name: EADDRINUSE", "set MASTER_PORT to another"),
        ("index out of range in self", "the tokenizer and the model in model.name_or_path do not belong together"),
    ],
)
def test_errors_of_libraries_say_what_to_do(text: str, advice: str) -> None:
    assert unexpected(RuntimeError(text)).startswith(f"RuntimeError: {text}\n")
    assert advice in unexpected(RuntimeError(text))


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("can't start new thread"),
        MemoryError(),
        OSError(12, os.strerror(12)),
        RuntimeError("could not create a primitive"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried 9"),
    ],
)
def test_too_little_memory_is_a_message(error: Exception) -> None:
    text = unexpected(error)
    assert "lower train.per_device_train_batch_size" in text
    assert "Traceback" not in text


def test_a_thread_that_cannot_begin_is_an_error_and_no_endless_wait(monkeypatch):
    begun = threading.Event()
    thread = Thread(begun.set, "one")
    thread.start()
    thread.join()
    assert begun.is_set()
    monkeypatch.setattr(processes, "THREAD_SECONDS", 0.01)
    dead = Thread(begun.clear, "two")
    monkeypatch.setattr(dead, "_bootstrap", lambda: None)  # as after a MemoryError in the first call of a thread
    with pytest.raises(MemoryError):
        dead.start()


@pytest.mark.parametrize("words", [["ls"], ["init", "rows.csv"], ["train", "reviews", "--config", "smoke"]])
def test_without_its_libraries_a_command_says_what_to_install(words):
    done = subprocess.run(
        [sys.executable, "-S", "-m", "toolkit", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "pip install finetune-toolkit" in done.stderr


def test_what_a_start_imports_is_never_looked_through_and_later_garbage_is_found():
    frozen = gc.get_freeze_count()
    with suppress(ImportError), processes.never_garbage():
        assert not gc.isenabled()
        kept: list[object] = [[] for _ in range(1000)]
        raise ImportError
    assert gc.get_freeze_count() >= frozen + len(kept)
    assert gc.isenabled()
    circle: list[object] = []
    circle.append(circle)
    del circle
    assert gc.collect()
