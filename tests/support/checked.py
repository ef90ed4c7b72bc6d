"""Reads settings and checks them by themselves, without a task."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.checks.check import Case, Findings, ask
from toolkit.checks.settings import SETTINGS
from toolkit.config import Loaded, read_config
from toolkit.config.fields import Column


def load_checked(
    options: type,
    file: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    columns: Mapping[str, Column] | None = None,
    check_files: bool = True,
) -> Loaded:
    """Returns the settings; arguments are those of `read_config`.

    Raises:
        ConfigError: if values, combinations or names of files are wrong; lists all problems.
    """
    draft = read_config(options, file, overrides, environ, columns, check_files)
    case = Case(draft.config, options, environ, faulty=draft.faulty, place=draft.located)
    stages = ("settings", "files") if check_files else ("settings",)
    (Findings(draft.problems) + ask(SETTINGS, case, stages)).raise_problems()
    return draft.loaded()
