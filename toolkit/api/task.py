"""What a task is: the only thing a recipe hands to the toolkit.

The toolkit reads, checks, orders, trains, evaluates and saves; a task says what a row is, how it becomes model
input, what its loss sums over, and what its predictions mean. Engines see tasks only through this protocol. What only
some tasks need is in `toolkit.api.supports`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NotRequired, Protocol, TypedDict

from toolkit.config.column import Column
from toolkit.metrics.score import Score

if TYPE_CHECKING:
    import datasets
    import numpy as np
    from torch import Tensor, nn
    from transformers import PreTrainedConfig

    from toolkit.api.random import RowRandom
    from toolkit.config.sections import Config

IGNORE_INDEX = -100
"""Label that counts as no item (the convention of torch and transformers). Among floating labels, where -100 is a
value like any other, NaN does."""

ModelOutput = Any
"""What the model's forward returns; each head has its own class."""

Row = dict[str, Any]
"""One example with the toolkit's column names."""

Record = dict[str, Any]
"""What is known of an example after prediction, JSON-able: a line of `predictions.jsonl`."""

Processor = Any
"""Tokenizer, image processor or feature extractor: whatever `save_pretrained` of the modality gives."""

Predictions = dict[str, "np.ndarray"]
"""Per name one array whose first axis is the feature row, in row order, each row exactly once."""


class BadRow(Exception):  # noqa: N818 - a reason about a row, turned into a report, never shown as an error
    """Raised by `Task.check_row` with the reason why a row cannot be used."""


class Batch(TypedDict):
    """One micro-batch of B rows."""

    inputs: dict[str, Any]
    """Keyword arguments of the model's forward; nothing else of the batch goes there."""
    labels: Tensor
    """What the loss compares with; `IGNORE_INDEX` entries (NaN in floating labels) count as no item."""
    extra: NotRequired[dict[str, Any]]
    """Whatever else the task's loss or predictions need."""
    row_ids: NotRequired[Tensor]
    """`[B]` int64 positions in the feature data set, -1 for the stand-in row of an empty micro-batch. The toolkit adds
    them."""


@dataclass(frozen=True)
class Description:
    """A prediction in words, for the console and the report, which shorten and lay it out.

    Args:
        input: what was predicted from.
        prediction: what was predicted.
        expected: what would have been right; None if it is not known.
    """

    input: str
    prediction: str
    expected: str | None = None


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
        notes: what a user should know about the rows, as sentences.
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
    """Frozen dataclass of the YAML's `task` section. It may have the attribute `limits` (see `limits_of`) and the
    method `problems() -> list[str]`, which says what is wrong in combination."""
    columns: ClassVar[Mapping[str, Column]]
    """The task's columns by our name."""
    modality: str
    """Which of `toolkit.modalities.MODALITIES` makes the model's inputs."""
    best_metric: str
    """Which of `scores` names the best model, unless the YAML names another."""
    options: Any
    """The `task` section, an instance of `Options`."""

    @property
    def scores(self) -> Sequence[Score]:
        """How to read the values of `metrics`: those that can name the best model, and those per class."""

    def auto_model(self, config: PreTrainedConfig) -> str:
        """Name of the `transformers` auto class for a model, for instance `AutoModelForQuestionAnswering`."""

    def schema(self) -> datasets.Features:
        """Arrow types of a checked row."""

    def check_row(self, row: Row, labelled: bool) -> Row:
        """Returns the row as `schema` describes it (label columns None where `labelled` is False).

        Raises:
            BadRow: with the reason why the row cannot be used.
        """

    def preprocess(
        self, rows: Mapping[str, Sequence[Any]], processor: Processor, labelled: bool
    ) -> dict[str, list[Any]]:
        """Turns a batch of rows into columns of feature rows, as many per row as it needs.

        Args:
            rows: columns of checked rows.
            processor: the run's.
            labelled: whether the rows have labels.

        Returns:
            Among the columns are `length` (what padding depends on) and, unless there is one feature row per row,
            `example`: the position in `rows` of the row that each was made from. A column `truncated_<side>` says
            which inputs were cut to the limit of that side (see `limits_of`).
        """

    def collate(self, features: list[dict[str, Any]], processor: Processor, random: RowRandom) -> Batch:
        """Makes one batch of feature rows; whatever is random in it is drawn from `random` by `row_id`."""

    def loss_sum(self, outputs: ModelOutput, batch: Batch) -> Tensor:
        """Scalar: the loss summed, never averaged, over the batch's items.

        Items are the labels that are not `IGNORE_INDEX`, unless the task counts them (`SupportsItemCount`).
        """

    def predict(self, model: nn.Module, outputs: ModelOutput, batch: Batch) -> dict[str, Tensor]:
        """Small tensors with one entry per row of the batch: classes and scores, spans, token ids."""

    def decode(self, predictions: Predictions, data: EvalData) -> Iterable[Record]:
        """One record per example, in row order. It can be iterated over several times."""

    def metrics(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> dict[str, float]:
        """Metric values without prefix.

        Args:
            records: what `decode` made of the predictions.
            predictions: of all feature rows.
            data: the set.
        """

    def describe(self, record: Record) -> Description:
        """Says a record in words."""


def limits_of(options: Any) -> Mapping[str, str]:
    """Returns what the options of a task limit: a side of the model's input to the name of the option.

    Sides are `input` (`source` for a sequence-to-sequence model), `target` and `generated`. Lengths are in tokens, and
    an option may be None. Messages name the option, and footprints are of inputs as long as it allows.
    """
    limits: Mapping[str, str] = getattr(options, "limits", {})
    return limits
