"""TMX (translation memories): a row per unit, a column per language; the file is streamed and never in memory.

Entities that the document declares are rejected, so that a small file cannot expand into a large one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from toolkit.base.errors import DataError
from toolkit.base.files import cached_while_unchanged
from toolkit.data.readers.raw import RawRow, Reading

_CHUNK = 2**16
_CODE = ("bpt", "ept", "it", "ph", "ut")
"""Inline elements whose content is formatting of the original document, not text."""


class _Units:
    """Handlers of expat: collects the complete units, each a list of language codes and texts."""

    def __init__(self, file: Path, encoding: str | None) -> None:
        self.units: list[list[tuple[str, str]]] = []
        self._file = file
        self._unit: list[tuple[str, str]] = []
        self._language = ""
        self._text: list[str] | None = None
        self._code = 0
        self.parser = expat.ParserCreate(encoding)
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.EntityDeclHandler = self._reject
        self.parser.SkippedEntityHandler = self._skipped

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "tu":
            self._unit = []
        elif name == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang") or ""
        elif name == "seg":
            self._text = []
        self._code += name in _CODE

    def _end(self, name: str) -> None:
        self._code -= name in _CODE
        if name == "seg":
            self._unit.append((self._language, "".join(self._text or [])))
            self._text = None
        elif name == "tu":
            self.units.append(self._unit)

    def _characters(self, text: str) -> None:
        if self._text is not None and not self._code:
            self._text.append(text)

    def _skipped(self, name: str, is_parameter: bool) -> None:
        if not is_parameter:  # of the document type, which is not read: kept as written
            self._characters(f"&{name};")

    def _reject(self, name: str, *declaration: object) -> NoReturn:
        raise DataError(f"{self._file} declares the entity {name!r}, which is not allowed. Remove its declaration.")


def _units(file: Path, encoding: str | None) -> Iterator[list[tuple[str, str]]]:
    found = _Units(file, encoding)
    try:
        with file.open("rb") as opened:
            while chunk := opened.read(_CHUNK):
                found.parser.Parse(chunk, False)
                yield from found.units
                found.units.clear()
        found.parser.Parse(b"", True)
    except (expat.ExpatError, LookupError, ValueError) as error:
        raise DataError(f"{file} is not valid XML: {error}.") from error


@cached_while_unchanged
def _columns(file: Path, encoding: str | None) -> dict[str, str]:
    """Returns the column of each language code: the language without its region, unless two regions would share it."""
    codes = sorted({code for unit in _units(file, encoding) for code, _ in unit if code})
    languages = {code: code.replace("_", "-").partition("-")[0].lower() for code in codes}
    shared = list(languages.values())
    return {code: language if shared.count(language) == 1 else code for code, language in languages.items()}


def read(file: Path, reading: Reading) -> Iterator[RawRow]:
    """Streams the translation units, numbered from 1, with a column for each language: `en` for `en` or `en-US`.

    Text keeps its words and loses its inline formatting codes. A unit with two texts in the same language is a bad row.
    """
    columns = _columns(file, reading.encoding)
    for number, unit in enumerate(_units(file, reading.encoding), start=1):
        values = {columns.get(code, code): text for code, text in unit}
        codes = [code for code, _ in unit]
        twice = next((code for code in codes if codes.count(code) > 1), None)
        reason = "a text has no language (xml:lang)" if "" in codes else None
        yield RawRow(number, values, f"more than one text in the language {twice!r}" if twice else reason)


def note(file: Path, reading: Reading) -> str | None:
    """Returns a note about the columns of a file."""
    columns = _columns(file, reading.encoding)
    names = [column if column == code else f"{column} ({code})" for code, column in sorted(columns.items())]
    return f"its columns are {', '.join(names)}" if names else None
