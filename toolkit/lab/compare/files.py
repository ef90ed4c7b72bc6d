"""Writes the files of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write(found: Mapping[str, Any], folder: Path) -> None:
    """Writes `comparison.json`, `comparison.html`, `comparison.md` and the charts of the latter to `folder`."""
    from toolkit.base.files import write_json, write_text
    from toolkit.document import markdown, page
    from toolkit.document.blocks import Gallery
    from toolkit.document.svg import sheet
    from toolkit.lab.compare.page import sections, title_and_lead

    write_json(folder / "comparison.json", found)
    said = (*title_and_lead(found), sections(found))
    write_text(folder / "comparison.md", markdown.render(*said))
    write_text(folder / "comparison.html", page.render(*said))
    galleries = [block for section in said[2] for block in section.blocks if isinstance(block, Gallery)]
    for figure in (figure for gallery in galleries for figure in gallery.figures):
        if figure.drawing is not None:
            write_text(folder / figure.file, sheet([figure.drawing]))
