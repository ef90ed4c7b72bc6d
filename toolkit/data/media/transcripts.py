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
from dataclasses import dataclass
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
_LJSPEECH = [NAMED, "raw_text", "normalized_text"]
_LIBRISPEECH = re.compile(r"(\d+)-\d+-\d+")


@dataclass(frozen=True)
class Entry:
    """What is said about a recording."""

    values: Mapping[str, Any]  # its row, without the recording itself
    reason: str | None = None  # why the row cannot be used, or None
    classed: bool = False  # whether the folder of the recording may be its class


Transcripts = Mapping[str, Sequence[Entry]]
"""What is said about recordings, by their paths; a transcript without a recording has its path without suffix."""


def transcript_files(names: Sequence[str], recordings: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the files with transcripts; `recordings` are by their paths without suffix."""
    texts = {name: PurePosixPath(name[: -len(_FILE)]) for name in names if name.lower().endswith(_FILE)}
    found = {name for name, stem in texts.items() if str(stem) in recordings}
    folders = {texts[name].parent for name in found}
    found |= {name for name, stem in texts.items() if stem.parent in folders and stem.name.lower() not in ABOUT}
    others = lambda name: name.lower().endswith(_LINES) or PurePosixPath(name).name.lower() == METADATA  # noqa: E731
    return [name for name in names if name in found or others(name)]


def read_transcripts(
    names: Sequence[str], recordings: Mapping[str, Sequence[str]], read: Callable[[str], bytes], encoding: str | None
) -> Transcripts:
    """Returns the transcripts of a folder; raises DataError if one cannot be read. See `transcript_files`."""
    found: dict[str, list[Entry]] = defaultdict(list)
    for name in transcript_files(names, recordings):
        try:
            text = decoded(read(name), encoding)
        except (OSError, ValueError) as error:
            raise DataError(f"{name}, a file with transcripts, cannot be read: {error}") from error
        for recording, entry in _entries(name, text, recordings):
            found[recording].append(entry)
    return found


def _entries(name: str, text: str, recordings: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Entry]]:
    """Yields what a file says about recordings; one that is not there keeps its name without suffix."""
    folder, lines = name[: name.rfind("/") + 1], list(StringIO(text, newline=""))
    if name.lower().endswith(METADATA):
        yield from _of_table(name, folder, lines, recordings)
    elif name.lower().endswith(_LINES):
        for key, _, said in (line.strip().partition(" ") for line in lines if line.strip()):
            speaker = _LIBRISPEECH.fullmatch(key)
            values = {TEXT: said.strip() or None} | ({"speaker": speaker[1]} if speaker else {})
            yield from ((each, Entry(values)) for each in recordings.get(f"{folder}{key}", [f"{folder}{key}"]))
    else:
        key, values = name[: -len(_FILE)], {TEXT: " ".join(text.split()) or None}
        yield from ((each, Entry(values, classed=True)) for each in recordings.get(key, [key]))


def _of_table(
    name: str, folder: str, lines: Sequence[str], recordings: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, Entry]]:
    first = lines[0] if lines else ""
    delimiter = next((each for each in DELIMITERS if NAMED in next(csv.reader([first], delimiter=each), ())), None)
    if delimiter is None and "|" not in first:
        yield name, Entry({"file": name}, f"{name}: has no column {NAMED}, and is not LJSpeech's `id|transcript`")
        return
    rows = records(lines, delimiter or "|", "minimal" if delimiter else "none")
    header = next(rows)[1] if delimiter else _LJSPEECH
    for number, record in rows:
        fields = [] if isinstance(record, str) else record
        wrong = f"{len(fields)} fields where the header has {len(header)}" if len(fields) != len(header) else None
        reason = record if isinstance(record, str) else wrong if delimiter else None
        values: dict[str, Any] = dict(zip(header, fields, strict=False))
        file = f"{folder}{values.pop(NAMED, None) or name}"
        said = next((values.pop(each) for each in TEXT_NAMES if each in values), None)
        values |= {} if said is None else {TEXT: said}
        found = recordings.get(f"{folder}{FOLDERS[1]}/{file.removeprefix(folder)}", recordings.get(file, [file]))
        entry = Entry(values, reason and f"{name}, line {number}: {reason}", said is None)
        yield from ((each, entry) for each in found)
