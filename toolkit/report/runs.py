"""Reads the records of runs and compares them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from toolkit.base.console import format_value
from toolkit.base.errors import ConfigError, InputError
from toolkit.base.files import kind_of, read_json, sha256
from toolkit.base.run_folder import RunFolder
from toolkit.checkpoint.state import FREE
from toolkit.config import flatten
from toolkit.config.sections import Config
from toolkit.config.source import read_file as read_settings
from toolkit.metrics.score import Score
from toolkit.report.facts import is_intact
from toolkit.system.phases import OTHER, PHASES, PREFIX

MEASURED: dict[str, Score] = {
    score.name: score
    for score in (
        Score("train_seconds", greater_is_better=False, unit="s"),
        Score("train_items_per_second", unit="1/s"),
        Score("interval_items_per_second", unit="1/s"),
        Score("peak_memory_bytes", greater_is_better=False, unit="B"),
        Score("optimizer_state_bytes", greater_is_better=False, unit="B"),
        Score("exchange_bytes", greater_is_better=False, unit="B"),
        *(Score(f"{PREFIX}{phase}", greater_is_better=False, unit="s") for phase in (*PHASES, OTHER)),
        Score("run_seconds", greater_is_better=False, unit="s"),
        Score("energy_wh", greater_is_better=False, unit="Wh"),
        Score("co2_grams", greater_is_better=False, unit="g"),
        Score("cost", greater_is_better=False),
        Score("target_seconds", greater_is_better=False, unit="s"),
        Score("target_energy_wh", greater_is_better=False, unit="Wh"),
    )
}
"""The measured figures, by their names in `metrics.jsonl` and `run.json`."""


SECTIONS = ("setting", "data", "version", "machine", "result")
"""Parts of a run that are compared, from cause to effect."""
_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("recipe", "engine", "metric_for_best_model"), str),
    **dict.fromkeys(("num_rows", "data_fingerprints", "versions", "hardware", "result", "files"), dict),
    "num_processes": int,
}
_NEEDED = ("recipe", "engine", "num_rows", "data_fingerprints", "versions", "hardware", "num_processes", "git")
"""Facts that are read from `run.json`, and those that every run has."""
_FIGURES = ("steps", "train_seconds")
"""Figures that every result has."""
_LARGEST = 1e150
"""Largest figure whose square can be computed."""
PLACES = ("output_dir", "checkpoint.resume")
"""Settings that describe the location of a run and are not compared."""
OF_ONE_RUN = ("seed", "tracking.run_name")
"""Settings in which repeated runs differ."""


@dataclass(frozen=True)
class Record:
    """Settings and facts that a run recorded."""

    folder: Path  # its output folder
    settings: Mapping[str, Any]  # every setting by its dotted key
    facts: Mapping[str, Any]  # content of `run.json`; unfinished runs have no `result`

    @property
    def finished(self) -> bool:
        """Whether the run is finished."""
        return "result" in self.facts

    def part(self, section: str) -> dict[str, Any]:
        """Returns one of `SECTIONS`, by name."""
        facts = self.facts
        if section == "setting":
            rows = {"rows per step": facts["rows_per_step"]} if "rows_per_step" in facts else {}
            return {name: value for name, value in self.settings.items() if name not in PLACES} | rows
        if section == "data":
            return {f"{split} rows": count for split, count in facts["num_rows"].items()} | {
                f"{split} fingerprint": value for split, value in facts["data_fingerprints"].items()
            }
        if section == "version":
            code = facts["git"] if isinstance(facts["git"], Mapping) else {}
            changes = str(code.get("diff_sha256") or "")[:12] or None
            return {**facts["versions"], "commit": code.get("commit"), "uncommitted changes": changes}
        if section == "machine":
            return {"processes": facts["num_processes"], **facts["hardware"]}
        return dict(facts.get("result", {}))


@dataclass(frozen=True)
class Repeats:
    """Two or more finished runs that differ only in their seed, with the values of the figure `name`."""

    records: Sequence[Record]
    name: str
    values: Sequence[float]

    def __str__(self) -> str:
        """Returns the mean and the standard deviation (of a sample), with the names of the runs."""
        names = ", ".join(record.folder.name for record in self.records)
        spread = f"{format_value(fmean(self.values))} ± {format_value(stdev(self.values))}"
        return f"{len(self.records)} runs that differ only in the seed: {self.name} {spread} ({names})"


def repeats(records: Iterable[Record], name: str | None = None) -> list[Repeats]:
    """Returns the groups of runs that differ only in their seed; by default they compare the metric of the best one."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        settings = {key: value for key, value in record.part("setting").items() if key not in OF_ONE_RUN}
        if record.finished:
            key = json.dumps([record.facts["recipe"], settings, record.part("data")], sort_keys=True, default=str)
            groups.setdefault(key, []).append(record)
    found = []
    for group in groups.values():
        shown = name or group[0].facts.get("metric_for_best_model", "train_loss")
        figures = (record.part("result").get(shown) for record in group)
        values = [value for value in figures if value is not None and abs(value) < _LARGEST]
        if len({str(record.settings.get("seed")) for record in group}) == len(group) == len(values) > 1:
            found.append(Repeats(group, shown, values))
    return found


@dataclass(frozen=True)
class Difference:
    """A difference between two runs; None is a missing value."""

    section: str
    name: str
    one: Any
    other: Any


def read_record(folder: Path) -> Record:
    """Reads the settings and facts of a run.

    Raises InputError if the folder contains no run, or its files are damaged.
    """
    files = RunFolder(folder)
    if missing := [file.name for file in (files.facts, files.config) if not kind_of(file)]:
        raise InputError(f"{folder}: not a run, missing {', '.join(missing)} (tried {folder.absolute()})")
    try:
        facts, settings = read_json(files.facts), read_settings(files.config)
        if settings.problems:
            raise ConfigError(settings.problems)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: run.json cannot be read ({type(error).__name__}: {error})") from error
    except ConfigError as error:
        raise InputError("; ".join(error.problems)) from error
    if problem := _unusable(facts):
        raise InputError(f"{folder}: {problem}; `toolkit verify` checks all files")
    return Record(folder, dict(_flat(settings.values)), facts)


def _unusable(facts: Any) -> str | None:
    """Returns the problem of the content of `run.json`, if there is one."""
    if not isinstance(facts, Mapping) or not is_intact(facts):
        return "run.json is not as it was written"
    wrong = [name for name, kind in _TYPES.items() if not isinstance(facts.get(name, kind()), kind)]
    wrong += [name for name in _NEEDED if name not in facts]
    figures = facts["result"] if "result" in facts and not wrong else dict.fromkeys(_FIGURES, 0)
    wrong += [f"result.{name}" for name in _FIGURES if figures.get(name) is None]
    wrong += [f"result.{name}" for name, value in figures.items() if not isinstance(value, int | float | None)]
    return f"run.json has no usable {', '.join(wrong)}" if wrong else None


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def find_records(folder: Path) -> list[Record]:
    """Returns all runs in a folder and its subfolders, each once, sorted by path; runs inside runs are ignored.

    Raises InputError if the folder does not exist.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder (tried {folder.absolute()})")
    found, waiting, seen = [], [folder], set[Path]()
    while waiting:
        place = waiting.pop()
        if place.resolve() in seen:  # a link may lead to a folder around it
            continue
        seen.add(place.resolve())
        if RunFolder(place).facts.exists():
            found.append(read_record(place))
        else:
            waiting += sorted((path for path in place.iterdir() if path.is_dir()), reverse=True)
    return found


def differences(one: Record, other: Record) -> list[Difference]:
    """Returns all differences between two runs by section, without measurements, which differ between any two."""
    found = []
    for section in SECTIONS:
        left, right = one.part(section), other.part(section)
        found += [
            Difference(section, name, left.get(name), right.get(name))
            for name in dict.fromkeys([*left, *right])
            if left.get(name) != right.get(name) and not (section == "result" and name in MEASURED)
        ]
    return found


def config_hash(cfg: Config) -> str:
    """Returns the hash that names a configuration's certificates; it ignores the seed and settings of a single run."""
    free = (*FREE, "seed", "data.max_train_samples", "data.train_fraction")
    kept = {k: v for k, v in flatten(cfg).items() if not any(fnmatchcase(k, pattern) for pattern in free)}
    return sha256(json.dumps(kept, sort_keys=True, default=str))[:16]


def folder_of(cfg: Config) -> Path:
    """Returns the folder of a configuration's newest certificate, next to the output folders of its runs."""
    return Path(cfg.output_dir).absolute().parent / "certificates" / config_hash(cfg)
