"""Writes the names of the Python interface, with their parameters and first sentences, into docs/python_reference.md.

python docs/render_python.py

A comment `<!-- ::: name -->` names a class, a function or a module; the list below it is written. The site shows the
complete docstrings instead (docs/website/hooks.py).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from toolkit.base.package import import_object

PAGE = Path(__file__).with_name("python_reference.md")
WRITTEN = re.compile(r"^(<!-- ::: ([\w.]+) -->)\n(?: *- .*\n)*", re.M)
"""A comment that names something, and the list below it."""


def signature(thing: Any) -> str:
    """Returns the parameters of a function or class with their defaults; empty for what is not called."""
    try:
        given = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return ""
    plain = [each.replace(annotation=each.empty) for each in given if each.name not in ("self", "cls")]
    shown = [each if _is_short(each.default) else each.replace(default=...) for each in plain]
    return str(inspect.Signature(shown)).replace("Ellipsis", "...")


def _is_short(default: object) -> bool:
    return (
        default is None or isinstance(default, str | int | float | bool | tuple) or default is inspect.Parameter.empty
    )


def sentence(thing: Any) -> str:
    """Returns the first paragraph of a docstring in one line, as Markdown."""
    first = (inspect.getdoc(thing) or "").partition("\n\n")[0]
    return " ".join(first.split()).replace("|", "\\|")


def entries(thing: Any, name: str, depth: int = 0) -> Iterator[str]:
    """Yields a line for a class or function and, indented, for the public methods of a class that it defines."""
    words = sentence(thing)
    parameters = "" if isinstance(thing, property) or inspect.isabstract(thing) else signature(thing)
    yield f"{'  ' * depth}- `{name}{parameters}`" + (f": {words}" if words else "")
    if inspect.isclass(thing) and not issubclass(thing, BaseException):
        for own, member in vars(thing).items():
            member = getattr(member, "__func__", member)  # of class methods and static ones
            if not own.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                yield from entries(member, own, depth + 1)


def lines(name: str) -> Iterator[str]:
    """Yields the lines of the list below a comment."""
    thing = import_object(name)
    if not isinstance(thing, ModuleType):
        yield from entries(thing, name.rpartition(".")[2])
        return
    for own, member in vars(thing).items():
        called = inspect.isclass(member) or inspect.isfunction(member)
        if called and not own.startswith("_") and member.__module__ == name:
            yield from entries(member, own)


def bare() -> str:
    """Returns the page without the lists."""
    return WRITTEN.sub(r"\1\n", PAGE.read_text(encoding="utf-8"))


def rendered() -> str:
    """Returns the page with the lists of the present code."""
    return WRITTEN.sub(lambda found: f"{found[1]}\n" + "".join(f"{each}\n" for each in lines(found[2])), bare())


if __name__ == "__main__":
    PAGE.write_text(rendered(), encoding="utf-8")
