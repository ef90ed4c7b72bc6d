"""The rank of this process, its threads and how it ends; imports nothing heavy."""

from __future__ import annotations

import atexit
import ctypes
import errno
import gc
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, TextIO

PR_SET_PDEATHSIG = 1
STOP_SIGNALS = {
    signal.SIGTERM: "SIGTERM",
    signal.SIGINT: "Ctrl-C",
    # A terminal that was closed, and what Slurm's --signal usually sends; Windows has none of them.
    **{getattr(signal, name): name for name in ("SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)},
}
"""The signals that make a run save and end, and their names in messages."""
OWN_LAUNCHER = "TOOLKIT_LAUNCHER"
"""Set for the ranks that `toolkit train --processes` starts."""
EXIT_LOST_PEER = 75
"""Exit code of such a rank when another one has ended, which the launcher turns into the other's."""
EXIT_STALLED = 76
"""Exit code of a rank that has found another one dead, stopped or missing in a collective."""
ECHO_SECONDS = 1.0
"""A stop signal may arrive more than once, from a scheduler and from a launcher, or for each thread of a dead launcher;
what arrives within this time of the first is not a second one."""


def heeded_signals() -> list[signal.Signals]:
    """Returns the stop signals that this process heeds: all but a SIGHUP that `nohup` made it ignore."""
    return [
        number
        for number, name in STOP_SIGNALS.items()
        if name != "SIGHUP" or signal.getsignal(number) is not signal.SIG_IGN
    ]


def leave_closed_terminal() -> None:
    """Sends the output of this process to nowhere if its terminal was closed: writing would raise an error."""
    for descriptor in (1, 2):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


_output_is_optional = threading.Event()
"""Set once a training has begun in this process: its results are files, and what it prints may be lost."""


def train_on_without_output() -> None:
    """From now on, what cannot be printed (no reader, a full disk) is lost with a message instead of an error."""
    _output_is_optional.set()


class _OutlivingStream:
    """A stream to a terminal that may be closed: the signal for that may come later than the first failing write."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._going_on():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._going_on():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno == errno.EIO:
                leave_closed_terminal()
            elif error.errno == errno.EPIPE and not _output_is_optional.is_set():
                raise  # no one needs the rest
            elif not _output_is_optional.is_set():
                error.filename = self._stream.name
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            with suppress(OSError):  # what it holds is written again, now to nowhere
                self._stream.flush()
            if error.errno not in (errno.EIO, errno.EPIPE) and self._stream.name != "<stderr>":
                print(f"warning: {self._stream.name}: {error.strerror}; nothing more is printed there", file=sys.stderr)


def outlive_output() -> None:
    """Makes printing to a terminal that was closed print to nowhere, as to a closed descriptor; escapes characters.

    Those that the encoding of the output lacks are printed as in Python's texts.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:  # the next file that is opened would take its number, and what is printed
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w" if descriptor else "r", encoding="utf-8"))  # noqa: SIM115
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, _OutlivingStream):
            continue
        if stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, _OutlivingStream(stream))


THREAD_SECONDS = 30.0
"""How long a thread may take to begin."""


class Thread(threading.Thread):
    """A daemon thread. Its `start` raises MemoryError if there is no memory for the first call in the new thread.

    Python only prints that error, and the thread that called `start` waits for ever (CPython up to 3.14).
    """

    def __init__(self, work: Callable[[], object], name: str) -> None:
        super().__init__(target=work, name=name, daemon=True)
        self._started = _Started()


class _Started(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        if not super().wait(THREAD_SECONDS if timeout is None else timeout):
            raise MemoryError("too little memory to start a thread")
        return True


def is_launched(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher (accelerate, torchrun, `toolkit train --processes`) started this process."""
    return "ACCELERATE_MIXED_PRECISION" in environ or "LOCAL_RANK" in environ


def has_own_command() -> bool:
    """Whether the command line of this process starts the complete run, without another launcher before it."""
    return not is_launched() or OWN_LAUNCHER in os.environ


def is_first_rank() -> bool:
    """Whether this is the process that logs, before any process group exists."""
    return os.environ.get("RANK", "0") == "0"


def die_with_launcher() -> None:
    """Makes this process receive SIGTERM when its launcher dies; otherwise it would keep running (Linux only)."""
    if is_launched():
        die_with_parent(signal.SIGTERM)


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Makes this process receive a signal when its parent dies, also after `exec` (Linux only)."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call above
        os.kill(os.getpid(), number)


@contextmanager
def never_garbage() -> Iterator[None]:
    """Makes the collector pass over what the block leaves, above all imported libraries, now and later.

    They are 700,000 objects that stay, and looking through them takes a sixth of the time until the first step. What
    is garbage already stays too: only for a process that runs one command.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def end_process(code: int) -> NoReturn:
    """Ends this process; with an error code immediately, since waiting for other ranks would delay the exit.

    A rank that has done its work ends as the children of `multiprocessing` do: after its threads and exit handlers, but
    without the interpreter's teardown. That destroys groups and tensors in no particular order, while torch's threads
    still run (of collectives, of autograd); one that then needs the interpreter aborts the process (SIGABRT), and a
    finished run would count as failed.
    """
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several and not code:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if several:
        if code:
            time.sleep(0.1)  # let the launcher read the message before it sees the process gone
        os._exit(code)
    atexit.register(gc.freeze)  # what is left ends with the process: the teardown need not look for garbage in it
    sys.exit(code)


if __name__ == "__main__":  # `python -m toolkit.base.processes COMMAND ...`: the command ends when its parent dies
    die_with_parent()
    os.execv(sys.argv[1], sys.argv[1:])
