"""Multi-label classification with one sigmoid per label. An item is a row x label; unknown items are NaN."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.api.batch import BadRow, Record
from toolkit.base.errors import DataError
from toolkit.data.values import printed_list, vector
from toolkit.metrics.classification import RANKING, ranking_scores
from toolkit.metrics.multi_label import MULTI_LABEL, PER_LABEL, multi_label_quality, multi_label_scores
from toolkit.metrics.score import Quality
from toolkit.tasks.heads.decisions import RULES, least_of
from toolkit.tasks.heads.head import Head, label_weights
from toolkit.tasks.heads.losses import shared, sigmoid_losses
from toolkit.tasks.labels import known_label, label_text

if TYPE_CHECKING:
    from torch import Tensor

    from toolkit.document.blocks import Section

THRESHOLD = 0.5
_ORDER = (0.0, None, 1.0)
_NUMBERS = frozenset({"0", "1"})
_VALUES: dict[Any, float | None] = {True: 1.0, False: 0.0, None: None}
"""Also matches 1 and 0, which equal True and False."""


class MultiLabel(Head):
    """Multi-label classification; see `toolkit.tasks.heads.Head`.

    A label is a list of names (also printed as text), text with names between `task.label_separator`, a mapping of
    names to true, false or null (unknown), or a vector of 0 and 1 in the order of `task.labels`. Missing names are
    false. Labels are stored as a list of names and values.
    """

    problem_type = "multi_label_classification"
    best_metric = "f1_micro"
    error_name = "mean distance"
    answer_columns = ("prediction", "scores")
    threshold, decision_rules = THRESHOLD, tuple(RULES)
    overall, per_label = (*MULTI_LABEL, *RANKING), PER_LABEL

    def feature(self) -> Any:
        from datasets import List, Value

        return List({"name": Value("string"), "value": Value("float64")})

    def given_names(self, value: Any) -> Iterable[Any]:
        return (name for name, given in self._by_name(value).items() if given)

    def _by_name(self, value: Any) -> Mapping[Any, Any]:
        """Returns whether a row has each label that it names; raises BadRow if it cannot be told."""
        if isinstance(value, str):
            listed = printed_list(value)
            inside = re.sub(r"^\s*\[(.*)\]\s*$", r"\1", value)  # a list of one name, printed without quotes
            parts = (part.strip() for part in inside.split(self.options.label_separator))
            value = [part for part in parts if part] if listed is None else listed
        own = self.options.labels or ()
        if isinstance(value, list) and len(value) == len(own) and _NUMBERS.isdisjoint(own) and (found := vector(value)):
            value = dict(zip(own, found, strict=True))
        if isinstance(value, list):
            if None in value:  # as text it would be a label of the name None
                raise BadRow(f"label {value!r} has null among its names; leave it out, or write the name")
            value = dict.fromkeys(map(str, value), True)
        if not isinstance(value, Mapping):
            raise BadRow(f"label {value!r} is not a list of names, text, or a mapping of names to true, false or null")
        return value

    def check(self, value: Any) -> list[dict[str, Any]]:
        known = self.state["labels"]
        values: dict[str, float | None] = {}
        for name, given in self._by_name(value).items():
            if not isinstance(given, (bool, int, type(None))) or given not in _VALUES:
                raise BadRow(f"label {name!r} is {given!r}; expected true, false or null")
            if self.names.get(label_text(name), name) is None and not given:
                continue  # the row does not have the label that would exclude it
            own = known_label(name, self.names, known)
            # Of several labels with one name, true counts before unknown, and unknown before false.
            values[own] = max(values.get(own, 0.0), _VALUES[given], key=_ORDER.index)
        return [{"name": name, "value": given} for name, given in values.items()]

    def learn(self, labels: Sequence[list[dict[str, Any]]]) -> None:
        found = sorted({part["name"] for label in labels for part in label})
        self.state["labels"] = self.state["labels"] or found
        if not self.state["labels"]:
            raise DataError("data: no training row has any label.")
        if not self.options.labels and _NUMBERS.issuperset(found):
            raise DataError("data: the labels are vectors of 0 and 1; name their places, in order, in task.labels.")
        targets = np.asarray([self.target(label) for label in labels])
        have = dict(zip(self.state["labels"], (targets == 1).sum(axis=0), strict=True))
        lack = dict(zip(self.state["labels"], (targets == 0).sum(axis=0), strict=True))
        if self.options.class_weights == "balanced" and (one := [name for name in have if not have[name] * lack[name]]):
            raise DataError(f"task.class_weights=balanced: all training rows, or none, have {', '.join(one)}.")
        self.state["class_weights"] = label_weights(
            self.options.class_weights, self.state["labels"], lambda name: float(lack[name] / have[name])
        )

    def counts(self, labels: Sequence[list[dict[str, Any]]]) -> dict[str, int]:
        counts = Counter(part["name"] for label in labels for part in label if part["value"])
        return {name: counts[name] for name in self.state["labels"]}

    def target(self, label: list[dict[str, Any]] | None) -> list[float]:
        if label is None:
            return [math.nan] * len(self.state["labels"])
        given = {part["name"]: math.nan if part["value"] is None else part["value"] for part in label}
        return [given.get(name, 0.0) for name in self.state["labels"]]

    def loss_sum(self, logits: Tensor, labels: Tensor, shares: Tensor | None = None) -> Tensor:
        import torch

        smoothing, gamma = self.options.label_smoothing_factor, self.options.focal_gamma
        positive = self.state["class_weights"]
        weights = None if positive is None else logits.new_tensor(positive)
        losses = sigmoid_losses(logits, labels.nan_to_num().to(logits.dtype), smoothing, gamma, weights)
        return shared(torch.where(labels.isnan(), 0.0, losses), shares).sum()

    def predict(self, logits: Tensor) -> Tensor:
        return (logits.float() / self.decision.get("temperature", 1.0)).sigmoid()

    def tempered(self, scores: np.ndarray, temperature: float) -> np.ndarray:
        yes = scores.astype(np.float64).clip(max=1 - 2.0**-25)  # float32 rounds greater ones to 1
        return yes ** (1 / temperature) / (yes ** (1 / temperature) + (1 - yes) ** (1 / temperature))

    def items(self, scores: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return scores[~np.isnan(targets)], targets[~np.isnan(targets)]

    def judged(self, scores: np.ndarray, targets: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        known = np.where(np.isnan(targets), -1.0, scores)
        return dict(zip(self.state["labels"], zip(known.T, targets.T == 1, strict=True), strict=True))

    def chosen(self, scores: np.ndarray) -> np.ndarray:
        """Returns which labels are predicted, as `scores`, `[..., N]`."""
        if not self.decision:
            return scores > THRESHOLD
        return scores >= np.array([least_of(self.decision, name) for name in self.state["labels"]])

    def report_sections_of(self, scores: np.ndarray, targets: np.ndarray) -> list[Section]:
        from toolkit.document.blocks import Section, Table

        labels, places = self.state["labels"], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
        found = [multi_label_scores(scores > place, targets, labels) for place in places]
        names = [score.name for score in MULTI_LABEL]
        rows = [[place, *(each[name] for name in names)] for place, each in zip(places, found, strict=True)]
        return [Section("Scores at each threshold, the same for all labels", [Table(["threshold", *names], rows)])]

    def metrics(self, scores: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        found = multi_label_scores(self.chosen(scores), targets, self.state["labels"])
        return found | ranking_scores(scores, targets)

    def quality(self, scores: np.ndarray, targets: np.ndarray) -> Quality:
        return multi_label_quality(self.chosen(scores), targets, self.state["labels"])

    def record(self, scores: np.ndarray, label: list[dict[str, Any]] | None) -> Record:
        labels, chosen = self.state["labels"], self.chosen(scores)
        return {
            "label": None if label is None else [part["name"] for part in label if part["value"]],
            "prediction": [name for name, one in zip(labels, chosen, strict=True) if one],
            "scores": {name: float(score) for name, score in zip(labels, scores, strict=True)},
            **({"unsure": bool((chosen != (scores > THRESHOLD)).any())} if self.decision else {}),
        }

    def describe(self, record: Record) -> tuple[str, str | None]:
        return _listed(record["prediction"]), None if record["label"] is None else _listed(record["label"])

    def error(self, record: Record) -> tuple[float, ...] | None:
        if record["label"] is None or set(record["label"]) == set(record["prediction"]):
            return None
        distances = [abs(score - (name in record["label"])) for name, score in record["scores"].items()]
        return (sum(distances) / len(distances),)

    def report_sections(self, name: str, scores: np.ndarray, targets: np.ndarray, folder: Path) -> list[Section]:
        from toolkit.document.blocks import Section
        from toolkit.tasks.heads.tables import score_table

        counts = np.nansum(targets, axis=0)
        table = score_table(self.state["labels"], self.metrics(scores, targets), PER_LABEL, counts)
        return [Section(f"Labels ({name})", [table]), *self.report_sections_of(scores, targets)]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
