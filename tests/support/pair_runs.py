"""Trains the reviews recipe as one of several processes: `pair_runs.py DIR SETTING...`."""

from __future__ import annotations

import sys
from pathlib import Path

from finishing import finish
from runs import train

if __name__ == "__main__":
    train("reviews", Path(sys.argv[1]), *sys.argv[2:], double=True)
    finish()
