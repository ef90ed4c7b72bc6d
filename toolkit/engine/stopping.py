"""Stops a training on all ranks after a stop signal, with a checkpoint, and abandons evaluations."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from toolkit.api.mesh import Mesh
from toolkit.api.run import Predictor
from toolkit.api.training import Training
from toolkit.base.console import warn
from toolkit.base.errors import Interrupted
from toolkit.base.package import replaced
from toolkit.base.processes import STOP_SIGNALS
from toolkit.distributed.collectives import all_sum
from toolkit.distributed.stop import ELASTIC_TIMEOUT, StopSignal, launcher_seconds

if TYPE_CHECKING:
    from accelerate import Accelerator


class _Stopped(Exception):  # noqa: N818 - no error
    """Ends a forward pass."""


class Abandoned(Exception):  # noqa: N818 - no error
    """A stop signal has arrived, and an evaluation was abandoned; raised on every rank."""


def abandon_together(accelerator: Accelerator, is_stopping: Callable[[], bool]) -> None:
    """Abandons an evaluation on all ranks if any of them should; every rank must call it. Raises Abandoned if so."""
    (stopping,) = all_sum(accelerator, float(is_stopping()))
    if stopping:
        raise Abandoned


def any_rank_stops(predictor: Predictor, is_stopping: Callable[[], bool]) -> bool:
    """Returns whether to end an evaluation's batches: at once, or together where processes share a model."""
    if not predictor.mesh.is_split:
        return is_stopping()
    (stopping,) = all_sum(predictor.accelerator, float(is_stopping()))
    return stopping > 0


@contextmanager
def interruptible(model: nn.Module, mesh: Mesh, is_stopping: Callable[[], bool]) -> Iterator[None]:
    """Leaves the block before the next forward pass, as when a token is generated, once this process should stop.

    Processes that gather a split model's parameters together end the generation of a batch instead, and leave the block
    at the next batch. Those that hold parts of layers end with the batch.
    """
    with ExitStack() as changed, suppress(_Stopped):
        if not mesh.is_split:
            for module in {model, getattr(model, "get_base_model", lambda: model)()}:
                changed.callback(module.register_forward_pre_hook(partial(_end_pass, is_stopping)).remove)
        elif mesh.tensor * mesh.pipeline == 1:
            changed.enter_context(_ending_generation(model, is_stopping))
        yield


def _end_pass(is_stopping: Callable[[], bool], *ignored: Any) -> None:
    if is_stopping():
        raise _Stopped


def _ending_generation(model: Any, is_stopping: Callable[[], bool]) -> AbstractContextManager[None]:
    """Makes a model's `generate` end all its rows once this process should stop."""
    generate = getattr(model, "generate", None)
    if generate is None:
        return nullcontext()

    def stops(ids: torch.Tensor, scores: Any, **ignored: Any) -> torch.Tensor:
        return torch.full((len(ids),), is_stopping(), dtype=torch.bool, device=ids.device)

    from transformers import StoppingCriteriaList

    return replaced(model, "generate", partial(generate, stopping_criteria=StoppingCriteriaList([stops])))


class Stopper:
    """Agrees with the other ranks on stop signals, then saves and stops."""

    def __init__(self, training: Training, stop: StopSignal, save: Callable[[], None]) -> None:
        self._training, self._stop, self._save = training, stop, save
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
        """Saves and raises Interrupted if any rank received a stop signal; every rank must call it."""
        self.stop_if(all_sum(self._training.run.accelerator, *self.received()))

    def stop_if(self, stops: Sequence[float]) -> None:
        """Saves and stops if any rank received a stop signal. Raises Interrupted on every rank, after saving."""
        number = next((number for number, ranks in zip(STOP_SIGNALS, stops, strict=True) if ranks), None)
        if number is None:
            return
        self._stop.disarm()
        training = self._training
        if training.state.step > 0:
            self._save()
        raise Interrupted(
            f"Stopped by {STOP_SIGNALS[number]} at step {training.state.step} of {training.milestones.total_steps}.",
            f"Resume with checkpoint.resume=auto (output_dir={json.dumps(str(training.run.output_dir))}).",
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
