"""Checks whether a run can use its output folder, without claiming it (see `toolkit.checkpoint.output_folder`)."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile

from toolkit.base.console import shorten
from toolkit.base.errors import problems_of
from toolkit.base.files import kind_of, why
from toolkit.checkpoint.output_folder import in_use
from toolkit.checkpoint.resume import decide_resume
from toolkit.config.sections import Config


def folder_problems(cfg: Config) -> list[str]:
    """Returns why a run cannot start in `output_dir`, as full messages; leaves no files behind."""
    folder = Path(cfg.output_dir)
    absolute = folder.absolute()
    try:
        absolute.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:  # for instance a name that is too long
        return [f"output_dir: {shorten(cfg.output_dir)} cannot be opened: {error.strerror}; use another one"]
    existing = next(path for path in (absolute, *absolute.parents) if kind_of(path))
    if kind_of(existing) == "file":
        return [] if existing == absolute else [f"output_dir: received {cfg.output_dir!r}, but {existing} is a file"]
    problems = []
    try:
        with TemporaryFile(dir=existing):
            pass
    except OSError as error:
        problems.append(f"output_dir: cannot write into {existing}: {why(error, existing)}; use another one")
    if message := in_use(folder):
        problems.append(f"output_dir: {message}")
    resume = problems_of(lambda: decide_resume(folder, cfg.checkpoint.resume))
    return problems + [each if each.startswith("checkpoint.") else f"output_dir: {each}" for each in resume]
