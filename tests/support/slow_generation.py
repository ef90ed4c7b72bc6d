"""The translation recipe with slow generation: `slow_generation.py SECONDS_PER_TOKEN <recipe's arguments>`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from transformers import GenerationMixin

from toolkit.main import main
from toolkit.recipe import load_task_type
from toolkit.report import results

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "translation.py"


def slow(seconds: float, output_dir: Path) -> None:
    """Makes each generated token take some seconds, and notes the beginning; likewise the report."""
    update, report = GenerationMixin._update_model_kwargs_for_generation, results.write_report

    def slowly(model, *arguments, **settings):
        (output_dir / "generating").touch()
        time.sleep(seconds)
        return update(model, *arguments, **settings)

    def slow_report(*arguments):
        (output_dir / "reporting").touch()
        time.sleep(60 * seconds)
        report(*arguments)

    GenerationMixin._update_model_kwargs_for_generation = slowly
    results.write_report = slow_report


if __name__ == "__main__":
    seconds, *arguments = sys.argv[1:]
    (folder,) = [word.partition("=")[2] for word in arguments if word.startswith("output_dir=")]
    slow(float(seconds), Path(folder))
    sys.argv = [str(RECIPE), *arguments]
    main(load_task_type(RECIPE))
