"""Writes the numbers of a run to `metrics.jsonl` and, on request, to trackers."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from toolkit.api.exhibits import Trackers
from toolkit.base.console import format_value
from toolkit.base.files import naming
from toolkit.config.sections import Config, TrackingConfig
from toolkit.system.activity import task_for_all
from toolkit.system.phases import in_phase
from toolkit.system.rank_order import wait_for_main
from toolkit.tracking.jsonl import read_metrics, readable_lines, truncate_metrics
from toolkit.tracking.trackers import RunTrackers, kind_of_line

if TYPE_CHECKING:
    from accelerate import Accelerator

SHOWN = "loss"
"""The metric that the progress bar always shows."""
EXTRAS = {"trackio": "trackio"}
"""Extras of the trackers that are not in the extra `tracking`."""


def tracker_problems(tracking: TrackingConfig) -> list[str]:
    """Returns one complete message for each tracker that is not installed; accelerate would only warn."""
    missing = [name for name in tracking.report_to if importlib.util.find_spec(name) is None]
    return [
        f"tracking.report_to: {name} is not installed (pip install 'finetune-toolkit[{EXTRAS.get(name, 'tracking')}]')"
        for name in missing
    ]


class Tracker:
    """Writes the run's numbers, on the main process only; a context manager that closes what was opened.

    A resumed run truncates `metrics.jsonl` to its checkpoint's step and appends to it. Trackers continue the previous
    run as far as they can (see `toolkit.tracking.trackers`).

    Args:
        accelerator: the run's Accelerator.
        cfg: resolved configuration.
        path: the file `metrics.jsonl`.
        start_step: step that training resumes from, 0 for a new run.
        shown_names: metrics that the progress bar shows besides the loss.
        mark: what `metrics.jsonl` was when the checkpoint of that step was written, if it is known.
        trackers: the run's trackers, which stay open after a training that ends well, for its report; by default own
            ones, which are closed.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        cfg: Config,
        path: Path,
        start_step: int,
        shown_names: Collection[str] = (),
        mark: Mapping[str, Any] | None = None,
        trackers: Trackers | None = None,
    ) -> None:
        self._accelerator, self._cfg, self._path = accelerator, cfg, path
        self._start, self._mark = start_step, mark
        self._shown_names = (SHOWN, *shown_names)
        self._file: TextIO | None = None
        self._stay_open = trackers is not None
        self._trackers: Trackers = RunTrackers(cfg, path.parent) if trackers is None else trackers
        self._written: set[tuple[int, tuple[str, ...]]] = set()
        self.shown: dict[str, str] = {}

    def __enter__(self) -> Tracker:
        return self

    def connect(self) -> None:
        """Starts the trackers; call it on the main process only.

        Raises:
            RunError: if a tracker cannot be started.
        """
        if not self._cfg.tracking.report_to:
            return
        # Before the file is truncated: it has what the previous session has sent.
        sent = frozenset(map(kind_of_line, readable_lines(self._path)))
        self._trackers.start(self._start, sent)

    def open(self) -> None:
        """Truncates `metrics.jsonl` to the step that training begins from; call it on the main process only.

        Lines are written, on this process, from then on.

        Raises:
            RunError: if the file cannot be rewritten.
        """
        truncate_metrics(self._path, self._start, self._mark)
        self._written = {kind_of_line(line) for line in read_metrics(self._path)} if self._path.exists() else set()
        self._file = self._path.open("a", encoding="utf-8")

    def _wait_for_trackers(self) -> None:
        """Makes the other processes wait for those of the main one here: a collective would not wait for long."""
        if self._cfg.tracking.report_to:
            wait_for_main(self._accelerator)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._file is not None:
            # An error of the disk has been raised before, when the line was written.
            with naming(self._path) if kind is None else suppress(OSError):
                self._file.close()
        if kind is not None or not self._stay_open:
            self._trackers.close()
        if kind is None:
            self._wait_for_trackers()

    @in_phase("log")
    def log(self, line: Mapping[str, Any]) -> None:
        """Writes one line, unless there is already one with the same step and names. Every process calls it.

        Args:
            line: values by name, `step` among them.
        """
        if kind_of_line(line) not in self._written:  # which only the main process knows of a resumed run
            self._write(line)
        self._wait_for_trackers()

    def _write(self, line: Mapping[str, Any]) -> None:
        self._written.add(kind_of_line(line))
        if self._file is not None:
            text = json.dumps(_json_value(line)) + "\n"
            with naming(self._path, len(text)):
                self._file.write(text)
                self._file.flush()
        self._trackers.log(line)
        self.shown.update({name: format_value(line[name]) for name in self._shown_names if name in line})

    def flush(self) -> None:
        """Flushes the lines to the disk; every process calls it before a checkpoint is completed."""
        if self._file is not None:
            with task_for_all(), naming(self._path):  # a disk in a network may take long
                os.fsync(self._file.fileno())
        wait_for_main(self._accelerator)


def _json_value(value: Any) -> Any:
    """Returns a value in a form that JSON supports; NaN, for instance the loss over no items, becomes null."""
    if isinstance(value, Mapping):
        return {str(name): _json_value(entry) for name, entry in value.items()}
    if isinstance(value, int | float | str | None):
        return value if not isinstance(value, float) or math.isfinite(value) else None
    return _json_value(value.item()) if hasattr(value, "item") else str(value)
