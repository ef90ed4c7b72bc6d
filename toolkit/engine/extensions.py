"""What may follow a run step by step, under any engine: each in a file of its own, and one line in a dict here.

An extension sees every update, evaluation and checkpoint at the same moments in every engine, and what it keeps is
saved and restored with the run, so it need not know of engines, ranks or resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from toolkit.optim.presets import PRESETS

if TYPE_CHECKING:
    from torch import Tensor

    from toolkit.checkpoint import Checkpoint
    from toolkit.engine.session import Session


class Extension:
    """Does nothing at every moment; an extension defines those that it needs.

    Args:
        session: the run's; model, optimizer and state are complete when an extension is built.
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    def before_update(self) -> None:
        """Called on every rank before each update, once its gradient is exchanged, clipped and known to be finite."""

    def after_update(self) -> None:
        """Called on every rank after each update has been counted, before anything is logged, evaluated or saved."""

    def before_pause(self) -> None:
        """Called on every rank before parameters are evaluated or saved."""

    def before_save(self) -> None:
        """Called on every rank before a checkpoint is written, after `before_pause`."""

    def after_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Called on every rank after validation rows were scored, once per step, with `eval_` metrics."""

    @contextmanager
    def as_result(self) -> Iterator[None]:
        """Holds while parameters are evaluated or saved as a result, as opposed to being trained on."""
        yield

    def take_best(self, best: Checkpoint, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Called when the best step's parameters were put in place of the last one's, with the `state` of that step."""

    def finish(self) -> None:
        """Called on every rank when nothing is left to train or to keep: parameters become the run's result."""

    def result(self) -> dict[str, float]:
        """Returns numbers for the report, after the last evaluation; parameters must stay as they are."""
        return {}

    def figures(self) -> dict[str, float]:
        """Returns numbers for the next training line."""
        return {}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Returns what a checkpoint must hold: tensors, and values that JSON can hold."""
        return {}, {}

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Takes back what `state` returned."""


def _early_stopping() -> type[Extension]:
    from toolkit.engine.early_stopping import EarlyStopping

    return EarlyStopping


def _plateau() -> type[Extension]:
    from toolkit.engine.plateau import Plateau

    return Plateau


def _schedule_free() -> type[Extension]:
    from toolkit.engine.schedule_free import ScheduleFree

    return ScheduleFree


def _snapshots() -> type[Extension]:
    from toolkit.engine.snapshots import Snapshots

    return Snapshots


def _unfreezing() -> type[Extension]:
    from toolkit.engine.unfreezing import Unfreezing

    return Unfreezing


def _max_time() -> type[Extension]:
    from toolkit.engine.max_time import MaxTime

    return MaxTime


def _ema() -> type[Extension]:
    from toolkit.engine.ema import AveragedWeights

    return AveragedWeights


def _auto_batch_size() -> type[Extension]:
    from toolkit.engine.auto_batch_size import AutoBatchSize

    return AutoBatchSize


EXTENSIONS: dict[str, tuple[Callable[[Any], bool], Callable[[], type[Extension]]]] = {
    "early_stopping": (lambda cfg: cfg.train.early_stopping_patience is not None, _early_stopping),
    "plateau": (lambda cfg: cfg.train.lr_scheduler_type == "reduce_lr_on_plateau", _plateau),
    "schedule_free": (lambda cfg: PRESETS[cfg.train.optim].library == "schedulefree", _schedule_free),
    "snapshots": (lambda cfg: cfg.train.snapshot_ensemble, _snapshots),
    "unfreezing": (lambda cfg: bool(cfg.model.unfreeze), _unfreezing),
    "max_time": (lambda cfg: cfg.train.max_time is not None, _max_time),
    "ema": (lambda cfg: cfg.train.ema_decay is not None, _ema),
    "auto_batch_size": (lambda cfg: cfg.train.auto_batch_size, _auto_batch_size),
}
"""By the name in checkpoints: whether a configuration asks for it, and its class, imported when it is asked for."""


def build_extensions(session: Session) -> dict[str, Extension]:
    """Builds what the run's configuration asks for."""
    return {name: load()(session) for name, (asked, load) in EXTENSIONS.items() if asked(session.run.cfg)}


@contextmanager
def as_result(extensions: Sequence[Extension]) -> Iterator[None]:
    """Enters `Extension.as_result` of all."""
    with ExitStack() as entered:
        for extension in extensions:
            entered.enter_context(extension.as_result())
        yield
