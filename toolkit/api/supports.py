"""What only some tasks need: small protocols beside `toolkit.api.task.Task`, asked for with `isinstance`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from toolkit.api.task import IGNORE_INDEX, Batch, EvalData, Predictions, Processor, Record, Row, Task

if TYPE_CHECKING:
    import datasets
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel

    from toolkit.document.blocks import Section


@runtime_checkable
class SupportsState(Protocol):
    """A task that remembers something, for instance a label map."""

    state: dict[str, Any]
    """JSON-able; saved with the run and its checkpoints. Strings in it are shown in the report."""


@runtime_checkable
class SupportsLearning(Protocol):
    """A task that learns from its training rows what it keeps in its `state`."""

    def learn(self, rows: datasets.Dataset) -> None:
        """Fills `state` from training rows: first all checked ones, then those left after splitting and cutting.

        The first call comes before other splits are checked against what was learned.

        Raises:
            DataError: if nothing can be learned from them.
        """


@runtime_checkable
class SupportsNotes(Protocol):
    """A task that has something to say about its rows."""

    def notes(self, rows: datasets.Dataset) -> list[str]:
        """Returns what a user should know about checked rows, as sentences without the set's name."""


@runtime_checkable
class SupportsClasses(Protocol):
    """A task whose rows may have one class each."""

    def class_column(self) -> str | None:
        """Returns the column that holds the class, or None. Splits keep its distribution, and it can be balanced."""


@runtime_checkable
class SupportsTrainingTexts(Protocol):
    """A task that chooses the text for a new tokenizer, instead of all text columns that are not labels."""

    def training_texts(self, rows: datasets.Dataset) -> Iterator[str]:
        """Returns text that a tokenizer for a new model is trained on."""


@runtime_checkable
class SupportsConfiguring(Protocol):
    """A task that decides something about its model, for instance the names of its labels."""

    def configure(self, config: PreTrainedConfig) -> None:
        """Writes it into the model's configuration."""


@runtime_checkable
class SupportsItemCount(Protocol):
    """A task that counts items by itself, for instance because they are weighted."""

    def count_items(self, batch: Batch) -> Tensor:
        """Scalar: what the summed loss is divided by (items, or the sum of their weights)."""


@runtime_checkable
class SupportsPacking(Protocol):
    """A task whose feature rows do not follow its examples, which batches of `preprocess` would cut apart."""

    def regroup(self, features: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Makes the final feature rows of all that `preprocess` returned, in order; it must depend on them alone.

        Among their columns are `example` (the row's index, or that of the first of several) and `length`.
        """


@runtime_checkable
class SupportsSamples(Protocol):
    """A task whose model can be shown at work without rows."""

    def samples(self, model: PreTrainedModel, processor: Processor) -> list[str]:
        """Returns a few texts that the final model makes, for the report.

        Called on the main process alone, with the unwrapped model in evaluation mode; must be deterministic and leave
        the global random numbers as they are.
        """


@runtime_checkable
class SupportsEnsembling(Protocol):
    """A task whose predictions can be averaged over models."""

    def average(self, predictions: Sequence[Predictions]) -> Predictions:
        """Returns the mean of several models' predictions of the same rows; called on the main process."""


@runtime_checkable
class SupportsErrorRanking(Protocol):
    """A task that can say how wrong a prediction is, for the largest errors in the report."""

    error_name: str
    """What `error` measures."""

    def error(self, record: Record) -> tuple[float, ...] | None:
        """Returns how wrong a record of `Task.decode` is; None where it is right, or its answer is not known.

        The first number is what `error_name` says, greater is worse; further ones order those that are equal.
        """


@runtime_checkable
class SupportsThumbnails(Protocol):
    """A task whose rows may be images."""

    def thumbnail(self, row: Row) -> bytes | None:
        """Returns a small PNG or JPEG of a checked row, for the report; None where there is nothing to see."""


@runtime_checkable
class SupportsReport(Protocol):
    """A task that has more to show in the report than figures and examples."""

    def report_sections(self, name: str, predictions: Predictions, data: EvalData, folder: Path) -> list[Section]:
        """Returns parts of the report about an evaluation set.

        Args:
            name: the set's name (`validation`, `test`).
            predictions: in row order.
            data: the set.
            folder: the run's output folder, for images of the Markdown report.
        """


def state_of(task: Task) -> dict[str, Any]:
    """Returns what a task remembers, to be read or updated; an empty one for a task that remembers nothing."""
    return task.state if isinstance(task, SupportsState) else {}


def class_column(task: Task) -> str | None:
    """Returns the column that holds the class of a task's rows, or None if they have none."""
    return task.class_column() if isinstance(task, SupportsClasses) else None


def count_items(task: Task, batch: Batch) -> Tensor:
    """Returns what the summed loss of a batch is divided by, a scalar: the task's own count, or that of its labels."""
    if isinstance(task, SupportsItemCount):
        return task.count_items(batch)
    labels = batch["labels"]
    return (~labels.isnan() if labels.is_floating_point() else labels != IGNORE_INDEX).sum()
