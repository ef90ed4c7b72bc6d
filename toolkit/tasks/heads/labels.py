"""Sets the names of logits in a model's configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def set_labels(config: PreTrainedConfig, labels: Sequence[str], problem_type: Any) -> None:
    """Writes the names of the logits and the problem type into a model's configuration."""
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: number for number, label in enumerate(labels)}
    config.problem_type = problem_type
