"""Templates in `data.columns`: text that is made of several columns of a file, such as `"{title}: {body}"`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from toolkit.config.messages import join


@cache
def parts_of(given: str) -> tuple[str, ...]:
    """Returns the file's columns that a value of `data.columns` reads: those in its braces, or the one it names."""
    fields = [part[1:-1] for part in re.findall(r"\{\{|\}\}|\{[^{}]*\}", given) if part not in ("{{", "}}")]
    return tuple(dict.fromkeys(fields)) or (given.replace("{{", "{").replace("}}", "}"),)


@cache
def is_template(given: str) -> bool:
    """Whether a value of `data.columns` has columns in braces."""
    return parts_of(given) != (given.replace("{{", "{").replace("}}", "}"),)


def escaped(name: str) -> str:
    """Returns the value of `data.columns` for a column whose name may have braces."""
    return name.replace("{", "{{").replace("}", "}}")


def named(given: str) -> str:
    """Returns the columns of a value of `data.columns`, for a message."""
    parts = [repr(part) for part in parts_of(given)]
    return f"column{'s' * (len(parts) > 1)} {join(parts, 'and')}"


def fill(template: str, row: Mapping[str, Any]) -> str:
    """Returns a template with the values of a row's columns.

    A line whose columns are all empty is omitted; if those of all lines are, the text is empty.
    """
    lines, filled = [], False
    for line in template.split("\n"):
        parts = re.split(r"(\{\{|\}\}|\{[^{}]*\})", line)
        fields = {part: row.get(part[1:-1]) for part in parts[1::2] if part not in ("{{", "}}")}
        texts = {part: "" if value is None else str(value) for part, value in fields.items()}
        if any(text.strip() for text in texts.values()) or not texts:
            filled = filled or bool(texts)
            texts |= {"{{": "{", "}}": "}"}
            lines.append("".join(texts.get(part, part) for part in parts))
    return "\n".join(lines) if filled else ""


def template_problem(given: str) -> str | None:
    """Returns what is wrong with the braces of a value of `data.columns`, or None."""
    if re.search(r"[{}]", re.sub(r"\{\{|\}\}|\{[^{}]*\}", "", given)):
        return "a brace without its other half; write a brace of the text twice, as {{ or }}"
    if any(not part.strip() for part in parts_of(given)):
        return "braces without the name of a column"
    return None
