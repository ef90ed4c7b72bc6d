"""Where two processes find the copies of data files: `accelerate launch staged_runs.py OUTPUT_DIR`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from accelerate import Accelerator
from finishing import finish
from pictures_task import Pictures

from toolkit.config.sections import DataConfig
from toolkit.data import staging


def main(output: Path) -> None:
    """Copies files on the first of both processes, twice, and writes what each has and did as `seen-<rank>.json`."""
    accelerator, made = Accelerator(cpu=True), list[str]()
    copy = staging.copy_data
    staging.copy_data = lambda folder, source: made.append(source.name) or copy(folder, source)  # type: ignore[func-returns-value]
    while not accelerator.is_main_process and not (output / "seen-0.json").exists():
        time.sleep(0.05)  # the first process, which waits for nobody, has copied both
    found = []
    for name in ("one", "two"):
        data = DataConfig(train_file=str(output / name), stage_to=str(output / "stage"))
        held = staging.staged(data, Pictures(), accelerator)
        found.append(sorted(each.read_bytes().decode() for each in held.copies(str(output / name)).rglob("*.png")))
    seen = {"found": found, "made": made}
    (output / f"seen-{accelerator.process_index}.json").write_text(json.dumps(seen), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    finish()
