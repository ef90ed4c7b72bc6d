"""Writes docs/lessons.md from docs/lessons.yaml and what the commands of the lessons wrote.

python docs/render_lessons.py [--run [NAME ...]]

With `--run`, runs the commands of all lessons, or of those named, and keeps their pictures in docs/images/lessons and
their figures in docs/lessons.json.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
from ruamel.yaml import YAML

from toolkit.base.console import format_bytes
from toolkit.document.render import fenced, table

DOCS = Path(__file__).resolve().parent
LESSONS, FIGURES, PAGE, PICTURES = (
    DOCS / name for name in ("lessons.yaml", "lessons.json", "lessons.md", "images/lessons")
)
INTRODUCTION = """\
# Lessons

Each lesson shows the effect of one technique, for teaching or before you use it. It is one command that takes less than
three minutes on a laptop with two cores, without network or GPU, and draws the picture below it. Change one thing and
run it again: each `section.key=value` is a setting ([settings.md](settings.md)).

`python docs/render_lessons.py --run` runs all commands and writes this page."""
COLUMNS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "peak memory": lambda variant: format_bytes(variant["figures"]["train_peak"]["value"]),
    "weights and buffers": lambda variant: format_bytes(variant["memory"]["parameters"]),
    "optimizer state": lambda variant: format_bytes(variant["memory"]["optimizer_state"]),
    "activations and the rest": lambda variant: format_bytes(variant["memory"]["rest"]),
    "optimizer state per weight": lambda variant: f"{variant['optimizer_state_bytes_per_parameter']:.3g} bytes",
    "sent per step": lambda variant: format_bytes(variant["exchange"]["bytes"]),
    "evaluation loss": lambda variant: f"{next(iter(variant['metrics']['eval_loss']['values'].values())):.4f}",
}
"""Figures of a variant of a comparison, by the names that lessons give."""


def lessons() -> list[dict[str, Any]]:
    """Returns all lessons, in the order of the page."""
    found: list[dict[str, Any]] = YAML(typ="safe").load(LESSONS)
    return found


def run(lesson: Mapping[str, Any]) -> dict[str, Any]:
    """Runs a lesson's command in an empty folder, keeps its picture, and returns its figures.

    Raises:
        CalledProcessError: if the command fails.
    """
    busy, begin, before = psutil.getloadavg()[0], time.monotonic(), _processor_seconds()
    with tempfile.TemporaryDirectory(prefix="lesson-") as name:
        program, script, *arguments = shlex.split(lesson["command"])
        command = [sys.executable, *(["-m", program, script] if program == "toolkit" else [DOCS.parent / script])]
        (Path(name) / "docs").symlink_to(DOCS)  # commands name files of the repository
        environ = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}  # two processes on two cores
        subprocess.run([*command, *arguments], cwd=name, env=environ, check=True)
        PICTURES.mkdir(parents=True, exist_ok=True)
        drawn = Path(name) / lesson["picture"]
        shutil.copy(drawn, PICTURES / picture(lesson))
        rows = rows_of(drawn.with_name("comparison.json"), lesson["columns"]) if "columns" in lesson else []
    return {
        "seconds": round(time.monotonic() - begin),
        "processor_seconds": round(_processor_seconds() - before),
        "cores": os.cpu_count(),
        "load_average": round(busy, 1),
        "rows": rows,
    }


def _processor_seconds() -> float:
    """Returns what all processes that this one has waited for have used, in seconds of a core."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rows_of(file: Path, columns: list[str]) -> list[list[str]]:
    """Returns number, name and figures of each variant of a comparison."""
    variants = json.loads(file.read_text(encoding="utf-8"))["variants"]
    return [
        [str(number), variant["name"], *(COLUMNS[column](variant) for column in columns)]
        for number, variant in enumerate(variants, start=1)
    ]


def picture(lesson: Mapping[str, Any]) -> str:
    """Returns the name of a lesson's picture in docs/images/lessons."""
    return f"{lesson['name']}{Path(lesson['picture']).suffix}"


def took(figures: Mapping[str, Any]) -> str:
    """Returns how long a command took, and on which machine."""
    return (
        f"It took {figures['processor_seconds']} seconds of processor time and {figures['seconds']} seconds in all, on "
        f"{figures['cores']} cores with a load average of {figures['load_average']} at the start."
    )


def section(lesson: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    """Returns a lesson as Markdown."""
    lines = textwrap.wrap(
        shlex.join(shlex.split(lesson["command"])), 90, break_on_hyphens=False, break_long_words=False
    )
    parts = [f"## {lesson['title']}", _filled(lesson["text"]), fenced(" \\\n    ".join(lines), "bash"), took(figures)]
    parts.append(f"![{lesson['title']}: the command's picture](images/lessons/{picture(lesson)})")
    parts += [table(["#", "variant", *lesson["columns"]], figures["rows"])] if figures["rows"] else []
    further = lesson.get("further")
    more = [f"![{further['alternative']}]({further['picture']})", _filled(further["text"])] if further else []
    return "\n\n".join([*parts, _filled(f"**Look at:** {lesson['look']}"), *more, _filled(f"**Ask:** {lesson['ask']}")])


def _filled(text: str) -> str:
    """Returns a paragraph in lines of at most 120 characters."""
    return textwrap.fill(text, 120, break_on_hyphens=False, break_long_words=False)


def rendered() -> str:
    """Returns the page for the figures that the commands wrote."""
    figures = known()
    return "\n\n".join([INTRODUCTION, *(section(each, figures[each["name"]]) for each in lessons())]) + "\n"


def known() -> dict[str, Any]:
    """Returns the figures of the lessons that were run, by name."""
    found: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
    return found


def main(*arguments: str) -> None:
    """Runs the lessons that are named, or all, if `--run` is given; then writes the page."""
    for lesson in lessons():
        if arguments[:1] == ("--run",) and (len(arguments) == 1 or lesson["name"] in arguments):
            figures = {lesson["name"]: run(lesson)}
            FIGURES.write_text(json.dumps(known() | figures, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(rendered(), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
