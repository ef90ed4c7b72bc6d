"""The arguments and results of engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from toolkit.api.batch import Predictions, Prepared, Processor, Record
from toolkit.api.exhibits import Trackers
from toolkit.api.mesh import Mesh
from toolkit.api.strategy import Strategy
from toolkit.api.task import Task
from toolkit.base.errors import ConfigError
from toolkit.config.messages import did_you_mean
from toolkit.config.sections import Config, EvalConfig
from toolkit.metrics.score import Quality, Score, short_name
from toolkit.system.watch import SystemWatch

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    from toolkit.system.memory import MemoryUse, MemoryWatch


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint: its folder, its optimizer step, and the state saved in it."""

    path: Path
    step: int
    state: dict[str, Any]


@dataclass(frozen=True)
class Attempt:
    """What earlier attempts at a run found out: it starts again after a damaged checkpoint or a rollback.

    Args:
        damaged: folders of damaged checkpoints, and what is wrong with each.
        skipped: steps whose windows are skipped.
        suspect_step: parameters are checked after every update up to this step, to find the one that breaks them.
        rollbacks: how often the run has gone back to a checkpoint (`train.non_finite: rollback`).
    """

    damaged: Mapping[Path, str] = field(default_factory=dict)
    skipped: tuple[int, ...] = ()
    suspect_step: int = 0
    rollbacks: int = 0


FIRST_ATTEMPT = Attempt()


@dataclass(frozen=True)
class Run:
    """Everything that an engine needs.

    Args:
        cfg: resolved configuration.
        task: the recipe's task.
        accelerator: the only Accelerator of the run.
        model: the model before `prepare`.
        processor: tokenizer, image processor or feature extractor.
        data: tokenised rows.
        output_dir: the run's folder, locked and writable.
        resume: the checkpoint to resume from, or None.
        identity: settings and fingerprints that must be the same on resume, saved in every checkpoint.
        memory: measures the memory use since before the model was built.
        mesh: arrangement of the processes.
        strategy: how the processes share the training.
        best: the metric that selects the best model, with its prefix.
        trackers: its trackers, open on the main process from the first step to the report.
        resolved: the values chosen for settings of `auto`, by dotted key.
        attempt: what earlier attempts at the run found out.
        record: writes what is known of the run into its folder; called on the main process, once all checks have
            passed, since the folder may hold a finished run.
        system: measures time and energy, and what this process uses of its machine.
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
    trackers: Trackers
    resolved: Mapping[str, bool | int | str] = field(default_factory=dict)
    attempt: Attempt = FIRST_ATTEMPT
    record: Callable[[Run], None] = lambda run: None
    system: SystemWatch = field(default_factory=SystemWatch)

    @property
    def unpadded(self) -> bool:
        """Whether the model's layers are trained on rows without padding, each by itself."""
        return self.resolved.get("train.unpadded", False) is True


@dataclass(frozen=True)
class FitResult:
    """The result of training.

    Args:
        steps: optimizer steps of the run, previous sessions included.
        train_loss: mean loss over all items of the run, previous sessions included; None if there were none.
        evaluations: evaluations of the final model by set (`validation`, `test`).
        best: best value of the metric that selects the best model, or None.
        best_step: step of that value.
        train_seconds: seconds spent in training steps of this session, without evaluation and saving.
        items_per_second: items of this session per second of that time.
        memory: memory use of the main process.
        further: figures of the strategy and the callbacks.
        phases: seconds of this session by phase (`toolkit.system.phases`), on this process.
        costs: time, energy, emissions and price of the run, by name.
        quality: how far the scores of each set can be trusted; the same on every process. Empty until training is over.
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
    further: Mapping[str, Any] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)
    quality: Mapping[str, Quality] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)


def best_metric(cfg: Config, task: Task) -> Score:
    """Returns the metric that selects the best model; its name has the prefix `eval_`.

    Args:
        cfg: the settings, for `eval.metric_for_best_model`.
        task: the task, for its metrics and its default.

    Raises:
        ConfigError: if the task has no metric of the configured name.
    """
    name = cfg.eval.metric_for_best_model or task.best_metric
    return metric_named(name, task, "eval.metric_for_best_model", cfg.eval)


def metric_named(name: str, task: Task, setting: str, settings: EvalConfig | None = None) -> Score:
    """Returns a metric of a task, or one of the user's own; its name gets the prefix `eval_`.

    Args:
        name: its name, with or without the prefix.
        task: the task.
        setting: the setting that received the name, for the error.
        settings: where `eval.metrics` may name metrics of the user's own; None for those of the task alone.

    Raises:
        ConfigError: if there is no such metric; lists those that there are.
    """
    name = name.removeprefix("eval_")
    known = {score.name: score for score in overall_scores(task)}
    if settings is not None and name not in known:
        own = [f"own_{each}" if each in known else each for each in map(short_name, settings.metrics)]
        if name in own or any(name.startswith(f"{each}_") for each in own):  # the names in a mapping are not known yet
            return Score(f"eval_{name}", greater_is_better=settings.greater_is_better)
        known |= {each: Score(each) for each in own}
    if name not in known:
        near = did_you_mean(name, list(known))
        raise ConfigError([f"{setting}: received {name!r}, this task has {', '.join(known)}{near}"])
    return replace(known[name], name=f"eval_{name}")


def target_metric(cfg: Config, task: Task) -> tuple[Score, float] | None:
    """Returns the metric of `train.target_metric`, with its prefix, and the value to reach; None without a target.

    Raises:
        ConfigError: if the task has no metric of the configured name.
    """
    for name, goal in cfg.train.target_metric.items():
        return metric_named(name, task, "train.target_metric", cfg.eval), goal
    return None


def overall_scores(task: Task) -> list[Score]:
    """Returns the loss and the metrics of a task, without those of single classes."""
    return [Score("loss", greater_is_better=False), *(score for score in task.scores if not score.per_class)]


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of one set.

    Args:
        metrics: metrics without prefix, on every rank.
        predictions: predictions in row order, on the main process; empty on others.
        records: records that the task decoded from them, one per example, on the main process; empty on others.
        generated: records with what was generated (`eval.generate`), likewise.
    """

    metrics: dict[str, float]
    predictions: Predictions
    records: Iterable[Record] = ()
    generated: Iterable[Record] = ()


class Predictor(Protocol):
    """The objects needed for predictions, of a run in training or a finished one."""

    @property
    def cfg(self) -> Config:
        """Resolved configuration."""

    @property
    def task(self) -> Task:
        """The recipe's task."""

    @property
    def accelerator(self) -> Accelerator:
        """The Accelerator of the run."""

    @property
    def mesh(self) -> Mesh:
        """Arrangement of the processes."""

    @property
    def processor(self) -> Processor:
        """Tokenizer, image processor or feature extractor, for the collator."""


ASYNC_SAVE = "checkpoint.async_save"
