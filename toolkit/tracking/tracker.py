"""Writes the numbers of a run to `metrics.jsonl` and, on request, to trackers, which are opened and closed here."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from toolkit.api.exhibits import Exhibits, Histogram, Node, Trackers
from toolkit.base.console import format_value, say
from toolkit.base.errors import RunError
from toolkit.base.files import naming, read_json, write_json
from toolkit.base.package import import_object
from toolkit.base.run_folder import RunFolder
from toolkit.config import flatten
from toolkit.config.sections import Config, TrackingConfig
from toolkit.system.activity import task_for_all
from toolkit.system.phases import in_phase
from toolkit.system.rank_order import wait_for_main
from toolkit.tracking.jsonl import read_metrics, readable_lines, truncate_metrics
from toolkit.tracking.sink import Sink, TrackedRun, finite_numbers, tag

if TYPE_CHECKING:
    from accelerate import Accelerator


NO_CURVES = ("epoch", "num_items", "step")
"""Numbers of a line that describe the line and are not drawn over the steps."""
IDS = "ids.json"
"""File in `tracking/` with the run's ids by tracker, for resuming."""
TRACKERS = {
    "tensorboard": "toolkit.tracking.tensorboard.TensorBoard",
    "wandb": "toolkit.tracking.wandb.WandB",
    "mlflow": "toolkit.tracking.mlflow.MLflow",
    "trackio": "toolkit.tracking.wandb.Trackio",
}
"""Classes of the trackers by the names in `tracking.report_to`; see `toolkit.tracking.sink.Sink`."""


def _environment(folder: Path) -> dict[str, str]:
    """Returns variables that keep trackers quiet and out of the home directory."""
    own = folder.absolute()
    return {
        **{f"WANDB_{name.upper()}_DIR": str(own / "wandb" / name) for name in ("cache", "config", "data")},
        "WANDB_QUIET": "true",  # no table of all numbers after the run's own summary
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "TRACKIO_DIR": str(own / "trackio"),
    }


class RunTrackers:
    """The trackers of one run; see `toolkit.api.exhibits.Trackers`.

    A tracker that fails during training is reported once and then ignored; `metrics.jsonl` has all numbers.
    """

    def __init__(self, cfg: Config, output_dir: Path) -> None:
        self._cfg, self._name, self._folder = cfg, output_dir.absolute().name, RunFolder(output_dir).tracking
        self._active: dict[str, Sink] = {}
        self._environment: dict[str, str] = {}
        self._sent: frozenset[tuple[int, tuple[str, ...]]] = frozenset()
        self._continued: Mapping[str, str] = {}

    def start(self, start_step: int, sent: frozenset[tuple[int, tuple[str, ...]]] = frozenset()) -> None:
        """Starts the trackers; see `toolkit.api.exhibits.Trackers.start`."""
        tracking, folder = self._cfg.tracking, self._folder
        self._environment = {key: value for key, value in _environment(folder).items() if key not in os.environ}
        os.environ.update(self._environment)
        self._sent, self._continued = sent, read_ids(folder) if start_step else {}
        start = start_step if folder.is_dir() else 0  # a run that is resumed elsewhere is a new one for trackers
        folder.mkdir(parents=True, exist_ok=True)
        name = tracking.run_name or self._name
        run = TrackedRun(tracking.project, name, folder, flatten(self._cfg), start, self._continued)
        for kind in tracking.report_to:
            try:
                self._active[kind] = import_object(TRACKERS[kind])(run)
            except Exception as error:
                self.close()
                raise RunError(
                    f"tracking.report_to: {kind} cannot be started: {_first_line(error)}. Without a server set "
                    "WANDB_MODE=offline for wandb, unset MLFLOW_TRACKING_URI for mlflow, or remove the tracker."
                ) from error
        if ids := {kind: sink.id for kind, sink in self._active.items() if sink.id is not None}:
            write_json(folder / IDS, {**self._continued, **ids})

    def log(self, line: Mapping[str, Any]) -> None:
        """Logs the finite numbers of a line to all trackers, by their `tag`, except `NO_CURVES`."""
        values = {tag(key): value for key, value in finite_numbers(line) if key not in NO_CURVES}
        is_sent = kind_of_line(line) in self._sent
        for name, sink in list(self._active.items()):
            if not (is_sent and sink.keeps_sent and name in self._continued):
                self._guarded(name, partial(sink.numbers, values, int(line["step"])))

    def histograms(self, found: Mapping[str, Histogram], step: int) -> None:
        """Logs histograms by name."""
        self._all("histograms", found, step)

    def graph(self, nodes: Sequence[Node]) -> None:
        """Shows the model."""
        self._all("graph", nodes)

    def show(self, exhibits: Exhibits) -> None:
        """Shows the report's pictures, tables and page."""
        self._all("show", exhibits)

    def close(self) -> None:
        """Ends all trackers; may be called several times."""
        for name in list(self._active):
            self._guarded(name, self._active.pop(name).finish)
        for key in self._environment:
            os.environ.pop(key, None)
        self._environment = {}

    def _all(self, method: str, *arguments: Any) -> None:
        for name, sink in list(self._active.items()):
            if work := getattr(sink, method, None):
                self._guarded(name, partial(work, *arguments))

    def _guarded(self, name: str, work: Callable[[], None]) -> None:
        try:
            with task_for_all():  # a server may take its time
                work()
        except Exception as error:  # no failure of a server or library may stop the training
            say(f"{name} failed and receives no more numbers (metrics.jsonl has all of them): {_first_line(error)}")
            if name in self._active:
                with suppress(Exception), task_for_all():  # a run that stays open would be in the way of the next one
                    self._active.pop(name).finish()


def kind_of_line(line: Mapping[str, Any]) -> tuple[int, tuple[str, ...]]:
    """Returns the step and the names of a line; a run has one line of each kind."""
    return int(line["step"]), tuple(sorted(line))


def read_ids(folder: Path) -> dict[str, str]:
    """Returns the run's ids by tracker, from the folder of the trackers; empty if there are none."""
    try:
        ids = read_json(folder / IDS)
    except (OSError, ValueError):
        return {}
    return {str(name): str(value) for name, value in ids.items()} if isinstance(ids, dict) else {}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


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
    """Writes the run's numbers, on the main process only; a context manager that closes its file and trackers.

    A resumed run truncates `metrics.jsonl` to its checkpoint's step and appends to it; `mark` is `mark_of` the file at
    that step, if it is known. Trackers continue the previous run as far as they can (see `toolkit.tracking.tracker`).
    Given ones stay open after a training that ends well, for its report; its own ones are closed.
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
        self.file: TextIO | None = None
        """`metrics.jsonl`, where this process writes it."""
        self._stay_open = trackers is not None
        self._trackers: Trackers = RunTrackers(cfg, path.parent) if trackers is None else trackers
        self._written: set[tuple[int, tuple[str, ...]]] = set()
        self.shown: dict[str, str] = {}

    def __enter__(self) -> Tracker:
        return self

    def connect(self) -> None:
        """Starts the trackers; call it on the main process only. Raises RunError if a tracker cannot be started."""
        if not self._cfg.tracking.report_to:
            return
        # Before the file is truncated: it has the lines that the previous session sent.
        sent = frozenset(map(kind_of_line, readable_lines(self._path)))
        self._trackers.start(self._start, sent)

    def open(self) -> None:
        """Truncates `metrics.jsonl` to the step that training begins from; call it on the main process only.

        Lines are written, on this process, from then on. Raises RunError if the file cannot be rewritten.
        """
        truncate_metrics(self._path, self._start, self._mark)
        self._written = {kind_of_line(line) for line in read_metrics(self._path)} if self._path.exists() else set()
        self.file = self._path.open("a", encoding="utf-8")

    def _wait_for_trackers(self) -> None:
        """Makes other processes wait here for the main one's trackers: a collective would time out."""
        if self._cfg.tracking.report_to:
            wait_for_main(self._accelerator)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.file is not None:
            # An error of the disk has been raised before, when the line was written.
            with naming(self._path) if kind is None else suppress(OSError):
                self.file.close()
        if kind is not None or not self._stay_open:
            self._trackers.close()
        if kind is None:
            self._wait_for_trackers()

    @in_phase("log")
    def log(self, line: Mapping[str, Any]) -> None:
        """Writes one line, unless there is already one with the same `step` and names. Every process calls it."""
        if kind_of_line(line) not in self._written:  # which only the main process knows of a resumed run
            self.write_line(line)
        self._wait_for_trackers()

    def write_line(self, line: Mapping[str, Any]) -> None:
        """Writes a line to `metrics.jsonl`."""
        self._written.add(kind_of_line(line))
        if self.file is not None:
            text = json.dumps(_json_value(line)) + "\n"
            with naming(self._path, len(text)):
                self.file.write(text)
                self.file.flush()
        self._trackers.log(line)
        self.shown.update({name: format_value(line[name]) for name in self._shown_names if name in line})

    def flush(self) -> None:
        """Flushes the lines to the disk; every process calls it before a checkpoint is completed."""
        if self.file is not None:
            with task_for_all(), naming(self._path):  # a disk in a network may take long
                os.fsync(self.file.fileno())
        wait_for_main(self._accelerator)


def _json_value(value: Any) -> Any:
    """Returns a value in a form that JSON supports; NaN, for instance the loss over no items, becomes null."""
    if isinstance(value, Mapping):
        return {str(name): _json_value(entry) for name, entry in value.items()}
    if isinstance(value, int | float | str | None):
        return value if not isinstance(value, float) or math.isfinite(value) else None
    return _json_value(value.item()) if hasattr(value, "item") else str(value)
