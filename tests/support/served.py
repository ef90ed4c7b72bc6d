"""A tiny finished run of every task, rows for it, and their answers by `toolkit predict`."""

from __future__ import annotations

import base64
import json
import re
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import audio_files
import image_files
from commands import run_command
from launching import begin
from runs import train

import toolkit

FEW = ("train.max_steps=1", "data.max_train_samples=12", "data.max_eval_samples=5")
TEXTS = ["A fine pair of boots.", "It broke at once. " * 9, "Good.", "The goat ate the fence, and then the gate."]


@dataclass(frozen=True)
class Case:
    """A task.

    Args:
        config: name of the configuration, as for `runs.train`.
        rows: rows to predict; files are their content.
        bad: rows that cannot be predicted, with their column and part of the reason.
        settings: further settings of the run.
    """

    config: str
    rows: list[dict[str, Any]]
    bad: list[tuple[dict[str, Any], str, str]]
    settings: tuple[str, ...] = ()
    files: str | None = field(default=None)
    """The column of files, and the suffix of their names."""


def texts(column: str) -> list[dict[str, Any]]:
    return [{column: text} for text in TEXTS]


def bad_texts(column: str) -> list[tuple[dict[str, Any], str, str]]:
    return [({"other": "x"}, column, "is missing"), ({column: 3}, column, "3"), ({column: " "}, column, "")]


PICTURES = [image_files.encoded(image_files.noise(20 + 5 * i, 30, 3, seed=i)) for i in range(3)]
SOUNDS = [audio_files.encoded(audio_files.tone(0.3 + 0.1 * i, frequency=300.0 * (i + 1))) for i in range(3)]
BAD_FILES = [
    (None, "is empty"),
    ("/etc/hostname", "is not base64"),
    ("https://example.org/a.png", "is not base64"),
    ({"path": "/etc/hostname"}, "'path'"),
    ({"data": "aGk=", "path": "/etc/hostname"}, "'path'"),
    ("", "0 bytes"),
    ("aGVsbG8=", "column"),
    ({"data": "aGVsbG8=", "name": "a.m4a"}, "a.m4a: "),
    (7, "a number"),
    ({"data": "aGk=", "name": 3}, "`name`"),
]
"""Values of a column of files that are none, with part of the reason."""
TALK = [{"role": "user", "content": "How are goats kept?"}]

CASES = {
    "single label": Case("reviews", texts("text"), bad_texts("text")),
    "several labels": Case(
        "reviews",
        texts("text"),
        bad_texts("text"),
        ("task.problem_type=multi_label_classification", "task.labels=[negative, positive]"),
    ),
    "numbers": Case(
        "reviews",
        texts("text"),
        bad_texts("text"),
        ("task.problem_type=regression", "data.validation_file=null", "data.validation_split=0.3"),
    ),
    "image": Case(
        "reviews/smoke_image",
        [{"image": each} for each in PICTURES],
        [({"image": value}, "image", reason) for value, reason in BAD_FILES],
        files="image.png",
    ),
    "audio": Case(
        "reviews/smoke_audio",
        [{"audio": each} for each in SOUNDS],
        [({"audio": value}, "audio", reason) for value, reason in BAD_FILES],
        files="audio.wav",
    ),
    "speech": Case(
        "speech_recognition/smoke_ctc",
        [{"audio": each} for each in SOUNDS],
        [({"audio": value}, "audio", reason) for value, reason in BAD_FILES],
        ("task.word_times=true",),
        files="audio.wav",
    ),
    "qa": Case(
        "qa",
        [{"question": "Who?", "context": text} for text in TEXTS]
        + [{"id": "7", "question": "What?", "context": "Hay."}],
        [({"question": "Who?"}, "context", "is missing"), ({"question": 3, "context": "a"}, "question", "not text")],
    ),
    "tokens": Case(
        "token_classification",
        [{"tokens": text.split()} for text in TEXTS] + [{"tokens": "Anna lives here"}],
        [({"tokens": [1]}, "tokens", ""), ({"words": "a"}, "tokens", "is missing")],
    ),
    "translation": Case(
        "translation",
        [{"source": "The goats are home."}, {"translation": {"en": "Rain."}}],
        [
            ({"other": "x"}, "source", "not there"),
            ({"source": 3}, "source", "not text"),
            ({"translation": "x"}, "translation", "not a mapping"),
        ],
    ),
    "summarization": Case("summarization", texts("document")[:3], bad_texts("document")),
    "packed": Case("language_modeling", texts("text"), bad_texts("text")),
    "masked": Case("language_modeling/smoke_masked", texts("text"), bad_texts("text")),
    "chat": Case(
        "language_modeling/smoke_chat",
        [{"messages": TALK}, {"messages": [*TALK, {"role": "assistant", "content": "Well."}, TALK[0]]}],
        [({"messages": 5}, "messages", "not a list"), ({"messages": []}, "messages", "")],
        ("task.max_new_tokens=4",),
    ),
}


def run_of(name: str, folder: Path) -> Path:
    """Trains the tiny run of a case, and returns its folder."""
    case, settings = CASES[name], []
    if name == "numbers":
        rows = [{"text": text, "label": [number, 2 * number]} for number, text in enumerate(3 * TEXTS)]
        file = folder.with_name(f"{folder.name}.jsonl")
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        settings = [f"data.train_file={file}"]
    train(case.config, folder, *FEW, *case.settings, *settings)
    return folder


def in_json(case: Case) -> list[dict[str, Any]]:
    """Returns the rows of a case with files in base64: alone, as a `data:` URL, and with a name."""
    if case.files is None:
        return case.rows
    column, _, suffix = case.files.partition(".")
    texts = [base64.b64encode(row[column]).decode() for row in case.rows]
    forms = [texts[0], f"data:{column}/{suffix};base64,{texts[1]}", {"data": texts[2], "name": f"third.{suffix}"}]
    return [{column: form} for form in forms]


def predicted(case: Case, run: Path, folder: Path) -> list[dict[str, Any]]:
    """Returns what `toolkit predict` adds to the rows of a case."""
    rows = case.rows
    if case.files is not None:
        column, _, suffix = case.files.partition(".")
        names = [f"{i}.{suffix}" for i in range(len(rows))]
        for name, row in zip(names, rows, strict=True):
            (folder / name).write_bytes(row[column])
        rows = [{column: name} for name in names]
    file, output = folder / "rows.jsonl", folder / "answers.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert run_command("predict", run, "--input", file, "--output", output, "--overwrite") == 0
    written = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    names = toolkit.load(run).task.answer_columns
    return [{name: row[name] for name in names} for row in written]


class Server:
    """A sub-command that serves, in a process of its own.

    Args:
        folder: where its output goes.
        *arguments: its command line without the port, which is any free one.
    """

    def __init__(self, folder: Path, *arguments: object) -> None:
        self._log = folder / "server.log"
        self._log.unlink(missing_ok=True)
        self.process = begin([sys.executable, "-m", "toolkit", *map(str, arguments), "--port", "0"], self._log)

    def __enter__(self) -> Server:
        while "Ctrl-C" not in self.log:
            assert self.process.poll() is None, self.log
            time.sleep(0.1)
        self.address = re.findall(r"http://127\.0\.0\.1:\d+", self.log)[0]
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def log(self) -> str:
        """What it has printed."""
        return self._log.read_text(encoding="utf-8")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends a signal, and returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(120)
