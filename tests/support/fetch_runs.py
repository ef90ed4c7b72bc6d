"""Trains from a hub on this machine and fetches the same run: `python fetch_runs.py ROOT CONFIG RUN FETCHED`."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(root: str, config: str, run: str, fetched: str) -> None:
    """Runs the commands, in a process of its own, since libraries read the hub's address when they are imported."""
    from fake_hub import served

    with served(Path(root)) as (address, hub):
        os.environ |= {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0"}
        os.environ |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        from toolkit.commands.cli import main as toolkit

        for command in (
            ["train", "reviews", "--config", config, f"output_dir={run}"],
            ["fetch", "reviews", "--config", config, "--to", fetched, "--prepare"],
            ["fetch", "reviews", "--config", config, "--to", fetched],
        ):
            hub.asked.clear()
            try:
                toolkit(command)
            except SystemExit as ended:
                print(f"{command[0]} ended with {ended.code}, read {len(hub.asked)} files", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
