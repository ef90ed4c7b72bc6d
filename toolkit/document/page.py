"""Renders a report as one self-contained HTML file: no network, no other files, no libraries."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.base.version import __version__
from toolkit.document.blocks import Section, shown, sort_value

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"


def render(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Returns a report as HTML.

    Any text may come from the user's rows. All texts are escaped, and the page's content security policy blocks all
    network requests and all scripts except the one of the template.

    Args:
        title: title of the page.
        lead: sentence below the title; may be empty.
        sections: content of the report.

    Returns:
        The HTML document.
    """
    document = _environment().get_template("page.html")
    return document.render(title=title, lead=lead, sections=sections, policy=_policy(), version=__version__)


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
    environment.filters |= {"shown": shown, "sort_value": sort_value, "data_uri": _data_uri}
    return environment


@lru_cache(maxsize=1)
def _policy() -> str:
    """Returns the content security policy: only the page's own styles, images, and script (by its hash)."""
    script = _environment().get_template("sort.js").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _data_uri(picture: bytes) -> str:
    kind = "jpeg" if picture.startswith(b"\xff\xd8") else "png"
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"
