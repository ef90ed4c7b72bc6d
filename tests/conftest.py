"""Environment of all tests: no network, one thread and separate caches, set before any library is imported."""

from __future__ import annotations

import fcntl
import gc
import os
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

CACHE = tempfile.TemporaryDirectory(prefix="toolkit-tests-")

os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    HF_HOME=CACHE.name,
    XDG_STATE_HOME=str(Path(CACHE.name) / "state"),  # which recipes were trained with
    MPLCONFIGDIR=str(Path(CACHE.name) / "matplotlib"),
    MPLBACKEND="agg",
    TOKENIZERS_PARALLELISM="false",
    OMP_NUM_THREADS="1",  # several processes share the machine, and the number of threads changes the last bits
)
if os.environ.get("TEST_GPU") != "1":  # `make test-gpu`
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # what is compared bit for bit is promised on the CPU
# More specific than HF_HOME, a launcher's setting, what a terminal is like: a developer's own must not reach the tests.
OWN = {
    *("HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_METRICS_CACHE", "HF_TOKEN"),
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR"),
}
for name in list(os.environ):
    if name.startswith("ACCELERATE_") or name in OWN:
        del os.environ[name]

ROOT = Path(__file__).resolve().parents[1]
REAL_DATA = (ROOT / "data", ROOT.parent / "shared" / "data")
"""Where public datasets may be, as `toolkit data get` makes them."""
REAL_SETS = ("agxqa", "customer_reviews", "fashion", "multi30k", "spoken_digits")
"""Those that tests read."""


def pytest_collection_finish() -> None:
    """Lets no collection of garbage visit what libraries and tests have made by now, half a second each time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Makes variants of a test slow, after as many as its mark `fast` says, and keeps `SLOW_SHARE` of those.

    Which ones are kept depends on their names alone, so that a test that fails in a sample was broken by a change.
    """
    seen, share = Counter[str](), float(os.environ.get("SLOW_SHARE", "1"))
    dropped = []
    for item in items:
        if mark := item.get_closest_marker("fast"):
            name = item.nodeid.partition("[")[0]
            seen[name] += item.get_closest_marker("slow") is None
            if seen[name] > mark.args[0]:
                item.add_marker("slow")
                dropped += [item] if zlib.crc32(item.nodeid.encode()) >= share * 2**32 else []
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in {*dropped}]


def pytest_unconfigure() -> None:
    CACHE.cleanup()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Sends a file whose tests share a fixture to one worker, so that it is set up once (`--dist loadgroup`).

    The marks of pytest-xdist 3.8 for this have no effect with pytest 9.2.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByFixture(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if _shares_fixture(ROOT / file) else nodeid

    return ByFixture(config, log)


@cache
def _shares_fixture(file: Path) -> bool:
    return 'scope="module"' in file.read_text(encoding="utf-8")


@pytest.fixture(scope="session", autouse=True)
def console() -> None:
    """Prints log records as command lines do, so that tests can read them."""
    from toolkit.base.console import log_to_console

    log_to_console()


def made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Returns a folder that the first worker of pytest-xdist makes for all of them."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # what pytest-xdist's workers share
    folder = root / name
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            make(root / f"{name}-unfinished")
            (root / f"{name}-unfinished").rename(folder)
    return folder


@pytest.fixture(scope="session")
def many_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the output folders of `many_processes` on 2 processes, launched once for all tests and workers."""
    import many_processes
    from launching import fork

    return made_once(tmp_path_factory, "many_runs", lambda folder: fork([Path(many_processes.__file__), folder], 2))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the wheel of the repository's files, built once for all tests and workers."""
    from packages import build_wheel, copy_repository

    source = tmp_path_factory.mktemp("repository")
    folder = made_once(tmp_path_factory, "wheel", lambda new: build_wheel(copy_repository(source), new))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Returns a folder with the public datasets that tests read."""
    for folder in REAL_DATA:
        if all((folder / name).is_dir() for name in REAL_SETS):
            return folder
    pytest.skip("no public datasets: `toolkit data get` has not made " + ", ".join(REAL_SETS))


@pytest.fixture
def forked_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forks the processes of a tool's trials from one that has imported the libraries, 1 s instead of 8 each."""
    from launching import fork_trials

    from toolkit.lab.jobs import jobs

    monkeypatch.setattr(jobs, "run_processes", partial(fork_trials, jobs.run_processes))


@pytest.fixture
def fresh_precision():
    """Resets accelerate's state, so that runs in one process can differ in precision."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state()
    yield AcceleratorState._reset_state
    AcceleratorState._reset_state()
