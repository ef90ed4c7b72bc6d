"""Runs commands without a network; see `offline/sitecustomize.py`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GUARD = Path(__file__).parent / "offline"
SETTINGS = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "OFFLINE_LOG", "PYTHONPATH")


class Offline:
    """Runs Python in a folder, without a network and without the settings that tell libraries so.

    Args:
        folder: working directory.
        log: file that gets each attempt to use the network.
    """

    def __init__(self, folder: Path, log: Path):
        self.folder, self.log = folder, log

    def run(self, *arguments: object, path: Path | None = None, check: bool = True) -> subprocess.CompletedProcess:
        """Runs Python with arguments, with `path` alone on its PYTHONPATH beside the guard.

        Raises:
            AssertionError: if it fails and `check` is set.
        """
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, cwd=self.folder, env=self._environ(path), text=True, capture_output=True)
        assert not check or done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done

    @contextmanager
    def serving(self, *arguments: object, path: Path) -> Iterator[str]:
        """Runs Python with arguments that start a server, yields its address, and stops it with SIGTERM.

        Raises:
            AssertionError: if it does not start, or fails.
        """
        command, file = [sys.executable, *map(str, arguments)], self.folder / "server.log"
        with file.open("w") as output:
            server = subprocess.Popen(
                command, cwd=self.folder, env=self._environ(path), stdout=output, stderr=subprocess.STDOUT
            )
        try:
            while "Ctrl-C" not in file.read_text(encoding="utf-8"):
                assert server.poll() is None, file.read_text(encoding="utf-8")
                time.sleep(0.1)
            yield re.findall(r"http://127\.0\.0\.1:\d+", file.read_text(encoding="utf-8"))[0]
            server.terminate()
            assert server.wait(120) == 0, file.read_text(encoding="utf-8")
        finally:
            server.kill()
            server.wait()

    def _environ(self, path: Path | None) -> dict[str, str]:
        environ = {name: value for name, value in os.environ.items() if name not in SETTINGS}
        places = [GUARD, *([path] if path else [])]
        return environ | {"OFFLINE_LOG": str(self.log), "PYTHONPATH": os.pathsep.join(map(str, places))}

    def attempts(self) -> str:
        """Returns what was attempted, with stacks."""
        return self.log.read_text(encoding="utf-8") if self.log.exists() else ""
