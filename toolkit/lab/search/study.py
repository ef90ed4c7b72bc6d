"""The study of a search: its trials, the next point, and how each trial ended.

Optuna stores it in a file or a database, which several searches can share, with everything that a page shows of trials.
"""

from __future__ import annotations

import importlib.util
import json
import random
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.base.errors import InputError, RunError, problems_of
from toolkit.base.files import sha256
from toolkit.config import flatten
from toolkit.config.sections import Config
from toolkit.lab.jobs.jobs import digest_of, model_files
from toolkit.lab.jobs.training import QUIET
from toolkit.lab.search.space import METHODS, POPULATION, Dimension, Point, configured_point, grid_of
from toolkit.lab.tool import Request
from toolkit.metrics.score import Score

if TYPE_CHECKING:
    from filelock import BaseFileLock
    from optuna import Study
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial, Trial


JOURNAL = "study.journal"
"""The file."""
ENVIRON = "TOOLKIT_SEARCH_STORAGE"
"""Environment variable with the URL of the database for processes of trials; it may have a password in it."""


def require_optuna() -> None:
    """Raises InputError if Optuna is not installed."""
    if importlib.util.find_spec("optuna") is None:
        raise InputError("toolkit search needs optuna, which is not installed; pip install 'finetune-toolkit[search]'")


def storage_of(folder: Path, url: str | None) -> BaseStorage:
    """Opens the storage of a study; raises InputError if that fails."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        if url is not None:
            return optuna.storages.get_storage(url)
        return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / JOURNAL)))
    except Exception as error:  # of any database
        place = "--storage" if url is not None else str(folder / JOURNAL)
        raise InputError(f"{place}: cannot be opened: {type(error).__name__}: {error}") from error


def load_study(folder: Path, name: str, url: str | None) -> Study:
    """Opens an existing study; raises InputError if there is none."""
    require_optuna()
    storage = storage_of(folder, url)
    import optuna

    try:
        return optuna.load_study(study_name=name, storage=storage)
    except KeyError as error:
        raise InputError(f"{folder}: has no trials yet, or they are in a database; set --storage URL") from error


def mend(journal: Path) -> None:
    """Removes an incomplete last line, as after a loss of power: Optuna could not read the file."""
    from optuna.storages.journal import JournalFileSymlinkLock

    if not journal.exists():
        return
    lock = JournalFileSymlinkLock(str(journal))
    lock.acquire()
    try:
        content = journal.read_bytes()
        if content and not content.endswith(b"\n"):
            with journal.open("r+b") as file:
                file.truncate(content.rfind(b"\n") + 1)
    finally:
        lock.release()


RESULT, OWNER = "result", "owner"
"""What the study keeps of a trial: how it ended, and the folder of the search that trains it."""
DRAWING_SECONDS = 10.0
"""After this time, a trial without an owner belongs to a search that was killed while it drew the point."""
MOST_REJECTED = 100
"""The search ends after this many invalid points in a row."""
NOT_COUNTED = ("infeasible", "abandoned")
"""Trials that were not trained and do not count for `--trials`."""
Result = dict[str, Any]
"""How a trial ended, as JSON values.

Its `state` is `finished`, `pruned`, `diverged`, `failed`, `repeated` (a point that was trained before), `infeasible`
(incompatible settings), or `abandoned` (the search was killed before it had a point)."""


@dataclass(frozen=True)
class Search:
    """What is searched, and how."""

    request: Request  # the run, with the output folder of the search
    space: Sequence[Dimension]  # the settings that may change
    method: str  # key of `toolkit.lab.search.space.METHODS`
    metric: Score  # the metric that decides, with its prefix
    trials: int  # number of trials
    parallel: int = 1  # trials at the same time
    deadline: float | None = None  # time (`time.time`) at which all trials stop, or None
    storage: str | None = None  # URL of a database, or None for a file in the output folder

    @property
    def folder(self) -> Path:
        """The output folder."""
        return self.request.output

    @property
    def cfg(self) -> Config:
        """The configured settings."""
        return self.request.cfg

    def identity(self) -> dict[str, Any]:
        """Returns everything that trials of the same study have in common, as JSON values."""
        data, launch = self.cfg.data, self.request.launch
        files = [digest_of(file) for file in data.files("train_file", "validation_file")]
        found = {
            "recipe": self.request.recipe.name,
            "space": {each.key: asdict(each) for each in self.space},
            "method": self.method,
            "metric": self.metric.name,
            "processes": launch.processes,
            "launch": None if launch.file is None else launch.file.read_text(encoding="utf-8"),
            "files of rows": files,
            "files of the model": model_files(self.cfg.model.name_or_path),
            **(
                {"--trials": self.trials} if self.method in POPULATION else {}
            ),  # members that come later would be behind
            **{key: value for key, value in flatten(self.cfg).items() if key not in ("output_dir", "offline_dir")},
        }
        return dict(json.loads(json.dumps(found)))

    def folder_of(self, number: int) -> Path:
        """Returns the folder of a trial."""
        return self.folder / "trials" / f"{number:04d}"


def own_settings(cfg: Config) -> dict[str, Any]:
    """Returns the settings that a search adds to all of its trials: they can be resumed, and report nowhere else."""
    settings = QUIET | {
        "checkpoint.resume": "auto",
        "checkpoint.save_total_limit": 1,
        "tracking.logging_steps": 1,  # whether the loss rose is read from the lines
    }
    # The last step is scored later, from its checkpoint.
    return settings if cfg.checkpoint.save_steps is not None else settings | {"checkpoint.save_steps": "epoch"}


def name_of(identity: Mapping[str, Any]) -> str:
    """Returns the name of a study: searches with equal settings have the same one."""
    return f"search-{sha256(json.dumps(identity, sort_keys=True))[:12]}"


def result_of(trial: FrozenTrial) -> Result:
    """Returns how a trial has ended; `running` if it has not."""
    return dict(trial.user_attrs.get(RESULT) or {"state": "running"})


def counted(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Returns the trials that were or are trained."""
    return [each for each in trials if each.state.name != "WAITING" and result_of(each)["state"] not in NOT_COUNTED]


def _has_no_owner(trial: FrozenTrial) -> bool:
    return trial.state.name == "RUNNING" and OWNER not in trial.user_attrs


class Book:
    """The study of a search, which stores the name of its output folder as `owner`."""

    def __init__(self, search: Search, owner: str) -> None:
        self.search, self.owner = search, owner
        self.name = name_of(search.identity())
        storage = storage_of(search.folder, search.storage)
        import optuna

        if search.storage is None:
            mend(search.folder / JOURNAL)
        directions = optuna.study.StudyDirection
        direction = directions.MAXIMIZE if search.metric.greater_is_better else directions.MINIMIZE
        self.study: Study = optuna.create_study(
            storage=storage, study_name=self.name, direction=direction, load_if_exists=True
        )

    @cached_property
    def start(self) -> Point | None:
        """The configured settings as a point, or None if they are outside the space."""
        return configured_point(self.search.space, self.search.cfg)

    def trials(self) -> list[FrozenTrial]:
        """Returns all trials."""
        return self.study.get_trials(deepcopy=False)

    def open(self) -> None:
        """Puts the points that are known from the beginning into a new study."""
        with self._alone():
            if self.trials():
                return
            first = [self.start] if self.start is not None else []
            if self.search.method == "grid":
                grid = grid_of(self.search.space)
                random.Random(self.search.cfg.seed).shuffle(grid)  # so that the first points are spread over it
                first += [point for point in grid if point not in first]
            for point in first:
                self.study.enqueue_trial(point)

    def ask(self) -> Trial | None:
        """Returns a trial with a new point that can be trained; None if there are enough.

        Raises RunError if too many points in a row are invalid.
        """
        with self._alone():
            rejected = 0
            while True:
                trials = self.trials()
                waiting = any(each.state.name == "WAITING" for each in trials)
                if len(counted(trials)) >= self.search.trials or (self.search.method == "grid" and not waiting):
                    return None
                trial = self._draw(trials, at_random=rejected > 0)
                trial.set_user_attr(OWNER, self.owner)
                problems = problems_of(lambda: self._check(trial.params))  # noqa: B023 - called at once
                if problems:
                    rejected += 1
                    self.tell(trial, {"state": "infeasible", "reason": "; ".join(problems)})
                elif (twin := self._twin(trials, trial)) is not None:
                    told = {
                        "state": "repeated",
                        "of": twin.number,
                        "reason": f"the same settings as trial {twin.number}",
                    }
                    self.tell(trial, {**result_of(twin), **told, "seconds": 0.0, "steps": 0})
                else:
                    return trial
                if rejected >= MOST_REJECTED:
                    raise RunError(f"{rejected} points in a row were rejected; the last one: {'; '.join(problems)}")

    def _draw(self, trials: Sequence[FrozenTrial], at_random: bool) -> Trial:
        """Returns a new trial; its random numbers follow from the seed and the number of trials."""
        # Some samplers do not learn from an invalid point, and would draw it again.
        method = METHODS["random" if at_random else self.search.method]
        self.study.sampler = method.sampler(zlib.crc32(f"{self.search.cfg.seed} {len(trials)}".encode()))
        return self.study.ask({each.key: each.distribution() for each in self.search.space})

    def _check(self, point: Point) -> None:
        self.search.request.override(own_settings(self.search.cfg), point)

    def _twin(self, trials: Sequence[FrozenTrial], trial: Trial) -> FrozenTrial | None:
        same = (each for each in trials if each.state.name == "COMPLETE" and each.params == trial.params)
        return next((each for each in same if result_of(each)["state"] != "repeated"), None)

    def allows(self, point: Point) -> bool:
        """Returns whether a point can be trained."""
        return not problems_of(lambda: self._check(point))

    def tell(self, trial: Trial, result: Result) -> None:
        """Ends a trial."""
        from optuna.trial import TrialState

        trial.set_user_attr(RESULT, result)
        value = result.get("value")
        if result["state"] in ("finished", "repeated", "diverged") and value is not None:
            self.study.tell(trial, value)
        elif result["state"] in ("failed", "abandoned"):
            self.study.tell(trial, state=TrialState.FAIL)
        else:  # samplers take it as a bad point, and not as an accident
            self.study.tell(trial, state=TrialState.PRUNED)

    def orphans(self) -> list[Trial]:
        """Returns the trials of this folder that no search trains any more."""
        from optuna.trial import Trial

        from toolkit.checkpoint.lock import in_use

        with self._alone():
            found = []
            if self.search.storage is not None and any(map(_has_no_owner, self.trials())):
                time.sleep(DRAWING_SECONDS)  # another machine may be drawing a point at this moment
            for each in self.trials():
                if each.state.name != "RUNNING" or each.user_attrs.get(OWNER, self.owner) != self.owner:
                    continue
                trial = Trial(self.study, each._trial_id)  # Optuna has no public way from a number to a trial
                if _has_no_owner(each):
                    self.tell(trial, {"state": "abandoned", "reason": "the search was killed"})
                elif in_use(self.search.folder_of(each.number)) is None:
                    found.append(trial)
            return found

    def _alone(self) -> BaseFileLock:
        """Returns the lock that lets one search of this folder draw a point at a time."""
        from filelock import FileLock

        return FileLock(self.search.folder / "ask.lock")
