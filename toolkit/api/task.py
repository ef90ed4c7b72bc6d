"""What a task is: the only thing a recipe hands to the toolkit.

The toolkit reads, checks, orders, trains, evaluates and saves; a task says what a row is, how it becomes model
input, what its loss sums over, and what its predictions mean. Engines see tasks only through this protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from toolkit.config.column import Column

if TYPE_CHECKING:
    import datasets
    import numpy as np
    from torch import Tensor, nn
    from transformers import PreTrainedConfig, PreTrainedModel

    from toolkit.api.random import RowRandom
    from toolkit.config.sections import Config
    from toolkit.document.blocks import Section

IGNORE_INDEX = -100
"""Label that counts as no item (the convention of torch and transformers). Among floating labels, where -100 is a
value like any other, NaN does."""

ModelOutput = Any
"""What the model's forward returns; each head has its own class."""

Row = dict[str, Any]
"""One example with the toolkit's column names."""

Processor = Any
"""Tokenizer, image processor or feature extractor: whatever `save_pretrained` of the modality gives."""

Predictions = dict[str, "np.ndarray"]
"""Per name one array whose first axis is the feature row, in row order, each row exactly once."""


class BadRow(Exception):  # noqa: N818 - a reason about a row, turned into a report, never shown as an error
    """Raised by `Task.check_row` with the reason why a row cannot be used."""


Batch = dict[str, Any]
"""One micro-batch of B rows, with the entries

- `inputs`: keyword arguments of the model's forward, and nothing else of the batch goes there;
- `labels`: tensor that the loss compares with; `IGNORE_INDEX` entries count as no item;
- `row_ids`: `[B]` int64 positions in the feature data set, -1 for the stand-in row of an empty micro-batch;

and whatever further tensors the task's loss or predictions need."""


@dataclass(frozen=True)
class EvalData:
    """An evaluation set.

    Args:
        rows: the examples.
        features: what the model sees, one or more per example.
        processor: what made the features; turns predicted ids back into text.
    """

    rows: datasets.Dataset
    features: datasets.Dataset
    processor: Processor


@dataclass(frozen=True)
class Prepared:
    """All data of a run, tokenised.

    Args:
        train: feature rows with `row_id` (their position), `number` (their row in the file) and `length`.
        evals: evaluation sets by name (`validation`, `test`).
        fingerprints: sha256 of each source file (or hub id and revision) by split.
        bad_rows: number of rows left out, by split.
        notes: what a person should know of the rows, as sentences.
    """

    train: datasets.Dataset
    evals: Mapping[str, EvalData]
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    bad_rows: Mapping[str, int] = field(default_factory=dict)
    notes: Sequence[str] = ()


class Task(Protocol):
    """A fine-tuning task; see `recipes/` for the real ones. Built as `TaskClass(cfg)`; nothing heavy at import."""

    def __init__(self, cfg: Config) -> None: ...

    Options: ClassVar[type]
    """Frozen dataclass of the YAML's `task` section."""
    columns: ClassVar[Mapping[str, Column]]
    """The task's columns by our name."""
    modality: str
    """Name of the file in `toolkit.modalities` that makes the model's inputs."""
    best_metric: str
    """Which of `scores` names the best model, unless the YAML names another."""
    options: Any
    """The `task` section, an instance of `Options`."""
    state: dict[str, Any]
    """JSON-able things learned from the training rows (a label map); saved with the run and its checkpoints."""

    @property
    def scores(self) -> Mapping[str, bool]:
        """The metrics that can name the best model, and whether greater is better."""

    def auto_model(self, config: PreTrainedConfig) -> str:
        """Name of the `transformers` auto class for a model, for instance `AutoModelForQuestionAnswering`."""

    def features(self) -> datasets.Features:
        """Arrow types of a checked row."""

    def check_row(self, row: Row, labelled: bool) -> Row:
        """Returns the row as `features` describes it (label columns None where `labelled` is False).

        Raises:
            BadRow: with the reason why the row cannot be used.
        """

    def learn(self, rows: datasets.Dataset) -> None:
        """Fills `state` from training rows: first all checked ones, then those left after splitting and cutting.

        The first call comes before other splits are checked against what was learned.
        """

    def notes(self, rows: datasets.Dataset) -> list[str]:
        """Things about checked rows that a person should know, as sentences without the set's name."""

    def stratify_by(self) -> str | None:
        """Column whose distribution a split of one file keeps, or None."""

    def training_texts(self, rows: datasets.Dataset) -> Iterator[str]:
        """Text that a tokenizer for a new model is trained on."""

    def configure(self, config: PreTrainedConfig) -> None:
        """Writes into the model's configuration what the task decides, for instance its labels."""

    def preprocess(
        self, rows: Mapping[str, Sequence[Any]], indices: Sequence[int], processor: Processor, labelled: bool
    ) -> dict[str, list[Any]]:
        """Turns a batch of rows into columns of feature rows, as many per row as it needs.

        Among the columns are `example` (the row's index) and `length` (what padding depends on).
        """

    def collate(self, features: list[dict[str, Any]], processor: Processor, random: RowRandom) -> Batch:
        """Makes one batch of feature rows; whatever is random in it is drawn from `random` by `row_id`."""

    def count_items(self, batch: Batch) -> Tensor:
        """Scalar: what the summed loss is divided by (items, or the sum of their weights)."""

    def loss_sum(self, outputs: ModelOutput, batch: Batch) -> Tensor:
        """Scalar: the loss summed, never averaged, over the batch's items."""

    def predict(self, model: nn.Module, outputs: ModelOutput, batch: Batch) -> dict[str, Tensor]:
        """Small tensors with one entry per row of the batch: classes and scores, spans, token ids."""

    def metrics(self, predictions: Predictions, data: EvalData) -> dict[str, float]:
        """Metric values without prefix."""

    def records(self, predictions: Predictions, data: EvalData) -> Iterator[dict[str, Any]]:
        """One JSON-able record per example, in row order: a line of `predictions.jsonl`."""

    def summary(self, record: dict[str, Any]) -> str:
        """One line of a record for a person: the input's beginning, the prediction and, if known, the answer."""


@runtime_checkable
class Regroups(Protocol):
    """A task whose feature rows do not follow its examples, which batches of `preprocess` would cut apart."""

    def regroup(self, features: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Makes the final feature rows of all that `preprocess` returned, in order; it must depend on them alone.

        Among their columns are `example` (the row's index, or that of the first of several) and `length`.
        """


@runtime_checkable
class Samples(Protocol):
    """A task whose model can be shown at work without rows."""

    def samples(self, model: PreTrainedModel, processor: Processor) -> list[str]:
        """Returns a few texts that the final model makes, for the report.

        Called on the main process alone, with the unwrapped model in evaluation mode; must be deterministic and leave
        the global random numbers as they are.
        """


@runtime_checkable
class Averages(Protocol):
    """A task whose predictions can be averaged over models."""

    def average(self, predictions: Sequence[Predictions]) -> Predictions:
        """Returns the mean of several models' predictions of the same rows; called on the main process."""


@runtime_checkable
class Judges(Protocol):
    """A task that can say how wrong a prediction is, for the worst ones in the report."""

    error_name: str
    """What `error` measures."""

    def error(self, record: dict[str, Any]) -> tuple[float, ...] | None:
        """Returns how wrong a record of `Task.records` is; None where it is right, or its answer is not known.

        The first number is what `error_name` says, greater is worse; further ones order those that are equal.
        """


@runtime_checkable
class Pictures(Protocol):
    """A task whose rows may be pictures."""

    def picture(self, row: Row) -> bytes | None:
        """Returns a small PNG or JPEG of a checked row, for the report; None where there is nothing to see."""


@runtime_checkable
class Reports(Protocol):
    """A task that has more to show in the report than figures and examples."""

    def report_sections(self, name: str, predictions: Predictions, data: EvalData, folder: Path) -> list[Section]:
        """Returns parts of the report about an evaluation set.

        Args:
            name: the set's name (`validation`, `test`).
            predictions: in row order.
            data: the set.
            folder: the run's output folder, for pictures of the Markdown report.
        """
