"""What `toolkit init` makes of columns that are easily misread: it recognises them, or says what to write."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas
import pytest
from audio_files import encoded as audio
from audio_files import tone
from commands import run_command
from image_files import encoded as image
from image_files import noise
from newcomer_files import json_lines, prices, ratings, sentences, table
from newcomer_models import save_chat_model, save_text_model
from ruamel.yaml import YAML

TEXTS = sentences(rows=60)
Rows = Sequence[Mapping[str, Any]]


def written(folder: Path, rows: Rows, name: str = "rows.csv", delimiter: str = ",") -> Path:
    if name.endswith(".jsonl"):
        return json_lines(folder / name, rows)
    if name.endswith(".parquet"):
        pandas.DataFrame(list(rows)).to_parquet(folder / name)
        return folder / name
    return table(folder / name, list(rows[0]), [list(row.values()) for row in rows], delimiter)


def labelled(*labels: Any, column: str = "label") -> list[dict[str, Any]]:
    return [{"text": text, column: labels[number % len(labels)]} for number, text in enumerate(TEXTS)]


def init(source: Path, *given: object) -> Any:
    """Returns the settings that `init` writes for a file, after `validate` has read all rows with them."""
    output = source.parent / "new.yaml"
    assert run_command("init", source, *given, "--output", output, "--overwrite") == 0
    settings = YAML(typ="safe", pure=True).load(output)
    model = settings["model"].get("from_config")
    recipe = output.read_text(encoding="utf-8").splitlines()[1].split()[4]
    assert run_command("validate", recipe, "--config", output, *([] if model else ["--elsewhere"])) == 0
    return settings


def refusal(capsys, source: Path, *given: object) -> str:
    output = source.parent / "refused.yaml"
    assert run_command("init", source, *given, "--output", output) == 2
    assert not output.exists()
    return capsys.readouterr().err


VECTORS = {
    "lists": ("rows.jsonl", [0, 1, 0], [1, 0, 1]),
    "lists of numbers": ("rows.jsonl", [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]),
    "lists of flags": ("rows.jsonl", [False, True, False], [True, False, True]),
    "Python's lists": ("rows.csv", "[0, 1, 0]", "[1, 0, 1]"),
    "numpy's lists": ("rows.csv", "[0 1 0]", "[1 0 1]"),
    "blanks": ("rows.csv", "0 1 0", "1 0 1"),
    "commas": ("rows.csv", "0,1,0", "1,0,1"),
    "semicolons": ("rows.tsv", "0;1;0", "1;0;1"),
}


@pytest.mark.parametrize("form", VECTORS)
def test_vectors_of_0_and_1_are_labels_once_their_places_have_names(form, tmp_path, capsys) -> None:
    name, *vectors = VECTORS[form]
    source = written(tmp_path, labelled(*vectors), name)
    assert "vectors of 0 and 1, whose 3 places have no names" in refusal(capsys, source)
    settings = init(source, "task.labels=[big,red,old]")
    assert settings["task"]["problem_type"] == "multi_label_classification"
    assert "big (30), old (30), red (30)" in sorted_counts((tmp_path / "new.yaml").read_text(encoding="utf-8"))


def sorted_counts(text: str) -> str:
    counts = re.search(r"labels: ((?:\w+ \(\d+\)(?:, )?)+)", " ".join(text.replace("#", "").split()))
    return ", ".join(sorted(counts[1].rstrip(", ").split(", "))) if counts else text


def test_labels_that_are_numbers_or_dates_are_no_vectors(tmp_path, capsys) -> None:
    assert init(written(tmp_path, labelled(0, 1)))["task"]["problem_type"] == "single_label_classification"
    assert init(written(tmp_path, labelled([1.5, 0], [0, 2.5]), "n.jsonl"))["task"]["problem_type"] == "regression"
    dates = written(tmp_path, labelled(date(2024, 1, 2), date(2024, 1, 3)), "dates.parquet")
    assert "label: dates, 2 different" in refusal(capsys, dates)


def test_several_columns_of_0_and_1_ask_for_one_or_are_joined_as_the_message_says(
    tmp_path, capsys, monkeypatch
) -> None:
    rows = [{"text": text, "toxic": n % 2, "rude": int(n % 3 == 0)} for n, text in enumerate(TEXTS)]
    source = written(tmp_path, rows)
    said = refusal(capsys, source)
    assert "data.columns.label=toxic" in said
    assert init(source, "data.columns.label=toxic")["data"]["columns"] == {"label": "toxic"}
    monkeypatch.chdir(tmp_path)
    frame = pandas.read_csv(source)
    for advice in re.search(r"for instance as (.*), and pass (\S+)", said)[1].split(" and frame"):
        exec(advice if advice.startswith("frame") else f"frame{advice}", {"frame": frame})
    labels = re.search(r"pass (task\.labels=\S+)", said)[1]
    assert init(tmp_path / "labels.jsonl", labels)["task"]["labels"] == ["toxic", "rude"]
    named = [{"text": row["text"], "label": row["toxic"], "seen": row["rude"]} for row in rows]
    assert init(written(tmp_path, named))["task"]["problem_type"] == "single_label_classification"


def test_decimals_of_databases_are_numbers(tmp_path) -> None:
    prices = written(tmp_path, [{"text": text, "price": Decimal(n) / 4} for n, text in enumerate(TEXTS)], "p.parquet")
    settings = init(prices)
    assert (settings["task"]["problem_type"], settings["data"]["columns"]) == ("regression", {"label": "price"})
    stars = written(tmp_path, labelled(*(Decimal(f"{n}.00") for n in range(5))), "s.parquet")
    assert init(stars)["task"]["problem_type"] == "single_label_classification"


def recordings(folder: Path, seconds: Sequence[float], rate: int = 16000) -> list[dict[str, Any]]:
    rows = []
    for number, length in enumerate(seconds):
        name = f"{number}.wav"
        (folder / name).write_bytes(audio(tone(length, rate, frequency=200 + 5 * number), rate))
        rows.append({"path": name, "word": ("yes", "no")[number % 2]})
    return rows


def test_clips_are_as_long_as_nearly_all_recordings_or_their_parts(tmp_path) -> None:
    clips = written(tmp_path, recordings(tmp_path, [0.2 + n / 50 for n in range(59)] + [9.0]))
    assert init(clips, "data.validation_split=0")["task"]["audio"] == {"max_seconds": 1.4}
    text = (tmp_path / "new.yaml").read_text(encoding="utf-8")
    assert "98% of the clips have at most" in text
    assert "are cropped" in text
    (tmp_path / "long.wav").write_bytes(audio(np.concatenate([tone(1, frequency=200 + 50 * n) for n in range(20)])))
    parts = [{"path": f"{n % 4}/long.wav", "start": n // 4, "end": n // 4 + 0.5 + n / 1000, "word": "ab"[n % 2]}
             for n in range(40)]  # fmt: skip
    for folder in range(4):
        (tmp_path / f"{folder}").mkdir()
        content = np.concatenate([tone(1, frequency=200 + 50 * n + folder) for n in range(20)])
        (tmp_path / f"{folder}" / "long.wav").write_bytes(audio(content))
    settings = init(written(tmp_path, parts, "parts.csv"))
    assert settings["task"]["audio"]["max_seconds"] == 0.6
    assert {"start", "end"} & settings["data"]["columns"].keys() == set()  # which have these names


def test_parts_in_another_form_than_seconds_are_asked_for(tmp_path, capsys) -> None:
    rows = recordings(tmp_path, [1.0] * 12)
    timed = [{**row, "onset": 0.1, "duration_ms": 300 + n} for n, row in enumerate(rows)]
    said = refusal(capsys, written(tmp_path, timed))
    assert "onset and duration_ms seem to say which part of a recording a clip is" in said
    praat = [{**row, "xmin": 0.1, "xmax": 0.4} for row in rows]
    columns = init(written(tmp_path, praat), "data.validation_split=0")["data"]["columns"]
    assert (columns["start"], columns["end"]) == ("xmin", "xmax")
    seconds = [{**row, "onset": 0.1, "offset": 0.4} for row in rows]
    columns = init(written(tmp_path, seconds), "data.validation_split=0")["data"]["columns"]
    assert (columns["start"], columns["end"]) == ("onset", "offset")


def test_recordings_with_transcripts_are_for_speech_recognition(tmp_path) -> None:
    clips = recordings(tmp_path, [1.0] * 24)
    speech = [{"path": row["path"], "sentence": TEXTS[n][:20], "up_votes": n % 3} for n, row in enumerate(clips)]
    voices = [{**row, "gender": "mf"[n % 2], "client_id": f"c{n % 6}"} for n, row in enumerate(speech)]
    settings = init(written(tmp_path, voices, "voices.tsv", "\t"), "--from-scratch")
    assert settings["data"]["columns"] == {"audio": "path", "text": "sentence"}
    assert settings["data"]["group_column"] == "client_id"
    assert settings["task"]["audio"]["max_seconds"] == 1
    text = (tmp_path / "new.yaml").read_text(encoding="utf-8")
    assert "recordings with their transcripts" in text
    assert "# Not used: gender" in text
    parts = [{**row, "onset": 0.1, "offset": 0.8} for row in speech]
    columns = init(written(tmp_path, parts, "parts.csv"), "--from-scratch")["data"]["columns"]
    assert (columns["start"], columns["end"]) == ("onset", "offset")


def test_a_label_decides_against_the_transcripts(tmp_path) -> None:
    clips = recordings(tmp_path, [0.5] * 24)
    speech = [{"path": row["path"], "sentence": TEXTS[n], "gender": "mf"[n % 2]} for n, row in enumerate(clips)]
    assert init(written(tmp_path, speech), "data.columns.label=gender")["task"]["modality"] == "audio"
    feelings = [{**row, "label": ("calm", "angry")[n % 2]} for n, row in enumerate(speech)]
    assert init(written(tmp_path, feelings))["data"]["columns"] == {"audio": "path"}
    words = [{"path": row["path"], "transcript": ("yes", "no")[n % 2]} for n, row in enumerate(clips)]
    assert init(written(tmp_path, words))["data"]["columns"] == {"audio": "path", "label": "transcript"}


def speech_folder(folder: Path, layout: str) -> Path:
    """Writes the same recordings and transcripts in a layout."""
    rows = [(TEXTS[n][:20], audio(tone(1.0, 16000, frequency=200 + 9 * n), 16000)) for n in range(24)]
    folder.mkdir(parents=True)
    for number, (text, content) in enumerate(rows):
        name = {"libri": f"8{number % 6}/1/8{number % 6}-1-{number:04}.wav", "lj": f"wavs/LJ{number}.wav"}
        path = folder / name.get(layout, f"{number}.wav")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        if layout == "texts":
            path.with_suffix(".txt").write_text(text)
        elif layout == "libri":
            with (path.parent / f"8{number % 6}-1.trans.txt").open("a") as file:
                file.write(f"{path.stem} {text.upper()}\n")
    if layout == "audiofolder":
        cells = [[f"{n}.wav", row[0]] for n, row in enumerate(rows)]
        table(folder / "metadata.csv", ["file_name", "transcription"], cells)
    elif layout == "lj":
        (folder / "metadata.csv").write_text("".join(f"LJ{n}|{row[0]}|{row[0]}\n" for n, row in enumerate(rows)))
    elif layout in ("parquet", "hdf5"):
        columns = {"audio": [{"bytes": row[1], "path": None} for row in rows], "text": [row[0] for row in rows]}
        if layout == "parquet":
            pandas.DataFrame(columns).to_parquet(folder / "rows.parquet")
            return folder / "rows.parquet"
        with h5py.File(folder / "rows.h5", "w") as file:
            sounds = file.create_dataset("audio", len(rows), h5py.vlen_dtype(np.uint8))
            sounds[:] = [np.frombuffer(row[1], np.uint8) for row in rows]
            file.create_dataset("text", data=columns["text"], dtype=h5py.string_dtype())
        return folder / "rows.h5"
    return folder


@pytest.mark.fast(2)
@pytest.mark.parametrize("layout", ["texts", "libri", "audiofolder", "lj", "parquet", "hdf5"])
def test_every_layout_of_transcripts_is_recognised(layout, tmp_path) -> None:
    source = speech_folder(tmp_path / "speech", layout)
    settings = init(source, "--from-scratch")
    assert settings["model"]["from_config"]["model_type"] == "wav2vec2-bert"
    assert settings["data"]["train_file"] == str(source)
    assert settings["data"].get("group_column") == ("speaker" if layout == "libri" else None)


def test_subsets_of_transcribed_recordings_are_found_by_their_names(tmp_path) -> None:
    for part in ("train", "validation", "test"):
        speech_folder(tmp_path / "speech" / part, "texts")
    settings = init(tmp_path / "speech", "--from-scratch")
    assert {name: Path(settings["data"][f"{name}_file"]).name for name in ("train", "validation", "test")} == {
        name: name for name in ("train", "validation", "test")
    }


@pytest.mark.slow
def test_ljspeech_s_table_stands_for_its_folder(tmp_path) -> None:
    folder = speech_folder(tmp_path / "speech", "lj")
    output = ("--output", tmp_path / "new.yaml")
    assert run_command("init", folder / "metadata.csv", "--from-scratch", *output) == 0
    settings = YAML(typ="safe", pure=True).load(tmp_path / "new.yaml")
    assert settings["data"]["train_file"] == str(folder)
    lists = "".join(f"wavs/LJ{n}.wav|{TEXTS[n][:20]}\n" for n in range(24))
    (folder / "train_list.csv").write_text(lists)
    data = init(folder / "train_list.csv", "--from-scratch")["data"]
    assert (data["header"], data["columns"]) == (False, {"audio": "1", "text": "2"})


def test_classes_stay_classes_and_transcripts_in_their_folders_win(tmp_path) -> None:
    for n in range(24):
        path = tmp_path / "clips" / ("yes", "no")[n % 2] / f"{n}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(audio(tone(0.5, frequency=200 + 9 * n)))
    assert init(tmp_path / "clips")["task"]["modality"] == "audio"
    for path in (tmp_path / "clips").rglob("*.wav"):
        path.with_suffix(".txt").write_text(TEXTS[int(path.stem)][:12])
    assert "wav2vec2-bert" in str(init(tmp_path / "clips", "--from-scratch"))
    assert "# Not used: label" in (tmp_path / "new.yaml").read_text(encoding="utf-8")
    assert init(tmp_path / "clips", "--recipe", "reviews")["task"]["modality"] == "audio"


@pytest.mark.slow
def test_the_language_of_whisper_is_read_or_asked_for(tmp_path, capsys) -> None:
    clips = recordings(tmp_path, [1.0] * 24)
    model = ("--model", "openai/whisper-small")
    german = ["das", "ist", "nicht", "die", "und", "der", "mit", "den", "ein", "eine"]
    rows = [{"path": row["path"], "text": " ".join(german[n % 4 : n % 4 + 6]) + f" {n}"} for n, row in enumerate(clips)]
    assert init(written(tmp_path, rows), *model)["task"]["language"] == "de"
    spoken = [{**row, "locale": ("de", "en")[n % 2]} for n, row in enumerate(rows)]
    assert init(written(tmp_path, spoken), *model)["data"]["columns"]["language"] == "locale"
    silent = [{**row, "text": f"zwei {n}"} for n, row in enumerate(rows)]
    said = refusal(capsys, written(tmp_path, silent), *model)
    assert "is told the language, which the transcripts do not show; name it: task.language=english" in said
    assert init(written(tmp_path, silent), *model, "task.language=german")["task"]["language"] == "german"
    assert init(written(tmp_path, silent))["task"]["vocabulary"] == "transcripts"  # of wav2vec 2.0


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["libri", "audiofolder"])
def test_what_init_writes_for_speech_trains(layout, tmp_path) -> None:
    source = speech_folder(tmp_path / "speech", layout)
    assert init(source, "--from-scratch")["model"]
    small = ["model.from_config.num_hidden_layers=1", "train.max_steps=2"]
    often = (f"output_dir={tmp_path / 'run'}", "eval.eval_steps=2", "checkpoint.save_steps=2")
    assert run_command("train", "speech_recognition", "--config", tmp_path / "new.yaml", *small, *often) == 0
    assert (tmp_path / "run" / "predictions.jsonl").exists()


def test_what_a_recipe_cannot_read_is_said_with_what_it_can(tmp_path, capsys) -> None:
    for answer in ("number {}", "{}", "2021-03-{:02}"):
        asked = [{"Question": f"Is it {n}?", "Context": TEXTS[n], "Answer": answer.format(n)} for n in range(1, 30)]
        source = written(tmp_path, asked)
        said = refusal(capsys, source)
        assert "also reads where an answer is" in said
        advised = shlex.split(re.search(r"(--recipe language_modeling .*)", said)[1])
        assert init(source, *advised)["data"]["columns"] == {"prompt": "Question", "completion": "Answer"}
    alpaca = written(
        tmp_path,
        [{"instruction": f"Shorten to {n}.", "input": text, "output": text[:9]} for n, text in enumerate(TEXTS)],
    )
    found = init(alpaca)
    assert (found["task"]["data_format"], found["data"].get("columns")) == ("alpaca", None)
    columns = init(alpaca, "data.columns.prompt=instruction")["data"]["columns"]
    assert columns == {"prompt": "instruction", "completion": "output"}
    dolly = [{"instruction": text, "context": text[9:], "response": text[:9]} for text in TEXTS]
    assert "instruction and context are parts" in refusal(capsys, json_lines(tmp_path / "dolly.jsonl", dolly))
    chat = [{"chat": [{"role": "human", "text": text}, {"role": "bot", "text": "yes"}]} for text in TEXTS]
    assert "messages of chat have role and text" in refusal(capsys, json_lines(tmp_path / "chat.jsonl", chat))
    compared = [{"chosen": text, "rejected": text[3:]} for text in TEXTS]
    assert "answers without a column of prompts" in refusal(capsys, written(tmp_path, compared))
    tagged = [{"words": str(text.split()), "tags": str(["B-PER"] + ["O"] * (len(text.split()) - 1))} for text in TEXTS]
    assert init(written(tmp_path, tagged))["data"]["columns"] == {"tokens": "words"}
    plain = [{"words": text, "tags": " ".join(["B-PER"] + ["O"] * (len(text.split()) - 1))} for text in TEXTS]
    assert init(written(tmp_path, plain))["data"]["columns"] == {"tokens": "words"}


DOUBTS = {
    "hold numbers, and some cannot be read, such as '20,- €'": ["20,- €", "14,50 €", "3,10 €"],
    "some cannot be read, such as 'n/a'": ["3,5", "1,5", "2,0", "4,5", "1,0", "n/a"],
    "some cannot be read, such as '?'": ["3.5", "1.5", "2.0", "4.5", "1.0", "?"],
    "some cannot be read, such as '1,5 kg'": ["1,5 kg", "2,0 kg", "0,5 kg"],
    "some cannot be read, such as '4,5 / 5'": ["4,5 / 5", "3,0 / 5", "1,5 / 5"],
    "some cannot be read, such as '<1,5'": ["<1,5", "2,5", "3,5"],
    "some cannot be read, such as '3,5'": ["1,250.50", "3,5", "12,400"],
    "mixes units: '$', '€'": ["€ 3.50", "$ 3.20", "€ 12.90"],
    "mixes units: '%', ''": ["5%", "0.10", "7%"],
    "may hold thousands, such as '1.250', or decimals": ["950", "1.250", "29.850", "470"],
    "vectors of yes and no, such as '010'": ["010", "101", "110"],
    "vectors of yes and no, such as '0/1/0'": ["0/1/0", "1/0/1"],
    "vectors of yes and no, such as 'yes,no,no'": ["yes,no,no", "no,yes,yes"],
}


@pytest.mark.fast(5)
@pytest.mark.parametrize("doubt", DOUBTS)
def test_labels_that_are_not_read_as_what_they_seem_to_be_are_asked_about(doubt, tmp_path, capsys) -> None:
    source = written(tmp_path, labelled(*DOUBTS[doubt]))
    assert doubt in refusal(capsys, source)
    settings = init(source, "task.problem_type=single_label_classification")
    assert settings["task"]["problem_type"] == "single_label_classification"


@pytest.mark.parametrize(
    "labels", [["1.5 stars", "other", "none"], ["v1", "v2"], ["1", "2", "other"], ["Q1 2020", "x"]]
)
def test_names_with_digits_are_classes(labels, tmp_path) -> None:
    assert init(written(tmp_path, labelled(*labels)))["task"]["problem_type"] == "single_label_classification"


@pytest.mark.parametrize("separator", ["\n", "\t", "、"])
def test_cells_of_several_labels_are_divided(separator, tmp_path) -> None:
    labels = [separator.join(each) for each in (("red", "big"), ("red",), ("big", "old"), ("old",), ("red", "old"))]
    assert init(written(tmp_path, labelled(*labels)))["task"]["label_separator"] == separator


def test_long_names_of_labels_in_another_language_are_no_translation(tmp_path) -> None:
    german = [f"Das Paket Nummer {n} ist nicht mit der Post und auch nicht mit dem Boten gekommen." for n in range(40)]
    names = ["The parcel has not come and the customer wants to know where it is now", "The customer is happy with it"]
    rows = [{"text": text, "label": names[n % 2]} for n, text in enumerate(german)]
    assert init(written(tmp_path, rows))["task"]["problem_type"] == "single_label_classification"


def test_languages_that_change_within_texts_get_a_model_of_many(tmp_path) -> None:
    parts = [
        "I want my money back for this lamp, and it is late.",
        "Ich möchte das Geld für die Lampe und das ist spät.",
    ]
    rows = [{"text": f"<p>{parts[0]}</p><p>{parts[n % 3 == 0]} {n}</p>", "label": "ab"[n % 2]} for n in range(60)]
    assert "multilingual" in init(written(tmp_path, rows))["model"]["name_or_path"]
    rows = [{"text": f"<div><p>{parts[0]}<br/></p><p>Order {n}</p></div>", "label": "ab"[n % 2]} for n in range(60)]
    assert "multilingual" not in init(written(tmp_path, rows))["model"]["name_or_path"]


def test_texts_that_all_occur_twice_are_texts(tmp_path) -> None:
    rows = [{"text": f"tool {n // 2}", "label": "ab"[n // 2 % 2]} for n in range(80)]
    assert init(written(tmp_path, rows))["task"]["problem_type"] == "single_label_classification"


@pytest.mark.parametrize("values", [["good", "bad"], [4, 2, 5]])
def test_a_first_line_that_is_a_row_is_no_header(values, tmp_path) -> None:
    rows = [[text, values[number % len(values)]] for number, text in enumerate(TEXTS)]
    source = table(tmp_path / "rows.tsv", [*map(str, rows[0])], rows[1:], "\t")
    assert init(source)["data"]["header"] is False
    assert init(source)["data"]["columns"] == {"text": "1", "label": "2"}


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", ["text", "Feedback", "customer_comment"])
def test_short_texts_below_a_usual_name_are_texts(tmp_path, capsys, name) -> None:
    rows = [{name: f"tool {n}", "label": ("good", "bad")[n % 2]} for n in range(40)]
    assert init(written(tmp_path, rows))["task"]["problem_type"] == "single_label_classification"
    unnamed = written(tmp_path, [{"tool": row[name], "label": row["label"]} for row in rows])
    for settings in ((), ("data.columns.label=label",)):  # as the first refusal advises
        assert "data.columns.text=COLUMN" in refusal(capsys, unnamed, *settings)
    advised = init(unnamed, "data.columns.label=label", "data.columns.text=tool")
    assert advised["data"]["columns"] == {"text": "tool", "label": "label"}


def test_one_column_that_is_named_never_makes_another_kind_of_data(tmp_path, capsys) -> None:
    source = written(tmp_path, [{"text": ("good", "bad")[n % 2], "label": n} for n in range(40)])
    said = refusal(capsys, source, "data.columns.label=label")
    assert "do not fit any recipe" in said


def test_code_of_a_model_is_neither_executed_nor_asked_about(tmp_path, capsys, monkeypatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda text="": asked.append(text) or "y")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}')
    own = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (model / "tokenizer_config.json").write_text(json.dumps(own))
    (model / "own.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    chats = [[{"role": "user", "content": text}, {"role": "assistant", "content": "Hello."}] for text in TEXTS]
    for name, rows in {
        "chats.jsonl": [{"messages": chat} for chat in chats],
        "rows.csv": labelled("good", "bad"),
    }.items():
        arguments = ("--model", model, "--output", tmp_path / f"{name}.yaml")
        assert run_command("init", written(tmp_path, rows, name), *arguments) == 2
        assert "trust_remote_code" in capsys.readouterr().err
        assert not (tmp_path / f"{name}.yaml").exists()
    assert not asked
    assert not (tmp_path / "executed").exists()


def unordered(said: str) -> str:
    return said.replace("sentence2 and sentence1", "sentence1 and sentence2")


def test_if_no_row_can_be_read_the_reason_is_said(tmp_path, capsys) -> None:
    (tmp_path / "lists.jsonl").write_text("[1]\n[2]\n")
    said = refusal(capsys, tmp_path / "lists.jsonl")
    assert "none of its 2 rows can be read; row 1: " in said
    assert "Its columns" not in said
    (tmp_path / "half.jsonl").write_text('{"text": "a"\n')
    assert "none of its 1 rows can be read; row 1: not JSON" in refusal(capsys, tmp_path / "half.jsonl")


@pytest.mark.slow
def test_entities_count_if_some_texts_have_them_and_labels_never(tmp_path) -> None:
    def unescaped(rows: Rows) -> bool:
        return init(written(tmp_path, rows))["data"].get("unescape_html", False)

    assert not unescaped(labelled("R&amp;D", "B&amp;B"))
    once = labelled("good", "bad")
    once[7] = {**once[7], "text": f"{once[7]['text']} &lt;3"}
    assert not unescaped(once)
    assert unescaped([{**row, "text": f"{row['text']} &lt;3"} if n % 10 == 0 else row for n, row in enumerate(once)])


def test_unused_columns_are_named_and_nothing_is_written_that_is_recognised_anyway(tmp_path, capsys) -> None:
    rows = [{"Id": n, **row, "Branch": "Köln"} for n, row in enumerate(labelled("good", "bad"))]
    settings = init(written(tmp_path, rows, delimiter=";"))
    assert "2 of 4 columns not used (50.0%): Id, Branch" in capsys.readouterr().out
    assert "# Not used: Id\n# Not used: Branch\n" in (tmp_path / "new.yaml").read_text(encoding="utf-8")
    assert settings["data"].keys() == {"train_file", "validation_split"}
    grouped = [{**row, "speaker": f"s{n % 7}"} for n, row in enumerate(labelled("good", "bad"))]
    init(written(tmp_path, grouped))
    assert "not used" not in capsys.readouterr().out


def test_chats_are_counted_in_their_template(tmp_path) -> None:
    save_chat_model(tmp_path / "model")
    said = {"user": "is it good", "assistant": "it is"}
    rows = [{"messages": [{"role": role, "content": f"{text} {n}"} for role, text in said.items()]} for n in range(60)]
    chats = written(tmp_path, rows, "chats.jsonl")
    frame = "is it good " * 7
    template = "{% for turn in messages %}" + frame + "{{ turn.content }} {{ eos_token }} {% endfor %}"
    sizes = [init(chats, "--model", tmp_path / "model", *given)["task"]["block_size"]
             for given in ((), (f"task.chat_template={template}",))]  # fmt: skip
    assert sizes[0] <= 48
    assert sizes[1] >= 96


def exchange(text: str, answer: str = "It is.") -> list[dict[str, str]]:
    return [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]


@pytest.mark.fast(1)
@pytest.mark.parametrize("printed", [json.dumps, str])
def test_conversations_in_cells_of_a_table_are_no_texts(tmp_path, printed) -> None:
    chats = [{"messages": printed(exchange(text)), "from": "web"} for text in TEXTS]
    assert init(written(tmp_path, chats))["task"]["data_format"] == "messages"
    pairs = [{"prompt": printed(exchange(text)[:1]), "chosen": printed(exchange(text)[1:]),
              "rejected": printed(exchange(text, "No.")[1:])} for text in TEXTS]  # fmt: skip
    assert init(written(tmp_path, pairs))["task"]["data_format"] == "messages"
    whole = [{"chosen": printed(exchange(text)), "rejected": printed(exchange(text, "No."))} for text in TEXTS]
    assert init(written(tmp_path, whole))["data"]["columns"] == {"prompt": "chosen"}


@pytest.mark.parametrize("answered", ["messages", "text"])
def test_conversations_in_two_columns_are_joined_as_the_message_says(tmp_path, capsys, answered) -> None:
    save_chat_model(tmp_path / "model")
    answers = ("It is.", [{"role": "assistant", "content": "It is."}])[answered == "messages"]
    source = written(tmp_path, [{"prompt": exchange(text)[:1], "response": answers} for text in TEXTS], "parts.jsonl")
    said = refusal(capsys, source)
    frame = pandas.read_json(source, lines=True)
    exec(re.search(r"as in (.*); or", said)[1], {"frame": frame})
    assert list(frame["messages"]) == [exchange(text) for text in TEXTS]
    frame.to_json(tmp_path / "joined.jsonl", orient="records", lines=True)
    assert init(tmp_path / "joined.jsonl", "--model", tmp_path / "model")["task"]["data_format"] == "messages"


def test_tools_of_conversations_are_counted(tmp_path) -> None:
    save_chat_model(tmp_path / "model")
    tool = {"type": "function", "function": {"name": "weigh", "description": "is it good " * 30}}
    chats = [{"messages": exchange(f"is it good {n}"), "tools": json.dumps([tool])} for n in range(40)]
    source = written(tmp_path, chats, "tools.jsonl")
    assert init(source, "--model", tmp_path / "model")["task"]["block_size"] >= 96
    assert init(source)["task"]["block_size"] >= 96  # of a model that is not there


@pytest.mark.slow
def test_questions_with_answers_are_neither_a_translation_nor_labelled(tmp_path) -> None:
    for names in (("question", "answer"), ("prompt", "completion")):
        faq = [{names[0]: f"How do I do {n}?", names[1]: f"You press {n}, and that is it."} for n in range(40)]
        assert init(written(tmp_path, faq))["task"]["data_format"] == "prompt_completion"
        mixed = [{names[0]: text, names[1]: f"Das ist nicht die {n}, und das mit der {n}."}
                 for n, text in enumerate(TEXTS)]  # fmt: skip
        assert init(written(tmp_path, mixed))["task"]["data_format"] == "prompt_completion"
        sources = [{**row, "source": ("web", "book")[n % 2]} for n, row in enumerate(faq)]
        assert init(written(tmp_path, sources))["task"]["data_format"] == "prompt_completion"
        assert init(written(tmp_path, sources), "data.columns.label=source")["task"]["problem_type"]
    pairs = [{"question": f"How is {n}?", "answer": f"It is {n}.", "label": n % 2} for n in range(40)]
    assert init(written(tmp_path, pairs))["data"]["columns"] == {"text": "question", "text_pair": "answer"}
    alpaca = [{"instruction": f"Do {n}.", "input": f"das ist die {n}" if n % 2 else "", "output": f"{n} it is"}
              for n in range(40)]  # fmt: skip
    assert init(written(tmp_path, alpaca))["task"]["data_format"] == "alpaca"


def test_the_prefix_of_t5_is_counted(tmp_path) -> None:
    rows = [{"article": "a" * 119 + f"{n}", "summary": "b" * 20} for n in range(60)]
    source = written(tmp_path, [{**row, "article": row["article"][-118:]} for row in rows], "articles.jsonl")
    assert init(source)["task"]["max_source_length"] == 48  # 118 characters and "summarize: " are over 32 tokens


@pytest.mark.slow
def test_the_last_lines_name_the_scores_to_beat(tmp_path, capsys) -> None:
    for source in (ratings(tmp_path), written(tmp_path, recordings(tmp_path, [0.5] * 12), "clips.csv")):
        assert run_command("init", source, "--from-scratch", "--output", tmp_path / "y.yaml", "--overwrite") == 0
        said = capsys.readouterr().out
        command = re.search(r"\n  toolkit (baseline .*)\n", said)[1]
        assert run_command(*shlex.split(command), "--output", tmp_path / f"{source.stem}-baseline") == 0
        capsys.readouterr()


def test_small_models_are_proposed_where_there_is_no_gpu(tmp_path, monkeypatch) -> None:
    for n in range(12):
        (folder := tmp_path / "photos" / "ab"[n % 2]).mkdir(parents=True, exist_ok=True)
        (folder / f"{n}.png").write_bytes(image(noise(20, 24, 3, seed=n)))
    model, precision = {}, {}
    for gpu in (False, True):
        for module in ("models", "guesses"):
            monkeypatch.setattr(f"toolkit.lab.init.{module}.has_gpu", lambda gpu=gpu: gpu)
        monkeypatch.setattr("toolkit.lab.init.guesses.has_fast_bf16", lambda: True)
        assert run_command("init", tmp_path / "photos", "--output", tmp_path / f"{gpu}.yaml") == 0
        settings = YAML(typ="safe", pure=True).load(tmp_path / f"{gpu}.yaml")
        model[gpu], precision[gpu] = settings["model"]["name_or_path"], settings["train"].get("mixed_precision")
    assert model == {False: "microsoft/resnet-18", True: "google/vit-base-patch16-224-in21k"}
    assert precision == {False: None, True: "bf16"}, "torch's convolutions in bf16 on CPUs may give NaN"


def test_nothing_is_downloaded_from_scratch(tmp_path, capsys) -> None:
    for n in range(12):
        (folder := tmp_path / "photos" / "ab"[n % 2]).mkdir(parents=True, exist_ok=True)
        (folder / f"{n}.png").write_bytes(image(noise(20, 24, seed=n)))
    settings = init(tmp_path / "photos", "--from-scratch")
    assert settings["task"]["image"]["size"] == 40  # twice the shorter side
    assert settings["model"]["from_config"]["num_channels"] == 1
    clips = written(tmp_path, recordings(tmp_path, [0.5] * 12, 8000))
    assert init(clips, "--from-scratch")["task"]["audio"]["sampling_rate"] == 8000
    pretrained = init(written(tmp_path, labelled("good", "bad")))
    new = init(written(tmp_path, labelled("good", "bad")), "--from-scratch")
    assert new["model"].keys() == {"from_config"}
    assert new["train"]["learning_rate"] > pretrained["train"]["learning_rate"]
    assert new["train"]["num_train_epochs"] > pretrained["train"]["num_train_epochs"]
    assert "a model is named, too" in refusal(capsys, ratings(tmp_path), "--from-scratch", "--model", "some/model")
    articles = json_lines(tmp_path / "a.jsonl", ({"article": text, "summary": text[:30]} for text in TEXTS))
    assert "texts with summaries need a pretrained model" in refusal(capsys, articles, "--from-scratch")


def test_a_model_that_cannot_be_loaded_names_the_way_without_one(tmp_path, capsys) -> None:
    assert run_command("init", prices(tmp_path), "--output", tmp_path / "y.yaml") == 0
    assert run_command("train", "reviews", "--config", tmp_path / "y.yaml", f"output_dir={tmp_path / 'run'}") == 2
    assert "toolkit init FILE --from-scratch" in capsys.readouterr().err


def pictures(folder: Path) -> Path:
    """Writes bright and dark images."""
    for n in range(80):
        (place := folder / "pictures" / ("bright", "dark")[n % 2]).mkdir(parents=True, exist_ok=True)
        picture = noise(20, 20, 3, seed=n).point(lambda value, n=n: value // 3 + (0 if n % 2 else 160))
        (place / f"{n}.png").write_bytes(image(picture))
    return folder / "pictures"


def sounds(folder: Path) -> Path:
    """Writes high and low tones."""
    for n in range(80):
        (place := folder / "sounds" / ("high", "low")[n % 2]).mkdir(parents=True, exist_ok=True)
        frequency = 300 + n if n % 2 else 2000 + 5 * n
        (place / f"{n}.wav").write_bytes(audio(tone(0.3, 8000, frequency=frequency), 8000))
    return folder / "sounds"


def opinions(folder: Path) -> Path:
    words = {"good": "great and sturdy", "bad": "torn and leaking"}
    rows = [{"text": f"{text.rsplit(' ', 1)[0][:60]} {words[label]} {n}", "label": label}
            for n, text in enumerate(sentences(rows=160)) for label in (("good", "bad")[n % 2],)]  # fmt: skip
    return json_lines(folder / "opinions.jsonl", rows)


@pytest.mark.slow
@pytest.mark.parametrize("write", [opinions, pictures, sounds])
def test_a_new_model_learns_what_is_easy(write, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    source = next(name for name in ("opinions.jsonl", "pictures", "sounds") if (tmp_path / name).exists())
    assert run_command("init", source, "--from-scratch", "--output", "my.yaml") == 0
    assert run_command("train", "reviews", "--config", "my.yaml") == 0
    summary = json.loads((tmp_path / "outputs" / Path(source).stem / "run.json").read_text(encoding="utf-8"))
    assert summary["result"]["eval_accuracy"] > 0.8


@pytest.mark.fast(2)
@pytest.mark.parametrize(("first", "second"), [
    ("sentence1", "sentence2"), ("sentence_A", "sentence_B"), ("premise", "hypothesis"), ("Question", "Answer"),
    ("query", "document"),
])  # fmt: skip
def test_two_texts_with_a_label_are_a_pair(first, second, tmp_path, capsys) -> None:
    rows = [{"label": n % 2, second: TEXTS[-n], first: TEXTS[n], "id": n} for n in range(40)]
    source = written(tmp_path, rows)
    settings = init(source)
    assert settings["data"]["columns"] == {"text": first, "text_pair": second}
    written_down = (tmp_path / "new.yaml").read_text()
    assert "40 rows: pairs of texts with a label" in written_down
    assert f"the second text of a pair with {first}" in written_down
    longest = max(len(row[first]) + len(row[second]) for row in rows)
    assert settings["task"]["max_length"] >= longest / 6
    alone = init(source, f"data.columns.text={first}")
    assert alone["data"]["columns"] == {"text": first}
    assert f"# Not used: {second}" in (tmp_path / "new.yaml").read_text()
    assert run_command("data", "show", source) == 0
    said = capsys.readouterr().out
    assert "text_pair" in said
    assert "text and text_pair: tokens" in said
    assert f"truncated at task.max_length={settings['task']['max_length']}" in said


@pytest.mark.fast(1)
@pytest.mark.parametrize(("first", "second"), [("subject", "body"), ("Title", "Text")])
def test_parts_of_one_text_are_joined_by_a_template(first, second, tmp_path, capsys) -> None:
    rows = [{first: f"about {n}", second: TEXTS[n], "price": n, "label": "ab"[n % 2]} for n in range(40)]
    source = written(tmp_path, rows)
    settings = init(source)
    assert settings["data"]["columns"] == {"text": f"{{{first}}}\n{{{second}}}"}
    written_down = (tmp_path / "new.yaml").read_text()
    assert "40 rows: texts in two columns with a label" in written_down
    assert f"{first} and {second} are read as one text" in unordered(written_down)
    assert run_command("data", "show", source) == 0
    said = capsys.readouterr().out
    assert said.count(" text ") >= 2
    own = init(source, f"data.columns.text={{{first}}}: {{{second}}} ({{price}})")
    assert own["data"]["columns"] == {"text": f"{{{first}}}: {{{second}}} ({{price}})"}
    assert "no column 'titel'" in refusal(capsys, source, "data.columns.text={titel}: {price}").replace("there is ", "")


def test_parts_of_a_text_without_another_label_are_text_and_label(tmp_path) -> None:
    rows = [{"subject": ("spam", "ham")[n % 2], "body": TEXTS[n]} for n in range(40)]
    assert init(written(tmp_path, rows), "data.columns.label=subject")["data"]["columns"] == {
        "text": "body", "label": "subject",
    }  # fmt: skip


EMBEDDINGS = ("--recipe", "embeddings")
SEARCHES: dict[str, tuple[dict[str, str], tuple[str, ...], dict[str, str]]] = {
    "anchor": ({"anchor": "a", "positive": "p", "negative": "n"}, (), {}),
    "query": ({"query": "a", "document": "p"}, (), {"anchor": "query", "positive": "document"}),
    "abstract": ({"title": "a", "abstract": "p"}, (), {"anchor": "title", "positive": "abstract"}),
    "answer": ({"question": "a", "answer": "p"}, EMBEDDINGS, {"anchor": "question", "positive": "answer"}),
    "scored": ({"sentence1": "a", "sentence2": "p", "similarity": "s"}, EMBEDDINGS,
               {"text": "sentence1", "text_pair": "sentence2", "score": "similarity"}),
}  # fmt: skip


@pytest.mark.fast(2)
@pytest.mark.parametrize("form", SEARCHES)
def test_queries_and_what_answers_them_are_for_embeddings(form, tmp_path) -> None:
    columns, given, expected = SEARCHES[form]
    values = {"a": "What about {}?", "p": "It is said of {} that nothing is known.", "n": "Of others than {}, much is."}
    rows = [
        {name: values[kind].format(text) if kind in values else f"{number % 7 / 2}" for name, kind in columns.items()}
        for number, text in enumerate(TEXTS)
    ]
    save_text_model(tmp_path / "encoder")
    settings = init(written(tmp_path, rows), *given, "--model", tmp_path / "encoder")
    assert settings["data"].get("columns", {}) == expected
    assert settings["task"].get("loss") == ("cosent" if form == "scored" else None)
