"""Names of labels: one form for equal numbers, `task.label_map`, and the labels of a head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any

from toolkit.api.batch import BadRow, ExcludedRow
from toolkit.config.messages import show

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def label_text(value: Any) -> str:
    """Returns a label as text without surrounding blanks; numbers in their shortest form (`5.0` becomes `5`)."""
    if not isinstance(value, str | int) and not (isinstance(value, float | Decimal) and isfinite(value)):
        raise BadRow(f"label {value!r} is neither text nor a number")
    from toolkit.data.keys import plain_number  # which imports numpy

    return plain_number(f"{value:f}" if isinstance(value, Decimal) else str(value).strip())


def plain_map(label_map: Mapping[str, str | None]) -> dict[str, str | None]:
    """Returns `task.label_map` with its labels in the form of `label_text`."""
    return {label_text(label): name for label, name in label_map.items()}


def known_label(value: Any, names: Mapping[str, str | None], known: Sequence[str] | None) -> str:
    """Returns the name of a label after `task.label_map`, which must be among the `known` ones unless they are None.

    Raises:
        BadRow: if the label is neither text nor a number, or has an unknown name.
        ExcludedRow: if its name is null.
    """
    given = label_text(value)
    text = names.get(given, given)
    if text is None:
        raise ExcludedRow(f"task.label_map maps {given!r} to null")
    if known is None or text in known:
        return text
    for name in known:
        if label_text(name) == text:
            return name
    raise BadRow(f"label {text!r} is not one of {', '.join(known)}")


def map_problems(labels: Sequence[str] | None, label_map: Mapping[str, str | None]) -> list[str]:
    """Returns what is wrong with `task.label_map`, as full messages; `labels` is `task.labels`."""
    names: dict[str, str | None] = {}
    found = []
    for label, name in label_map.items():
        other = names.setdefault(label_text(label), name)
        if other != name:
            found.append(
                f"task.label_map: {label!r} is listed twice, as {show(other)} and {show(name)}; remove one of them"
            )
    if unknown := [name for name in _names(label_map) if labels is not None and name not in labels]:
        found.append(f"task.label_map: {', '.join(map(repr, unknown))} not in task.labels; add it there or remove it")
    return found


def map_notes(counts: Mapping[str, int], label_map: Mapping[str, str | None]) -> list[str]:
    """Returns a note about names in `task.label_map` that no training row has."""
    unused = [repr(name) for name in _names(label_map) if not counts.get(name)]
    return [f"task.label_map: no training row has {', '.join(unused)}."] if unused else []


def _names(label_map: Mapping[str, str | None]) -> list[str]:
    """Returns the different names in `task.label_map`."""
    return list(dict.fromkeys(name for name in label_map.values() if name is not None))


def set_labels(config: PreTrainedConfig, labels: Sequence[str], problem_type: Any) -> None:
    """Writes the names of the logits and the problem type into a model's configuration."""
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: number for number, label in enumerate(labels)}
    config.problem_type = problem_type
