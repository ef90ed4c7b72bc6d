"""Renders a report as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from toolkit.document.blocks import (
    Block,
    Code,
    Figure,
    Folded,
    Gallery,
    Highlights,
    Overlay,
    Section,
    Table,
    Text,
    shown,
)

_MARKUP = re.compile(r"[\\`*\[\]~]|(?<![^\W_])_|_(?![^\W_])")
"""Characters that begin or end markup; an underscore inside a word does not."""


def render_markdown(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Returns a report as Markdown; the arguments are those of `toolkit.document.page.render_html`."""
    parts = [f"# {line(title)}", *([line(lead)] if lead else [])]
    for section in sections:
        parts += [f"## {line(section.title)}", *_blocks(section.blocks)]
    return "\n\n".join(parts) + "\n"


def line(value: Any) -> str:
    """Returns a value as one line that is shown as it is: Markdown and HTML in it are escaped."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(str(value).split())).replace("&", "&amp;").replace("<", "&lt;")


def table(header: Sequence[str], rows: Iterable[Sequence[Any]], marked_up: bool = False) -> str:
    """Returns a Markdown table.

    Args:
        header: the header.
        rows: cells as those of `toolkit.document.blocks.Table`.
        marked_up: whether the cells are Markdown already; otherwise they are shown as they are.
    """
    lines = [header, *([shown(value) for value in row] for row in rows)]
    shown_cell = str if marked_up else line
    escaped = ([shown_cell(value).replace("|", "\\|") for value in each] for each in lines)
    first, *rest = (f"| {' | '.join(each)} |" for each in escaped)
    return "\n".join([first, "|---" * len(header) + "|", *rest])


def fenced(text: str, language: str = "text") -> str:
    """Returns text as a fenced code block; the text may contain backquotes."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _blocks(blocks: Iterable[Block]) -> list[str]:
    return [text for block in blocks if (text := _block(block))]


def _block(block: Block) -> str:
    match block:
        case Text(text):
            return line(text)
        case Code(text, language):
            return fenced(text, language)
        case Highlights(figures):
            return " · ".join(f"**{line(value)}** {line(name)}" for name, value in figures)
        case Table(header, rows, caption=caption):
            return "\n\n".join([*([f"{line(caption)}:"] if caption else []), table(header, rows)])
        case Figure(title, file=file):
            return f"![{line(title)}]({file})" if file else ""
        case Gallery(figures, title, file):
            return f"![{line(title)}]({file})" if file else "\n\n".join(_blocks(figures))
        case Overlay():
            return ""
        case Folded(title, inner):
            return "\n\n".join([f"<details>\n<summary>{line(title)}</summary>", *_blocks(inner), "</details>"])
