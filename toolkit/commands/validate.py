"""Check settings: `toolkit validate recipes/<task>.py --config FILE [section.key=value ...]`."""

from __future__ import annotations

import argparse

from toolkit.commands import _recipe_config

add_arguments = _recipe_config.add_arguments


def work(arguments: argparse.Namespace) -> None:
    """Checks the settings, as a run does before it loads anything."""
    _recipe_config.load(arguments)
    print(f"{arguments.config}: all settings are valid")
