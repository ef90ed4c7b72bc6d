"""Fingerprints of the code and the processor, on which cached rows depend in addition to the data."""

from __future__ import annotations

import hashlib
import inspect
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from toolkit.api.batch import Processor
from toolkit.api.task import Task

DECODERS: Mapping[str, str] = {"PIL": "pillow", "pillow_heif": "pillow-heif", "soundfile": "soundfile", "av": "av"}
"""Packages that decode images and audio, by the names of their modules."""
PROGRAM = "ffmpeg"
"""The program that decodes what no package does."""


def decoders() -> dict[str, str]:
    """Returns the versions of the decoders of files that are installed, by name.

    Whether a file can be read depends on them, so rows that were found bad without one are checked again with it.
    """
    found = {}
    for module, package in DECODERS.items():
        if find_spec(module) is not None:
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                found[package] = "unknown"
    return found | ({PROGRAM: "found"} if shutil.which(PROGRAM) else {})


def code_fingerprint(task: Task) -> str:
    """Returns a hash of the toolkit's code and the task's file, so that an edit of either invalidates the cache."""
    return _code_fingerprint(type(task).__module__)


@lru_cache
def _code_fingerprint(module: str) -> str:
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(file.read_bytes())
    with suppress(OSError, TypeError):  # a task typed into an interpreter has no file
        digest.update(inspect.getsource(sys.modules[module]).encode())
    return digest.hexdigest()


def processor_fingerprint(processor: Processor) -> str:
    """Returns a hash of all files of a saved processor."""
    with tempfile.TemporaryDirectory() as folder:
        processor.save_pretrained(folder)
        digest = hashlib.sha256()
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                digest.update(path.name.encode() + path.read_bytes())
        return digest.hexdigest()
