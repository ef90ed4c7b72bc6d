"""Renders a report as HTML, as Markdown and in the terminal, and writes its files."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.base.console import PLAIN_WIDTH, plain, rich_console, say
from toolkit.base.files import write_text
from toolkit.base.version import __version__
from toolkit.document.blocks import (
    Block,
    Code,
    Figure,
    Folded,
    Gallery,
    Highlights,
    Marked,
    Overlay,
    Page,
    Section,
    Table,
    Text,
    shown,
    sort_value,
)
from toolkit.document.charts import Axis, axis
from toolkit.document.svg import Drawing, sheet

if TYPE_CHECKING:
    from jinja2 import Environment


_MARKUP = re.compile(r"[\\`*\[\]~]|(?<![^\W_])_|_(?![^\W_])")
"""Characters that begin or end markup; an underscore inside a word does not."""


_MARKS = {"": "", "mark": "**", "ins": "*", "del": "~~"}


def render_markdown(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Returns a report as Markdown; the arguments are those of `toolkit.document.render.render_html`."""
    parts = [f"# {line(title)}", *([line(lead)] if lead else [])]
    for section in sections:
        parts += [f"## {line(section.title)}", *_blocks(section.blocks)]
    return "\n\n".join(parts) + "\n"


def line(value: Any) -> str:
    """Returns a value as one line that is shown as it is, but for marked words: Markdown and HTML in it are escaped."""
    if isinstance(value, Marked):
        return " ".join(f"{_MARKS[mark]}{line(word)}{_MARKS[mark]}" for word, mark in value.words)
    return _MARKUP.sub(r"\\\g<0>", " ".join(str(value).split())).replace("&", "&amp;").replace("<", "&lt;")


def table(header: Sequence[str], rows: Iterable[Sequence[Any]], marked_up: bool = False) -> str:
    """Returns a Markdown table of cells as those of `Table`; `marked_up` ones are Markdown already."""
    lines = [header, *([value if isinstance(value, Marked) else shown(value) for value in row] for row in rows)]
    shown_cell = str if marked_up else line
    escaped = ([shown_cell(value).replace("|", "\\|") for value in each] for each in lines)
    first, *rest = (f"| {' | '.join(each)} |" for each in escaped)
    return "\n".join([first, "|---" * len(header) + "|", *rest])


def fenced(text: str, language: str = "text") -> str:
    """Returns text as a fenced code block; the text may contain backquotes."""
    fence = "`" * max([3, *(len(quotes) + 1 for quotes in re.findall("`+", text))])
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


TEMPLATES = Path(__file__).parent / "templates"


def render_html(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Returns a report as an HTML document; the `lead` below the title may be empty.

    Any text may come from the user's rows. All texts are escaped, and the page's content security policy blocks all
    network requests and all scripts except those of the templates.
    """
    document = _environment().get_template("page.html")
    overlaid = any(isinstance(block, Overlay) for section in sections for block in section.blocks)
    policy = _policy("sort.js", "overlay.js") if overlaid else _policy("sort.js")
    return document.render(
        title=title, lead=lead, sections=sections, policy=policy, overlaid=overlaid, version=__version__
    )


@lru_cache(maxsize=1)
def _environment() -> Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}  # charts have an order
    environment.filters |= {"shown": shown, "sort_value": sort_value, "data_uri": _data_uri}
    return environment


@lru_cache
def _policy(*names: str) -> str:
    """Returns the content security policy: only the page's own styles, images, and scripts (by their hashes)."""
    scripts = (_environment().get_template(name).render() for name in names)
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}; "
        "base-uri 'none'; form-action 'none'"
    )


def _data_uri(picture: bytes) -> str:
    kind = "jpeg" if picture.startswith(b"\xff\xd8") else "png"
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"


COLUMNS, ROWS = 66, 14
"""Characters of the plot, without its axis."""


def text_chart(
    xs: Sequence[float], ys: Sequence[float], marks: Mapping[str, float], x_label: str, y_label: str
) -> list[str]:
    """Draws `[N]` values over `[N]` positive ones on a logarithmic axis, in lines of at most 80 characters.

    NaN leaves a gap; a letter each marks the values of x in `marks`.
    """
    x = axis(np.asarray(xs, dtype=float), 0, COLUMNS - 1, log=True)
    y = axis(np.asarray(ys, dtype=float), ROWS - 1, 0)
    cells = [[" "] * COLUMNS for _ in range(ROWS)]
    columns, rows = x.place(np.asarray(xs, dtype=float)), y.place(np.asarray(ys, dtype=float))
    there = np.isfinite(rows)
    for column in range(round(columns[there].min()), round(columns[there].max()) + 1):
        cells[round(float(np.interp(column, columns[there], rows[there])))][column] = "*"
    for letter, value in marks.items():
        column = round(float(x.place(np.asarray([value]))[0]))
        for row in cells:
            row[column] = "|" if row[column] == " " else row[column]
        cells[0][column] = letter
    names = {round(float(y.place(np.asarray([value]))[0])): name for value, name in y.ticks}
    wide = max(len(name) for name in names.values())
    lines = [f"{names.get(number, ''):>{wide}} |{''.join(row).rstrip()}" for number, row in enumerate(cells)]
    return [y_label, *lines, f"{' ' * wide} +{'-' * COLUMNS}", f"{' ' * wide}  {_below(x)}", f"{' ' * wide}  {x_label}"]


def _below(x: Axis) -> str:
    """Returns the line of the horizontal axis's labels; skips those that would touch the one before."""
    line = ""
    for value, name in x.ticks:
        column = round(float(x.place(np.asarray([value]))[0]))
        start = max(0, min(column - len(name) // 2, COLUMNS - len(name)))
        if not line or start > len(line):
            line = f"{line:<{start}}{name}"
    return line


def print_table(table: Table) -> None:
    """Prints a table, 80 columns wide if the output is a file or a pipe; titles of numbers wrap to their width."""
    from rich import table as rich

    drawn = rich.Table(title=table.caption or None, title_justify="left", title_style="bold", box=None, pad_edge=False)
    rows = [[shown(value) for value in row] for row in table.rows]
    for place, (name, numeric) in enumerate(zip(table.header, table.numeric, strict=True)):
        wide = max((len(line) for row in rows for line in row[place].splitlines()), default=0)
        title = fill(name, max(wide, 10), break_long_words=False, break_on_hyphens=False) if numeric else name
        drawn.add_column(plain(title), justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    for row in rows:
        drawn.add_row(*map(plain, row))
    rich_console().print(drawn)


def print_blocks(blocks: Iterable[Block]) -> None:
    """Prints tables, texts wrapped to 80 columns, and code; a blank line between two blocks, and no pictures."""
    for number, block in enumerate(each for each in blocks if isinstance(each, Text | Code | Highlights | Table)):
        if number:
            say("")
        match block:
            case Table():
                print_table(block)
            case Highlights(figures):
                say(" · ".join(f"{name} {value}" for name, value in figures))
            case Text(text):
                say(fill(text, PLAIN_WIDTH, break_long_words=False, break_on_hyphens=False))
            case Code(text):
                say(text)


def save_page(folder: Path, name: str, page: Page) -> None:
    """Writes a report as `name` .html and .md, and the drawings that the latter names as SVG files."""
    write_text(folder / f"{name}.md", render_markdown(*page))
    write_text(folder / f"{name}.html", render_html(*page))
    for file, drawings in _drawings(block for section in page.sections for block in section.blocks):
        write_text(folder / file, sheet(drawings))


def _drawings(blocks: Iterable[Block]) -> Iterator[tuple[str, list[Drawing]]]:
    """Yields the names of image files with their drawings; the figures of a gallery that has a file share it."""
    for block in blocks:
        match block:
            case Figure(drawing=Drawing() as drawing, file=file) if file:
                yield file, [drawing]
            case Gallery(figures, file=file) if file:
                yield file, [figure.drawing for figure in figures if figure.drawing is not None]
            case Gallery(figures):
                yield from _drawings(figures)
