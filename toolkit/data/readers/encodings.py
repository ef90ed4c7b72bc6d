"""Encodings of text files: byte-order marks and UTF-8 are recognised; any other encoding is suggested, never assumed.

Single-byte encodings decode almost any bytes, so a wrong guess would train on wrong text without an error.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TextIO

from toolkit.base.errors import DataError
from toolkit.base.files import cached_while_unchanged

UTF_8 = "utf-8"
"""UTF-8, with or without a byte-order mark."""
_MARKS = {  # longer ones first: UTF-16's is the beginning of UTF-32's
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: UTF_8,
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_CHUNK = 2**20
_HEAD = 2**16
_ESCAPED = re.compile("[\udc80-\udcff]")
"""Invalid bytes in text that was decoded with `surrogateescape`."""
_SIGN_IN_WORD = re.compile(r"(?<=[^\W\d_])[\xa1-\xa9\xab-\xb3\xb5\xb6\xb8\xb9\xbb-\xbf\xd7\xf7](?=[^\W\d_])")
"""Signs inside words, as other encodings (Polish, for instance) have when they are read as Windows-1252."""
_SAMPLE = 2**18
_EXCERPT_CHARS = 12


class _Scan(NamedTuple):
    """Characters of a file that are not ASCII, in UTF-8: how many are valid, how many are invalid bytes."""

    valid: int
    invalid: int


def open_text(file: Path, encoding: str, newline: str | None = None) -> TextIO:
    """Opens a text file; bytes that are not UTF-8 affect only their own row (`toolkit.data.readers.raw.not_text`)."""
    if encoding == UTF_8:
        return file.open(encoding="utf-8-sig", errors="surrogateescape", newline=newline)
    return file.open(encoding=encoding, newline=newline)


def decoded(content: bytes, given: str | None) -> str:
    """Returns the text of a small file; bytes that are neither UTF-8 nor of the `given` encoding stay as they are."""
    mark = next((name for mark, name in _MARKS.items() if content.startswith(mark)), None)
    for encoding in filter(None, (mark, UTF_8, given)):
        with suppress(UnicodeError):
            return content.decode(encoding).removeprefix("\ufeff")
    return content.decode(errors="surrogateescape")


def recognised_encoding(found: str, given: str | None) -> list[str]:
    """Returns the setting that an encoding amounts to, if it is neither the given one nor UTF-8 by default."""
    return [] if codecs.lookup(found) == codecs.lookup(given or UTF_8) else [f"data.encoding={found}"]


@cached_while_unchanged
def text_encoding(file: Path, given: str | None) -> str:
    """Returns the Python name of a text file's encoding.

    A byte-order mark and UTF-8 have priority over `given`; None recognises UTF-16, too. Raises DataError if the
    encoding is neither known nor given, or the file does not have the given one.
    """
    with file.open("rb") as opened:
        head = opened.read(_HEAD)
    if mark := next((mark for mark in _MARKS if head.startswith(mark)), None):
        if _MARKS[mark] != UTF_8:
            _require(file, _MARKS[mark], "its byte-order mark says so")
        return _MARKS[mark]
    scan = _scan(file)
    if given is not None and not (scan.valid and not scan.invalid):
        if codecs.lookup(given).name == UTF_8:
            return UTF_8
        _require(file, given, "data.encoding")
        return given
    if given is None and (zeros := _zeros(head)):
        if zeros == "binary":
            raise DataError(f"{file} is not text: it has many NUL bytes, like a binary file.")
        _require(file, zeros, "half of its bytes are NUL")
        return zeros
    # One line that is not UTF-8 is a bad row, and so are several among lines of valid UTF-8.
    if scan.invalid > scan.valid and len(lines := _invalid_lines(file)) > 1:
        raise DataError(_suggestion(file, *lines[0]))
    return UTF_8


def _zeros(head: bytes) -> str | None:
    """Returns which UTF-16 the NUL bytes of a file's beginning mean, `binary`, or None if there are few."""
    even, odd = head[::2].count(0), head[1::2].count(0)
    # Half of the bytes of ASCII text in UTF-16 are NUL. A single NUL byte is reported with its row.
    if 10 * (even + odd) <= len(head):
        return None
    return "utf-16-le" if odd > 9 * even else "utf-16-be" if even > 9 * odd else "binary"


def _chunks(file: Path, encoding: str, errors: str) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            yield decoder.decode(chunk)
    yield decoder.decode(b"", final=True)


def _scan(file: Path) -> _Scan:
    others = invalid = 0
    for text in _chunks(file, "utf-8", "surrogateescape"):
        if not text.isascii():
            others += len(text) - len(text.encode("ascii", "ignore"))
            invalid += len(_ESCAPED.findall(text))
    return _Scan(others - invalid, invalid)


def _require(file: Path, encoding: str, why: str) -> None:
    """Raises DataError if a file cannot be decoded."""
    try:
        for _ in _chunks(file, encoding, "strict"):
            pass
    except UnicodeError as error:
        raise DataError(
            f"{file} cannot be decoded as {encoding} ({why}): {getattr(error, 'reason', error)}. "
            "Set data.encoding to its encoding, or save it as UTF-8."
        ) from error


def _invalid_lines(file: Path) -> list[tuple[int, str]]:
    """Returns the first two lines that are not UTF-8, with their numbers."""
    with open_text(file, UTF_8) as opened:
        return list(islice(((number, line) for number, line in enumerate(opened, 1) if _ESCAPED.search(line)), 2))


def _suggestion(file: Path, number: int, line: str) -> str:
    """Returns the message about a file that is not UTF-8, with its likely encoding and how that reads a line."""
    content = file.read_bytes() if file.stat().st_size <= _SAMPLE else _around(file)
    place = f"the first such byte is in line {number}"
    encoding = likely_encoding(content)
    if encoding is None:
        return f"{file} is not UTF-8 text ({place}). Set data.encoding to its encoding, or save it as UTF-8."
    text = line.encode("utf-8", "surrogateescape").decode(encoding, "replace")
    at = next(index for index, character in enumerate(text) if not character.isascii())
    excerpt = text[max(0, at - _EXCERPT_CHARS) : at + _EXCERPT_CHARS].strip()
    return (
        f"{file} is not UTF-8 text ({place}). It looks like {_name(encoding)}, which reads {excerpt!r} there: "
        f"set data.encoding={encoding} if that is right, or save the file as UTF-8."
    )


def _around(file: Path) -> bytes:
    """Returns the lines of a file with bytes that are not UTF-8, up to a limit."""
    found, size = [], 0
    with file.open("rb") as opened:
        for line in opened:
            if not line.isascii():
                found.append(line)
                size += len(line)
                if size > _SAMPLE:
                    break
    return b"".join(found)


def likely_encoding(content: bytes) -> str | None:
    """Returns the Python name of the likely encoding of text that is not UTF-8, or None.

    It is a guess for messages: text of a Western European language is told from others by its few letters with accents,
    and any other encoding is detected by charset-normalizer.
    """
    from charset_normalizer import from_bytes

    try:
        text = content.decode("cp1252")
    except UnicodeDecodeError:
        text = ""
    letters = [character for character in text if character.isalpha()]
    accented = sum(not character.isascii() for character in letters)
    if text and 3 * accented < len(letters) and 10 * len(_SIGN_IN_WORD.findall(text)) <= accented:
        return "cp1252"
    best = from_bytes(content).best()
    return best.encoding if best is not None else None


def _name(encoding: str) -> str:
    return f"Windows-{encoding[2:]}" if encoding.startswith("cp125") else encoding
