"""Rows of speech recognition that cannot be used: each kind is named, with its row, and the others are trained on."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from inspect import getmodule
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from audio_files import encoded, tone
from image_files import encoded as picture
from image_files import noise
from runs import ROOT

from toolkit.base.errors import DataError
from toolkit.data.loading import CheckedRows, check_rows
from toolkit.prepare.inputs import omissions_of
from toolkit.recipe import load_settings, load_task_type

RECIPE = "speech_recognition"
SECOND = encoded(tone(1.0))


def task_and_settings(data: Path, *overrides: str, config: str = "smoke_ctc") -> tuple[Any, Any]:
    task_type = load_task_type(RECIPE)
    given = [
        f"data.train_file={data}",
        "data.validation_file=null",
        "data.validation_split=0",
        "eval.eval_steps=null",
        *overrides,
    ]
    cfg = load_settings(task_type, ROOT / f"recipes/configs/{RECIPE}/{config}.yaml", given).config
    return task_type(cfg), cfg


def checked(data: Path, *overrides: str, config: str = "smoke_ctc") -> CheckedRows:
    task, cfg = task_and_settings(data, "data.bad_rows=skip", "data.max_bad_rows=1.0", *overrides, config=config)
    return check_rows(cfg, task)


def reasons(rows: CheckedRows) -> list[str]:
    return [bad.reason for bad in rows.tables["train"].bad]


def table(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """Writes rows beside a good one, which comes first."""
    (folder / "good.wav").write_bytes(SECOND)
    names = dict.fromkeys(["audio", "text", *(name for row in rows for name in row)])
    with (folder / "rows.csv").open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.DictWriter(file, list(names), restval="")
        writer.writeheader()
        writer.writerows([{"audio": "good.wav", "text": "all is well"}, *rows])
    return folder / "rows.csv"


def sound(samples: np.ndarray, rate: int = 16000, form: str = "WAV", **more: str) -> bytes:
    return encoded(samples, rate, form, **more)


def with_rate(rate: int) -> bytes:
    """Returns a WAV file whose header states another rate."""
    return SECOND[:24] + rate.to_bytes(4, "little") + SECOND[28:]


def header_only() -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros(0), 16000, format="WAV")
    return buffer.getvalue()


FILES: dict[str, tuple[bytes, str]] = {
    "too short": (sound(tone(0.05)), r"lasts 0.05 s, below task.audio.min_seconds=0.25"),
    "too long": (sound(tone(31.0, 8000), 8000), r"lasts 31 s, above task.audio.max_seconds=30"),
    "a wrong rate in the header": (with_rate(100), r"lasts 160 s, above"),
    "a rate of 0": (with_rate(0), r"cannot be decoded|lasts"),
    "no samples": (header_only(), r"holds no samples"),
    "samples that are not numbers": (
        sound(np.full((8000, 1), np.nan), subtype="FLOAT"), r"holds samples that are not finite numbers",
    ),
    "a text named .wav": (b"all is well\n" * 99, r"cannot be decoded"),
    "an image named .wav": (picture(noise(8, 8)), r"cannot be decoded"),
    "half a WAV file": (SECOND[: len(SECOND) // 2], r"truncated after 0.49\d* of 1 s"),
    "half a FLAC file": (sound(tone(1.0), form="FLAC")[:4000], r"cannot be decoded|truncated after"),
    "half an OGG file": (sound(tone(1.0), form="OGG")[:3000], r"cannot be decoded|truncated after"),
    "AIFF named .wav": (sound(tone(1.0), form="AIFF"), r"its format is AIFF.*convert it to WAV or FLAC"),
    "an empty file": (b"", r"the file is empty \(0 bytes\)"),
}  # fmt: skip


@pytest.mark.fast(6)
@pytest.mark.parametrize("kind", FILES)
def test_a_recording_that_cannot_be_used_is_named(kind, tmp_path) -> None:
    content, reason = FILES[kind]
    (tmp_path / "bad.wav").write_bytes(content)
    (found,) = reasons(checked(table(tmp_path, [{"audio": "bad.wav", "text": "one two"}])))
    assert re.fullmatch(rf"bad.wav: .*({reason}).*", found)


ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "no transcript": ({"text": ""}, "column 'text' is empty"),
    "a blank transcript": ({"text": " \t\u00a0"}, "column 'text' is empty"),
    "only punctuation": ({"text": "?! ..."}, "nothing is left of its transcript '[?]! ...' after normalisation"),
    "a byte that is not UTF-8": ({"text": "caf\udce9"}, "column 'text' is not UTF-8 text"),
    "no recording": ({"audio": ""}, "column 'audio' is empty"),
    "a missing file": ({"audio": "gone.wav"}, r"there is no file gone.wav \(tried /.*/gone.wav\)"),
    "a folder": ({"audio": "folder.wav"}, "folder.wav is not a file, but a folder"),
    "a pipe": ({"audio": "pipe.wav"}, "pipe.wav is not a file, but a pipe or a device"),
    "a transcript as the file": ({"audio": "all is well " * 99}, "all is well .* cannot be opened: File name too long"),
    "a number as the file": ({"audio": "17"}, "there is no file 17"),
    "an end before the start": ({"start": "0.8", "end": "0.2"}, "its part from 0.8 to 0.2 s is not within its 1 s"),
    "an end at the start": ({"start": "0.5", "end": "0.5"}, "its part from 0.5 to 0.5 s is not within"),
    "a start behind the end": ({"start": "7"}, "its part from 7 to .* is not within its 1 s"),
    "an end behind the end": ({"end": "7.5"}, "its part from .* to 7.5 s is not within its 1 s"),
    "a negative start": ({"start": "-0.5"}, "its part from -0.5 to .* is not within its 1 s"),
    "an infinite start": ({"start": "inf"}, "its part from 'inf' to .* is not in seconds"),
    "NaN as a start": ({"start": "nan"}, "its part from 'nan' to .* is not in seconds"),
    "words as a start": ({"start": "the beginning"}, "its part from 'the beginning' to .* is not in seconds"),
    "minutes as a start": ({"start": "0:00:01"}, "its part from '0:00:01' to .* is not in seconds"),
    "a part that is too short": ({"start": "0.2", "end": "0.3"}, r"good.wav \(0.2 to 0.3 s\): lasts 0.1 s, below"),
}


@pytest.mark.fast(10)
@pytest.mark.parametrize("kind", ROWS)
def test_a_row_that_cannot_be_used_is_named(kind, tmp_path) -> None:
    given, reason = ROWS[kind]
    (tmp_path / "folder.wav").mkdir()
    os.mkfifo(tmp_path / "pipe.wav")
    found = reasons(checked(table(tmp_path, [{"audio": "good.wav", "text": "one two", **given}]),
                            "task.punctuation=remove"))  # fmt: skip
    assert len(found) == 1
    assert re.search(reason, found[0]), found


JSON: dict[str, tuple[Any, str]] = {
    "a number": (17, "column 'text' holds 17, not text"),
    "a list": (["one", "two"], r"column 'text' holds \['one', 'two'\], not text"),
    "an object": ({"words": "one"}, "column 'text' holds {'words': 'one'}, not text"),
    "true": (True, "column 'text' holds True, not text"),
    "null": (None, "column 'text' is empty"),
    "NaN": (math.nan, "column 'text' holds nan, not text"),
}


def json_table(folder: Path, *rows: dict[str, Any]) -> Path:
    (folder / "good.wav").write_bytes(SECOND)
    lines = [
        {"audio": "good.wav", "text": "all is well"},
        *({"audio": "good.wav", "text": "one"} | row for row in rows),
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "rows.jsonl"


@pytest.mark.parametrize("kind", JSON)
def test_a_transcript_that_is_no_text_is_named(kind, tmp_path) -> None:
    value, reason = JSON[kind]
    (found,) = reasons(checked(json_table(tmp_path, {"text": value})))
    assert re.search(reason, found), found


def test_other_values_in_place_of_a_file_or_seconds_are_named(tmp_path) -> None:
    said = reasons(checked(json_table(
        tmp_path, {"audio": 17}, {"audio": ["good.wav"]}, {"audio": {"path": None, "bytes": None}}, {"start": True},
        {"start": "0", "end": [1]},
    )))  # fmt: skip
    assert "17 is not the path of a file" in said[0]
    assert "['good.wav'] is not the path of a file" in said[1]
    assert "is not the path of a file" in said[2]
    assert "its part from True to None is not in seconds" in said[3]
    assert "is not in seconds" in said[4]


def test_a_language_that_whisper_does_not_know_is_named(tmp_path) -> None:
    rows = [{"audio": "good.wav", "text": "one", "spoken": each} for each in ("klingon", "", "en", "German")]
    settings = ("data.columns.language=spoken", "task.language=null")
    said = reasons(checked(table(tmp_path, rows), *settings, config="smoke_whisper"))
    assert [re.search(r"column 'language' holds '(.*)', not the code or name", reason)[1] for reason in said] == [
        "", "klingon", "",
    ]  # fmt: skip


def omitted(data: Path, *overrides: str, config: str = "smoke_ctc") -> list[str]:
    """Returns what a run says that it does not use, or not as it is."""
    task, cfg = task_and_settings(data, "data.bad_rows=skip", "data.max_bad_rows=1.0", *overrides, config=config)
    return list(map(str, omissions_of(cfg, task, check_rows(cfg, task))))


def test_transcripts_that_do_not_fit_the_model_are_named_with_their_rows(tmp_path) -> None:
    rows = [{"audio": "good.wav", "text": text} for text in ("a" * 60, "word " * 60, "abc" * 32, "fine")]
    data = table(tmp_path, rows)
    # A second is 99 frames here: equal characters need a blank between them.
    assert "2 of 5 rows need more frames than their recording has (40.0%): 3, 4" in ";".join(omitted(data))
    assert any("rows need more than task.max_target_length=80 labels or more frames than their recording has" in each
               for each in omitted(data, "task.max_target_length=80"))  # fmt: skip
    assert any("need more than task.max_target_length=5 labels" in each
               for each in omitted(data, "task.max_target_length=5", config="smoke_whisper"))  # fmt: skip
    task, cfg = task_and_settings(data)
    with pytest.raises(DataError, match=r"2 of 5 rows need more frames than their recording has: 3, 4"):
        omissions_of(cfg, task, check_rows(cfg, task))


def test_characters_without_a_place_in_the_vocabulary_are_counted_and_named(tmp_path) -> None:
    from toolkit.prepare.processor import processor_of

    (tmp_path / "good.wav").write_bytes(SECOND)
    data = table(tmp_path, [{"audio": "good.wav", "text": "room 101, all"}])
    task, cfg = task_and_settings(data)
    from toolkit.models.load import load_model_config

    processor = processor_of(cfg, task, load_model_config(cfg.model), iter(["all is well rom"]))
    found = getmodule(type(task)).unknown_characters(["room 101, all", "all"], processor.tokenizer)
    assert found == ["101,", ""]


def test_what_is_used_but_not_as_it_is_is_counted(tmp_path) -> None:
    (tmp_path / "stereo.wav").write_bytes(encoded(tone(1.0, channels=2)))
    (tmp_path / "silent.wav").write_bytes(encoded(np.zeros((16000, 1))))
    (tmp_path / "other.wav").write_bytes(encoded(tone(1.0, 44100), 44100))
    rows = [{"audio": f"{name}.wav", "text": "one"} for name in ("stereo", "silent", "other")]
    said = "; ".join(omitted(table(tmp_path, rows)))
    assert "1 of 4 clips of recordings without any sound" in said
    assert "1 of 4 clips mixed to one channel" in said
    assert reasons(checked(tmp_path / "rows.csv")) == []


def test_the_limit_of_bad_rows_is_kept(tmp_path) -> None:
    data = table(tmp_path, [{"audio": "good.wav", "text": "" if n % 5 == 0 else "one"} for n in range(9)])
    task, cfg = task_and_settings(data)
    with pytest.raises(DataError, match=r"2 of 10 rows cannot be used(.|\n)*rows 3 and 8: column 'text' is empty"):
        check_rows(cfg, task)
    task, cfg = task_and_settings(data, "data.bad_rows=skip")
    with pytest.raises(DataError, match=r"data.max_bad_rows"):
        check_rows(cfg, task)
    assert len(checked(data).splits["train"]) == 8


def test_rows_of_folders_without_the_other_half_are_named(tmp_path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.wav").write_bytes(SECOND)
    for name in ("a", "b", "lost"):
        (tmp_path / f"{name}.txt").write_text("one two")
    rows = checked(tmp_path)
    assert reasons(rows) == ["c.wav: has no transcript", "lost: a transcript without a recording"]
    assert [row["text"] for row in rows.splits["train"]] == ["one two"] * 2
