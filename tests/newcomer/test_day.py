"""From a file as people have it to predictions that can be joined back to it: init, show, train, predict."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import newcomers as files
import pytest
from commands import run_command

QUICK = ("train.num_train_epochs=1", "train.max_steps=2", "eval.eval_steps=null", "checkpoint.save_steps=null",
         "checkpoint.load_best_model_at_end=false")  # fmt: skip


@dataclass(frozen=True)
class User:
    """Someone who has a file and wants predictions.

    Args:
        write: writes the file or folder.
        name: its name.
        model: kind of the model.
        recipe: name of the recipe that `init` must find.
        settings: what the written YAML must contain.
        rows: number of rows of the file.
    """

    write: Callable[[Path], object]
    name: str
    model: str
    recipe: str
    settings: tuple[str, ...]
    rows: int


def csv_user(form: str) -> User:
    rows = files.reviews()
    return User(
        lambda path: files.write_csv(path, rows, **files.FORMS[form]), "reviews.csv", "text", "reviews",
        ("text: Review Text", "label: Rating", "# 3 classes: 1 (30), 4 (21), 5 (10); "), len(rows),
    )  # fmt: skip


USERS = {
    **{f"csv, {form}": csv_user(form) for form in files.FORMS},
    "excel": User(
        lambda path: files.write_excel(path, files.reviews()), "reviews.xlsx", "text", "reviews",
        ("text: Review Text", "label: Rating"), 61,
    ),
    "photos": User(files.write_photos, "photos", "image", "reviews", ("modality: image",), 24),
    "recordings": User(files.write_calls, "calls", "audio", "reviews", ("modality: audio",), 20),
    "questions": User(files.write_squad, "questions.json", "text", "qa", (), 24),
    "translation memory": User(files.write_tmx, "memory.tmx", "translation", "translation", ("source: en",), 40),
    "sentence pairs": User(files.write_plain_tsv, "pairs.tsv", "translation", "translation", ("header: false",), 40),
}  # fmt: skip
FAST = ("csv, semicolon", "questions")
"""Users whose day is part of the fast tests."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in USERS]
)
def test_a_day(
    name: str, model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    user = USERS[name]
    monkeypatch.chdir(tmp_path)
    user.write(tmp_path / user.name)

    assert run_command("init", user.name, "--output", "my.yaml", "--model", model(user.model)) == 0
    said = capsys.readouterr()
    assert f"toolkit train {user.recipe} --config my.yaml" in said.out
    yaml = Path("my.yaml").read_text(encoding="utf-8")
    assert all(setting in yaml for setting in user.settings), yaml
    fits_a_terminal(said.out)

    assert run_command("data", "show", user.name) == 0
    shown = capsys.readouterr().out
    counts = re.search(r": (\d+) train \+ (\d+) validation \(set aside\) rows", shown)
    assert counts is not None, shown
    assert sum(map(int, counts.groups())) == user.rows
    fits_a_terminal(shown)

    assert run_command("train", user.recipe, "--config", "my.yaml", "output_dir=run", *QUICK) == 0
    trained = capsys.readouterr()
    assert "Model, report and predictions are in run" in trained.out

    assert run_command("predict", "run", "--input", user.name, "--output", "answers.csv") == 0
    told = capsys.readouterr()
    with Path("answers.csv").open(encoding="utf-8-sig", newline="") as file:
        form = files.FORMS.get(name.removeprefix("csv, "), files.FORMS["comma"])
        answers = list(csv.DictReader(file, delimiter=form["delimiter"]))
    assert len(answers) == user.rows
    assert all(answer["prediction"] for answer in answers)
    if name.startswith("csv"):
        given = files.reviews()
        assert [{key: answer[key] for key in given[0]} for answer in answers] == given
        assert all(0 < float(answer["score"]) <= 1 for answer in answers)
    for text in (said, trained, told):
        assert "Traceback" not in text.out + text.err


def fits_a_terminal(text: str) -> None:
    long = [line for line in text.splitlines() if len(re.sub(r"\x1b\[[0-9;]*m", "", line)) > 80 and " " in line.strip()]
    assert long == []
