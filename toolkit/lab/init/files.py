"""The files of training, validation and test rows that belong to the one that the user named."""

from __future__ import annotations

import re
from pathlib import Path

from toolkit.base.files import expanded
from toolkit.config.paths import aligned_files
from toolkit.lab.init.guess import Guess

_NAMES = {
    "train_file": ("train", "training"),
    "validation_file": ("validation", "valid", "val", "dev", "eval"),
    "test_file": ("test",),
}


def split_files(source: str) -> list[Guess]:
    """Returns the settings of the files: `train...` and its neighbours `validation...` and `test...`, or one file.

    Args:
        source: a file, or a folder of classes or of such files.
    """
    path = expanded(source)
    if aligned_files(source) or not path.exists():
        return [Guess("data.train_file", source)]
    folder = path if path.is_dir() else path.parent
    present = {setting: _find(folder, names, path) for setting, names in _NAMES.items()}
    train = present["train_file"]
    if train is None or (path.is_file() and train != path):
        return [Guess("data.train_file", source)]
    found = {setting: str(each) for setting, each in present.items() if each is not None}
    if path.is_file():
        found["train_file"] = source
    return [
        Guess(f"data.{setting}", name, "" if name == source else f"found in {folder} by its name")
        for setting, name in found.items()
    ]


def name_of(source: str) -> str:
    """Returns a name for a run on a file or folder, its own or, for `train.csv`, that of its folder."""
    path = expanded(source).resolve()
    name = path.parent.name if path.stem in _NAMES["train_file"] else path.stem
    return re.sub(r"[^\w-]+", "-", name).strip("-") or "data"


def _find(folder: Path, names: tuple[str, ...], like: Path) -> Path | None:
    """Returns the only entry of a folder whose name begins with one of these words, of the same format as `like`."""
    entries = [each for each in folder.iterdir() if re.split(r"[^a-z]", each.stem.lower())[0] in names]
    if like.is_file():
        entries = [each for each in entries if each.suffix == like.suffix]
    return entries[0] if len(entries) == 1 else None
