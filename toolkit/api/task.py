"""The protocol of tasks, which recipes implement.

The toolkit reads, checks, orders, trains, evaluates and saves. A task defines its rows, their conversion to model
inputs, the loss, and the meaning of predictions. Engines use tasks only through this protocol; optional protocols are
in `toolkit.api.supports`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
"""Label that is ignored (the convention of torch and transformers). In floating-point labels, where -100 is a valid
value, NaN is ignored instead."""

ModelOutput = Any
"""Output of the model's forward pass; each head has its own class."""

Row = dict[str, Any]
"""One example, by the toolkit's column names."""

Record = dict[str, Any]
"""An example with its prediction, JSON-serializable: a line of `predictions.jsonl`."""

Processor = Any
"""Tokenizer, image processor or feature extractor, whichever the modality uses."""

Predictions = dict[str, "np.ndarray"]
"""Arrays by name, `[feature rows, ...]` in row order, each row exactly once."""


class BadRow(Exception):  # noqa: N818 - a reason about a row, turned into a report, never shown as an error
    """A row cannot be used; raised by `Task.check_row` with the reason."""


class ExcludedRow(BadRow):
    """A row that the task's options exclude; it is counted by its reason, and never stops a run."""


class Batch(TypedDict):
    """One micro-batch of B rows."""

    inputs: dict[str, Any]
    """All keyword arguments of the model's forward pass."""
    labels: Tensor
    """`[B, ...]` labels of the loss; `IGNORE_INDEX` entries (NaN in floating-point labels) are ignored."""
    labelled: NotRequired[Tensor]
    """`[n]` positions of the labels that are not ignored, in the flattened labels `[B * T]`. With it, a language
    model's logits may be `[1, n, vocabulary]`, of these positions only, as in `toolkit.tasks.tokens.token_losses`."""
    extra: NotRequired[dict[str, Any]]
    """Anything else that the task's loss or predictions need."""
    tables: NotRequired[dict[str, Tensor]]
    """`[C, N]` by the name of an input `[B, C, ...]` of whole numbers below N, which are positions in the row of their
    channel. `toolkit.api.batch.to_device` looks them up; only the batches of a task's `compact` have tables."""
    row_ids: NotRequired[Tensor]
    """`[B]` int64 positions in the feature dataset, -1 for the placeholder row of an empty micro-batch. Added by the
    toolkit."""


@dataclass(frozen=True)
class Description:
    """A prediction as text, for the console and the report, which shorten and format it.

    Args:
        input: the input.
        prediction: the prediction.
        expected: the right answer; None if it is not known.
    """

    input: str
    prediction: str
    expected: str | None = None


class Kept(Protocol):
    """Keeps what the files of feature rows contain; see `toolkit.data.media.cache.KeptRows`."""

    def decoded(self, row_id: int, read: Callable[[], np.ndarray | None]) -> np.ndarray | None:
        """Returns what was kept of a row, or else what `read` returns."""


@dataclass(frozen=True)
class EvalData:
    """An evaluation set.

    Args:
        rows: the examples.
        features: the feature rows, one or more per example.
        processor: the processor that built the features; decodes predicted ids to text.
        num_skipped: number of rows of the source that cannot be used and were skipped.
        kept: keeps what the features' files contain; None if they are evaluated once.
    """

    rows: datasets.Dataset
    features: datasets.Dataset
    processor: Processor
    num_skipped: int = 0
    kept: Kept | None = None


@dataclass(frozen=True)
class Prepared:
    """All data of a run, tokenised.

    Args:
        train: feature rows with `row_id` (their position), `number` (their row in the file) and `length`.
        evals: evaluation sets by name (`validation`, `test`).
        fingerprints: sha256 of each source file (or hub id and revision) by split.
        bad_rows: number of skipped rows by split.
        notes: notes for the user about the rows, as sentences.
        kept: keeps what the training rows' files contain, or None.
    """

    train: datasets.Dataset
    evals: Mapping[str, EvalData]
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    bad_rows: Mapping[str, int] = field(default_factory=dict)
    notes: Sequence[str] = ()
    kept: Kept | None = None


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
