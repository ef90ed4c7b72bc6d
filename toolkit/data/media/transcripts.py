"""Transcripts beside recordings, in folders and archives.

- `a.txt` beside `a.wav` holds its transcript and nothing else;
- `84-121123.trans.txt` has lines of an id and a transcript; the recordings `84-121123-0000.flac` are beside it
  (LibriSpeech, whose ids begin with the number of the speaker);
- `metadata.csv` has a column `file_name` and further ones (Hugging Face's audiofolder), or no header and lines of
  `id|transcript|normalised transcript` for `wavs/id.wav` (LJSpeech).
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import PurePosixPath
from typing import Any

from toolkit.base.errors import DataError
from toolkit.data.media.archives import ABOUT
from toolkit.data.readers.delimited import DELIMITERS, records
from toolkit.data.readers.encodings import decoded

TEXT, NAMED = "text", "file_name"
"""The columns with the transcripts of all layouts, and with the names of files in `metadata.csv`."""
TEXT_NAMES = (
    *(TEXT, "transcription", "transcript", "sentence", "utterance", "transcript_text", "transcription_text"),
    *("normalized_text", "normalised_text", "raw_text"),
)
"""Usual names of columns with transcripts, the most usual first."""
FOLDERS = ("clips", "wavs")
"""Folders beside a table that hold its recordings (Common Voice, LJSpeech)."""
METADATA, _LINES, _FILE = "metadata.csv", ".trans.txt", ".txt"
_LIBRISPEECH = re.compile(r"(\d+)-\d+-\d+")
Read = Callable[[str], bytes]
"""Returns the content of a file of the folder or archive."""


@dataclass(frozen=True)
class Entry:
    """What is said about a recording."""

    values: Mapping[str, Any]  # its row, without the recording itself
    reason: str | None = None  # why the row cannot be used, or None
    classed: bool = False  # whether the folder of the recording may be its class


Transcripts = Mapping[str, Sequence[Entry]]
"""What is said about recordings, by their paths; a transcript without a recording has the path of neither."""


def transcript_files(names: Sequence[str], recordings: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the files with transcripts; `recordings` are by their paths without suffix."""
    texts = {name: PurePosixPath(name) for name in names if name.lower().endswith(_FILE)}
    with_texts = {path.parent for path in texts.values() if str(path.with_suffix("")) in recordings}
    return [
        name
        for name in names
        if name.lower().endswith((f"/{METADATA}", _LINES)) or name.lower() == METADATA
        or (name in texts and texts[name].parent in with_texts and texts[name].stem.lower() not in ABOUT)
    ]  # fmt: skip


def read_transcripts(
    names: Sequence[str], recordings: Mapping[str, Sequence[str]], read: Read, encoding: str | None
) -> Transcripts:
    """Returns the transcripts of a folder; the arguments are those of `transcript_files`, and `data.encoding`.

    Raises DataError if a file with transcripts cannot be read.
    """
    found: dict[str, list[Entry]] = defaultdict(list)
    sources: dict[str, str] = {}
    for name in transcript_files(names, recordings):
        try:
            text = decoded(read(name), encoding)
        except (OSError, ValueError) as error:
            raise DataError(f"{name}, a file with transcripts, cannot be read: {error}") from error
        for recording, entry in _parts_of(name, text, recordings):
            if (first := sources.setdefault(recording, name)) != name and entry.reason is None:
                entry = replace(entry, reason=f"{recording}: has transcripts in {first} and in {name}")
            found[recording].append(entry)
    return found


def _parts_of(name: str, text: str, recordings: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Entry]]:
    """Yields the entries of a file with the recordings that they are about."""
    folder = name[: name.rfind("/") + 1]
    if name.lower().endswith(METADATA):
        yield from _of_table(name, folder, text, recordings)
    elif name.lower().endswith(_LINES):
        for line in filter(str.strip, text.split("\n")):
            key, _, said = line.strip().partition(" ")
            speaker = _LIBRISPEECH.fullmatch(key)
            values = {TEXT: said.strip() or None} | ({"speaker": speaker[1]} if speaker else {})
            yield from _matched(f"{folder}{key}", values, name, recordings)
    else:
        key = name[: -len(_FILE)]
        yield from _matched(key, {TEXT: " ".join(text.split()) or None}, name, recordings, classed=True)


def _matched(
    key: str, values: dict[str, Any], source: str, recordings: Mapping[str, Sequence[str]], classed: bool = False
) -> Iterator[tuple[str, Entry]]:
    """Yields an entry for each recording with a path without suffix, or one with the reason that there is none."""
    for recording in recordings.get(key, ()):
        yield recording, Entry(values, None, classed)
    if key not in recordings:
        yield key, Entry({"file": key, **values}, f"{key}: no recording has this name; its transcript is in {source}")


def _of_table(
    name: str, folder: str, text: str, recordings: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, Entry]]:
    lines = list(StringIO(text, newline=""))
    first = lines[0] if lines else ""
    delimiter = next((each for each in DELIMITERS if NAMED in next(csv.reader([first], delimiter=each), ())), None)
    if delimiter is None and "|" not in first:
        yield name, Entry({"file": name}, f"{name}: has no column {NAMED}, and is not LJSpeech's `id|transcript`")
    elif delimiter is None:
        for key, *said in (line.strip().split("|") for line in filter(str.strip, lines)):
            places = [f"{folder}{each}/{key}" for each in FOLDERS if f"{folder}{each}/{key}" in recordings]
            values = {TEXT: said[-1] or None, "raw_text": said[0]} if said else {TEXT: None}
            yield from _matched([*places, f"{folder}{key}"][0], values, name, recordings)
    else:
        rows = records(lines, delimiter, "minimal")
        _, header = next(rows)
        for number, record in rows:
            reason: str | None = f"{len(record)} fields where the header has {len(header)}"
            if isinstance(record, str):
                reason, record = record, []
            elif len(record) == len(header):
                reason = None
            values: dict[str, Any] = dict(zip(header, record, strict=False))
            said = next((values.pop(each) for each in TEXT_NAMES if each in values), None)
            file = f"{folder}{values.pop(NAMED, None) or name}"
            values |= {} if said is None else {TEXT: said}
            yield file, Entry(values, reason and f"{name}, line {number}: {reason}", said is None)
