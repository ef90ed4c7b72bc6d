"""The end of a script that runs as several processes."""

from __future__ import annotations

from typing import NoReturn

from toolkit.base.cli_errors import leave_group
from toolkit.base.processes import end_process


def finish() -> NoReturn:
    """Ends a process as the toolkit's commands do; Python's own end sometimes aborts it (see `end_process`)."""
    leave_group()
    end_process(0)
