"""The protocol of modalities: modules of `toolkit.modalities` that prepare one kind of input for models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from toolkit.api.batch import Omission, Processor

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor
    from transformers import PreTrainedConfig

    from toolkit.api.random import RowRandom
    from toolkit.config.sections import ModelConfig


class Modality(Protocol):
    """Processors and model checks of one kind of input. `options` are always the task's."""

    @property
    def AUTO_PROCESSOR(self) -> str:  # noqa: N802 - a constant of a module
        """Name of the `transformers` auto class of the modality's processors."""

    @property
    def LIBRARIES(self) -> tuple[str, ...]:  # noqa: N802
        """Libraries that read its inputs, beside those that run the model."""

    def load_processor(self, source: str, model: ModelConfig, options: Any) -> Processor:
        """Loads the processor of a pretrained model, a run or a checkpoint.

        Args:
            source: hub id or folder.
            model: the settings, for `trust_remote_code` and, if `source` is `name_or_path`, `revision`.
            options: the task's options.

        Raises:
            InputError: if no usable processor is found.
        """

    def new_processor(self, texts: Iterator[str], config: PreTrainedConfig, options: Any) -> Processor:
        """Builds the processor of a new model.

        Args:
            texts: the training text, for a tokenizer.
            config: configuration of the new model.
            options: the task's options.
        """

    def configure(self, config: PreTrainedConfig, processor: Processor, new: bool) -> None:
        """Sets the fields of the model's configuration that depend on the processor.

        Args:
            config: configuration of the model.
            processor: its processor.
            new: whether the model has no pretrained weights.
        """

    def check_model(self, config: PreTrainedConfig, options: Any) -> list[str]:
        """Returns one complete message for each conflict between a model and the task's options."""

    def longest(self, options: Any, processor: Processor) -> int | None:
        """Returns the largest length of an input in the unit of `length`, or None if the options have no limit."""


class InputModality(Modality, Protocol):
    """A modality whose model input is a single value of each row, so that rows can be classified by it."""

    def auto_model(self, config: PreTrainedConfig) -> str:
        """Returns the name of the `transformers` auto class for classification."""

    def feature(self) -> Any:
        """Returns the `datasets` feature type of a checked value."""

    def check(self, value: Any, options: Any) -> Any:
        """Returns a row's value in the type of `feature`.

        Raises:
            BadRow: with the reason, if the value cannot be used.
        """

    def omissions(self, values: Sequence[Any], options: Any) -> list[Omission]:
        """Returns what of checked values the model does not get, or not as it is; counts may be 0."""

    def preprocess(self, values: Sequence[Any], processor: Processor, options: Any) -> dict[str, list[Any]]:
        """Converts checked values to columns of feature rows, one row per value; `length` is one of the columns."""

    def collate(
        self, features: Sequence[dict[str, Any]], processor: Processor, options: Any, random: RowRandom
    ) -> dict[str, Tensor]:
        """Builds the model's inputs from B feature rows; the first dimension of each tensor is B."""

    def compact(
        self, features: Sequence[dict[str, Any]], processor: Processor, options: Any, random: RowRandom
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Builds the model's inputs like `collate`, some of them as positions in a table, and the tables by name."""

    def decoded(self, row: dict[str, Any], processor: Processor, options: Any, training: bool) -> np.ndarray | None:
        """Returns what a feature row's file contains; see `toolkit.api.task.Task.decoded`."""

    def shown(self, value: Any) -> str:
        """Returns the text for a value in messages and predictions."""

    def thumbnail(self, value: Any, options: Any) -> bytes | None:
        """Returns a small PNG or JPEG of a value for a report, or None if it has no image."""
