"""Builds the site of mkdocs from the repository as it is: see docs/website/repository.py and mkdocs.yml.

- The navigation is that of docs/README.md: a section for each heading, an entry for each row.
- Files outside docs/ that pages link to are added, and links lead to them.
- The pages are written for repository hosts; where Python-Markdown reads them differently, they are changed.
- Commands and settings are rendered from the code again.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from importlib import import_module
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, InclusionLevel
from repository import COPIED, ROOT, links, outside, outside_code, place, relinked, source

CONTENTS = "docs/README.md"
RENDERED = {"commands.md": "render_commands", "settings.md": "render_settings"}
"""Pages that the scripts of docs/ write from the code."""


def navigation() -> list[dict[str, list[str]]]:
    """Returns the pages of each section of docs/README.md.

    Raises:
        PluginError: if a page of docs/ is in none, or a page is in two places.
    """
    found = []
    for section in source(CONTENTS).split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        found.append({title: [place(path) for path in links(text, CONTENTS)]})
    named = [page for section in found for pages in section.values() for page in pages]
    if twice := sorted({page for page in named if named.count(page) > 1}):
        raise PluginError(f"list these pages once in {CONTENTS}: {', '.join(twice)}")
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").glob("**/*.md")} - {"README.md"}
    if missing := sorted(pages - set(named)):
        raise PluginError(f"list these pages in {CONTENTS}: {', '.join(missing)}")
    found[0][next(iter(found[0]))].append(place(CONTENTS))
    return found


def on_config(config: Any) -> Any:
    """Sets the navigation, and lets scripts of docs/ be imported."""
    sys.path[:0] = {str(ROOT), str(ROOT / "docs")} - set(sys.path)
    config.nav = navigation()
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds README.md, and the files outside docs/ that pages link to."""
    config.extra["paths"] = paths = {}
    added = ["README.md", CONTENTS, *outside(["README.md", CONTENTS, *(f"docs/{f.src_uri}" for f in _pages(files))])]
    for path in dict.fromkeys(added):
        paths[place(path)] = path
        copied = (ROOT / path).suffix in COPIED
        content = {"abs_src_path": str(ROOT / path)} if copied else {"content": source(path)}
        files.append(File.generated(config, place(path), inclusion=InclusionLevel.INCLUDED, **content))
    return files


def _pages(files: Any) -> list[Any]:
    return [file for file in files if file.is_documentation_page()]


def on_page_read_source(page: Any, config: Any) -> str | None:
    """Renders the pages that are written from the code."""
    if page.file.src_uri == "python_reference.md":
        return import_module("render_python").bare()  # the site has the complete docstrings
    script = RENDERED.get(page.file.src_uri)
    return import_module(script).rendered() if script else None


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Changes links to those of the site, and what Python-Markdown reads differently."""
    uri = page.file.src_uri
    text = relinked(markdown, config.extra["paths"].get(uri, f"docs/{uri}"))
    return titled(indented(outside_code(text, without_comments)))


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Lets long names in tables be broken after points and the like, so that columns are narrow enough for a phone."""
    breaks = partial(re.sub, r"(?<=\w)([._/=|])(?=\w)", r"\1<wbr>")
    code = re.compile(r"(?<=<code>)[^<&]+(?=</code>)")
    return re.sub(r"<table>.*?</table>", lambda table: code.sub(lambda c: breaks(c[0]), table[0]), html, flags=re.S)


def without_comments(text: str) -> str:
    """Returns Markdown without comments, which would hide a table below; `<!-- ::: name -->` shows a docstring."""
    return re.sub(r"^<!-- (.*?) ?-->$", lambda c: f"\n{c[1] if c[1].startswith(':::') else ''}\n", text, flags=re.M)


def indented(text: str) -> str:
    """Returns Markdown in which the parts of numbered entries are indented by four blanks, not by three."""
    lines, inside = [], False
    for line in text.splitlines():
        if re.match(r"\d+\. ", line):
            inside = True
        elif line and not line.startswith("   "):
            inside = False
        lines.append(f" {line}" if inside and line.startswith("   ") else line)
    return "\n".join(lines) + "\n"


def titled(text: str) -> str:
    """Returns Markdown in which the words after a code block's language are its title."""
    return re.sub(r"^( *```\w+) ([^`=\n]+)$", r'\1 title="\2"', text, flags=re.M)
