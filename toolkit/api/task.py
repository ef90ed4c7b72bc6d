"""The base class of tasks, which recipes derive from.

The toolkit reads, checks, orders, trains, evaluates and saves. A task defines its rows, their conversion to model
inputs, the loss, and the meaning of predictions. Engines use tasks only through this class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from toolkit.api.batch import (
    Batch,
    Description,
    EvalData,
    ModelOutput,
    Omission,
    Predictions,
    Processor,
    Record,
    Row,
    given,
)
from toolkit.base.errors import InputError
from toolkit.config.fields import Column
from toolkit.metrics.score import Quality, Score

if TYPE_CHECKING:
    import datasets
    import numpy as np
    from torch import Tensor, nn
    from transformers import PreTrainedConfig, PreTrainedModel

    from toolkit.api.random import RowRandom
    from toolkit.config.sections import Config
    from toolkit.document.blocks import Section

CLOSE = 0.82
"""Names that are this similar (`difflib`) are taken for a misspelling."""


class Task(ABC):
    """A fine-tuning task, built as `TaskClass(cfg)`; see `recipes/` for examples.

    A recipe defines the abstract members and the attributes `Options`, `columns`, `modality` and `best_metric`. Other
    members have defaults; the toolkit asks `has` where a member that is not overridden changes what it does. A recipe
    may have further public names, but none that resembles a member's: a misspelt member would never be called.

    Importing a recipe must not import heavy libraries.
    """

    Options: ClassVar[type]
    """Frozen dataclass of the YAML's `task` section. It may have the attribute `limits` (see `limits_of`) and the
    method `problems() -> list[str]`, which returns a message for each invalid combination of its values."""
    columns: ClassVar[Mapping[str, Column]]
    """The task's columns by the toolkit's names."""
    modality: str
    """Name of the modality in `toolkit.modalities.MODALITIES` that builds the model's inputs."""
    unit: str = "tokens"
    """What lengths of inputs are counted in: `tokens`, or `samples` of audio; empty if all inputs have one size."""
    best_metric: str
    """The score that selects the best model, unless the YAML names another."""
    cfg: Config
    """The run's settings."""
    options: Any
    """The `task` section, an instance of `Options`."""
    state: dict[str, Any]
    """JSON-serializable, for instance a label map; saved with the run and its checkpoints. Strings in it are shown in
    the report."""
    decoding: ClassVar[Sequence[str]] = ()
    """Names of the options that only concern answers; a finished run may be used with others."""
    predicts_tokens: ClassVar[bool] = False
    """Whether the loss is the sum of those of `logits` `[B, T, classes]` with labels `[B, T]`, so that tokens can be
    measured, and processes can share them (`parallel.context`)."""
    scorable: ClassVar[bool] = False
    """Whether a record of a labelled row has an answer of its own, which `toolkit predict --score` writes."""
    answer_columns: Sequence[str] = ("prediction",)
    """Columns that `toolkit predict` adds to every row. The first is `prediction`; `score` is its probability (0 to 1);
    `scores` and `n_best` are all that the model considered, and are not in tables unless asked for."""
    decision_rules: Sequence[str] = ()
    """Rules that `toolkit calibrate` can fit; none if it cannot calibrate."""
    error_name: str = ""
    """Name of the first number of `error`."""
    library: ClassVar[str] = "transformers"
    """Name of the library, on the hub, for which `model_files` are."""
    unread: ClassVar[Sequence[str]] = ()
    """Names of the model's modules that `forward` does not use, for instance `pooler`: they are saved, not trained."""
    initial: Sequence[str] = ()
    """Names of numbers of `predict` that labelled feature rows have as columns `initial_<name>`, of the model before
    training: for losses that compare both."""
    alike: Sequence[str] = ()
    """Two columns of texts that a model should not tell apart by their lengths; `toolkit doctor` compares these."""
    several_labels: ClassVar[bool] = False
    """Whether rows with equal inputs may have different labels, as several pairs of answers to a prompt."""
    reference: ClassVar[str] = ""
    """Key of a record's reference, beside `prediction`, for `eval.metrics`; empty if records have no answers."""

    def __init__(self, cfg: Config) -> None:
        self.cfg, self.options, self.state = cfg, cfg.task, {}

    def __init_subclass__(cls) -> None:
        """Rejects public names that resemble a member's name but are not one, with a TypeError.

        A class with inputs of its own does not inherit the scripts of exports, which do not know them.
        """
        import difflib

        super().__init_subclass__()
        for name in vars(cls):
            if name.startswith("_") or name in MEMBERS or any(name in vars(base) for base in cls.__mro__[1:]):
                continue
            if close := difflib.get_close_matches(name, MEMBERS, n=1, cutoff=CLOSE):
                raise TypeError(f"{cls.__name__}.{name} is no member of a task; did you mean {close[0]}?")
        if not {"forward", "preprocess", "collate"}.isdisjoint(vars(cls)):
            for name in {"script", "graph_script"}.difference(vars(cls)):
                setattr(cls, name, getattr(Task, name))

    def has(self, name: str) -> bool:
        """Whether the recipe overrides a member."""
        if name not in MEMBERS:
            raise AttributeError(f"a task has no member {name!r}")
        return getattr(type(self), name, None) is not getattr(Task, name, None)

    @property
    @abstractmethod
    def scores(self) -> Sequence[Score]:
        """The scores that `metrics` returns: those that can select the best model, and those of single classes."""

    @abstractmethod
    def auto_model(self, config: PreTrainedConfig) -> str:
        """Returns the name of the `transformers` auto class, for instance `AutoModelForQuestionAnswering`."""

    @abstractmethod
    def schema(self) -> datasets.Features:
        """Returns the `datasets` feature types of a checked row."""

    @abstractmethod
    def check_row(self, row: Row, labelled: bool) -> Row:
        """Returns a row in the types of `schema`; label columns are None if `labelled` is False.

        Raises:
            BadRow: with the reason, if the row cannot be used; `ExcludedRow` if the options exclude it.
        """

    @abstractmethod
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

    @abstractmethod
    def collate(self, features: list[dict[str, Any]], processor: Processor, random: RowRandom) -> Batch:
        """Returns the batch of a list of feature rows; random numbers come from `random`, by `row_id`."""

    @abstractmethod
    def loss_sum(self, outputs: ModelOutput, batch: Batch) -> Tensor:
        """Returns a scalar, the loss summed (not averaged) over the batch's items (see `count_items`)."""

    @abstractmethod
    def predict(self, model: nn.Module, outputs: ModelOutput, batch: Batch) -> dict[str, Tensor]:
        """Returns small tensors, `[B, ...]` each, for instance classes and scores, spans, or token ids."""

    @abstractmethod
    def decode(self, predictions: Predictions, data: EvalData) -> Iterable[Record]:
        """Returns one record per example, in row order; the result can be iterated over several times."""

    @abstractmethod
    def metrics(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> dict[str, float]:
        """Returns metric values by name, without prefix.

        Args:
            records: the records that `decode` returned.
            predictions: predictions on all feature rows.
            data: the set.
        """

    @abstractmethod
    def describe(self, record: Record) -> Description:
        """Returns a record as text."""

    def forward(self, model: nn.Module, batch: Batch) -> ModelOutput:
        """Returns the outputs that `loss_sum` and `predict` need, by one call of the model.

        A task that overrides it can train on every engine and strategy but pipelines, which call the model's layers
        without it, and has graph exports only if it has a `graph_script` that does what it does.

        Args:
            model: the prepared model; to be called once.
            batch: the micro-batch, on the model's device.
        """
        return model(**batch["inputs"])

    def window_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Returns a scalar, the loss summed over the items of a whole window, whose rows depend on each other.

        For losses that compare each row with all others of its step, whatever the micro-batches and processes. A task
        that overrides it returns one tensor from `forward`, whose memory for all rows of a window must suffice, and
        `loss_sum` is this loss of the rows of a single batch. Local SGD and pipelines cannot train it.

        Args:
            outputs: `[N, ...]`, what `forward` returned for all rows of the window.
            labels: `[N, ...]`, their labels; rows whose labels are ignored are placeholders.
        """
        raise TypeError(f"{type(self).__name__} has no window_loss")

    def count_items(self, batch: Batch) -> Tensor:
        """Returns a scalar, the divisor of the summed loss: the number of items, or the sum of their weights.

        The default counts the labels that are not `IGNORE_INDEX`, or not NaN.
        """
        return given(batch["labels"]).sum()

    def read_columns(self) -> dict[str, Column]:
        """Returns the columns that the task reads with its options and, once it has learned it, its state."""
        options = getattr(self, "options", None)
        named = {name for name, column in self.columns.items() if not column.opt_in or name in self.cfg.data.columns}
        return {name: column for name, column in self.columns.items() if name in named and column.used(options)}

    def learn(self, rows: datasets.Dataset) -> None:
        """Fills `state` from training rows.

        Called twice: with all checked rows, before other splits are checked, and with the rows left after splitting
        and limiting their number.

        Raises:
            DataError: if the rows are not usable for this.
        """

    def configure(self, config: PreTrainedConfig) -> None:
        """Sets fields of the model's configuration in place, for instance the names of the labels."""

    def training_texts(self, rows: datasets.Dataset) -> Iterator[str]:
        """Returns the texts on which the tokenizer of a new model is trained.

        The default takes all columns of text that are no labels.
        """
        schema = self.schema()
        names = [name for name, column in self.columns.items() if not column.label and name in schema]
        texts = chain.from_iterable(rows[name] for name in names if getattr(schema[name], "dtype", None) == "string")
        return (text for text in texts if text is not None)

    def notes(self, rows: datasets.Dataset, features: datasets.Dataset) -> list[str]:
        """Returns notes for the user about checked rows and their feature rows, as sentences without the set's name."""
        return []

    def omissions(self, rows: datasets.Dataset, features: datasets.Dataset) -> list[Omission]:
        """Returns what of checked rows is not in their feature rows, or not as it is; counts may be 0.

        The toolkit counts truncated inputs and tokens that the tokenizer does not know by itself.
        """
        return []

    def class_column(self) -> str | None:
        """Returns the column of each row's class, or None. Splits keep its distribution; sampling can balance it."""
        return None

    def label_counts(self, rows: datasets.Dataset) -> dict[str, int]:
        """Returns the number of checked rows with each label, in the order of the labels' ids."""
        return {}

    def label_notes(self, counts: Mapping[str, int]) -> list[str]:
        """Returns what the user should know about the labels of the training rows, as sentences.

        Rare labels and labels of similar spelling are named by the toolkit.

        Args:
            counts: number of training rows with each label.
        """
        return []

    def group_column(self) -> str | None:
        """Returns the column by which rows are grouped, unless `data.group_column` names another; None for none.

        Rows with the same value stay on one side of a split.
        """
        return None

    def inputs_of(self, row: Row) -> Mapping[str, Any]:
        """Returns what a checked row is predicted from, by column, for columns that hold inputs and labels.

        Rows with equal inputs are on one side of a split. Columns that are not returned count as they are; returned
        ones are part of the row's label as a whole.
        """
        return {}

    def processor_problems(self, processor: Processor) -> list[str]:
        """Returns why the model's or the new processor cannot be used, as full messages; asked before training."""
        return []

    def regroup(self, features: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Builds the final feature rows from all rows of `preprocess`, in order; must depend on these rows alone.

        For feature rows that span several examples, for instance blocks of packed text. Among their columns are
        `example` (the index of the example, or of the first of several) and `length`. Not called unless overridden.
        """
        return iter(features)

    def lost(self, rows: datasets.Dataset, features: datasets.Dataset) -> tuple[Sequence[int], str]:
        """Returns the places of the rows that `regroup` has dropped, which count as bad rows, and the reason."""
        return (), ""

    @property
    def mixes(self) -> bool:
        """Whether the task trains on mixtures of two rows, with its options; then override `mix`."""
        return False

    def mix(self, batch: Batch, others: Batch, row_ids: Sequence[int], random: RowRandom) -> Batch:
        """Returns the mixtures of rows, both collated, with what the loss and the number of items need."""
        raise TypeError(f"{type(self).__name__} has no mix")

    def decoded(self, row: dict[str, Any], processor: Processor, training: bool) -> np.ndarray | None:
        """Returns what a feature row's file contains, processed as far as nothing is random.

        For inputs in files, which take longer to read than to collate. The result is kept for later epochs, within
        `data.media_cache`, and given to `compact` in the feature rows, as `decoded`.

        Returns:
            A uint8 or float32 array with at most 4 dimensions, or None if there is nothing to keep.
        """
        return None

    def compact(self, features: list[dict[str, Any]], processor: Processor, random: RowRandom) -> Batch:
        """Returns a batch as `collate` does, with `tables` where inputs are smaller with them."""
        return self.collate(features, processor, random)

    def thumbnail(self, row: Row) -> bytes | None:
        """Returns a small PNG or JPEG of a checked row, for the report; None if the row has no image."""
        return None

    def prompt_ids(self, prompt: Any, processor: Processor) -> tuple[list[int], Any]:
        """Returns the tokens of a prompt, and how the model continues them (`toolkit.tasks.generation.Generating`).

        Not called unless overridden, by tasks that generate text.

        Args:
            prompt: a text or, for conversations, a list of messages.
            processor: the run's processor.

        Raises:
            BadRow: if the prompt cannot be used.
            DataError: if the chat template cannot be applied.
        """
        raise TypeError(f"{type(self).__name__} has no prompt_ids")

    def generated_scores(self, records: Iterable[Record]) -> dict[str, float]:
        """Returns scores of generated answers (`eval.generate`), of records with `prediction` and the given answer.

        Not called unless overridden.
        """
        raise TypeError(f"{type(self).__name__} has no generated_scores")

    def generated_quality(self, records: Iterable[Record]) -> Quality:
        """Returns how far the scores of generated answers can be trusted; the records are the same."""
        return Quality()

    def samples(self, model: PreTrainedModel, processor: Processor) -> list[str]:
        """Returns a few texts generated by the final model, for the report.

        Called only on the main process, with the unwrapped model in evaluation mode. Must be deterministic and must
        not change the global random state. Not called unless overridden.
        """
        return []

    def average(self, predictions: Sequence[Predictions]) -> Predictions:
        """Returns the mean of several models' predictions on the same rows; called on the main process."""
        raise TypeError(f"{type(self).__name__} has no average")

    def answer(self, record: Record) -> dict[str, Any]:
        """Returns the values of `answer_columns` for a record of `decode`.

        A mapping must have the same keys for every record, because a table has a column for each of them.
        """
        return {"prediction": record["prediction"]}

    def calibrate(self, sets: Mapping[str, tuple[Predictions, EvalData]], promise: Any) -> tuple[dict[str, Any], Any]:
        """Returns the decision that keeps a promise, which becomes `state["decision"]`, and sections that check it.

        Args:
            sets: predictions and rows of the set to fit to and, if there is one, of the set to check on.
            promise: a `toolkit.tasks.heads.decisions.Promise`.
        """
        raise TypeError(f"{type(self).__name__} has no calibrate")

    def error(self, record: Record) -> tuple[float, ...] | None:
        """Returns the error of a record of `decode`; None if it is right, or the right answer is not known.

        The report shows the largest errors: records are sorted by these numbers; greater is worse.
        """
        return None

    def quality(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> Quality:
        """Returns intervals and baselines of the final scores; the arguments are those of `metrics`.

        Called only on the main process, once for each evaluation set of a finished training.
        """
        return Quality()

    def baselines(
        self, train: datasets.Dataset, sets: Mapping[str, datasets.Dataset]
    ) -> Iterator[tuple[str, dict[str, dict[str, float]]]]:
        """Yields the name of each baseline that needs no neural network, and its scores without prefix on each set.

        Args:
            train: the checked training rows, from which it may learn.
            sets: the checked rows of each evaluation set.
        """
        return iter(())

    def slices(self, rows: datasets.Dataset) -> Mapping[str, Sequence[float]]:
        """Returns numbers of checked rows by name, such as lengths; the report scores the rows of each quarter.

        Not called for a task that overrides `regroup`.
        """
        return {}

    def report_sections(self, name: str, predictions: Predictions, data: EvalData, folder: Path) -> list[Section]:
        """Returns sections of the report about an evaluation set.

        Args:
            name: name of the set (`validation`, `test`).
            predictions: predictions in row order.
            data: the set.
            folder: the run's output folder, for images of the Markdown report.
        """
        return []

    def pretrained_options(self, config: PreTrainedConfig, processor: Processor) -> Mapping[str, Any]:
        """Returns further arguments of `from_pretrained` for the weights that a run starts from."""
        return {}

    def generation_fields(self, model: PreTrainedModel, processor: Processor) -> Mapping[str, Any]:
        """Returns fields of the generation config, set whenever a run's model is built, and saved with it."""
        return {}

    def model_files(self, config: PreTrainedConfig) -> Mapping[str, Any]:
        """Returns the content of JSON files by name, with which `library` loads a run's model without adapters."""
        return {}

    def for_documents(self) -> Task | None:
        """Returns the task that embeds documents to search in, from its first column; None if there is none.

        Unlabelled predictions of both tasks are then `embeddings` `[rows, 1, size]`, whose dot products are scores.
        """
        return None

    def script(self) -> str:
        """Returns the name of a template in `toolkit/deploy/templates`, for a script that needs only transformers.

        Raises:
            InputError: if the task has no script with these options, with the reason.
        """
        raise InputError("this task has no script; its recipe does not override Task.script")

    def script_values(self, model: PreTrainedModel, processor: Processor) -> Mapping[str, Any]:
        """Returns values that the template needs.

        Every template is also given the task's `options`, the `processor`, the model's `config` and `auto_model`, the
        `columns` of a row, and how tables are read.
        """
        return {}

    def graph_script(self) -> str:
        """Returns the name of the script's template in `toolkit/deploy/templates/graph`, for ONNX and `torch.export`.

        Raises:
            InputError: if the task has none.
        """
        return self.script()


MEMBERS = frozenset(name for name in (*vars(Task), *Task.__annotations__) if not name.startswith("_"))
"""The names of all members of a task."""


def limits_of(options: Any) -> Mapping[str, str]:
    """Returns the options of a task that limit lengths, by the side of the model that they limit.

    Sides are `input` (`source` for a sequence-to-sequence model), `target` and `generated`. Limits are in tokens, and
    an option may be None. Messages name the option, and memory estimates assume inputs of that length.
    """
    limits: Mapping[str, str] = getattr(options, "limits", {})
    return limits


def reads_files(task: Task) -> bool:
    """Whether a task's inputs are in files, with its options."""
    used = any(column.file and column.used(task.options) for column in task.columns.values())
    return used and task.has("decoded")
