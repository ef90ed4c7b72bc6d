"""Writes the files of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write(found: Mapping[str, Any], folder: Path) -> None:
    """Writes `comparison.json`, `comparison.html`, `comparison.md` and the charts of the latter to `folder`."""
    from toolkit.base.files import write_json
    from toolkit.document.render import write_document
    from toolkit.lab.compare.page import sections, title_and_lead

    write_json(folder / "comparison.json", found)
    write_document(folder, "comparison", *title_and_lead(found), sections(found))
