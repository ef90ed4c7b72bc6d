"""Show the source of each setting: `toolkit explain recipes/<task>.py --config FILE [section.key=value ...]`."""

from __future__ import annotations

import argparse

from toolkit.commands import _recipe_config
from toolkit.config.describe import explain_text

add_arguments = _recipe_config.add_arguments


def work(arguments: argparse.Namespace) -> None:
    """Prints every setting with its value and source: default, file, override or launcher.

    Raises:
        ConfigError: if a setting is invalid.
    """
    _, loaded = _recipe_config.load(arguments)
    print(explain_text(loaded))
