"""The output folder of a search: what it is a search of, so that another one is refused, and its pages."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolkit.base.errors import InputError
from toolkit.base.files import read_json, write_json
from toolkit.config.messages import show as shown_value
from toolkit.lab.search.study import Search, name_of

STUDY = "study.json"
"""File of what a folder says of its search."""
WINNER = "winner.json"
"""File of what is known of the winner."""
SHOWN = 8
"""Number of differences that an error lists."""


def claim(search: Search, command: Sequence[str]) -> dict[str, Any]:
    """Makes the folder that of the search, and returns what it says; a folder of the same search goes on.

    Args:
        search: the search.
        command: the command line.

    Raises:
        InputError: if it is another search's, or holds something else.
    """
    folder, identity = search.folder, search.identity()
    known = read(folder)
    if known is None:
        if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
            raise InputError(f"--output-dir: {folder.absolute()} is not empty and is no search; use another folder")
        try:
            (folder / "trials").mkdir(parents=True)
        except OSError as error:
            raise InputError(f"--output-dir: cannot make the folder {folder.absolute()}: {error.strerror}") from error
        known = {"identity": identity, "owner": uuid.uuid4().hex, "name": name_of(identity)}
    if known["identity"] != identity:
        before, now = known["identity"], identity
        keys = [key for key in dict.fromkeys([*before, *now]) if before.get(key) != now.get(key)]
        listed = [
            f"  - {key}: it has {shown_value(before.get(key))}, now {shown_value(now.get(key))}" for key in keys[:SHOWN]
        ]
        more = [f"  - and {len(keys) - SHOWN} more"] if len(keys) > SHOWN else []
        raise InputError("\n".join([f"--output-dir: {folder} holds a search with other settings:", *listed, *more,
                                    "Restore them, or use another folder"]))  # fmt: skip
    known |= _described(search) | {"command": list(command)}
    write_json(folder / STUDY, known)
    return known


def _described(search: Search) -> dict[str, Any]:
    """Returns what a page says of a search that its trials do not say."""
    return {
        "recipe": str(search.recipe),
        "config": str(search.config),
        "overrides": list(search.overrides),
        "space": search.identity()["space"],
        "method": search.method,
        "metric": {"name": search.metric.name, "greater_is_better": search.metric.greater_is_better},
        "num_processes": search.launch.processes,
        "asked": search.trials,
        "parallel": search.parallel,
        "storage": "the database of --storage" if search.storage is not None else None,
    }


def read(folder: Path) -> dict[str, Any] | None:
    """Returns what a folder says of its search; None if it is that of none."""
    with suppress(OSError, ValueError):
        found = read_json(folder / STUDY)
        if isinstance(found, dict) and {"identity", "owner", "name"} <= found.keys():
            return found
    return None


def winner_of(folder: Path) -> dict[str, Any] | None:
    """Returns what is known of the winner, or None if none was scored."""
    with suppress(OSError, ValueError):
        found: dict[str, Any] = read_json(folder / WINNER)
        return found
    return None


def shown_facts(known: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what `search.json` says of a search."""
    return {key: value for key, value in known.items() if key not in ("identity", "owner", "name")}


def write(found: Mapping[str, Any], folder: Path) -> None:
    """Writes `search.json`, and the page as HTML and Markdown with its charts."""
    from toolkit.document.render import write_document
    from toolkit.lab.search.report import sections, title_and_lead

    write_json(folder / "search.json", found)
    write_document(folder, "search", *title_and_lead(found), sections(found))
