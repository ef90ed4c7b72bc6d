"""Runs sub-commands of `toolkit` in this process."""

from __future__ import annotations

import pytest

from toolkit.commands.cli import main as toolkit_command


def run_command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        toolkit_command([str(argument) for argument in arguments])
    return int(ended.value.code or 0)
