"""Finished runs side by side: what they were, and where they differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.base.errors import InputError
from toolkit.base.run_folder import RunFolder
from toolkit.metrics.measured import MEASURED

SECTIONS = ("setting", "data", "version", "machine", "result")
"""What can differ between two runs, from cause to effect."""
PLACES = ("output_dir", "checkpoint.resume")
"""Settings that say where a run is, not what it is."""


@dataclass(frozen=True)
class Record:
    """What a run left behind about itself.

    Args:
        folder: its output folder.
        settings: every setting by its dotted key.
        facts: `run.json`; without `result` the run is not finished.
    """

    folder: Path
    settings: Mapping[str, Any]
    facts: Mapping[str, Any]

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return "result" in self.facts

    def part(self, section: str) -> dict[str, Any]:
        """Returns one of `SECTIONS`, by name."""
        facts = self.facts
        if section == "setting":
            return {name: value for name, value in self.settings.items() if name not in PLACES}
        if section == "data":
            return {f"{split} rows": count for split, count in facts["num_rows"].items()} | {
                f"{split} fingerprint": value for split, value in facts["data_fingerprints"].items()
            }
        if section == "version":
            code = facts["git"] or {}
            changes = (code.get("diff_sha256") or "")[:12] or None
            return {**facts["versions"], "commit": code.get("commit"), "uncommitted changes": changes}
        if section == "machine":
            return {"processes": facts["num_processes"], **facts["hardware"]}
        return dict(facts.get("result", {}))


@dataclass(frozen=True)
class Difference:
    """One thing that two runs do not share; None stands for what one of them does not have."""

    section: str
    name: str
    one: Any
    other: Any


def read_record(folder: Path) -> Record:
    """Reads what a run wrote about itself.

    Raises:
        InputError: if the folder holds no run, or its files are damaged.
    """
    from ruamel.yaml import YAML, YAMLError

    files = RunFolder(folder)
    try:
        facts = json.loads(files.facts.read_text(encoding="utf-8"))
        settings = YAML(typ="safe", pure=True).load(files.config)
    except FileNotFoundError as error:
        raise InputError(
            f"{folder}: no run, it has no {Path(str(error.filename)).name} (tried {folder.absolute()})"
        ) from error
    except (OSError, ValueError, YAMLError) as error:
        raise InputError(
            f"{folder}: run.json or config.yaml cannot be read ({type(error).__name__}: {error})"
        ) from error
    return Record(folder, dict(_flat(settings)), facts)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def find_records(folder: Path) -> list[Record]:
    """Returns all runs in a folder and below, by path; runs inside runs are not looked for.

    Raises:
        InputError: if there is no such folder.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder (tried {folder.absolute()})")
    if RunFolder(folder).facts.exists():
        return [read_record(folder)]
    below = sorted(path for path in folder.iterdir() if path.is_dir())
    return [record for path in below for record in find_records(path)]


def differences(one: Record, other: Record) -> list[Difference]:
    """Returns everything in which two runs differ, section by section.

    What is measured (times, rates, memory) is left out of results: it differs between any two runs.
    """
    found = []
    for section in SECTIONS:
        left, right = one.part(section), other.part(section)
        found += [
            Difference(section, name, left.get(name), right.get(name))
            for name in dict.fromkeys([*left, *right])
            if left.get(name) != right.get(name) and not (section == "result" and name in MEASURED)
        ]
    return found
