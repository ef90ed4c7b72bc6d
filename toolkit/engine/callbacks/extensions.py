"""What may follow a run step by step, under any engine: each in a file of its own, and one line in a dict here.

An extension sees every update, evaluation and checkpoint at the same moments in every engine, and what it keeps is
saved and restored with the run, so it need not know of engines, ranks or resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from toolkit.optim.presets import PRESETS

if TYPE_CHECKING:
    from torch import Tensor

    from toolkit.api.run import Checkpoint
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


EXTENSIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "early_stopping": (lambda cfg: cfg.train.early_stopping_patience is not None, "early_stopping.EarlyStopping"),
    "plateau": (lambda cfg: cfg.train.lr_scheduler_type == "reduce_lr_on_plateau", "plateau.Plateau"),
    "schedule_free": (lambda cfg: PRESETS[cfg.train.optim].library == "schedulefree", "schedule_free.ScheduleFree"),
    "snapshots": (lambda cfg: cfg.train.snapshot_ensemble, "snapshots.Snapshots"),
    "unfreezing": (lambda cfg: bool(cfg.model.unfreeze), "unfreezing.Unfreezing"),
    "max_time": (lambda cfg: cfg.train.max_time is not None, "max_time.MaxTime"),
    "ema": (lambda cfg: cfg.train.ema_decay is not None, "ema.AveragedWeights"),
    "auto_batch_size": (lambda cfg: cfg.train.auto_batch_size, "auto_batch_size.AutoBatchSize"),
}
"""By the name in checkpoints: whether a configuration asks for it, and its module in this package and class."""


def build_extensions(session: Session) -> dict[str, Extension]:
    """Builds what the run's configuration asks for."""
    built = {}
    for name, (asked, place) in EXTENSIONS.items():
        if asked(session.run.cfg):
            module, _, kind = place.partition(".")
            built[name] = getattr(import_module(f"toolkit.engine.callbacks.{module}"), kind)(session)
    return built


@contextmanager
def as_result(extensions: Sequence[Extension]) -> Iterator[None]:
    """Enters `Extension.as_result` of all."""
    with ExitStack() as entered:
        for extension in extensions:
            entered.enter_context(extension.as_result())
        yield
