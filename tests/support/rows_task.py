"""A task whose rows are read and checked, but never trained on."""

from __future__ import annotations

from typing import Any

from toolkit.api.task import Task


def _unused(*_: Any) -> Any:
    raise AssertionError("this task is not trained")


class RowsTask(Task):
    """Has everything of a task but `columns`, `schema` and `check_row`, which tests of rows define."""

    options = None
    modality = "text"
    best_metric = ""
    scores = ()
    state: dict[str, Any] = {}  # noqa: RUF012
    auto_model = preprocess = collate = loss_sum = predict = decode = metrics = describe = _unused

    def __init__(self) -> None:
        pass
