"""Writes a report in all of its formats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toolkit.base.files import write_text
from toolkit.document import page, render
from toolkit.document.blocks import Gallery, Section
from toolkit.document.svg import sheet


def write_document(folder: Path, name: str, title: str, lead: str, sections: Sequence[Section]) -> None:
    """Writes a report as HTML and Markdown, and the drawings in its galleries as SVG files for the latter.

    Args:
        folder: the folder to write to.
        name: name of the files, without their ending.
        title: title of the page.
        lead: sentence below the title; may be empty.
        sections: content of the report.
    """
    write_text(folder / f"{name}.md", render.render_markdown(title, lead, sections))
    write_text(folder / f"{name}.html", page.render_html(title, lead, sections))
    galleries = [block for section in sections for block in section.blocks if isinstance(block, Gallery)]
    for figure in (figure for gallery in galleries for figure in gallery.figures):
        if figure.drawing is not None:
            write_text(folder / figure.file, sheet([figure.drawing]))
