"""The content of a checkpoint's `state.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class SavedState:
    """Everything in a checkpoint except its tensors.

    Args:
        train: fields of `toolkit.api.state.TrainState`.
        identity: settings and fingerprints that must not change on resume, by dotted key.
        callbacks: values of the toolkit's callbacks and of the strategy, by name.
        trainer_callbacks: attributes of a user's callbacks under `engine: trainer`, by name; None under `engine: loop`.
        scaler: state of the fp16 gradient scaler, or None.
    """

    train: Mapping[str, Any]
    identity: Mapping[str, Any]
    callbacks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trainer_callbacks: Mapping[str, Mapping[str, Any]] | None = None
    scaler: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the content of the file."""
        content = {
            "train": dict(self.train),
            "identity": dict(self.identity),
            "trainer_callbacks": self.trainer_callbacks,
            "scaler": self.scaler,
            "extensions": dict(self.callbacks),  # the name in the file format
        }
        return {name: value for name, value in content.items() if value is not None}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> SavedState:
        """Reads the content of the file; ignores additional entries of older versions."""
        return SavedState(
            train=content["train"],
            identity=content["identity"],
            callbacks=content.get("extensions", {}),
            trainer_callbacks=content.get("trainer_callbacks"),
            scaler=content.get("scaler"),
        )
