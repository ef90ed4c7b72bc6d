"""Where files of the repository are in the site: pages of docs/, and what they link to outside docs/.

Markdown files become pages, other texts pages that show them, folders lists of their files, and everything else is
copied. Links in the pages stay as they work on a repository host, and are changed while the site is built.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOVED = {"README.md": "index.md", "docs/README.md": "contents.md"}
"""Files that have another name in the site, because `README.md` would be the first page of its folder."""
COPIED = {".json", ".svg", ".png", ".csv", ".jsonl"}
LANGUAGES = {".py": "python", ".yaml": "yaml", ".sbatch": "bash", ".sh": "bash", ".c": "c", ".toml": "toml"}
FENCED = re.compile(r"^( *)(```+).*?^\1\2 *$", re.M | re.S)
LINK = re.compile(r"(?<=\]\()[^)\s]+(?=\))")
SCHEME = re.compile(r"[a-z]+:")


def place(path: str) -> str:
    """Returns the source file in the site of a file or folder.

    Args:
        path: relative to the repository, with `/`.
    """
    if path in MOVED:
        return MOVED[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"repository/{path}/files.md"
    if path.endswith("/README.md"):
        return f"repository/{path.removesuffix('/README.md')}.md"
    return f"repository/{path}" if Path(path).suffix in {".md", *COPIED} else f"repository/{path}.md"


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Returns Markdown in which a function has changed all that is not in fenced code."""
    parts, end = [], 0
    for block in FENCED.finditer(text):
        parts += [change(text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, change(text[end:])])


def target(link: str, path: str) -> str | None:
    """Returns the file or folder of the repository that a link in a file leads to; None if it leads nowhere in it."""
    file = link.partition("#")[0]
    if not file or SCHEME.match(link):
        return None
    found = posixpath.normpath(posixpath.join(posixpath.dirname(path), file))
    return found if not found.startswith("..") and (ROOT / found).exists() else None


def links(text: str, path: str) -> Iterator[str]:
    """Yields the files and folders of the repository that a Markdown file links to."""
    for link in LINK.findall(FENCED.sub("", text)):
        if (found := target(link, path)) is not None:
            yield found


def relinked(text: str, path: str) -> str:
    """Returns the text of a Markdown file with links as they are in the site."""
    folder = posixpath.dirname(place(path))

    def there(link: re.Match[str]) -> str:
        found = target(link[0], path)
        if found is None:
            return link[0]
        anchor = link[0].partition("#")[1:]
        return posixpath.relpath(place(found), folder or ".") + "".join(anchor)

    return outside_code(text, lambda part: LINK.sub(there, part))


def outside(pages: list[str]) -> list[str]:
    """Returns all files and folders outside docs/ that pages link to, directly or through others, sorted."""
    found: set[str] = set()
    waiting = list(pages)
    while waiting:
        path = waiting.pop()
        for name in links(source(path), path) if path.endswith(".md") or (ROOT / path).is_dir() else ():
            if name not in found and not name.startswith("docs/"):
                found.add(name)
                waiting.append(name)
    return sorted(found)


def source(path: str) -> str:
    """Returns the Markdown of a file's or folder's page, with links as in the repository."""
    file = ROOT / path
    if file.is_dir():
        inside = sorted(each for each in file.iterdir() if each.is_file() and not each.name.startswith("."))
        # Links are relative to the folder, in which this page is, too.
        names = "\n".join(f"- [{each.name}]({file.name}/{each.name})" for each in inside)
        return f"{_hidden()}# {path}\n\n{names}\n"
    text = file.read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    return f"{_hidden()}# {path}\n\n````{LANGUAGES.get(file.suffix, 'text')}\n{text.rstrip()}\n````\n"


def _hidden() -> str:
    """Returns the front matter of pages that are not found by a search."""
    return "---\nsearch:\n  exclude: true\n---\n\n"
