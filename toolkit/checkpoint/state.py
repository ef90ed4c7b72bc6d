"""What `state.json` of a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class SavedState:
    """Everything of a checkpoint but its tensors.

    Args:
        train: fields of `toolkit.api.state.TrainState`.
        identity: settings and fingerprints that a resumed run must share, by dotted key.
        callbacks: values of the toolkit's own callbacks and of the strategy, by name.
        trainer_callbacks: attributes of a user's callbacks under `engine: trainer`, by name; None under `engine: loop`.
        scaler: state of the gradient scaler of fp16, None without one.
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
            "extensions": dict(self.callbacks),  # their name when the format was made
        }
        return {name: value for name, value in content.items() if value is not None}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> SavedState:
        """Reads the content of the file; entries that older versions wrote besides are left out."""
        return SavedState(
            train=content["train"],
            identity=content["identity"],
            callbacks=content.get("extensions", {}),
            trainer_callbacks=content.get("trainer_callbacks"),
            scaler=content.get("scaler"),
        )
