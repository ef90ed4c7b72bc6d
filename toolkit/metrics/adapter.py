"""Turns a metric function into an `evaluate.Metric`, for code that needs one; importing this takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import evaluate


class Adapter(evaluate.Metric):
    """An `evaluate.Metric` over a function, which works with a read-only home folder and in several processes at once.

    By default the library collects predictions in locked files of its cache folder, which it creates with the metric,
    even with `keep_in_memory`. Here everything stays in memory.

        Adapter(classification_scores, Features(predictions=Value("int64"), references=Value("int64"))).compute(
            predictions=[0, 1], references=[0, 0], labels=["no", "yes"])

    Args:
        function: takes `predictions` and `references`, with one entry per row each, and settings by name.
        features: the `datasets.Features` of one prediction and one reference.
    """

    def __init__(self, function: Callable[..., dict[str, float]], features: Any) -> None:
        self._function, self._features = function, features
        super().__init__(keep_in_memory=True)

    def _build_data_dir(self) -> str:
        return ""

    def _info(self) -> evaluate.MetricInfo:
        about = self._function.__doc__ or ""
        return evaluate.MetricInfo(description=about, citation="", inputs_description=about, features=self._features)

    def _compute(self, **values: Any) -> dict[str, float]:
        return self._function(**values)
