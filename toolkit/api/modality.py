"""What a modality is: a module of `toolkit.modalities` that brings a kind of input and models together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from toolkit.api.task import Processor

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig

    from toolkit.api.random import RowRandom
    from toolkit.config.sections import ModelConfig


class Modality(Protocol):
    """How models take a kind of input. `options` are always the task's."""

    @property
    def AUTO_PROCESSOR(self) -> str:  # noqa: N802 - a constant of a module
        """Name of the `transformers` auto class of its processors."""

    def load_processor(self, source: str, model: ModelConfig, options: Any) -> Processor:
        """Loads the processor of a pretrained model, a run or a checkpoint.

        Args:
            source: hub id or folder.
            model: for `revision` (of `name_or_path`, not of another source) and `trust_remote_code`.
            options: the task's.

        Raises:
            InputError: if there is none that can be used.
        """

    def new_processor(self, texts: Iterator[str], config: PreTrainedConfig, options: Any) -> Processor:
        """Makes the processor of a new model.

        Args:
            texts: the training text, for a tokenizer.
            config: the new model's.
            options: the task's.
        """

    def configure(self, config: PreTrainedConfig, processor: Processor, new: bool) -> None:
        """Writes into the model's configuration what follows from the processor; `new` if the model has no weights."""

    def check_model(self, config: PreTrainedConfig, options: Any) -> list[str]:
        """Returns what is wrong between a model and the task's options, as full messages."""


class InputModality(Modality, Protocol):
    """A modality in which one value of a row is all that the model is given, so that rows can be classified by it."""

    def auto_model(self, config: PreTrainedConfig) -> str:
        """Returns the name of the auto class that classifies."""

    def feature(self) -> Any:
        """Returns the Arrow type of a checked value."""

    def check(self, value: Any, options: Any) -> Any:
        """Returns a row's value as `feature` describes it.

        Raises:
            BadRow: with the reason why it cannot be used.
        """

    def preprocess(self, values: Sequence[Any], processor: Processor, options: Any) -> dict[str, list[Any]]:
        """Turns checked values into columns of feature rows, one each, with `length` among them."""

    def collate(
        self, features: Sequence[dict[str, Any]], processor: Processor, options: Any, random: RowRandom
    ) -> dict[str, Tensor]:
        """Turns feature rows into the model's inputs."""

    def shown(self, value: Any) -> str:
        """Returns what stands for a value in messages and predictions."""

    def thumbnail(self, value: Any, options: Any) -> bytes | None:
        """Returns a small image of a value for a report, or None if there is nothing to see."""
