"""The protocol of tasks, which recipes implement, and its optional parts.

The toolkit reads, checks, orders, trains, evaluates and saves. A task defines its rows, their conversion to model
inputs, the loss, and the meaning of predictions. Engines use tasks only through this protocol; optional protocols are
in `toolkit.api.task`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from toolkit.api.batch import (
    IGNORE_INDEX,
    Batch,
    Description,
    EvalData,
    ModelOutput,
    Predictions,
    Processor,
    Record,
    Row,
)
from toolkit.config.fields import Column
from toolkit.metrics.score import Score

if TYPE_CHECKING:
    import datasets
    import numpy as np
    from torch import Tensor, nn
    from transformers import PreTrainedConfig, PreTrainedModel

    from toolkit.api.random import RowRandom
    from toolkit.config.sections import Config
    from toolkit.document.blocks import Section
    from toolkit.metrics.score import Quality


class Task(Protocol):
    """A fine-tuning task, built as `TaskClass(cfg)`; see `recipes/` for examples.

    Importing its module must not import heavy libraries.
    """

    def __init__(self, cfg: Config) -> None: ...

    Options: ClassVar[type]
    """Frozen dataclass of the YAML's `task` section. It may have the attribute `limits` (see `limits_of`) and the
    method `problems() -> list[str]`, which returns a message for each invalid combination of its values."""
    columns: ClassVar[Mapping[str, Column]]
    """The task's columns by the toolkit's names."""
    modality: str
    """Name of the modality in `toolkit.modalities.MODALITIES` that builds the model's inputs."""
    best_metric: str
    """The score that selects the best model, unless the YAML names another."""
    options: Any
    """The `task` section, an instance of `Options`."""

    @property
    def scores(self) -> Sequence[Score]:
        """The scores that `metrics` returns: those that can select the best model, and those of single classes."""

    def auto_model(self, config: PreTrainedConfig) -> str:
        """Returns the name of the `transformers` auto class, for instance `AutoModelForQuestionAnswering`."""

    def schema(self) -> datasets.Features:
        """Returns the `datasets` feature types of a checked row."""

    def check_row(self, row: Row, labelled: bool) -> Row:
        """Returns a row in the types of `schema`; label columns are None if `labelled` is False.

        Raises:
            BadRow: with the reason, if the row cannot be used; `ExcludedRow` if the options exclude it.
        """

    def preprocess(
        self, rows: Mapping[str, Sequence[Any]], processor: Processor, labelled: bool
    ) -> dict[str, list[Any]]:
        """Converts a batch of rows to columns of feature rows, one or more per row.

        Args:
            rows: columns of checked rows.
            processor: the run's processor.
            labelled: whether the rows have labels.

        Returns:
            The columns. They include `length` (the length before padding) and, unless there is exactly one feature row
            per row, `example`: for each feature row, the position of its source row in `rows`. An optional column
            `truncated_<side>` tells which inputs were truncated to the limit of that side (see `limits_of`).
        """

    def collate(self, features: list[dict[str, Any]], processor: Processor, random: RowRandom) -> Batch:
        """Returns the batch of a list of feature rows; random numbers come from `random`, by `row_id`."""

    def loss_sum(self, outputs: ModelOutput, batch: Batch) -> Tensor:
        """Returns a scalar, the loss summed (not averaged) over the batch's items.

        Items are the labels that are not `IGNORE_INDEX`, unless the task counts them (`SupportsItemCount`).
        """

    def predict(self, model: nn.Module, outputs: ModelOutput, batch: Batch) -> dict[str, Tensor]:
        """Returns small tensors, `[B, ...]` each, for instance classes and scores, spans, or token ids."""

    def decode(self, predictions: Predictions, data: EvalData) -> Iterable[Record]:
        """Returns one record per example, in row order; the result can be iterated over several times."""

    def metrics(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> dict[str, float]:
        """Returns metric values by name, without prefix.

        Args:
            records: the records that `decode` returned.
            predictions: predictions on all feature rows.
            data: the set.
        """

    def describe(self, record: Record) -> Description:
        """Returns a record as text."""


def limits_of(options: Any) -> Mapping[str, str]:
    """Returns the options of a task that limit lengths, by the side of the model that they limit.

    Sides are `input` (`source` for a sequence-to-sequence model), `target` and `generated`. Limits are in tokens, and
    an option may be None. Messages name the option, and memory estimates assume inputs of that length.
    """
    limits: Mapping[str, str] = getattr(options, "limits", {})
    return limits


@runtime_checkable
class SupportsState(Protocol):
    """A task with state, for instance a label map."""

    state: dict[str, Any]
    """JSON-serializable; saved with the run and its checkpoints. Strings in it are shown in the report."""


@runtime_checkable
class SupportsLearning(Protocol):
    """A task that learns its `state` from the training rows."""

    def learn(self, rows: datasets.Dataset) -> None:
        """Fills `state` from training rows.

        Called twice: with all checked rows, before other splits are checked, and with the rows left after splitting
        and limiting their number.

        Raises:
            DataError: if the rows are not usable for this.
        """


@runtime_checkable
class SupportsNotes(Protocol):
    """A task that adds notes about its rows."""

    def notes(self, rows: datasets.Dataset, features: datasets.Dataset) -> list[str]:
        """Returns notes for the user about checked rows and their feature rows, as sentences without the set's name."""


@runtime_checkable
class SupportsClasses(Protocol):
    """A task whose rows may have one class each."""

    def class_column(self) -> str | None:
        """Returns the column of the class, or None. Splits keep its distribution, and sampling can balance it."""


@runtime_checkable
class SupportsLabels(Protocol):
    """A task whose rows have labels with names, one or several each."""

    def label_counts(self, rows: datasets.Dataset) -> dict[str, int]:
        """Returns the number of checked rows with each label, in the order of the labels' ids."""

    def label_notes(self, counts: Mapping[str, int]) -> list[str]:
        """Returns what the user should know about the labels of the training rows, as sentences.

        Rare labels and labels of similar spelling are named by the toolkit.

        Args:
            counts: number of training rows with each label.
        """


@runtime_checkable
class SupportsGroups(Protocol):
    """A task whose rows are grouped unless `data.group_column` names another column."""

    def group_column(self) -> str:
        """Returns one of the task's columns; rows with the same value stay on one side of a split."""


@runtime_checkable
class SupportsInputs(Protocol):
    """A task with a column that holds inputs and labels, for instance a conversation with its last answer."""

    def inputs_of(self, row: Row) -> Mapping[str, Any]:
        """Returns what a checked row is predicted from, by column; rows with equal inputs are on one side of a split.

        Columns that are left out count as they are. Returned columns are part of the row's label as a whole.
        """


@runtime_checkable
class SupportsTrainingTexts(Protocol):
    """A task that chooses the text for a new tokenizer, instead of all text columns that are not labels."""

    def training_texts(self, rows: datasets.Dataset) -> Iterator[str]:
        """Returns the texts on which the tokenizer of a new model is trained."""


@runtime_checkable
class SupportsConfiguring(Protocol):
    """A task that sets fields of the model's configuration, for instance the names of the labels."""

    def configure(self, config: PreTrainedConfig) -> None:
        """Sets the fields, in place."""


@runtime_checkable
class SupportsItemCount(Protocol):
    """A task that counts its items itself, for instance because they are weighted."""

    def count_items(self, batch: Batch) -> Tensor:
        """Returns a scalar, the divisor of the summed loss: the number of items, or the sum of their weights."""


@runtime_checkable
class SupportsPacking(Protocol):
    """A task whose feature rows span several examples, for instance blocks of packed text."""

    def regroup(self, features: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Builds the final feature rows from all rows of `preprocess`, in order; must depend on these rows alone.

        Among their columns are `example` (the index of the example, or of the first of several) and `length`.
        """


@runtime_checkable
class SupportsSamples(Protocol):
    """A task whose model can generate samples without rows."""

    def samples(self, model: PreTrainedModel, processor: Processor) -> list[str]:
        """Returns a few texts generated by the final model, for the report.

        Called only on the main process, with the unwrapped model in evaluation mode. Must be deterministic and must
        not change the global random state.
        """


@runtime_checkable
class SupportsEnsembling(Protocol):
    """A task whose predictions can be averaged over models."""

    def average(self, predictions: Sequence[Predictions]) -> Predictions:
        """Returns the mean of several models' predictions on the same rows; called on the main process."""


@runtime_checkable
class SupportsAnswers(Protocol):
    """A task whose answers to new rows have more columns than the `prediction` of its records."""

    @property
    def answer_columns(self) -> Sequence[str]:
        """Columns that `toolkit predict` adds to every row.

        The first is `prediction`; `score` is its probability (0 to 1); `scores` and `n_best` are all that the model
        considered, and are left out of tables unless asked for.
        """

    def answer(self, record: Record) -> dict[str, Any]:
        """Returns the values of these columns for a record of `Task.decode`.

        A mapping must have the same keys for every record, because a table has a column for each of them.
        """


@runtime_checkable
class SupportsErrorRanking(Protocol):
    """A task that can rank its predictions by their error, for the largest errors in the report."""

    error_name: str
    """Name of the first number of `error`."""

    def error(self, record: Record) -> tuple[float, ...] | None:
        """Returns the error of a record of `Task.decode`; None if it is right, or the right answer is not known.

        Records are sorted by these numbers; greater is worse.
        """


@runtime_checkable
class SupportsQuality(Protocol):
    """A task that knows how far its scores can be trusted."""

    def quality(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> Quality:
        """Returns intervals and baselines of the final scores; the arguments are those of `Task.metrics`.

        Called only on the main process, once for each evaluation set of a finished training.
        """


@runtime_checkable
class SupportsBaselines(Protocol):
    """A task with answers that need no neural network."""

    def baselines(
        self, train: datasets.Dataset, sets: Mapping[str, datasets.Dataset]
    ) -> Iterator[tuple[str, dict[str, dict[str, float]]]]:
        """Yields the name of each baseline, and its scores without prefix on each set.

        Args:
            train: the checked training rows, from which it may learn.
            sets: the checked rows of each evaluation set.
        """


@runtime_checkable
class SupportsFiles(Protocol):
    """A task whose inputs may be in files, which take longer to read than to collate.

    What `decoded` returns is kept for later epochs, within `data.media_cache`, and given to `compact` in the feature
    rows, as `decoded`.
    """

    def decoded(self, row: dict[str, Any], processor: Processor, training: bool) -> np.ndarray | None:
        """Returns what a feature row's file contains, processed as far as nothing is random.

        Returns:
            A uint8 or float32 array with at most 4 dimensions, or None if there is nothing to keep.
        """

    def compact(self, features: list[dict[str, Any]], processor: Processor, random: RowRandom) -> Batch:
        """Returns a batch as `Task.collate` does, with `tables` where inputs are smaller with them."""


@runtime_checkable
class SupportsThumbnails(Protocol):
    """A task whose rows may be images."""

    def thumbnail(self, row: Row) -> bytes | None:
        """Returns a small PNG or JPEG of a checked row, for the report; None if the row has no image."""


@runtime_checkable
class SupportsReport(Protocol):
    """A task that adds sections to the report."""

    def report_sections(self, name: str, predictions: Predictions, data: EvalData, folder: Path) -> list[Section]:
        """Returns sections of the report about an evaluation set.

        Args:
            name: name of the set (`validation`, `test`).
            predictions: predictions in row order.
            data: the set.
            folder: the run's output folder, for images of the Markdown report.
        """


def reads_files(task: Task) -> bool:
    """Whether a task's inputs are in files, with its options."""
    used = any(column.file and column.used(task.options) for column in task.columns.values())
    return used and isinstance(task, SupportsFiles)


def state_of(task: Task) -> dict[str, Any]:
    """Returns the state of a task, to be read or updated; an empty dictionary for a task without state."""
    return task.state if isinstance(task, SupportsState) else {}


def answer_columns(task: Task) -> Sequence[str]:
    """Returns the columns that `toolkit predict` adds to every row."""
    return task.answer_columns if isinstance(task, SupportsAnswers) else ("prediction",)


def answer(task: Task, record: Record) -> dict[str, Any]:
    """Returns the values of `answer_columns` for a record of `Task.decode`."""
    return task.answer(record) if isinstance(task, SupportsAnswers) else {"prediction": record["prediction"]}


def class_column(task: Task) -> str | None:
    """Returns the column of the class of a task's rows, or None if they have no class."""
    return task.class_column() if isinstance(task, SupportsClasses) else None


def count_items(task: Task, batch: Batch) -> Tensor:
    """Returns the divisor of the summed loss of a batch, a scalar.

    This is the task's own count (`SupportsItemCount`), or the number of labels that are not ignored.
    """
    if isinstance(task, SupportsItemCount):
        return task.count_items(batch)
    labels = batch["labels"]
    return (~labels.isnan() if labels.is_floating_point() else labels != IGNORE_INDEX).sum()


@runtime_checkable
class SupportsMixing(Protocol):
    """A task that can train on mixtures of two rows."""

    @property
    def mixes(self) -> bool:
        """Whether it does, with its options."""

    def mix(self, batch: Batch, others: Batch, row_ids: Sequence[int], random: RowRandom) -> Batch:
        """Returns the mixtures of rows, both collated, with what the loss and the number of items need."""


@runtime_checkable
class SupportsScript(Protocol):
    """A task whose model can be used by a script that needs transformers, but not the toolkit."""

    def script(self) -> str:
        """Returns the name of the script's template in `toolkit/deploy/templates`.

        Raises:
            InputError: if the task has no script with these options, with the reason.
        """

    def script_values(self, model: PreTrainedModel, processor: Processor) -> Mapping[str, Any]:
        """Returns values that the template needs.

        Every template is also given the task's `options`, the `processor`, the model's `config` and `auto_model`, the
        `columns` of a row, and how tables are read.
        """


@runtime_checkable
class SupportsGraph(Protocol):
    """A task that says how its model is used as a graph (ONNX, `torch.export`).

    For other tasks with `SupportsScript`, it is the template of the same name.
    """

    def graph_script(self) -> str:
        """Returns the name of the script's template in `toolkit/deploy/templates/graph`; it may raise an InputError."""
