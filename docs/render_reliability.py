"""Writes docs/reliability.md from its rows (reliability.yaml) and the last complete run (tests/faults/soak.json).

python docs/render_reliability.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

DOCS = Path(__file__).parent
PAGE, ROWS, RECORD = DOCS / "reliability.md", DOCS / "reliability.yaml", DOCS.parent / "tests" / "faults" / "soak.json"
BEGIN, END = "<!-- reliability: written by docs/render_reliability.py -->", "<!-- end of the table -->"
COUNTED = {
    "kills": "processes killed, in operations on files and in phases of a run",
    "operations": "operations on files that were killed, cut in half or failed, or after which power was lost",
    "flips": "bits flipped",
    "signals": "signals",
    "stalls": "processes stopped or killed while others waited for them",
    "races": "races and clocks",
    "bad inputs": "bad rows, files, settings and records",
    "wrong": "results that differed, files that were not whole, messages that were missing",
    "hangs": "hangs",
    "tracebacks": "tracebacks",
}
"""What is counted, in the order of the page."""


def rows() -> list[dict[str, Any]]:
    """Returns fault, promise and tests of each row."""
    found: list[dict[str, Any]] = YAML(typ="safe").load(ROWS)
    return found


def link(test: str) -> str:
    """Returns a link to the file of a test, given as `folder/file.py::function`."""
    file, _, function = test.partition("::")
    return f"[{function.removeprefix('test_').replace('_', ' ')}](../tests/{file})"


def table() -> Iterator[str]:
    """Yields the lines of the table of faults."""
    yield "| # | fault | promise | tests |\n|---|---|---|---|"
    for number, row in enumerate(rows(), start=1):
        yield f"| {number} | {row['fault']} | {row['promise']} | {'; '.join(map(link, row['tests']))} |"


def figures() -> Iterator[str]:
    """Yields the lines about the last run that was recorded."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    part = "all cases" if record["share"] == 1 else f"a sample of {100 * record['share']:.3g} % of the cases"
    passed = "all passed" if record["passed"] else "**some failed**"
    yield (
        f"The last recorded run tried {part} (seed {record['seed']}) in {record['seconds'] / 60:.0f} minutes on "
        f"{record['cores']} cores: {len(record['tests'])} tests, {passed}.\n"
    )
    yield "| counted | number |\n|---|---|"
    for name, meaning in COUNTED.items():
        yield f"| {meaning} | {record['counts'].get(name, 0):,} |"
    if found := record["measured"].get("rows"):
        yield (
            f"\n{found['rows']:,} rows of text, {found['bad']:,} of them bad, were checked, tokenised and trained on "
            f"for a step within {found['seconds']:,} s, with at most {found['peak_bytes'] / 2**30:.2g} GiB."
        )


def rendered() -> str:
    """Returns the page with the table and the figures as they are now."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    text = "\n".join([*table(), "", "## Figures\n", *figures()])
    return f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(rendered(), encoding="utf-8")
