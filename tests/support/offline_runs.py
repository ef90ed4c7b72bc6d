"""Runs commands without a network; see `offline/sitecustomize.py`."""

from __future__ import annotations

import os
import subprocess
import sys
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
        environ = {name: value for name, value in os.environ.items() if name not in SETTINGS}
        environ["OFFLINE_LOG"] = str(self.log)
        environ["PYTHONPATH"] = os.pathsep.join(map(str, [GUARD, *([path] if path else [])]))
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, cwd=self.folder, env=environ, text=True, capture_output=True)
        assert not check or done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done

    def attempts(self) -> str:
        """Returns what was attempted, with stacks."""
        return self.log.read_text(encoding="utf-8") if self.log.exists() else ""
