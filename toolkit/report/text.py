"""The report as Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.certificates.text import state_of as certificate_state
from toolkit.config import dump_config
from toolkit.console import format_bytes, format_value
from toolkit.engine.run import Run


def readable(figures: Mapping[str, Any]) -> dict[str, str]:
    """Formats figures for a person: memory in MiB, rates with their unit, None left out."""
    shown = {}
    for name, value in figures.items():
        if value is None:
            continue
        if name.endswith("_bytes"):
            shown[name.removesuffix("_bytes")] = format_bytes(value)
        elif isinstance(value, int):
            shown[name] = f"{value:,}"
        else:
            shown[name] = format_value(value)
    return shown


def table(rows: Mapping[str, Any], left: str, right: str) -> list[str]:
    """Formats a two-column Markdown table."""
    cells = [(cell(name), cell(value)) for name, value in rows.items()]
    return [f"| {left} | {right} |", "|---|---|", *(f"| {name} | {value} |" for name, value in cells)]


def cell(value: Any) -> str:
    """Returns a value as it can stand in a Markdown table."""
    return " ".join(str(value).split()).replace("|", "\\|")


def _fenced(text: str) -> str:
    """Text as a block of code, whatever backquotes it holds."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def report(
    run: Run,
    facts: Mapping[str, Any],
    figures: Mapping[str, Any],
    examples: Sequence[str],
    sections: Sequence[str],
    samples: Sequence[str],
) -> str:
    """Writes the report page.

    Args:
        run: the run.
        facts: what `run.json` says of it.
        figures: its results by name.
        examples: a few predictions, each as short text.
        sections: blocks of Markdown that the task itself has to show.
        samples: texts that the model made.
    """
    bad = {split: count for split, count in facts["bad_rows"].items() if count}
    rows = {
        split: f"{count:,}" + (f" ({bad[split]:,} bad rows left out, see bad_rows.jsonl)" if split in bad else "")
        for split, count in facts["num_rows"].items()
    }
    setting = {
        "processes": facts["num_processes"],
        "engine": facts["engine"],
        "device": ", ".join(facts["hardware"]["gpus"]) or f"{facts['hardware']['cpus']} CPUs",
        "seed": facts["seed"],
        "certificate": certificate_state(run.cfg),
        **{name: facts["versions"][name] for name in ("torch", "transformers", "accelerate")},
        # How a task computes its scores, where that has a name.
        **{name: value for name, value in facts["task_state"].items() if isinstance(value, str)},
    }
    blocks = [
        [f"# {run.output_dir.name}"],
        # What a task says of each class, it shows in sections of its own.
        ["## Result", "", *table(readable({k: v for k, v in figures.items() if "/" not in k}), "figure", "value")],
        ["![Loss and metric over the steps](loss.png)"],
        *([section] for section in sections),
        ["## Rows", "", *table(rows, "set", "rows"), *(f"\n{note}" for note in run.data.notes)],
    ]
    if examples:
        blocks.append(["## Predictions on rows it was not trained on", "", "```", *examples, "```"])
    if samples:
        blocks.append(["## Samples", "", "\n\n".join(_fenced(sample) for sample in samples)])
    blocks += [
        ["## Where and how", "", *table(setting, "what", "value")],
        ["## Configuration", "", "```yaml", dump_config(run.cfg).rstrip(), "```"],
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"
