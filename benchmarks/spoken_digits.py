"""Trains spoken_digits.yaml of speech recognition from scratch, and scores it on a speaker that it has not heard.

    python benchmarks/spoken_digits.py --data data/spoken_digits [--only theo jackson] [--pairs 3] [--cpu-time]

The words are those of `toolkit data get spoken_digits`, joined by recipes/data/audio/join.py. A case is the speaker
that is left out, or a change of the settings with `theo` left out; a round is a seed, from 42 up. Seconds are those of
the whole command, with one thread as CPU time, otherwise as they pass. The file keeps cases that are not asked for.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from every_tool import spread
from pairs import ROOT, cpu, parser, read_options, write

NAME = "spoken_digits"
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    **{speaker: (speaker, ()) for speaker in ("theo", "jackson", "lucas", "george", "nicolas")},
    "no SpecAugment": ("theo", ("model.from_config.mask_time_prob=0",)),
    "speed 0.15": ("theo", ("task.audio.speed=0.15", "train.dataloader_num_workers=1")),
    "frequency masks": ("theo", ("task.audio.frequency_masks=2",)),
    "16 kHz": ("theo", ("task.audio.sampling_rate=16000",)),
    "no dropout": ("theo", ("model.from_config.hidden_dropout=0", "model.from_config.final_dropout=0")),
}
"""The speaker that is left out of training, and settings that differ from the YAML, by case."""
PLACE = re.compile(r"(?:.*[_-])?([^_-]+)[_-]\d+")
"""Name of a recording: its speaker and number."""


def joined(data: Path, unheard: str, folder: Path) -> Path:
    """Joins all recordings but the unheard speaker's for training, and those for validation; returns their folder."""
    for file in sorted(data.glob("*/*/*.wav")):
        speaker = PLACE.fullmatch(file.stem)
        part = "validation" if speaker is not None and speaker[1] == unheard else "train"
        place = folder / "words" / part / file.parent.name / file.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(file.resolve())
    script = ROOT / "recipes/data/audio/join.py"
    subprocess.run([sys.executable, script, folder / "words", folder / "joined"], check=True)
    return folder / "joined"


def trained(joined: Path, run: Path, settings: Sequence[str], seed: int, options: Any) -> dict[str, Any]:
    """Trains once; returns its scores and the seconds of the command. Raises CalledProcessError if it fails."""
    files = [f"data.{part}_file={joined / part}.csv" for part in ("train", "validation")]
    command = [sys.executable, "-m", "toolkit", "train", "speech_recognition", "--config", "spoken_digits", *files,
               *settings, f"seed={seed}", f"output_dir={run}"]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(options.threads)}
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment, check=True, cwd=run.parent, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seconds = used if options.cpu_time else time.perf_counter() - begin
    result = json.loads((run / "run.json").read_text(encoding="utf-8"))["result"]
    return {"seed": seed, "seconds": seconds, "wer": result["eval_wer"], "cer": result["eval_cer"]}


def measured(case: str, options: Any) -> dict[str, Any]:
    """Trains a case with each seed."""
    unheard, settings = CASES[case]
    settings = (*settings, *(["train.max_steps=2"] if options.quick else []))
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        rows = joined(options.data, unheard, folder)
        runs = [trained(rows, folder / f"{seed}", settings, seed, options) for seed in range(42, 42 + options.pairs)]
    seconds = [run["seconds"] for run in runs]
    return {
        **spread(seconds), "unheard": unheard, "settings": settings, "metric": "WER",
        "scores": {"spoken_digits.yaml": [run["wer"] for run in runs]},
        "seconds_per_run": {"spoken_digits.yaml": seconds}, "by_seed": runs, "measured": conditions(options),
    }  # fmt: skip


def conditions(options: Any) -> str:
    """Returns in words where and how a case is measured, because a file keeps cases of several runs."""
    from toolkit.system.environment import checkout

    state = checkout(ROOT)
    clock = "CPU time" if options.cpu_time else "wall-clock time"
    return f"{cpu()['cpu']}, threads: {options.threads}, {clock}; commit {state.commit[:12] if state else 'unknown'}"


def main() -> None:
    """Measures the cases, and writes each result when it is there."""
    made = parser(__doc__, pairs=3)
    made.add_argument("--data", type=Path, default=ROOT / "data/spoken_digits", help="folder of the recordings")
    made.add_argument("--only", choices=CASES, nargs="+", default=["theo"], help="the cases to measure")
    options = read_options(made)
    file = options.results / f"{NAME}.json" if options.results else Path(os.devnull)
    cases: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["cases"] if file.is_file() else {}
    for case in options.only:
        cases[case] = measured(case, options)
        first = cases.get("theo", cases[case])
        figures = {key: first[key] for key in ("seconds", "seconds_min", "seconds_max", "runs")}
        title = "spoken digits from scratch, scored on a speaker that is not in training"
        places: dict[str, list[str]] = {}
        for name, each in cases.items():
            places.setdefault(each["measured"], []).append(name)
        note = "; ".join(f"{', '.join(names)}: {place}" for place, names in places.items())
        write(NAME, "speech", title, {**figures, "cases": cases, "note": f"Measured with {note}."}, options)


if __name__ == "__main__":
    main()
