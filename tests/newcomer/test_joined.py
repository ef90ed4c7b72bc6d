"""From seven files, as people have them, to answers joined back to their rows: init, validate, train, predict."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import audio_files
import image_files
import numpy as np
import pytest
from commands import run_command

QUICK = ("train.num_train_epochs=1", "train.max_steps=2", "eval.eval_steps=null", "checkpoint.save_steps=null",
         "checkpoint.load_best_model_at_end=false")  # fmt: skip


@dataclass(frozen=True)
class Newcomer:
    """Someone with a file.

    Args:
        rows: the rows of the file.
        name: the file's name.
        recipe: the recipe that `init` must find.
        model: kind of the model.
        inputs: the predictions' names of the columns that they repeat, and what these hold in a row.
        label: the label in a row, as predictions have it.
        held: number of validation rows.
        given: settings that the user passes to `init`.
        said: what `init` must say or write.
        delimiter: of a CSV file.
        encoding: of a CSV file.
        beside: writes the files that rows name.
    """

    rows: Sequence[Mapping[str, Any]]
    name: str
    recipe: str
    model: str
    inputs: Mapping[str, Callable[[Mapping[str, Any]], Any]]
    label: Callable[[Mapping[str, Any]], Any]
    held: int
    given: Sequence[str] = ()
    said: Sequence[str] = ()
    delimiter: str = ","
    encoding: str = "utf-8"
    beside: Callable[[Path], object] = lambda folder: None


def tickets() -> list[dict[str, str]]:
    """Returns tickets whose bodies are HTML of several lines, with delimiters and quotes in them."""
    kinds = ("Shipping", "Refund", "Login problem")
    return [
        {
            "Ticket ID": f"T-{1000 + number}",
            "Customer": f"cust{number % 9}@mail.example",
            "Subject": f"{kinds[number % 3]}; again",
            "Body": f'<p>Hello,</p>\n<p>my "{kinds[number % 3].lower()}" number {number};&nbsp;please help</p>',
            "Category": kinds[number % 3],
        }
        for number in range(36)
    ]


def chats() -> list[dict[str, Any]]:
    """Returns conversations as ShareGPT writes them, every third with a system message."""
    return [
        {
            "id": f"chat-{number}",
            "conversations": [
                *([{"from": "system", "value": "You are a farm helper."}] if number % 3 == 0 else []),
                {"from": "human", "value": f"What do {number} ducks eat?"},
                {"from": "gpt", "value": f"Slugs, {number} of them."},
            ],
        }
        for number in range(24)
    ]


def notes() -> list[dict[str, str]]:
    return [
        {
            "Question": f"How many litres does field {number} get?",
            "Note": f"Field {number} grows maize.\nIt is watered with {10 + number} litres each day, when it is dry.",
            "Answer": f"{10 + number} litres",
        }
        for number in range(30)
    ]


def segments() -> list[dict[str, Any]]:
    """Returns six parts of each of four recordings; the last ones are shorter than a model's shortest clip."""
    return [
        {"file": f"field{number}.wav", "start": f"{0.5 * part:g}", "end": f"{0.5 * part + 0.4 - 0.06 * part:g}",
         "bird": ("wren", "robin")[part % 2]}
        for number in range(4)
        for part in range(6)
    ]  # fmt: skip


def write_recordings(folder: Path) -> None:
    for number in range(4):
        tones = [audio_files.tone(0.5, frequency=300.0 + 500 * (part % 2) + 3 * number) for part in range(6)]
        (folder / f"field{number}.wav").write_bytes(audio_files.encoded(np.concatenate(tones)))


def photos() -> list[dict[str, str]]:
    return [
        {"sku": f"A{number:03}", "photo": f"img/{number}.png", "price": f"{1000 + 37 * number},{number % 10}0 €"}
        for number in range(30)
    ]


def write_photos(folder: Path) -> None:
    (folder / "img").mkdir()
    for number in range(30):
        picture = image_files.noise(20, 20, 3, seed=number)
        (folder / f"img/{number}.png").write_bytes(image_files.encoded(picture))


TAGS = ("odd", "third", "never")


def tags() -> list[dict[str, Any]]:
    return [
        {"text": f"The barn near the fence was item number {number}", "tags": [number % 2, int(number % 3 == 0), 0]}
        for number in range(36)
    ]


def mixed() -> list[dict[str, str]]:
    texts = (
        "The delivery was late and the box was broken", "La livraison était en retard et la boîte cassée",
        "Die Lieferung kam zu spät und war leider kaputt", "El paquete llegó tarde y estaba roto por dentro",
    )  # fmt: skip
    return [
        {"message": f"{texts[number % 4]}, {number}", "urgent": ("yes", "no")[number // 4 % 2]} for number in range(48)
    ]


def same(column: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda row: row[column]


NEWCOMERS = {
    "tickets": Newcomer(
        tickets(), "tickets.csv", "reviews", "text", {"id": same("Ticket ID")}, same("Category"), 4,
        ("data.id_column=Ticket ID", "data.strip_html=true"),
        ("group_column: Customer", 'text: "{Subject}\\n{Body}"', "label: Category"),
        delimiter=";", encoding="utf-8-sig",
    ),
    "chats": Newcomer(
        chats(), "chats.jsonl", "language_modeling", "chat",
        {"id": same("id")}, lambda row: row["conversations"][-1]["value"], 5,
        ("data.id_column=id",), ("messages: conversations",),
    ),
    "questions": Newcomer(
        notes(), "notes.csv", "language_modeling", "language", {"prompt": same("Question")}, same("Answer"), 6,
        # what `init` says: the recipe qa would also read where an answer is
        ("--recipe", "language_modeling", "data.columns.prompt=Question", "data.columns.completion=Answer"),
        ("ot used: Note",),
    ),
    "segments": Newcomer(
        segments(), "birds.csv", "reviews", "audio",
        {}, same("bird"), 6,  # a complete recording
        said=("modality: audio",), beside=write_recordings,
    ),
    "photos": Newcomer(
        photos(), "goods.csv", "reviews", "image",
        {"id": same("sku")}, lambda row: float(row["price"].removesuffix(" €").replace(",", ".")), 6,
        ("data.id_column=sku",), ("decimal: ','", "scale_targets: true", "label: price"), beside=write_photos,
    ),
    "tags": Newcomer(
        tags(), "tags.jsonl", "reviews", "text", {"text": same("text")},
        lambda row: [name for name, given in zip(TAGS, row["tags"], strict=True) if given], 7,
        (f"task.labels=[{','.join(TAGS)}]",), ("problem_type: multi_label_classification", "label: tags"),
    ),
    "languages": Newcomer(
        mixed(), "mail.csv", "reviews", "text", {"text": same("message")}, same("urgent"), 10,
        said=("text: message", "label: urgent"),
    ),
}  # fmt: skip


def written(newcomer: Newcomer, folder: Path) -> list[int]:
    """Writes a newcomer's file, and returns the number that messages give to each row."""
    file = folder / newcomer.name
    newcomer.beside(folder)
    if file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in newcomer.rows), encoding="utf-8")
        return list(range(1, len(newcomer.rows) + 1))
    with file.open("w", encoding=newcomer.encoding, newline="") as opened:
        writer = csv.DictWriter(opened, list(newcomer.rows[0]), delimiter=newcomer.delimiter)
        writer.writeheader()
        writer.writerows(newcomer.rows)
    lines, numbers = 2, []
    for row in newcomer.rows:
        numbers.append(lines)
        lines += 1 + sum(str(value).count("\n") for value in row.values())
    return numbers


@pytest.mark.slow
@pytest.mark.parametrize("name", NEWCOMERS)
def test_from_a_file_to_answers_beside_its_rows(
    name: str, model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    newcomer = NEWCOMERS[name]
    monkeypatch.chdir(tmp_path)
    numbers = dict(zip(written(newcomer, tmp_path), newcomer.rows, strict=True))

    given = (*newcomer.given, "--model", model(newcomer.model))
    assert run_command("init", newcomer.name, *given, "--output", "my.yaml") == 0
    said = capsys.readouterr().out
    shown = said + Path("my.yaml").read_text(encoding="utf-8")
    assert [what for what in newcomer.said if what not in shown] == [], shown
    assert run_command("validate", newcomer.recipe, "--config", "my.yaml") == 0
    train = len(newcomer.rows) - newcomer.held
    assert f"the rows were read: {train} train, {newcomer.held} validation" in capsys.readouterr().out
    assert run_command("train", newcomer.recipe, "--config", "my.yaml", "output_dir=run", *QUICK) == 0

    lines = Path("run/predictions.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    assert len({record["row"] for record in records}) == len(records) == newcomer.held
    for record in records:
        row = numbers[record["row"]]
        assert {key: record[key] for key in newcomer.inputs} == {key: of(row) for key, of in newcomer.inputs.items()}
        assert label_of(record) == newcomer.label(row)

    capsys.readouterr()
    assert run_command("predict", "run", "--input", newcomer.name, "--output", "answers.jsonl") == 0
    answers = [json.loads(line) for line in Path("answers.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [{key: answer[key] for key in row} for answer, row in zip(answers, newcomer.rows, strict=True)] == [
        *map(dict, newcomer.rows)
    ]
    assert not any(answer["error"] for answer in answers)
    assert all(answer["prediction"] is not None for answer in answers)


def label_of(record: Mapping[str, Any]) -> Any:
    """Returns the label of a line of predictions, or the answer that a language model was trained on."""
    if "messages" in record:
        return record["messages"][-1]["content"]
    return record["completion"] if "completion" in record else record["label"]


def test_parts_of_a_recording_are_rows_of_their_own(
    model: Callable[[str], Path], tmp_path: Path, monkeypatch, capsys
) -> None:
    newcomer = NEWCOMERS["segments"]
    monkeypatch.chdir(tmp_path)
    written(newcomer, tmp_path)
    settings = (
        *("task.modality=audio", "data.columns={audio: file, label: bird}", "data.drop_duplicates=true"),
        *("data.validation_split=0.2", "output_dir=run", f"model.name_or_path={model('audio')}"),
    )
    Path("my.yaml").write_text("data: {train_file: birds.csv}\n")
    assert run_command("validate", "reviews", "--config", "my.yaml", *settings) == 0
    said = capsys.readouterr().out
    assert "18 train, 6 validation" in said, "parts of one recording stay together"
    assert not re.search("duplicate|another label", said), said

    with Path("birds.csv").open("a") as file:  # the first row again, its seconds written in another way
        file.write("field0.wav,0.0,0.40,wren\n")
    assert run_command("validate", "reviews", "--config", "my.yaml", *settings) == 0
    assert "1 of 25 rows skipped as exact duplicates (data.drop_duplicates)" in capsys.readouterr().out

    Path("birds.csv").write_text('file,start,end,bird\nfield0.wav,"0,5",0:01,wren\nfield1.wav,0.5,1,robin\n')
    assert run_command("validate", "reviews", "--config", "my.yaml", *settings) == 2
    assert "row 2: its part from '0,5' to '0:01' is not in seconds" in capsys.readouterr().err
