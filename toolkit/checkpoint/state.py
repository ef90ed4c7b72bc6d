"""The content of a checkpoint's `state.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from toolkit.api.state import TrainState
from toolkit.base.errors import CheckpointError

_PARTS = ("train", "identity", "extensions", "trainer_callbacks", "scaler", "metrics")


@dataclass(frozen=True)
class SavedState:
    """Everything in a checkpoint except its tensors.

    Args:
        train: fields of `toolkit.api.state.TrainState`.
        identity: settings and fingerprints that must not change on resume, by dotted key.
        callbacks: values of the toolkit's callbacks and of the strategy, by name.
        trainer_callbacks: attributes of a user's callbacks under `engine: trainer`, by name; None under `engine: loop`.
        scaler: state of the fp16 gradient scaler, or None.
        metrics: size and sha256 of `metrics.jsonl`, or None.
    """

    train: Mapping[str, Any]
    identity: Mapping[str, Any]
    callbacks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trainer_callbacks: Mapping[str, Mapping[str, Any]] | None = None
    scaler: Mapping[str, Any] | None = None
    metrics: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the content of the file."""
        content = {
            "train": dict(self.train),
            "identity": dict(self.identity),
            "trainer_callbacks": self.trainer_callbacks,
            "scaler": self.scaler,
            "metrics": self.metrics,
            "extensions": dict(self.callbacks),  # the name in the file format
        }
        return {name: value for name, value in content.items() if value is not None}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> SavedState:
        """Reads the content of the file; ignores additional entries of older versions.

        Raises:
            CheckpointError: if it is not the content of such a file.
        """
        parts = {name: content.get(name) for name in _PARTS} if isinstance(content, Mapping) else {}
        wrong = [name for name, value in parts.items() if not isinstance(value, Mapping | None)]
        missing = [name for name in ("train", "identity") if parts.get(name) is None]
        unusable = [*wrong, *missing] or [
            *_wrong_progress(content["train"]), *_wrong_marks(content.get("metrics")), *_wrong_states(content)
        ]  # fmt: skip
        if unusable:
            raise CheckpointError(
                f"state.json of a checkpoint has no usable {', '.join(unusable)}; it was not written by the toolkit: "
                "use another checkpoint"
            )
        return SavedState(
            train=content["train"],
            identity=content["identity"],
            callbacks=content.get("extensions") or {},
            trainer_callbacks=content.get("trainer_callbacks"),
            scaler=content.get("scaler"),
            metrics=content.get("metrics"),
        )


def _wrong_progress(train: Mapping[str, Any]) -> list[str]:
    """Returns the dotted keys of `train` whose values are missing or of another type."""
    try:
        TypeAdapter(TrainState).validate_json(json.dumps(dict(train)), strict=True)
    except ValidationError as error:
        return [f"train.{place['loc'][0]}" for place in error.errors()]
    return [] if "step" in train and train["step"] >= 0 else ["train.step"]


def _wrong_marks(metrics: Mapping[str, Any] | None) -> list[str]:
    if metrics is None or (type(metrics.get("bytes")) is int and isinstance(metrics.get("sha256"), str)):
        return []
    return ["metrics"]


def _wrong_states(content: Mapping[str, Any]) -> list[str]:
    """Returns the dotted keys of callbacks and strategies whose states are not objects."""
    return [
        f"{part}.{name}"
        for part in ("extensions", "trainer_callbacks")
        for name, state in (content.get(part) or {}).items()
        if not isinstance(state, Mapping)
    ]
