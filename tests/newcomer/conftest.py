"""Models of newcomers."""

from __future__ import annotations

from pathlib import Path

import pytest
from newcomer_models import SAVE


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, save in SAVE.items():
        save(folder / name)
    return folder
