"""Writes the table of settings that cannot go together into docs/switches.md, from toolkit/checks/rules.

python docs/render_switches.py
"""

from __future__ import annotations

from pathlib import Path

from toolkit.checks.rules import RULES

PAGE = Path(__file__).with_name("switches.md")
BEGIN, END = "<!-- compatibility: written by docs/render_switches.py -->", "<!-- end of the compatibility table -->"


def table() -> str:
    """Returns the table in Markdown, one row for each rule."""
    rows = [
        f"| {', '.join(f'`{key}`' for key in rule.keys)} | {rule.why} | {rule.instead} |"
        for rule in sorted(RULES, key=lambda rule: rule.keys)
    ]
    return "\n".join(["| settings | why it cannot be | what to do instead |", "|---|---|---|", *rows])


def rendered() -> str:
    """Returns the page with the table as it must be."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(rendered(), encoding="utf-8")
