"""Ends a batch of an evaluation, also while text is generated, when a stop signal has arrived."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from toolkit.api.mesh import Mesh
from toolkit.api.run import Predictor
from toolkit.distributed.collectives import all_sum

if TYPE_CHECKING:
    from accelerate import Accelerator


class _Stopped(Exception):  # noqa: N818 - no error
    """Ends a forward pass."""


class Abandoned(Exception):  # noqa: N818 - no error
    """A stop signal has arrived, and an evaluation was abandoned; raised on every rank."""


def abandon_together(accelerator: Accelerator, is_stopping: Callable[[], bool]) -> None:
    """Abandons an evaluation on all ranks if any of them should; every rank must call it.

    Raises:
        Abandoned: if so.
    """
    (stopping,) = all_sum(accelerator, float(is_stopping()))
    if stopping:
        raise Abandoned


def any_rank_stops(predictor: Predictor, is_stopping: Callable[[], bool]) -> bool:
    """Returns whether this process should make no further batches of an evaluation.

    Processes that share a model make the same number of batches, and must stop at the same one; other processes meet
    after their last one.

    Args:
        predictor: the run.
        is_stopping: whether this process has a reason to stop.
    """
    if not predictor.mesh.is_split:
        return is_stopping()
    (stopping,) = all_sum(predictor.accelerator, float(is_stopping()))
    return stopping > 0


@contextmanager
def interruptible(model: nn.Module, mesh: Mesh, is_stopping: Callable[[], bool]) -> Iterator[None]:
    """Leaves the block before the next forward pass, as when a token is generated, once this process should stop.

    Processes that gather a split model's parameters together end the generation of a batch instead, and leave the block
    at the next batch. Those that hold parts of layers end with the batch.

    Args:
        model: the model.
        mesh: arrangement of the processes.
        is_stopping: whether this process should stop.
    """
    with ExitStack() as changed, suppress(_Stopped):
        if not mesh.is_split:
            for module in {model, getattr(model, "get_base_model", lambda: model)()}:
                changed.callback(module.register_forward_pre_hook(partial(_refuse, is_stopping)).remove)
        elif mesh.tensor * mesh.pipeline == 1:
            changed.enter_context(_ending_generation(model, is_stopping))
        yield


def _refuse(is_stopping: Callable[[], bool], *ignored: Any) -> None:
    if is_stopping():
        raise _Stopped


@contextmanager
def _ending_generation(model: Any, is_stopping: Callable[[], bool]) -> Iterator[None]:
    """Makes a model's `generate` end all its rows once this process should stop."""
    import torch

    generate = getattr(model, "generate", None)
    if generate is None:
        yield
        return

    def stops(ids: torch.Tensor, scores: Any, **ignored: Any) -> torch.Tensor:
        return torch.full((len(ids),), is_stopping(), dtype=torch.bool, device=ids.device)

    from transformers import StoppingCriteriaList

    former = vars(model).get("generate")
    model.generate = partial(generate, stopping_criteria=StoppingCriteriaList([stops]))
    try:
        yield
    finally:
        if former is None:
            del model.generate
        else:
            model.generate = former
