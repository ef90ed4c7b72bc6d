"""Rows, batches and predictions as tasks see them, and what is done to a batch on its way to the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NotRequired, Protocol, TypedDict, cast

if TYPE_CHECKING:
    import datasets
    import numpy as np
    import torch
    from torch import Tensor


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Moves a batch to a device and looks its inputs up there (see `looked_up`)."""
    from accelerate.utils import send_to_device

    return looked_up(send_to_device(batch, device, non_blocking=True))


def looked_up(batch: Batch) -> Batch:
    """Replaces inputs that are positions in a table by the numbers in it, on the device of the batch.

    Images are small and quick to move as bytes. One look-up gives exactly the numbers of the model's own image
    processor, on every device, which scaling and normalising with other rounding would not.
    """
    tables = batch.get("tables")
    if tables is None:
        return batch
    rest: Mapping[str, Any] = {name: value for name, value in batch.items() if name != "tables"}
    found = {name: look_up(table, batch["inputs"][name]) for name, table in tables.items()}
    return cast(Batch, {**rest, "inputs": {**batch["inputs"], **found}})


def look_up(table: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Returns the numbers `[B, C, ...]` at positions `[B, C, ...]` of a table `[C, N]`."""
    import torch

    rows = zip(table, positions.unbind(1), strict=True)
    return torch.stack([numbers.index_select(0, plane.flatten().int()).view_as(plane) for numbers, plane in rows], 1)


@dataclass(frozen=True)
class Places:
    """Positions `[n]` at which logits are needed, in the flattened labels of a shape `[B, T]`."""

    shape: torch.Size
    positions: Tensor


_NEEDED: ContextVar[Places | None] = ContextVar("needed", default=None)


@contextmanager
def logits_at_labels(batch: Batch) -> Iterator[None]:
    """Lets forward passes inside compute logits only at the batch's `labelled` positions, if it has them."""
    labelled = batch.get("labelled")
    token = _NEEDED.set(None if labelled is None else Places(batch["labels"].shape, labelled))
    try:
        yield
    finally:
        _NEEDED.reset(token)


def needed() -> Places | None:
    """Returns where the current forward pass needs logits; None for everywhere."""
    return _NEEDED.get()


IGNORE_INDEX = -100
"""Label that is ignored (the convention of torch and transformers). In floating-point labels, where -100 is a valid
value, NaN is ignored instead."""


def given(labels: Tensor) -> Tensor:
    """Returns which labels are not ignored, as Booleans of their shape."""
    return ~labels.isnan() if labels.is_floating_point() else labels != IGNORE_INDEX


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
        aligned: the words of both side by side, if they have been aligned: the kind (`equal`, `substitution`,
            `insertion` or `deletion`), the word of the prediction, and that of the right answer; empty where missing.
    """

    input: str
    prediction: str
    expected: str | None = None
    aligned: Sequence[tuple[str, str, str]] = ()


class Kept(Protocol):
    """Keeps what the files of feature rows contain; see `toolkit.data.media.cache.CachedRows`."""

    def decoded(self, row_id: int, read: Callable[[], np.ndarray | None]) -> np.ndarray | None:
        """Returns what was kept of a row, or else what `read` returns."""


@dataclass(frozen=True)
class Omission:
    """Something of the data that a run cuts, skips, merges or ignores.

    Args:
        what: the things and what happens to them, for instance "texts truncated to task.max_length=128".
        count: the number of them.
        total: the number of all such things, omitted or not.
        details: names, examples or reasons; may be empty.
        where: the set of rows or the file; the toolkit adds it.
    """

    what: str
    count: int
    total: int
    details: str = ""
    where: str = ""

    def __str__(self) -> str:
        counted = f"{self.where}: {self.count:,} of {self.total:,} {self.what} ({self.count / self.total:.1%})"
        return f"{counted}: {self.details}" if self.details else counted


@dataclass(frozen=True)
class EvalData:
    """An evaluation set.

    Args:
        rows: the examples.
        features: the feature rows, one or more per example.
        processor: the processor that built the features; decodes predicted ids to text.
        num_skipped: number of rows of the source that cannot be used and were skipped.
        kept: keeps what the features' files contain; None if they are evaluated once.
        prompts: the rows whose answers are generated (`eval.generate`), with features without labels, or None.
    """

    rows: datasets.Dataset
    features: datasets.Dataset
    processor: Processor
    num_skipped: int = 0
    kept: Kept | None = None
    prompts: EvalData | None = None

    def each_row(self) -> Iterator[Row]:
        """Yields the rows; `datasets` formats many of them together in a fraction of the time of one by one."""
        for part in self.rows.iter(32):
            yield from (dict(zip(part, values, strict=True)) for values in zip(*part.values(), strict=True))


@dataclass(frozen=True)
class Prepared:
    """All data of a run, tokenised.

    Args:
        train: feature rows with `row_id` (their position), `number` (their row in the file) and `length`.
        evals: evaluation sets by name (`validation`, `test`).
        fingerprints: sha256 of each source file (or hub id and revision) by split.
        bad_rows: number of skipped rows by split.
        notes: notes for the user about the rows, as sentences.
        omissions: everything of the data that the run does not use, or not as it is.
        kept: keeps what the training rows' files contain, or None.
        rows: the checked training rows, not tokenised.
    """

    train: datasets.Dataset
    evals: Mapping[str, EvalData]
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    bad_rows: Mapping[str, int] = field(default_factory=dict)
    notes: Sequence[str] = ()
    omissions: Sequence[Omission] = ()
    kept: Kept | None = None
    rows: datasets.Dataset | None = None
