"""What every test runs under: no network, one thread, and caches of its own, set before any library is imported."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

CACHE = tempfile.TemporaryDirectory(prefix="toolkit-tests-")

os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    HF_HOME=CACHE.name,
    MPLCONFIGDIR=str(Path(CACHE.name) / "matplotlib"),
    MPLBACKEND="agg",
    TOKENIZERS_PARALLELISM="false",
    OMP_NUM_THREADS="1",  # several processes share the machine, and the number of threads changes the last bits
)
# More specific than HF_HOME, or a launcher's setting: a developer's own must not reach the tests.
for name in list(os.environ):
    if name.startswith("ACCELERATE_") or name in {"HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_METRICS_CACHE", "HF_TOKEN"}:
        del os.environ[name]

ROOT = Path(__file__).resolve().parents[1]
REAL_DATA = (ROOT / "data", ROOT.parent / "shared" / "data")
"""Where public datasets may be, as `toolkit data get` makes them."""


def pytest_unconfigure() -> None:
    CACHE.cleanup()


@pytest.fixture(scope="session")
def many_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folders of everything in `many_processes`, on 2 processes; launched once for all tests."""
    import many_processes
    from launching import launch

    folder = tmp_path_factory.mktemp("runs")
    launch([Path(many_processes.__file__), folder], 2)
    return folder


@pytest.fixture(scope="session")
def real_data() -> Path:
    """A folder with all public datasets of the catalog."""
    from toolkit.catalog.entries import CATALOG

    for folder in REAL_DATA:
        if all((folder / name).is_dir() for name in CATALOG):
            return folder
    pytest.skip("no public datasets: `toolkit data get` has not made all of them in data/")


@pytest.fixture
def fresh_precision():
    """Lets runs of this process differ in precision, which accelerate decides once for a whole process."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state()
    yield AcceleratorState._reset_state
    AcceleratorState._reset_state()
