"""Starts the ranks of a run on this machine and waits for them; also knows which rank other launchers made this.

Unlike torchrun, it ends with the exit code of the rank that failed, shows that rank's message last and no other, and
gives the ranks all the time that they need to save after a stop signal. It does not import torch.

`python -m toolkit.system.launcher PROCESSES COMMAND ...` is `run_ranks` as a process, for `toolkit.lab.jobs`: all ranks
print, and it is killed by the signal that killed the rank.
"""

from __future__ import annotations

import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from tempfile import TemporaryFile
from types import FrameType
from typing import IO

from toolkit.base.console import log_to_console, report_error
from toolkit.base.errors import InputError
from toolkit.base.processes import (
    ECHO_SECONDS,
    EXIT_LOST_PEER,
    EXIT_STALLED,
    OWN_LAUNCHER,
    STOP_SIGNALS,
    heeded_signals,
    is_launched,
    leave_closed_terminal,
)
from toolkit.system.activity import FIRST_BEAT, StartWatch
from toolkit.system.limits import threads_per_process

GRACE_SECONDS = 8.0
"""How long the other ranks may take to end after one has failed; then they are killed, within 15 s of the failure."""
POLL_SECONDS = 0.05
STOP_CODES = tuple(128 + number for number in STOP_SIGNALS)
LOG_LINES = 15
"""Lines from the end of a rank's output that are shown if it ended without a message."""
FIRST_PORT, PORTS = 15000, 45000
"""Range of ports for Slurm jobs, which select one by their number."""


def launched_processes(environ: Mapping[str, str] = os.environ) -> int | None:
    """Returns how many processes a launcher has started, of which this is one; None without a launcher."""
    return int(environ.get("WORLD_SIZE", "1")) if is_launched(environ) else None


def require_no_launcher(command: str, environ: Mapping[str, str] = os.environ) -> None:
    """Raises InputError if a launcher has started several processes, which would all do a command's work."""
    if int(environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError(f"toolkit {command} runs in one process; start it without a launcher")


def slurm_rank(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the variables of the rank that a task of `srun` is; nothing for other processes.

    Raises InputError if the tasks are on several machines and `MASTER_ADDR` does not name the first.
    """
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "1")
    if is_launched(environ) or "SLURM_PROCID" not in environ or tasks == "1":
        return {}
    if environ.get("SLURM_STEP_NUM_NODES", "1") != "1" and "MASTER_ADDR" not in environ:
        raise InputError("srun started tasks on several machines: set MASTER_ADDR to the first, as `toolkit slurm`")
    per_node = re.match(r"\d+", environ.get("SLURM_STEP_TASKS_PER_NODE", tasks))
    return {
        "RANK": environ["SLURM_PROCID"],
        "WORLD_SIZE": tasks,
        "LOCAL_RANK": environ["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": per_node[0] if per_node else tasks,
        "MASTER_ADDR": environ.get("MASTER_ADDR", "127.0.0.1"),
        "MASTER_PORT": environ.get("MASTER_PORT", str(FIRST_PORT + int(environ.get("SLURM_JOB_ID", "0")) % PORTS)),
    }


def run_ranks(command: Sequence[str], processes: int, all_print: bool = False) -> int:
    """Runs a command as the ranks of one run and waits until all have ended.

    The first rank prints to this process's output, and with `all_print` all do. The output of the others is shown only
    if one of them fails first. They receive a stop signal once, and a second one kills them. They are also ended when
    this process dies.

    Returns:
        The exit code of the rank that failed first, or 0; negative for a signal that was not sent to this process.
    """
    with ExitStack() as held:
        hidden = 0 if all_print else processes - 1
        outputs = [None] * (processes - hidden) + [held.enter_context(TemporaryFile()) for _ in range(hidden)]
        port = held.enter_context(reserved_port()).getsockname()[1]
        watch = held.enter_context(StartWatch())
        environs = rank_environments(processes, port, watch.descriptor)
        started = [_start(command, outputs[rank], environ) for rank, environ in enumerate(environs)]
        watch.begin([process.pid for process in started])
        ranks = Ranks(started, watch)
        handlers = {number: signal.signal(number, ranks.stop) for number in heeded_signals()}
        try:
            failed = ranks.wait()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return 0 if failed is None else ranks.explain(failed, outputs[failed])


def reserved_port() -> socket.socket:
    """Returns a socket that holds a free port until it is closed.

    It does not listen and has SO_REUSEADDR, so that the first rank, which asks for this port and sets the same option
    (as torch does), can listen at it.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


def rank_environments(processes: int, port: int, first_beat: int) -> list[dict[str, str]]:
    """Returns the environment variables of each rank."""
    common = {
        "OMP_NUM_THREADS": str(threads_per_process(processes)),
        **os.environ,
        OWN_LAUNCHER: "1",
        FIRST_BEAT: str(first_beat),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]


def _start(command: Sequence[str], output: IO[bytes] | None, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # In a session of its own, since a terminal would send Ctrl-C to every process: this one passes it on.
    return subprocess.Popen(
        [sys.executable, "-m", "toolkit.base.processes", *command],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=environ,
        pass_fds=[int(environ[FIRST_BEAT])],
        start_new_session=True,
    )


class Ranks:
    """The processes of a run, the first stop signal that they were sent, and those that failed, in this order."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]], watch: StartWatch | None = None) -> None:
        self.processes, self._watch = processes, watch
        self._stalled = ""
        self._failed: list[int] = []
        self._stopped = 0
        self._since = math.inf

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Passes a stop signal on; the second kills."""
        now = time.monotonic()
        leave_closed_terminal()
        before, self._stopped = self._stopped, self._stopped or number  # the next one may interrupt what follows
        if not before:
            self._since = now
        elif now - self._since < ECHO_SECONDS:
            return
        for process in self.processes:
            process.send_signal(signal.SIGKILL if before else number)

    def wait(self) -> int | None:
        """Waits until all have ended, and returns the one that caused the failure."""
        since, killed = 0.0, False
        while True:
            codes = [process.poll() for process in self.processes]
            if not killed:
                new = [rank for rank, code in enumerate(codes) if code and rank not in self._failed]
                # A library may abort a rank whose peer is gone (NCCL's watchdog does): it comes after its peer.
                self._failed += sorted(new, key=lambda rank: codes[rank] == -signal.SIGABRT)
            if None not in codes:
                break
            since = since if self._failed else time.monotonic()
            failing = self._failed and codes[self._failed[0]] not in STOP_CODES  # else they are saving
            if failing and time.monotonic() - since > GRACE_SECONDS:
                killed = True
                for process in self.processes:
                    process.kill()
            self._kill_if_stalled()
            time.sleep(POLL_SECONDS)
        # Those that found a stalled rank, and killed it, say why.
        causes = sorted(rank for rank in self._failed if codes[rank] == EXIT_STALLED)
        causes = causes or [rank for rank in self._failed if codes[rank] != EXIT_LOST_PEER]
        return next(iter(causes or self._failed), None)

    def _kill_if_stalled(self) -> None:
        """Kills all ranks if one of them was stopped before their heartbeat could find it."""
        if self._watch is not None and not self._stalled and (problem := self._watch.problem(POLL_SECONDS)):
            self._stalled = problem
            for process in self.processes:
                process.kill()

    def explain(self, failed: int, output: IO[bytes] | None) -> int:
        """Prints why a rank failed, unless the first rank has printed it, and returns the exit code."""
        code = self.processes[failed].returncode
        if self._stopped and code in (-self._stopped, -signal.SIGKILL):
            report_error(f"Stopped by {STOP_SIGNALS[signal.Signals(self._stopped)]}, without saving.")
            return 128 + self._stopped
        if self._stalled:
            report_error(self._stalled)
            return EXIT_STALLED
        text = "" if output is None else _read(output)
        spoken = self.processes[0].returncode > 0 and self.processes[0].returncode != EXIT_LOST_PEER
        first_has_spoken = spoken and f"[rank {failed}]" not in text
        if code < 0:
            how = f"rank {failed} was killed by signal {-code} ({signal.Signals(-code).name})"
            report_error("\n".join([how + (", out of memory?" if code == -9 else ""), *_tail(text)]))
        elif code == EXIT_LOST_PEER:
            report_error("the ranks lost their connection to each other")
            return 1
        elif failed and not first_has_spoken:
            report_error("\n".join(_message(text, failed) or [f"rank {failed} ended with code {code}", *_tail(text)]))
        return code


def _read(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read().decode("utf-8", "replace")


def _message(text: str, rank: int) -> list[str]:
    """Returns the rank's last message, from the line that begins with its name."""
    place = text.rfind(f"[rank {rank}]")
    return text[place:].rstrip().splitlines() if place >= 0 else []


def _tail(text: str) -> list[str]:
    return [f"  {line}" for line in text.rstrip().splitlines()[-LOG_LINES:]]


def _main(processes: str, *command: str) -> None:
    log_to_console()
    code = run_ranks(command, int(processes), all_print=True)
    if code < 0:
        signal.raise_signal(-code)  # otherwise, the caller could not tell it from an exit code
    sys.exit(code)


if __name__ == "__main__":
    _main(*sys.argv[1:])
