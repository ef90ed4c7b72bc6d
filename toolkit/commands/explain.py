"""Show where settings come from: `toolkit explain recipes/<task>.py --config FILE [section.key=value ...]`."""

from __future__ import annotations

import argparse

from toolkit.commands import _recipe_config
from toolkit.config.describe import explain_text

add_arguments = _recipe_config.add_arguments


def work(arguments: argparse.Namespace) -> None:
    """Prints every key, its value, and whether it is a default, from the file, an override or the launcher."""
    _, loaded = _recipe_config.load(arguments)
    print(explain_text(loaded))
