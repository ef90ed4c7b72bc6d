"""The trackers of `tracking.report_to`: where each writes, the name of the run, and how a resumed run continues.

Unless the user configures a server, everything they write stays in `tracking/` in the run's folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from toolkit.api.exhibits import Exhibits, Histogram
from toolkit.base.console import say
from toolkit.base.errors import RunError
from toolkit.base.files import read_json, write_json
from toolkit.base.package import import_object
from toolkit.base.run_folder import RunFolder
from toolkit.config import flatten
from toolkit.config.sections import Config
from toolkit.system.activity import task_for_all
from toolkit.tracking.sink import Sink, TrackedRun, finite_numbers, tag

NO_CURVES = ("epoch", "num_items", "step")
"""Numbers of a line that describe the line and are not drawn over the steps."""
IDS = "ids.json"
"""File in `tracking/` with the run's ids by tracker, for resuming."""
TRACKERS = {
    "tensorboard": "toolkit.tracking.tensorboard.TensorBoard",
    "wandb": "toolkit.tracking.wandb.WandB",
    "mlflow": "toolkit.tracking.mlflow.MLflow",
    "trackio": "toolkit.tracking.trackio.Trackio",
}
"""Classes of the trackers by the names in `tracking.report_to`; see `toolkit.tracking.sink.Sink`."""


def _environment(folder: Path) -> dict[str, str]:
    """Returns variables that keep trackers quiet and out of the home directory, unless the user sets them."""
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

    Args:
        cfg: resolved configuration.
        output_dir: the run's folder.
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
        ids = {kind: sink.id for kind, sink in self._active.items() if sink.id is not None}
        if ids:
            write_json(folder / IDS, {**self._continued, **ids})

    def log(self, line: Mapping[str, Any]) -> None:
        """Logs the finite numbers of a line to all trackers, by their `tag`; those of `NO_CURVES` are left out."""
        values = {tag(key): value for key, value in finite_numbers(line) if key not in NO_CURVES}
        is_sent = kind_of_line(line) in self._sent
        for name, sink in list(self._active.items()):
            if not (is_sent and sink.keeps_sent and name in self._continued):
                self._guarded(name, partial(sink.numbers, values, int(line["step"])))

    def histograms(self, found: Mapping[str, Histogram], step: int) -> None:
        """Logs histograms by name."""
        self._all("histograms", found, step)

    def show(self, exhibits: Exhibits) -> None:
        """Shows what a finished run has to show."""
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
            self._guarded(name, partial(getattr(sink, method), *arguments))

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
