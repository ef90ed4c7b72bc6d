"""Where numbers go: `metrics.jsonl` always, accelerate's trackers on request."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from toolkit.base.console import format_value
from toolkit.config import flatten
from toolkit.config.sections import Config, TrackingConfig
from toolkit.tracking.jsonl import read_metrics, truncate_metrics

if TYPE_CHECKING:
    from accelerate import Accelerator

SHOWN = ("loss", "eval_loss")
"""What the progress bar shows, beside the best metric."""


def tracker_problems(tracking: TrackingConfig) -> list[str]:
    """Returns which trackers are not installed; accelerate would leave them out with a mere warning."""
    missing = [name for name in tracking.report_to if importlib.util.find_spec(name) is None]
    hint = "pip install 'finetune-toolkit[tracking]'"
    return [f"tracking.report_to: {name} is not installed ({hint})" for name in missing]


class Tracker:
    """Writes the run's numbers, on the main process only; a context manager.

    A resumed run cuts `metrics.jsonl` back to its checkpoint's step and appends to it.

    Args:
        accelerator: the run's Accelerator.
        cfg: resolved settings.
        path: of `metrics.jsonl`.
        start_step: step that training resumes from, 0 for a new run.
        shown_names: metrics that the progress bar shows besides the losses.
    """

    def __init__(
        self, accelerator: Accelerator, cfg: Config, path: Path, start_step: int, shown_names: Collection[str] = ()
    ) -> None:
        self._accelerator, self._cfg, self._path, self._start = accelerator, cfg, path, start_step
        self._main = accelerator.is_main_process
        self._shown_names = {*SHOWN, *shown_names}
        self._file: TextIO | None = None
        self._written: set[tuple[int, tuple[str, ...]]] = set()
        self.shown: dict[str, str] = {}

    def __enter__(self) -> Tracker:
        if self._main:
            truncate_metrics(self._path, self._start)
            self._written = {_kind(line) for line in read_metrics(self._path)} if self._path.exists() else set()
            self._file = self._path.open("a", encoding="utf-8")
        tracking = self._cfg.tracking
        if tracking.report_to:
            name = tracking.run_name or Path(self._cfg.output_dir).name
            options: dict[str, dict[str, Any]] = {"wandb": {"name": name}, "mlflow": {"run_name": name}}
            settings = {key: _plain(value) for key, value in flatten(self._cfg).items()}
            self._accelerator.init_trackers(
                tracking.project, settings, {k: options.get(k, {}) for k in tracking.report_to}
            )
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            self._file.close()
        if self._cfg.tracking.report_to:
            for tracker in self._accelerator.trackers:
                tracker.finish()  # not end_training(), which also ends the process group that the report needs

    def log(self, line: dict[str, float]) -> None:
        """Writes one line; `step` is one of its entries. What stands there already is not repeated."""
        if _kind(line) in self._written:
            return
        self._written.add(_kind(line))
        if self._file is not None:
            # JSON has no NaN: a loss over no items is null
            finite = {name: value if math.isfinite(value) else None for name, value in line.items()}
            self._file.write(json.dumps(finite) + "\n")
            self._file.flush()
        if self._cfg.tracking.report_to:
            self._accelerator.log({k: v for k, v in line.items() if k != "step"}, step=line["step"])
        self.shown.update({name: format_value(line[name]) for name in self._shown_names if name in line})

    def flush(self) -> None:
        """Forces what was written onto the disk; a checkpoint that is committed after it relies on that."""
        if self._file is not None:
            os.fsync(self._file.fileno())


def _kind(line: dict[str, float]) -> tuple[int, tuple[str, ...]]:
    return int(line["step"]), tuple(sorted(line))


def _plain(value: Any) -> int | float | str | bool:
    return value if isinstance(value, int | float | str | bool) else json.dumps(value)
