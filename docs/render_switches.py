"""Writes the tables of docs/switches.md that come from the code: optimizers, and conflicting settings.

python docs/render_switches.py
"""

from __future__ import annotations

from pathlib import Path

from toolkit.checks.rules import RULES
from toolkit.document.render import line, table
from toolkit.optim.presets import PRESETS

PAGE = Path(__file__).with_name("switches.md")


def optimizers() -> str:
    """Returns the table of optimizers, in the order of their presets."""
    rows = [
        [
            f"`{name}`",
            preset.summary + (" (extra `optimizers`)" if preset.library else ""),
            f"{preset.state_bytes:.3g}",
            preset.source,
        ]
        for name, preset in PRESETS.items()
    ]
    return table(["`train.optim`", "what it does", "bytes of state per weight", "source"], rows, marked_up=True)


def combinations() -> str:
    """Returns the table of conflicting settings, one row for each rule."""
    rows = [
        [", ".join(f"`{key}`" for key in rule.keys), line(rule.why), line(rule.instead)]
        for rule in sorted(RULES, key=lambda rule: rule.keys)
    ]
    return table(["settings", "reason", "what to do instead"], rows, marked_up=True)


TABLES = {"optimizers": optimizers, "combinations": combinations}
"""Tables by the name in the comments around each in the page."""


def rendered() -> str:
    """Returns the page with its tables as the code has them."""
    page = PAGE.read_text(encoding="utf-8")
    for name, table_of in TABLES.items():
        begin, end = f"<!-- {name}: written by docs/render_switches.py -->\n", f"\n<!-- end of {name} -->"
        before, rest = page.split(begin)
        page = before + begin + table_of() + end + rest.split(end)[1]
    return page


if __name__ == "__main__":
    PAGE.write_text(rendered(), encoding="utf-8")
