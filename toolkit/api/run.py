"""What an engine is given and what it returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from toolkit.api.mesh import Mesh
from toolkit.api.strategy import Strategy
from toolkit.api.task import Batch, Predictions, Prepared, Processor, Record, Task
from toolkit.base.errors import ConfigError
from toolkit.base.memory import MemoryUse, MemoryWatch
from toolkit.config.messages import did_you_mean
from toolkit.config.sections import Config
from toolkit.metrics.score import Score

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that has been verified: its folder, its optimizer step, and the state the caller gave."""

    path: Path
    step: int
    state: dict[str, Any]


class Observer(Protocol):
    """Looks at a run from outside, as certificates do; it must change nothing."""

    def gradient(self, step: int, model: nn.Module) -> None:
        """Called before each update with the step, from 1, and the bare model, its gradient exchanged and clipped."""

    def step(self, step: int, batches: Sequence[Batch], record: Mapping[str, float]) -> None:
        """Called after each update, with this rank's micro-batches and the step's figures; `seconds` is its time."""


@dataclass(frozen=True)
class Run:
    """Everything that an engine needs.

    Args:
        cfg: resolved configuration.
        task: the recipe's task.
        accelerator: the run's one Accelerator.
        model: the model before `prepare`.
        processor: tokenizer, image processor or feature extractor.
        data: tokenised rows.
        output_dir: the run's folder, locked and writable.
        resume: the checkpoint to go on from, or None.
        identity: settings and fingerprints that a resumed run must share, saved in every checkpoint.
        memory: measures, from before the model was built.
        mesh: how the processes are arranged.
        strategy: how they share the training.
        best: the metric that names the best model, with its prefix.
        observer: looks on, or None.
    """

    cfg: Config
    task: Task
    accelerator: Accelerator
    model: PreTrainedModel
    processor: Processor
    data: Prepared
    output_dir: Path
    resume: Checkpoint | None
    identity: Mapping[str, Any]
    memory: MemoryWatch
    mesh: Mesh
    strategy: Strategy
    best: Score
    observer: Observer | None = None


@dataclass(frozen=True)
class FitResult:
    """What came out of training.

    Args:
        steps: optimizer steps of the whole run, former sessions included.
        train_loss: mean loss over all items trained on in this session, None if there were none.
        evaluations: the final model's, by set (`validation`, `test`).
        best: best value of the metric for the best model, or None.
        best_step: step of that value.
        train_seconds: time spent in training steps in this session, without evaluating and saving.
        items_per_second: items trained on per second of that.
        memory: what it took of the main process's.
        further: what the strategy and callbacks have to report.
        figures: all results by name, as in `run.json`; the same on every process. Empty until training is over.
    """

    steps: int
    train_loss: float | None
    evaluations: Mapping[str, Evaluation]
    best: float | None
    best_step: int | None
    train_seconds: float
    items_per_second: float
    memory: MemoryUse
    further: Mapping[str, float] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)


def best_metric(cfg: Config, task: Task) -> Score:
    """Returns the metric that names the best model; its name has the prefix `eval_`.

    Raises:
        ConfigError: if the task has no metric of the name that the YAML gives.
    """
    name = (cfg.eval.metric_for_best_model or task.best_metric).removeprefix("eval_")
    scores = [Score("loss", greater_is_better=False), *task.scores]
    known = {score.name: score for score in scores if not score.per_class}
    if name not in known:
        near = did_you_mean(name, list(known))
        raise ConfigError([f"eval.metric_for_best_model: received {name!r}, this task has {', '.join(known)}{near}"])
    return replace(known[name], name=f"eval_{name}")


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation set scored.

    Args:
        metrics: without prefix, on every rank.
        predictions: in row order, on the main process; empty elsewhere.
        records: what the task decoded from them, one per example, on the main process; empty elsewhere.
    """

    metrics: dict[str, float]
    predictions: Predictions
    records: Iterable[Record] = ()


class Predictor(Protocol):
    """What predictions are made with: a run that is being trained, or a finished one."""

    @property
    def cfg(self) -> Config:
        """Resolved settings."""

    @property
    def task(self) -> Task:
        """The recipe's task."""

    @property
    def accelerator(self) -> Accelerator:
        """The processes."""

    @property
    def mesh(self) -> Mesh:
        """How the processes are arranged."""

    @property
    def processor(self) -> Processor:
        """For the collator."""
