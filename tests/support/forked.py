"""Real command lines as forked children of a server that has imported everything: about 1 s each."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil
from forking import SHOW_STACKS

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 120.0
"""A run of the tests takes a few seconds; one that takes this long hangs."""
DEADLY = (signal.SIGKILL, signal.SIGALRM)
"""Signals that end a process at once, whatever it does."""
Hook = tuple[str, dict[str, Any]]


@dataclass
class Ended:
    """A run that has ended.

    Args:
        codes: exit code of each rank, the negative number of a signal that killed it.
        output: what all ranks printed.
        hung: whether it had to be killed after the limit.
        seconds: how long it took.
    """

    codes: list[int]
    output: str
    hung: bool
    seconds: float

    @property
    def code(self) -> int:
        """The first rank's exit code."""
        return self.codes[0]


@dataclass
class Started:
    """A run in progress.

    Args:
        server: its fork server.
        pids: the processes, by rank.
        log: the file with their output.
    """

    server: ForkServer
    pids: list[int]
    log: Path
    began: float = field(default_factory=time.monotonic)
    _codes: dict[int, int] = field(default_factory=dict)

    def poll(self, seconds: float = 0.0) -> bool:
        """Whether all ranks have ended, for which it waits at most `seconds`."""
        ended = [self.poll_rank(rank, seconds) for rank in range(len(self.pids))]  # each rank is asked
        return all(ended)

    def poll_rank(self, rank: int, seconds: float = 0.0) -> bool:
        """Whether a rank has ended, for which it waits at most `seconds`."""
        pid = self.pids[rank]
        if pid not in self._codes:
            code = self.server.ask({"wait": pid, "seconds": seconds})
            if code is None:
                return False
            self._codes[pid] = code
        return True

    def until(self, reached: Callable[[], Any], seconds: float = LIMIT_SECONDS) -> bool:
        """Waits until something is true; returns False if the run ended before."""
        deadline = time.monotonic() + seconds
        while not reached():
            if self.poll():
                return bool(reached())
            if time.monotonic() > deadline:
                show_stacks(self.pids)
                raise AssertionError(self.output())
            time.sleep(0.001)
        return True

    def output(self) -> str:
        """Returns what all ranks have printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def signal(self, number: int, ranks: Sequence[int] | None = None) -> None:
        """Sends a signal to ranks, by default to all."""
        for rank, pid in enumerate(self.pids):
            if (ranks is None or rank in ranks) and pid not in self._codes:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def kill(self) -> None:
        """Kills all processes of the run, also workers of data loaders, in no particular order."""
        trees = []
        for pid in self.pids:
            if pid not in self._codes:
                with suppress(psutil.NoSuchProcess):
                    parent = psutil.Process(pid)
                    trees += [*parent.children(recursive=True), parent]
        for process in trees:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def wait(self, seconds: float = LIMIT_SECONDS, grace: float = math.inf) -> Ended:
        """Waits for the end; the other ranks are killed with one that is killed, as a lost machine would do.

        They are also killed `grace` seconds after one has failed.
        """
        deadline, hung, end = time.monotonic() + seconds, False, math.inf
        while not self.poll(0.02):
            if any(self._codes.values()):
                end = min(end, time.monotonic() + grace)
            if any(-code in DEADLY for code in self._codes.values()) or time.monotonic() > end:
                self.kill()
            elif time.monotonic() > deadline:
                hung = True
                show_stacks(pid for pid in self.pids if pid not in self._codes)
                self.kill()
        codes = [self._codes[pid] for pid in self.pids]
        return Ended(codes, self.output(), hung, time.monotonic() - self.began)


class Forked:
    """A process of the server, with what `subprocess.Popen` has."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid, self.returncode = pid, None
        self._server = server

    def poll(self, seconds: float = 0.0) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.ask({"wait": self.pid, "seconds": seconds})
        return self.returncode

    def wait(self, timeout: float = LIMIT_SECONDS) -> int:
        if self.poll(timeout) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """Context manager of a server.

    Args:
        folder: for its log and caches.
        library: a library to load before all others, or None.
        own_caches: whether its caches are in the folder; otherwise they are those of this process.
    """

    def __init__(self, folder: Path, library: Path | None = None, own_caches: bool = True) -> None:
        self.folder, self.library, self.own_caches, self._number = folder, library, own_caches, 0

    def __enter__(self) -> Self:
        read, self._theirs = os.pipe()
        answers, write = os.pipe()
        home = self.folder / "home"
        env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}"}
        if self.own_caches:
            env |= {"HF_HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
            env |= {"MPLCONFIGDIR": str(home / "matplotlib")}
        if self.library is not None:
            env["LD_PRELOAD"] = str(self.library)
        command = [sys.executable, str(Path(__file__).with_name("fork_server.py")), str(read), str(write)]
        with (self.folder / "server.log").open("wb") as log:
            self._process = subprocess.Popen(command, pass_fds=(read, write), env=env, stdout=log, stderr=log)
        os.close(read)
        os.close(write)
        self._requests, self._answers = os.fdopen(self._theirs, "w"), os.fdopen(answers)
        return self

    def __exit__(self, *exception: object) -> None:
        self._requests.close()
        self._process.wait(60)
        self._answers.close()

    def ask(self, request: dict[str, Any]) -> Any:
        """Sends a request and returns the answer."""
        self._requests.write(json.dumps(request) + "\n")
        self._requests.flush()
        answer = self._answers.readline()
        assert answer, (self.folder / "server.log").read_text()
        return json.loads(answer)

    def start(
        self,
        argv: Sequence[str | Path],
        *,
        processes: int = 1,
        hooks: Sequence[Hook] = (),
        rank_hooks: dict[int, Sequence[Hook]] | None = None,
        env: Mapping[str, str] | None = None,
        whole: bool = False,
        folder: Path | None = None,
        log: Path | None = None,
        errors: Path | None = None,
    ) -> Started:
        """Starts a command line: a recipe's file and its arguments, or `toolkit` or `python` and its arguments.

        Args:
            argv: the command line.
            processes: number of ranks; one is started without a launcher.
            hooks: names of `fault_hooks.HOOKS`, and their arguments.
            rank_hooks: further hooks of single ranks.
            env: environment variables to add to those of the server, or to replace them if `whole`.
            whole: see `env`.
            folder: working directory; None for the repository's root.
            log: file to append the output to; None for a new one.
            errors: file for what is printed to stderr; None for that of the output.
        """
        self._number += 1
        log = log or self.folder / f"run-{self._number}.log"
        log.touch()
        port = free_port() if processes > 1 else 0
        pids = []
        for rank in range(processes):
            own = [*hooks, *(rank_hooks or {}).get(rank, ())]
            variables = rank_variables(rank, processes, port) if processes > 1 else {}
            job = {"argv": [str(word) for word in argv], "env": dict(env or {}) | variables}
            job |= {
                "log": str(log),
                "errors": str(errors or log),
                "hooks": own,
                "whole": whole,
                "folder": folder and str(folder),
            }
            pids.append(self.ask({"start": job}))
        return Started(self, pids, log)

    def run(self, argv: Sequence[str | Path], *, seconds: float = LIMIT_SECONDS, **settings: Any) -> Ended:
        """Runs a command line to its end; arguments are those of `start`."""
        return self.start(argv, **settings).wait(seconds)


def show_stacks(pids: Iterable[int]) -> None:
    """Makes forks, and what they have forked, write the stacks of their threads to their logs."""
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(pid)
            for process in (parent, *parent.children(recursive=True)):
                process.send_signal(SHOW_STACKS)
    time.sleep(1)


def free_port() -> int:
    """Returns a port that nobody listens at now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def rank_variables(rank: int, processes: int, port: int) -> dict[str, str]:
    """Returns the environment variables of a rank on this machine."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ACCELERATE_USE_CPU": "true",
    }
