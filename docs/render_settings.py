"""Writes every setting into docs/settings.md, from the sections and the options of the recipes.

python docs/render_settings.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from toolkit.config.describe import Entry, entries
from toolkit.document.render import line, table
from toolkit.recipe import load_task_type

PAGE = Path(__file__).with_name("settings.md")
RECIPES = sorted((PAGE.parents[1] / "recipes").glob("*.py"))
BEGIN, END = "<!-- settings: written by docs/render_settings.py -->\n", "<!-- end of settings -->"


def parts(keys: Iterable[Entry], title: str) -> Iterator[str]:
    """Yields the headings and tables of keys, one for each section; groups of settings are in the table of theirs."""
    rows: list[list[str]] = []
    lead = ""
    for entry in keys:
        if entry.accepts is None and "." not in entry.key:
            if rows:
                yield from _part(title, lead, rows)
            title, lead, rows = f"`{entry.key}`", entry.help, []
        elif entry.accepts is not None:
            name, _, value = entry.default.partition(": ")  # default: VALUE, or "must be given"
            default = f"{name} `{value}`" if value else name
            rows.append([f"`{entry.key}`", f"{line(entry.accepts)}; {default}", entry.help])
    if rows:
        yield from _part(title, lead, rows)


def _part(title: str, lead: str, rows: list[list[str]]) -> Iterator[str]:
    yield f"## {title}\n"
    if lead:
        yield f"{lead}\n"
    yield table(["setting", "values", "meaning"], rows, marked_up=True) + "\n"


def text() -> Iterator[str]:
    """Yields the settings of all runs, then the section `task` of each recipe."""
    recipes = {path.stem: list(entries(load_task_type(path).Options)) for path in RECIPES}
    first = next(iter(recipes.values()))
    yield from parts([entry for entry in first if not _of_task(entry)], "Top level")
    for name, found in recipes.items():
        title = f"`task` of the recipe `{name}`"
        section, *own = [entry for entry in found if _of_task(entry)]
        rows = list(parts(own, title))
        yield from [rows[0], f"{section.help}\n", *rows[1:]]


def _of_task(entry: Entry) -> bool:
    return entry.key.partition(".")[0] == "task"


def rendered() -> str:
    """Returns the page with the settings as the code has them."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return before + BEGIN + "\n".join(text()) + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(rendered(), encoding="utf-8")
