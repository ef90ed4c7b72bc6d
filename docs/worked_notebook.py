"""A walk-through as a notebook: `python docs/worked_example.py` writes it with the page.

Cells that train are shown as they are typed; only cells that read the measured figures are run, and their outputs kept.
"""

from __future__ import annotations

import contextlib
import io
import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worked_walks import Walk

ROOT = Path(__file__).resolve().parents[1]

WHERE = """import os
from pathlib import Path

if not Path("recipes").is_dir():
    os.chdir("..")  # Jupyter starts in the folder of the notebook; the commands are for the root of the repository
"""
FIGURES = '''import json

found = json.loads(Path("docs/{file}.json").read_text())
titles = {titles}


def shown(name, value):
    """Returns a figure with its unit."""
    if name == "train_peak":
        return f"{{value / 2**20:.0f}} MiB"
    return f"{{value:.4f}}" if name == "eval_accuracy" else f"{{value:.3f}} s"


def table(variants):
    """Prints the figures of trainings."""
    print(f"{{'training':24}}" + "".join(f"{{title:>13}}" for title in titles.values()))
    for number, variant in enumerate(variants, 1):
        values = (shown(name, variant["figures"][name]["value"]) for name in titles)
        print(f"{{number}} {{variant['title']:22}}" + "".join(f"{{value:>13}}" for value in values))


table(found["variants"])
'''
EFFECT = '''def effect(variant):
    """Prints what changed since the training before; ~ marks a change that could be chance."""
    for name, title in titles.items():
        change = variant["step"][name]
        none, form = (0, "{:+.3f}") if name == "eval_accuracy" else (1, "x{:.2f}")
        value, low, high = (form.format(change[each]) for each in ("value", "low", "high"))
        chance = "~" if change["low"] <= none <= change["high"] else " "
        print(f"{title:12}{chance} {value:>7}  ({low} to {high})")


effect(found["variants"][1])
'''


def rendered(
    walk: Walk,
    found: Mapping[str, Any],
    introduction: Sequence[str],
    conclusion: Sequence[str],
    commands: Sequence[str],
) -> str:
    """Returns the notebook in Jupyter's format 4.5.

    Args:
        walk: the walk-through.
        found: figures of its comparisons.
        introduction: paragraphs before the figures, the title first.
        conclusion: paragraphs after them.
        commands: what measures all figures.
    """
    folder = f"outputs/{walk.file.replace('_', '-')}-step"
    baseline, *trainings = (f"{variant['command']} output_dir={folder}" for variant in found["variants"])
    notebook = _Notebook()
    notebook.text("introduction", *introduction)
    notebook.run("where", WHERE)
    notebook.text(
        "measure",
        "## Measure",
        "These commands measure everything again (`python docs/worked_example.py --run` runs them and writes the "
        "figures anew); they need a network once. Without them, the cells below show the figures that come with the "
        "notebook.",
    )
    notebook.show("compare", *commands)
    notebook.text("figures", "## Figures")
    notebook.run("figures-code", FIGURES.format(file=walk.file, titles=json.dumps(dict(walk.names))))
    notebook.text("conclusion", *conclusion)
    notebook.text("baseline", "## Step by step", "Each of these commands trains once. The baseline:")
    notebook.show("train-1", f"{baseline}-1")
    for number, (change, training) in enumerate(zip(walk.main.changes, trainings, strict=True), 2):
        notebook.text(f"step-{number}", f"### {change.title}", change.why)
        notebook.show(f"train-{number}", f"{training}-{number}")
        notebook.run(f"effect-{number}", EFFECT if number == 2 else f'effect(found["variants"][{number - 1}])\n')
    if walk.transfer:
        notebook.text("transfer", "## Transfer", walk.transfer_lead)
        notebook.run("transfer-table", 'table(found["transfer"]["variants"])\n')
        for number, change in enumerate(walk.transfer.changes, 1):
            notebook.text(f"transfer-{number}", f"### {change.title}", change.why)
            notebook.run(f"transfer-effect-{number}", f'effect(found["transfer"]["variants"][{number}])\n')
    return notebook.json()


class _Notebook:
    """Cells, and the names that the code of the cells so far has defined."""

    def __init__(self) -> None:
        self.cells: list[dict[str, Any]] = []
        self.names: dict[str, Any] = {}
        self.runs = 0

    def text(self, name: str, *paragraphs: str) -> None:
        """Adds paragraphs of Markdown."""
        source = "\n\n".join(paragraphs).splitlines(keepends=True)
        self.cells.append({"cell_type": "markdown", "id": name, "metadata": {}, "source": source})

    def show(self, name: str, *commands: str) -> None:
        """Adds shell commands that were not run."""
        lines = [textwrap.wrap(f"!{each}", 96, break_long_words=False, break_on_hyphens=False) for each in commands]
        self._add(name, "\n".join(" \\\n    ".join(each) for each in lines), None, "")

    def run(self, name: str, code: str) -> None:
        """Runs code in the root of the repository, and adds it with what it prints."""
        printed = io.StringIO()
        with contextlib.chdir(ROOT), contextlib.redirect_stdout(printed):
            exec(compile(code, f"<{name}>", "exec"), self.names)
        self.runs += 1
        self._add(name, code, self.runs, printed.getvalue())

    def _add(self, name: str, code: str, count: int | None, printed: str) -> None:
        output = {"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)}
        self.cells.append(
            {
                "cell_type": "code",
                "execution_count": count,
                "id": name,
                "metadata": {},
                "outputs": [output] if printed else [],
                "source": code.rstrip("\n").splitlines(keepends=True),
            }
        )

    def json(self) -> str:
        """Returns the file as Jupyter would write it."""
        kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
        about = {"kernelspec": kernel, "language_info": {"name": "python"}}
        whole = {"cells": self.cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}
        return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
