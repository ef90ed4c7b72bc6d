"""Processes and devices: the only place that knows how the run was launched."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from toolkit.config.sections import Config
from toolkit.errors import RunError, ToolkitError
from toolkit.strategies import STRATEGIES

if TYPE_CHECKING:
    from accelerate import Accelerator

T = TypeVar("T")

EXIT_SIGTERM = 128 + signal.SIGTERM
ECHO_SECONDS = 0.25
"""The kernel tells of a launcher's death once for each of its threads, so one death can come as several signals."""
STOP_DEADLINE_SECONDS = 10.0
"""The launcher kills with SIGKILL 30 s after its SIGTERM; a rank that waits for a dead one must end well before."""
POLL_SECONDS = 0.2


def build_accelerator(cfg: Config) -> Accelerator:
    """Builds the run's one Accelerator; `toolkit.machine` has looked whether the device can do what is asked.

    Raises:
        RunError: if the launched processes do not find each other.
    """
    from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
    from accelerate.utils import AORecipeKwargs

    train = cfg.train
    # The toolkit counts items over a window and scales by that count; accelerate must not divide again. The
    # environment would win over the argument, and its value is already part of the configuration.
    os.environ.pop("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", None)
    if train.tf32 is not None:
        torch.set_float32_matmul_precision("high" if train.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = train.tf32
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    # accelerate does not tell the processes of a several-process launch that they are on the CPU; without this, each
    # would be a run of its own.
    kind = Accelerator if STRATEGIES[train.strategy]().wraps_model else _unwrapped_kind()
    accelerator = kind(
        cpu="LOCAL_RANK" in os.environ and not torch.accelerator.is_available(),
        mixed_precision=train.mixed_precision,
        gradient_accumulation_steps=1,
        log_with=list(cfg.tracking.report_to) or None,
        project_dir=str(Path(cfg.output_dir) / "tracking"),
        kwargs_handlers=[
            DistributedDataParallelKwargs(find_unused_parameters=train.ddp_find_unused_parameters),
            InitProcessGroupKwargs(timeout=timedelta(seconds=train.ddp_timeout)),
            # torchao's, which leaves weights, and so checkpoints, as they are; accelerate would take what is installed.
            *([AORecipeKwargs()] if train.mixed_precision == "fp8" else []),
        ],
    )
    if accelerator.num_processes != launched:
        raise RunError(
            f"{launched} processes were launched, but accelerate made a group of {accelerator.num_processes}."
        )
    # Process-wide state of accelerate: left False by an earlier user, optimizer.step() would silently do nothing.
    accelerator.gradient_state._set_sync_gradients(True)
    return accelerator


def _unwrapped_kind() -> type[Accelerator]:
    """Returns a kind of Accelerator that leaves each process its own gradient."""
    from accelerate import Accelerator

    class Unwrapped(Accelerator):
        def prepare_model(
            self, model: torch.nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
        ) -> torch.nn.Module:
            # Placement, precision and compilation are those of training; only the wrapper is left out.
            prepared: torch.nn.Module = super().prepare_model(model, device_placement, evaluation_mode=True)
            return prepared

    return Unwrapped


def on_main(accelerator: Accelerator, function: Callable[..., T], *args: Any) -> T:
    """Runs a function on the main process and returns its result, or raises its error, on every process.

    Args:
        accelerator: the run's Accelerator.
        function: what to run; its result must be picklable.
        *args: its arguments.

    Raises:
        ToolkitError: the main process's own error, on all of them, so that none waits for the others.
    """
    outcome: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            outcome = [function(*args), None]
        except ToolkitError as failure:
            outcome = [None, failure]
    if accelerator.num_processes > 1:
        from accelerate.utils import broadcast_object_list

        broadcast_object_list(outcome)
    result, error = outcome
    if error is not None:
        error.shared = True
        raise error
    return result


def sum_dtype(device: torch.device) -> torch.dtype:
    """Returns the widest float of a device, to sum in."""
    return torch.float32 if device.type == "mps" else torch.float64


def all_sum(accelerator: Accelerator, *values: float) -> list[float]:
    """Sums each value over all processes."""
    if accelerator.num_processes == 1:
        return list(values)
    tensor = torch.tensor(values, dtype=sum_dtype(accelerator.device), device=accelerator.device)
    return accelerator.reduce(tensor, reduction="sum").tolist()


def seed_all(*key: int) -> None:
    """Seeds the global random numbers of torch, numpy and Python with a function of a few numbers."""
    words = np.random.SeedSequence(key).generate_state(3)
    torch.manual_seed(int(words[0]))
    np.random.seed(int(words[1]))
    random.seed(int(words[2]))


class StopSignal:
    """Turns SIGTERM into a flag that the run looks at between steps; a second SIGTERM ends the process at once.

    With several processes a rank may be waiting for a dead one inside a collective, where no Python handler runs.
    A thread therefore learns of the signal through the wake-up file descriptor and ends the process when no `beat`
    came for the time of the deadline, until `disarm`.
    """

    def __init__(self, num_processes: int) -> None:
        self.requested = False
        self._first = self._last_beat = 0.0
        self._unhurried = False
        self._watched = num_processes > 1
        self._disarmed = threading.Event()

    def __enter__(self) -> StopSignal:
        self._previous = signal.signal(signal.SIGTERM, self._handle)
        if self._watched:
            self._reader, self._writer = os.pipe()
            os.set_blocking(self._writer, False)
            signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._disarmed.set()
        signal.signal(signal.SIGTERM, self._previous)
        if self._watched:
            signal.set_wakeup_fd(-1)
            os.close(self._writer)  # which also ends the thread
            self._thread.join()
            os.close(self._reader)

    def beat(self) -> None:
        """Says that this process is not stuck, which renews the deadline."""
        self._last_beat = time.monotonic()

    @contextmanager
    def unhurried(self) -> Iterator[None]:
        """Suspends the deadline while one process does what the others wait for."""
        self._unhurried = True
        yield
        self._unhurried = False
        self.beat()

    def disarm(self) -> None:
        """Stops the deadline: every process has agreed to stop and what is left (saving) needs its time."""
        self._disarmed.set()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.requested and now - self._first > ECHO_SECONDS:
            os._exit(EXIT_SIGTERM)
        if not self.requested:
            self.requested, self._first = True, now

    def _watch(self) -> None:
        while received := os.read(self._reader, 1):
            if received[0] == signal.SIGTERM:
                self.beat()
                break
        while received and not self._disarmed.wait(POLL_SECONDS):
            if not self._unhurried and time.monotonic() - self._last_beat > STOP_DEADLINE_SECONDS:
                os._exit(EXIT_SIGTERM)
