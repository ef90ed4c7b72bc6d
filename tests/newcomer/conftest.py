"""Models of newcomers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from newcomer_models import SAVE


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns a function that gives the folder with a model of a kind, saved once."""
    folder = tmp_path_factory.mktemp("models")

    @cache
    def saved(kind: str) -> Path:
        SAVE[kind](folder / kind)
        return folder / kind

    return saved
