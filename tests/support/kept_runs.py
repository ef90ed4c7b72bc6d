"""What two processes see of what they keep: `accelerate launch kept_runs.py OUTPUT_DIR`."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from accelerate import Accelerator
from finishing import finish

from toolkit.data.media.cache import cache_media


def main(output: Path) -> None:
    """Keeps rows on both processes, and writes what each sees of them as `seen-<rank>.json`."""
    accelerator = Accelerator(cpu=True)
    tempfile.tempdir = str(output)
    sets = cache_media({"train": 3, "validation": 2}, "1MiB", accelerator)
    own = {0: [("train", 0, 1), ("train", 2, 3)], 1: [("train", 1, 2), ("validation", 0, 4)]}
    for name, row, value in own[accelerator.process_index]:
        sets[name].decoded(row, lambda value=value: np.full(9, value, np.uint8))
    accelerator.wait_for_everyone()
    seen = {}
    for name, rows in (("train", 3), ("validation", 2)):
        arrays = [sets[name].decoded(row, lambda: None) for row in range(rows)]
        seen[name] = [None if array is None else int(array[0]) for array in arrays]
    seen["left"] = [file.name for file in output.glob("toolkit-*")]
    (output / f"seen-{accelerator.process_index}.json").write_text(json.dumps(seen), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    finish()
