"""Runs whose files or settings differ by rank: `rows_by_rank.py OUTPUT_DIR` on 2 processes writes each one's errors."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from finishing import finish
from runs import train

from toolkit.base.errors import ConfigError, DataError

RANK = os.environ.get("RANK", "0")
ROWS = "text,label\n" + "good,pos\nbad,neg\n" * 8
STALE = ROWS.replace("bad,neg\n", "awful,neg\n", 1)
OTHER_LABEL = ROWS.replace("bad,neg\n", "bad,mixed\n", 1)
CASES: Mapping[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "same": ((ROWS, ROWS), (ROWS, ROWS)),
    "train": ((ROWS, ROWS), (STALE, ROWS)),
    "validation": ((ROWS, ROWS), (ROWS, STALE)),
    "label": ((ROWS, ROWS), (OTHER_LABEL, ROWS)),
}
"""The training and validation files of each rank."""
OTHERS = (
    "train.learning_rate=0.5", "seed=7", "train.max_steps=2", "model.from_config.attention_probs_dropout_prob=0",
    "engine=trainer", "eval.eval_steps=1", "parallel.fsdp=2", "train.strategy=local_sgd",
    "checkpoint.resume=auto",
)  # fmt: skip
"""What the second rank sets, one at a time."""
SETTINGS = ("train.max_steps=1", "checkpoint.save_steps=null", "train.gradient_accumulation_steps=1")


def main(output: Path) -> None:
    """Runs every case with files in another folder for each rank, as on the disks of two nodes."""
    found = {}
    for case, by_rank in CASES.items():
        files = [output / RANK / f"{name}.csv" for name in ("train", "validation")]
        for file, content in zip(files, by_rank[int(RANK)], strict=True):
            file.parent.mkdir(exist_ok=True)
            file.write_text(content, encoding="utf-8")
        settings = [f"data.{file.stem}_file={file}" for file in files]
        try:
            train("reviews", output / case, *SETTINGS, *settings)
        except DataError as error:
            found[case] = [str(error), error.shared]
    for other in OTHERS:
        try:
            train("reviews", output / "settings", *SETTINGS, *([other] if RANK == "1" else []))
        except ConfigError as error:
            found[other] = [str(error), error.shared]
    (output / f"{RANK}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    finish()
