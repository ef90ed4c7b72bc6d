"""Stops a training on all ranks after a stop signal, with a checkpoint."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from toolkit.api.training import TrainingContext
from toolkit.base.console import warn
from toolkit.base.errors import Interrupted
from toolkit.base.processes import STOP_SIGNALS
from toolkit.distributed.collectives import all_sum
from toolkit.distributed.stop import ELASTIC_TIMEOUT, StopSignal, launcher_seconds


class Stopper:
    """Agrees with the other ranks on stop signals, then saves and stops.

    Args:
        context: the training.
        stop: the flag that a stop signal sets.
        save: writes a checkpoint of this step; every rank calls it.
    """

    def __init__(self, context: TrainingContext, stop: StopSignal, save: Callable[[], None]) -> None:
        self._context, self._stop, self._save = context, stop, save
        self._longest_step = 0.0
        self._warned = False
        self.can_save = True
        """Whether a checkpoint of this step exists, or can still be written: parameters are those of training."""

    def received(self) -> list[float]:
        """Returns for each stop signal whether this rank received it."""
        return [float(self._stop.received == number) for number in STOP_SIGNALS]

    def asked(self) -> bool:
        """Whether this rank received a stop signal, so that it should abandon an evaluation."""
        return bool(self._stop.received) and self.can_save

    def stop_now(self) -> None:
        """Saves and stops if any rank received a stop signal. Every rank must call it.

        Raises:
            Interrupted: on every rank, after saving.
        """
        self.stop_if(all_sum(self._context.run.accelerator, *self.received()))

    def stop_if(self, stops: Sequence[float]) -> None:
        """Saves and stops if any rank received a stop signal.

        Args:
            stops: sums of `received` over all ranks.

        Raises:
            Interrupted: on every rank, after saving.
        """
        number = next((number for number, ranks in zip(STOP_SIGNALS, stops, strict=True) if ranks), None)
        if number is None:
            return
        self._stop.disarm()
        context = self._context
        if context.state.step > 0:
            self._save()
        raise Interrupted(
            f"Stopped by {STOP_SIGNALS[number]} at step {context.state.step} of {context.milestones.total_steps}.",
            f"Resume with checkpoint.resume=auto (output_dir={json.dumps(str(context.run.output_dir))}).",
            number,
        )

    def stepped(self, seconds: float) -> None:
        """Notes the duration of a step."""
        self._longest_step = max(self._longest_step, seconds)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Measures a save, and warns once if the launcher would not wait for a step and a save."""
        start = time.monotonic()
        yield
        needed = self._longest_step + time.monotonic() - start
        allowed = launcher_seconds()
        if "TORCHELASTIC_RUN_ID" in os.environ and needed > allowed and not self._warned:
            self._warned = True
            warn(
                f"a step and a checkpoint took {needed:.0f} s, but the launcher kills this run {allowed:.0f} s after "
                f"SIGTERM: set the environment variable {ELASTIC_TIMEOUT}={2 * needed:.0f}, or use `toolkit train "
                "--processes`, so that a stopped run loses nothing."
            )
