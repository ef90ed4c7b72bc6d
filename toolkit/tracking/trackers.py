"""The trackers of `tracking.report_to`: where each writes, the name of the run, and how a resumed run continues.

Unless the user configures a server, everything they write stays in `tracking/` in the run's folder.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.base.console import say
from toolkit.base.errors import RunError
from toolkit.base.files import read_json, write_json
from toolkit.metrics.score import PREFIXES

if TYPE_CHECKING:
    from accelerate.tracking import GeneralTracker

NO_CURVES = ("epoch", "num_items")
"""Numbers of a line that describe the line and are not drawn over the steps."""
IDS = "ids.json"
"""File in `tracking/` with the run's ids at W&B and MLflow, for resuming."""


@dataclass(frozen=True)
class TrackedRun:
    """A run, as trackers need it.

    Args:
        project: name of the project.
        name: name of the run.
        folder: folder for trackers, `tracking/` in the run's folder.
        start_step: step that training resumes from, 0 for a new run.
        ids: the run's existing ids by tracker; empty for a new run.
    """

    project: str
    name: str
    folder: Path
    start_step: int
    ids: Mapping[str, str]


def _tensorboard(run: TrackedRun) -> GeneralTracker:
    from accelerate.tracking import TensorBoardTracker

    # The purge hides what an interrupted run wrote after the checkpoint from which this run resumes.
    return TensorBoardTracker(
        f"{_folder_name(run.project)}/{_folder_name(run.name)}", run.folder, purge_step=run.start_step + 1
    )


def _wandb(run: TrackedRun) -> GeneralTracker:
    from accelerate.tracking import WandBTracker

    # "allow" continues the run of this id if the server has it. Offline, each start writes a separate folder with the
    # same id; `wandb sync` merges them into one run.
    options: dict[str, Any] = {"name": run.name, "resume": "allow"}
    options["id"] = os.environ.get("WANDB_RUN_ID") or run.ids.get("wandb") or uuid.uuid4().hex[:8]
    if "WANDB_DIR" not in os.environ:
        options["dir"] = str(run.folder)
    return WandBTracker(run.project, **options)


def _mlflow(run: TrackedRun) -> GeneralTracker:
    import mlflow
    from accelerate.tracking import MLflowTracker

    artifacts = None
    if not mlflow.tracking.is_tracking_uri_set():
        mlflow.set_tracking_uri(_mlflow_store(run.folder))
        artifacts = (run.folder.absolute() / "mlflow").as_uri()
    return MLflowTracker(run.project, logging_dir=artifacts, run_id=run.ids.get("mlflow"), run_name=run.name)


def _environment(folder: Path) -> dict[str, str]:
    """Returns variables that keep W&B and MLflow from writing to the home directory, unless the user sets them."""
    return {"WANDB_CACHE_DIR": str(folder.absolute() / "wandb" / "cache"), "MLFLOW_DISABLE_TELEMETRY": "true"}


def _mlflow_store(folder: Path) -> str:
    return f"sqlite:///{folder.absolute() / 'mlflow.db'}"


TRACKERS: dict[str, Callable[[TrackedRun], GeneralTracker]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}
"""Functions that build accelerate's trackers, by the names in `tracking.report_to`."""
_ID: dict[str, Callable[[Any], str]] = {
    "wandb": lambda run: run.id,
    "mlflow": lambda run: run.info.run_id,
}
"""Functions that return the id of a tracker's run."""


class Trackers:
    """The trackers of one run, on its main process.

    A tracker that fails during training is reported once and then ignored; `metrics.jsonl` has all numbers.

    Args:
        names: names of the trackers.
        run: the run.
        settings: settings of the run, which trackers show beside its numbers.

    Raises:
        RunError: if a tracker cannot be started.
    """

    def __init__(self, names: list[str], run: TrackedRun, settings: Mapping[str, Any]) -> None:
        self._active: dict[str, GeneralTracker] = {}
        self._names, self._folder = names, run.folder
        self._environment = {key: value for key, value in _environment(run.folder).items() if key not in os.environ}
        os.environ.update(self._environment)
        continued = run.start_step > 0 and run.folder.is_dir()
        run.folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            try:
                tracker = TRACKERS[name](run)
                tracker.start()
                self._active[name] = tracker
                if not continued:  # the run has its settings already; MLflow rejects changes of them
                    tracker.store_init_configuration({key: _plain(value) for key, value in settings.items()})
            except Exception as error:
                self.finish()
                raise RunError(
                    f"tracking.report_to: {name} cannot be started: {_first_line(error)}. Without a server set "
                    "WANDB_MODE=offline for wandb, unset MLFLOW_TRACKING_URI for mlflow, or remove the tracker."
                ) from error
        ids = {name: _ID[name](tracker.tracker) for name, tracker in self._active.items() if name in _ID}
        if ids:
            write_json(run.folder / IDS, ids)

    def log(self, line: Mapping[str, Any], step: int) -> None:
        """Logs the finite numbers of a line to all trackers, by their `tag`; those of `NO_CURVES` are left out."""
        values = {tag(key): value for key, value in finite_numbers(line) if key not in NO_CURVES}
        for name, tracker in list(self._active.items()):
            own = {_mlflow_name(key): value for key, value in values.items()} if name == "mlflow" else values
            self._guarded(name, partial(tracker.log, own, step=step))

    def finish(self) -> None:
        """Ends all trackers."""
        for name, tracker in list(self._active.items()):
            self._guarded(name, tracker.finish)
        self._active.clear()
        for key in self._environment:
            os.environ.pop(key, None)
        mlflow = sys.modules.get("mlflow") if "mlflow" in self._names else None
        if mlflow is not None and mlflow.get_tracking_uri() == _mlflow_store(self._folder):
            mlflow.set_tracking_uri(None)  # a later run of this process has its own folder

    def _guarded(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # no failure of a server or library may stop the training
            say(f"{name} failed and receives no more numbers (metrics.jsonl has all of them): {_first_line(error)}")
            del self._active[name]


def read_ids(folder: Path) -> dict[str, str]:
    """Returns the run's ids by tracker, from the folder of the trackers; empty if there are none."""
    try:
        ids = read_json(folder / IDS)
    except (OSError, ValueError):
        return {}
    return {str(name): str(value) for name, value in ids.items()} if isinstance(ids, dict) else {}


def finite_numbers(line: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, int | float]]:
    """Yields names and values of the finite numbers in nested mappings; names are joined with `/`."""
    for name, value in line.items():
        if isinstance(value, Mapping):
            yield from finite_numbers(value, f"{prefix}{name}/")
        elif isinstance(value, Real) and math.isfinite(value):
            yield f"{prefix}{name}", value if isinstance(value, int | float) else float(value)


def tag(name: str) -> str:
    """Returns the name of a number in trackers, grouped as by `transformers.Trainer`: `train/loss`, `eval/f1`."""
    group, _, rest = name.partition("_")
    return f"{group}/{rest}" if f"{group}_" in PREFIXES and rest else f"train/{name.removeprefix('train_')}"


def _folder_name(text: str) -> str:
    """Returns text as the name of a single folder, without separators and `..`."""
    return re.sub(r"[^\w. -]", "-", text).strip(". ") or "run"


def _mlflow_name(text: str) -> str:
    """Returns a metric's name with only the characters that MLflow allows."""
    return re.sub(r"[^\w. /-]", "_", text)


def _plain(value: Any) -> int | float | str | bool:
    return value if isinstance(value, int | float | str | bool) else json.dumps(value, default=str)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
