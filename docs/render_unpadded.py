"""Writes the tables of docs/unpadded.md: which models run without padding, and why others do not.

python docs/render_unpadded.py

The figures in docs/unpadded.json are measured by the slow tests of tests/unit/models/test_unpadded_families.py, which
write them if WRITE_FIGURES is set.
"""

from __future__ import annotations

import json
from pathlib import Path

from toolkit.document.render import table
from toolkit.models.unpadded.families import FIXED_LENGTH, REASONS

PAGE = Path(__file__).with_name("unpadded.md")
FIGURES = PAGE.with_suffix(".json")
HOW = {"exact": "whole layers", "islands": "all but the attention"}


def compared() -> str:
    """Returns the table of compared families."""
    found = json.loads(FIGURES.read_text(encoding="utf-8"))
    rows = [
        [
            f"`{kind}`",
            ", ".join(each["heads"]),
            HOW[each["coverage"]],
            f"{each['output']:.0e}",
            f"{each['gradient']:.0e}{' (parts in float32)' if each['in_float32'] else ''}",
        ]
        for kind, each in found.items()
    ]
    return table(["model type", "heads", "without padding", "outputs", "gradients"], rows, marked_up=True)


def padded() -> str:
    """Returns the table of families that run padded."""
    reasons: dict[str, list[str]] = {}
    for kind, reason in REASONS.items():
        reasons.setdefault(reason, []).append(kind)
    reasons["nothing to gain: its rows all have the same length"] = sorted(FIXED_LENGTH)
    rows = [[", ".join(f"`{kind}`" for kind in kinds), reason] for reason, kinds in reasons.items()]
    return table(["model types", "why they run padded"], rows, marked_up=True)


TABLES = {"compared": compared, "padded": padded}
"""Tables by the name in the comments around each in the page."""


def rendered() -> str:
    """Returns the page with its tables as figures and code have them."""
    page = PAGE.read_text(encoding="utf-8")
    for name, table_of in TABLES.items():
        begin, end = f"<!-- {name}: written by docs/render_unpadded.py -->\n", f"\n<!-- end of {name} -->"
        before, rest = page.split(begin)
        page = before + begin + table_of() + end + rest.split(end)[1]
    return page


if __name__ == "__main__":
    PAGE.write_text(rendered(), encoding="utf-8")
