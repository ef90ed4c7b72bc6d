"""Renders a report as one self-contained HTML file: no network, no other files, no libraries."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.base.version import __version__
from toolkit.document.blocks import Overlay, Section, shown, sort_value

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"


def render_html(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Returns a report as HTML.

    Any text may come from the user's rows. All texts are escaped, and the page's content security policy blocks all
    network requests and all scripts except those of the templates.

    Args:
        title: title of the page.
        lead: sentence below the title; may be empty.
        sections: content of the report.

    Returns:
        The HTML document.
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
