"""`toolkit doctor`: what was planted in rows is found, with its numbers, and nothing else is."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from browser import needs_browser, open_page
from PIL import Image
from runs import ROOT, TINY

from toolkit.commands.cli import main
from toolkit.lab.doctor import duplicates, label_errors
from toolkit.lab.doctor.duplicates import BANDS, pieces, similar_pairs, similarity, text_keys
from toolkit.lab.doctor.findings import Finding
from toolkit.lab.doctor.label_errors import Predicted
from toolkit.lab.doctor.report import TITLES, Diagnosis
from toolkit.recipe import load_settings, load_task_type

pytestmark = pytest.mark.usefixtures("forked_trials")

WORDS = [
    f"{a}{b}{c}" for a in ("ba", "de", "ki", "lo", "mu") for b in ("ra", "se", "ti", "vo") for c in ("n", "lk", "st")
]


def sentence(random: np.random.Generator, count: int = 12) -> str:
    return " ".join(random.choice(WORDS, count))


def write_csv(file: Path, rows: list[list[Any]], header: list[str]) -> None:
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows([header, *rows])


def doctor(recipe: str, folder: Path, *arguments: str, config: str = "smoke") -> dict[str, Any]:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", recipe, "--config", config, "--output", str(folder), *arguments])
    assert ended.value.code == 0
    found: dict[str, Any] = json.loads((folder / "doctor.json").read_text())
    return found


def of_kind(found: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [finding for finding in found["findings"] if finding["kind"] == kind]


def rows_of(found: dict[str, Any], kind: str, *names: str) -> list[tuple[Any, ...]]:
    return [
        tuple(row[name] for name in ("split", "row", *names)) for each in of_kind(found, kind) for row in each["rows"]
    ]


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Path:
    """Reviews with faults. Rows have the numbers of their lines, and the first line is the header."""
    folder, random = tmp_path_factory.mktemp("planted"), np.random.default_rng(0)
    texts = [sentence(random) for _ in range(150)]
    labels = ["positive" if number % 4 else "negative" for number in range(150)]
    rows = list(zip(texts, labels, strict=True))
    rows += [rows[3], rows[3], rows[7]]  # lines 152 to 154: repeated
    rows += [(texts[11], "positive" if labels[11] == "negative" else "negative")]  # 155: another label
    rows += [(texts[20].upper() + "!", labels[20]), (texts[30].replace("ra", "rra", 1), labels[30])]  # 156, 157: nearly
    rows += [(sentence(random, 120), "positive")]  # 158: long
    rows += [(sentence(random), "Positive"), (sentence(random), "Positive")]  # spelled differently
    train = [[text, label, "web", "", number] for number, (text, label) in enumerate(rows)]
    write_csv(folder / "train.csv", train, ["text", "label", "source", "note", "number"])
    held = [[sentence(random), "positive" if number % 4 else "negative"] for number in range(40)]
    held[5], held[17], held[29] = [texts[40], labels[40]], [texts[41], labels[41]], [texts[42], labels[42]]
    held[33] = [f"  {texts[50].title()} ...", labels[50]]
    write_csv(folder / "validation.csv", held, ["text", "label"])
    return folder


@needs_browser
def test_planted_faults_of_texts_are_found_with_their_numbers(planted, tmp_path, capsys):
    files = [f"data.{name}_file={planted / name}.csv" for name in ("train", "validation")]
    found = doctor("reviews", tmp_path / "out", *files, "task.max_length=16")
    assert found["rows"] == {"train": 159, "validation": 40}
    assert rows_of(found, "duplicates", "like_row") == [("train", 152, 5), ("train", 153, 5), ("train", 154, 9)]
    assert rows_of(found, "contradictory", "like_row") == [("train", 155, 13)]
    assert rows_of(found, "leaked", "like_split", "like_row") == [
        ("validation", 7, "train", 42), ("validation", 19, "train", 43), ("validation", 31, "train", 44),
    ]  # fmt: skip
    assert rows_of(found, "near_duplicates", "like_row") == [("train", 156, 22), ("train", 157, 32)]
    assert rows_of(found, "near_leaked", "like_row") == [("validation", 35, 52)]
    assert rows_of(found, "outliers") == [("train", 158)]
    assert {each["details"]["column"] for each in of_kind(found, "constant_columns")} == {"source"}
    assert {each["details"]["column"] for each in of_kind(found, "empty_columns")} == {"note"}
    assert of_kind(found, "similar_labels")[0]["details"]["groups"] == [["Positive", "positive"]]
    assert of_kind(found, "rare_labels")[0]["details"]["labels"] == {"Positive": 2}
    assert of_kind(found, "imbalance")[0]["details"]["least"] == "Positive"
    (cut,) = of_kind(found, "cut")
    assert cut["details"]["limit"] == 16
    (lengths,) = found["histograms"]
    assert sum(lengths["counts"]) == 159
    assert lengths["share_cut"] == pytest.approx(cut["details"]["share"])
    assert "3 of 40 validation rows are also in the train rows" in of_kind(found, "leaked")[0]["message"]
    assert not of_kind(found, "label_errors")

    shown = capsys.readouterr().out
    report = shown[: shown.index("written to")]
    assert max(map(len, report.splitlines())) <= 80
    assert "Leaked rows: 3 of 40 validation rows" in " ".join(report.split())
    overrides = [override for each in found["suggestions"] for override in each["overrides"]]
    keys = {override.partition("=")[0] for override in overrides}
    assert keys >= {"data.validation_file", "task.label_map", "task.max_length", "task.class_weights"}
    for each in found["suggestions"]:
        load_settings(
            load_task_type("reviews"), ROOT / "recipes/configs/reviews/smoke.yaml", [*files, *each["overrides"]]
        )
    for width in (1280, 400):
        script = "return document.documentElement.scrollWidth - window.innerWidth"
        document, hidden = open_page(tmp_path / "out/doctor.html", script, width)
        assert hidden <= 0
        assert "Nearly leaked rows" in document
    assert {file.name for file in (tmp_path / "out").iterdir()} >= {"doctor.md", "doctor.json", "histograms.svg"}


def test_clean_rows_have_no_findings(tmp_path):
    random = np.random.default_rng(1)
    rows = [[sentence(random), "yes" if number % 2 else "no", number] for number in range(80)]
    write_csv(tmp_path / "rows.csv", rows, ["text", "label", "number"])
    found = doctor("reviews", tmp_path / "out", f"data.train_file={tmp_path / 'rows.csv'}", "data.validation_file=null")
    assert [each for each in found["findings"] if each["kind"] != "cut"] == []


def test_queries_that_are_their_own_answer_are_found(tmp_path):
    random = np.random.default_rng(1)
    rows = [[sentence(random), sentence(random)] for _ in range(40)]
    rows[3][1] = f" {rows[3][0].upper()}"
    rows += [[rows[5][0], sentence(random)], rows[7]]  # lines 42 and 43: another answer to a query, the same again
    write_csv(tmp_path / "rows.csv", rows, ["anchor", "positive"])
    own = (f"data.train_file={tmp_path / 'rows.csv'}", "data.validation_file=null", "data.validation_split=0",
           "eval.eval_on_start=false", "eval.eval_steps=null",
           "data.columns={anchor: anchor, positive: positive}")  # fmt: skip
    found = doctor("embeddings", tmp_path / "out", *own)
    assert rows_of(found, "equal_texts") == [("train", 5)]
    assert rows_of(found, "duplicates", "like_row") == [("train", 43, 9)]
    assert not of_kind(found, "contradictory")


def test_nearly_equal_questions_share_question_and_context(tmp_path):
    random = np.random.default_rng(2)
    contexts = [sentence(random, 60) for _ in range(12)]
    answers = [{"text": [context[:5]], "answer_start": [0]} for context in contexts]
    rows = [
        {"question": sentence(random, 8), "context": context, "answers": answer}
        for context, answer in zip(contexts, answers, strict=True)
        for _ in range(4)
    ]
    rows.append({**rows[9], "question": rows[9]["question"].upper()})
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = doctor("qa", tmp_path / "out", f"data.train_file={tmp_path / 'rows.jsonl'}", "data.validation_file=null",
                   "data.validation_split=0", "eval.eval_steps=null")  # fmt: skip
    assert rows_of(found, "near_duplicates", "like_row") == [("train", 49, 10)]


def test_words_of_long_texts_are_in_windows_and_not_cut(tmp_path):
    rows = ["\n".join(f"{word}{number} {'B-PER' if number == 3 else 'O'}" for number in range(90)) for word in "abc"]
    (tmp_path / "rows.conll").write_text("\n\n".join(rows))
    found = doctor("token_classification", tmp_path / "out", f"data.train_file={tmp_path / 'rows.conll'}",
                   "data.validation_file=null", "data.validation_split=0", "eval.eval_steps=null", "task.max_length=16",
                   "task.stride=4")  # fmt: skip
    assert of_kind(found, "cut") == []
    assert found["histograms"][0]["option"] == ""


@pytest.mark.slow
def test_similar_texts_are_found_without_comparing_all_pairs():
    random = np.random.default_rng(3)
    texts = [sentence(random, 30) for _ in range(2000)]
    changed = [text.replace(text.split()[4], "zzz", 1) for text in texts[:100]]
    every = texts + changed
    asked = 0

    def likeness(one: int, other: int) -> float | None:
        nonlocal asked
        asked += 1
        how = similarity(every[one], every[other])
        return how if how >= 0.8 else None

    pairs = similar_pairs(text_keys([[text] for text in every]), likeness)
    expected = {(number, 2000 + number) for number in range(100) if similarity(texts[number], changed[number]) >= 0.8}
    assert len(expected) > 90
    assert {(one, other) for one, other, _ in pairs} == expected
    assert asked < 2 * BANDS * len(every)


def test_pieces_ignore_case_blanks_and_punctuation():
    assert np.array_equal(pieces("One, two  THREE!"), pieces("one two three"))
    assert [len(pieces(text)) for text in ("", "ab", "abcde", "abcdef")] == [1, 1, 1, 2]
    assert similarity("abc", "abd") == 0


def picture(seed: int) -> Image.Image:
    random = np.random.default_rng(seed)
    small = Image.fromarray(random.integers(0, 256, (6, 6, 3), dtype=np.uint8))
    return small.resize((96, 96), Image.Resampling.BICUBIC)


def test_an_image_is_found_again_after_it_was_scaled_and_compressed(tmp_path):
    for number in range(24):
        folder = tmp_path / "images" / ("ab"[number % 2])
        folder.mkdir(parents=True, exist_ok=True)
        picture(number).save(folder / f"{number:02}.png")
    picture(4).resize((64, 64)).save(tmp_path / "images/a/again.jpg", quality=70)
    Image.fromarray(np.asarray(picture(6)) // 2 + 100).save(tmp_path / "images/a/bright.png")
    Image.new("RGB", (500, 4)).save(tmp_path / "images/b/thin.png")
    found = doctor("reviews", tmp_path / "out", f"data.train_file={tmp_path / 'images'}", "data.validation_file=null",
                   "data.validation_split=0", "eval.eval_steps=null", config="smoke_image")  # fmt: skip
    assert rows_of(found, "near_duplicates", "like_row") == [("train", 13, 3), ("train", 14, 4)]
    assert set(rows_of(found, "outliers")) == {("train", 13), ("train", 27)}
    assert found["histograms"][0]["unit"] == "pixels of the shorter side"


def test_a_clip_is_found_again_after_it_was_made_quieter_and_resampled():
    random, rate = np.random.default_rng(0), 16000
    time = np.arange(rate) / rate

    def clip() -> np.ndarray:
        parts = [
            np.sin(2 * np.pi * random.uniform(150, 3000) * time) * (time > random.uniform(0, 0.8)) for _ in range(6)
        ]
        return np.sum(parts, axis=0).astype(np.float32) / 10

    def fingerprint(samples: np.ndarray, rate: int, first: int = 0, frames: int | None = None) -> duplicates.Print:
        opened = io.BytesIO()
        soundfile.write(opened, samples, rate, format="WAV")
        part = {"first": first, "frames": frames or len(samples)}
        found = duplicates.of_audio({"path": None, "bytes": opened.getvalue(), "name": "a.wav", **part})
        assert found is not None
        return found

    one, other = clip(), clip()
    whole = fingerprint(one, rate)
    assert duplicates.likeness(whole, fingerprint(one * 0.2, rate), "audio") == pytest.approx(1, abs=1e-3)
    assert duplicates.likeness(whole, fingerprint(np.repeat(one, 2), 2 * rate), "audio") is not None
    assert duplicates.likeness(whole, fingerprint(one[: rate // 2], rate), "audio") is None
    assert duplicates.likeness(whole, fingerprint(other, rate), "audio") is None
    recording = np.concatenate([other, one])  # of which one part is the clip, and the other is not
    assert duplicates.likeness(whole, fingerprint(recording, rate, rate, rate), "audio") == pytest.approx(1, abs=1e-3)
    assert duplicates.likeness(whole, fingerprint(recording, rate, 0, rate), "audio") is None
    assert duplicates.of_audio({"path": "missing.wav", "bytes": None, "name": "missing.wav"}) is None


# Likely wrong labels


def predicted(records: list[dict[str, Any]], recipe: str = "reviews") -> Predicted:
    class Rows:
        def place(self, row: int) -> dict[str, Any]:
            return {"split": "validation", "file": "rows.csv", "row": row + 1}

    task_type = load_task_type(recipe)
    cfg = load_settings(task_type, ROOT / f"recipes/configs/{recipe}/smoke.yaml").config
    return Predicted(task_type(cfg), [Rows()] * len(records), range(len(records)), records, [0] * len(records))


def only(found: Any) -> Any:
    (finding,) = found
    return finding


def test_wrong_classes_are_found():
    random = np.random.default_rng(0)
    records, wrong = [], set()
    for number in range(400):
        true = "abc"[number % 3]
        scores = random.dirichlet([1, 1, 1]) * 0.3
        scores["abc".index(true)] += 0.7
        label = true
        if number % 20 == 7:  # 5 %
            wrong.add(number + 1)
            label = "abc"[(number + 1) % 3]
        records.append({"label": label, "prediction": "abc"[int(scores.argmax())],
                        "scores": dict(zip("abc", scores.tolist(), strict=True))})  # fmt: skip
    finding = only(label_errors.label_errors(predicted(records)))
    named = {row["row"] for row in finding.rows}
    assert named <= wrong
    assert len(named) >= 0.75 * len(wrong)
    assert finding.message == f"{len(named)} of 400 rows ({len(named) / 400:.1%}) have a likely wrong label."
    assert [row["probability"] for row in finding.rows] == sorted(row["probability"] for row in finding.rows)


def test_wrong_labels_of_several_are_found():
    random = np.random.default_rng(0)
    records, wrong = [], set()
    for number in range(300):
        true = {name for name, part in (("x", number % 2), ("y", number % 3 == 0)) if part}
        scores = {
            name: float(random.uniform(0.85, 0.99) if name in true else random.uniform(0.01, 0.15)) for name in "xy"
        }
        label = set(true)
        if number % 20 == 4:
            wrong.add(number + 1)
            label ^= {"x"}
        records.append({"label": sorted(label), "prediction": sorted(true), "scores": scores})
    finding = only(label_errors.label_errors(predicted(records)))
    named = {row["row"] for row in finding.rows}
    assert named <= wrong
    assert len(named) >= 0.6 * len(wrong)


def test_wrong_numbers_are_found():
    random = np.random.default_rng(0)
    numbers = random.normal(0, 10, 200)
    records = [{"label": float(number), "prediction": float(number + random.normal(0, 0.5))} for number in numbers]
    records[30]["label"] += 60
    records[31]["label"] = None
    finding = only(label_errors.label_errors(predicted(records)))
    assert [row["row"] for row in finding.rows] == [31]


def test_missing_entities_and_wrong_answers_are_found():
    def entity(score: float) -> list[dict[str, Any]]:
        return [{"type": "PER", "text": "Anna Berg", "start": 0, "end": 2, "score": score}]

    tags, none = ["B-PER", "I-PER", "O"], ["O", "O", "O"]
    records = [{"tokens": ["Anna", "Berg", "sat"], "tags": tags, "prediction": tags, "entities": entity(0.9)}] * 10
    records += [{**records[0], "tags": none}, {**records[0], "tags": none, "entities": entity(0.4)}]
    finding = only(label_errors.label_errors(predicted(records, "token_classification")))
    assert [row["row"] for row in finding.rows] == [11]
    right = {"id": "1", "prediction_text": "in Kiel", "score": 0.8, "question": "Where?", "answers": ["in Kiel"]}
    answers = [right] * 10 + [{**right, "answers": ["a boat"]}, {**right, "answers": ["a boat"], "score": 0.2}]
    finding = only(label_errors.label_errors(predicted(answers, "qa")))
    assert [row["row"] for row in finding.rows] == [11]


def test_generated_texts_are_only_ranked():
    records = [{"source": "a", "prediction": "a fine day", "reference": "a fine day"}] * 5
    records += [{"source": "a", "prediction": "a fine day", "reference": "it rained"}]
    finding = only(label_errors.label_errors(predicted(records, "translation")))
    assert (finding.kind, [row["row"] for row in finding.rows]) == ("large_errors", [6])
    assert "wrong labels cannot be told from hard rows" in finding.message


def test_transcripts_that_cannot_be_of_their_recordings_are_found(tmp_path) -> None:
    random = np.random.default_rng(0)
    english = ["the", "and", "that", "with", "this", "are", "not", "have", "you", "was"]
    rows = [[f"{n}.wav", " ".join(random.choice(english, 6)) + f" {n}"] for n in range(40)]

    def sound(n: int) -> np.ndarray:
        return 0.4 * np.sin(2 * np.pi * (200 + 11 * n) * np.arange(8000) / 8000) + 0.05 * random.standard_normal(8000)

    sounds = [sound(n) for n in range(40)]
    rows[3][1] = " ".join(random.choice(english, 60))  # in one second
    rows[5][1] = "das ist nicht die Frau und der Mann"
    rows[7][1] = " ".join(["\u0434\u043e\u0431\u0440\u044b\u0439 \u0434\u0435\u043d\u044c"] * 3)  # good day
    rows[8][1] = "あなた は 今日 とても 元気 です ね"
    sounds[11], sounds[13] = np.zeros(8000), np.clip(9 * sounds[13], -1, 1)
    sounds[17] = sounds[15]  # with another transcript
    for n, samples in enumerate(sounds):
        soundfile.write(tmp_path / f"{n}.wav", samples, 8000)
    write_csv(tmp_path / "train.csv", rows, ["audio", "text"])
    files = [f"data.train_file={tmp_path / 'train.csv'}", "data.validation_file=null", "eval.eval_steps=null",
             "data.validation_split=0", "checkpoint.save_steps=100"]  # fmt: skip
    found = doctor("speech_recognition", tmp_path / "out", *files, config="smoke_ctc")
    assert rows_of(found, "silent") == [("train", 13)]
    assert [(row, value > 0.5) for _, row, value in rows_of(found, "clipped", "value")] == [(15, True)]
    assert sorted(rows_of(found, "foreign", "value")) == [
        ("train", 7, "de"), ("train", 9, "Cyrillic"), ("train", 10, "Japanese or Chinese"),
    ]  # fmt: skip
    (unusual,) = of_kind(found, "outliers")
    assert unusual["details"]["measured"] == "number of characters of text per second"
    assert [row["row"] for row in unusual["rows"]] == [5]
    assert rows_of(found, "contradictory", "like_row") == [("train", 19, 17)]
    assert {each["name"] for each in found["histograms"]} == {"audio", "text"}


def test_peaks_that_only_touch_full_scale_are_not_clipped() -> None:
    time = np.arange(16000) / 16000
    for hertz in (50, 440):
        wave = np.sin(2 * np.pi * hertz * time)[:, None]
        assert duplicates.clipped(wave) < 0.001
        assert duplicates.clipped(np.clip(1.3 * wave, -1, 1)) > 0.1
    assert np.isnan(duplicates.clipped(np.zeros((100, 2))))
    assert np.isnan(duplicates.clipped(np.ones((2, 1))))


def test_every_kind_of_finding_can_be_shown():
    row = {"split": "train", "file": "a.csv", "row": 1, "label": ["a", "b"], "probability": 0.5, "reason": "x" * 200}
    findings = [Finding(kind, 1, "m", [row]) for kind in TITLES]
    (lines,) = Diagnosis({"train": 3}, {}, [], [], findings, [], None, "c.yaml", "toolkit doctor").on_terminal()
    assert max(map(len, lines.text.splitlines())) <= 80


@pytest.mark.slow
def test_wrong_labels_of_all_rows_are_found_with_the_folds_of_a_cross_validation(tmp_path, capsys):
    random = np.random.default_rng(0)
    good, bad = WORDS[:10], WORDS[10:20]
    rows = [[" ".join(random.choice(good if number % 2 else bad, 8)), "ab"[number % 2]] for number in range(240)]
    wrong = {20 * number + number % 2 + 9 for number in range(12)}  # 5 %, of both classes
    for number in wrong:
        rows[number][1] = "ab"[rows[number][1] == "a"]
    write_csv(tmp_path / "rows.csv", rows, ["text", "label"])
    file = f"data.train_file={tmp_path / 'rows.csv'}"
    overrides = [*TINY[:-1], file, "data.validation_file=null", "train.max_steps=40",
                 "train.learning_rate=5.0e-3", "eval.eval_steps=null", "train.warmup_steps=0"]  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        main(["cross-validate", "reviews", "--config", "smoke", "--folds", "2", "--output", str(tmp_path / "folds"),
              *overrides])  # fmt: skip
    assert ended.value.code == 0
    found = doctor("reviews", tmp_path / "out", "--run", str(tmp_path / "folds"), *overrides)
    (finding,) = of_kind(found, "label_errors")
    named = {row["row"] - 2 for row in finding["rows"]}
    assert finding["details"]["examined"] == 240
    assert len(named & wrong) >= 9
    assert len(named - wrong) <= 3
    capsys.readouterr()

    (tmp_path / "rows.csv").write_text((tmp_path / "rows.csv").read_text() + "one more row,a\n")
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "reviews", "--config", "smoke", "--output", str(tmp_path / "again"), "--run",
              str(tmp_path / "folds"), *overrides])  # fmt: skip
    assert ended.value.code == 2
    assert "the data files have changed since" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("run", "message"), [("missing", "--run: there is no folder"), ("", "not a run, missing config.yaml, run.json")]
)
def test_what_is_no_run_is_rejected(run, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(
            ["doctor", "reviews", "--config", "smoke", "--output", str(tmp_path / "out"), "--run", str(tmp_path / run)]
        )
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
