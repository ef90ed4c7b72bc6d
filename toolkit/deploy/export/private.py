"""Removes the paths of this machine from files that are given to others."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from toolkit.base.files import write_text
from toolkit.config.sections import Config

SUFFIXES = (".json", ".html", ".md", ".txt", ".py")
"""Suffixes of the exported files in which paths of this machine are shortened."""
VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt")
"""Files that are left as they are: they hold no paths, but tokens that may look like one."""

_NO_PATHS = ("task.", "data.columns.")


def private_paths(run_folder: Path, cfg: Config, facts: Mapping[str, Any]) -> list[Path]:
    """Returns all absolute paths that a run recorded, and the run's and the user's folder, longest first.

    Settings of the task and names of columns hold no paths, but labels and names that may look like one (`/m/04rlf`).

    Args:
        run_folder: the run's `output_dir`.
        cfg: its settings.
        facts: content of its `run.json`.
    """
    settings = asdict(replace(cfg, task=None, data=replace(cfg.data, columns={})))
    command = [text for text in _texts(facts.get("command")) if not text.startswith(_NO_PATHS)]
    texts = _texts([settings, command, facts.get("recipe"), facts.get("working_directory")])
    named = {Path(part) for text in texts for part in (text, text.partition("=")[2])}
    paths = {run_folder.absolute(), run_folder.resolve(), Path.home(), *named}
    return sorted((path for path in paths if path.is_absolute() and path.name), key=lambda path: -len(str(path)))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


def shorten_paths(folder: Path, private: Sequence[Path]) -> None:
    """Replaces paths by their names, and removes their folders before other names, in the text files of a folder."""
    folders = sorted({path.parent for path in private if path.parent.name}, key=lambda path: -len(str(path)))
    changes = [(str(path), path.name) for path in private] + [(f"{path}/", "") for path in folders]
    for file in folder.rglob("*"):
        if file.suffix in SUFFIXES and file.name not in VOCABULARIES:
            text = before = file.read_text(encoding="utf-8")
            for path, short in changes:
                text = text.replace(path, short).replace(html.escape(path), short)
            if text != before:
                write_text(file, text)
