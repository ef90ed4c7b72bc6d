"""`toolkit export`: scripts of runs with adapters and of several kinds, and scripts where the toolkit is missing."""

from __future__ import annotations

import csv
import json

import pytest
from commands import run_command
from exports import (
    assert_equal_answers,
    assert_same_answers,
    code_lines,
    exported,
    isolated_answers,
    read_table,
    script_answers,
    toolkit_answers,
    write_rows,
)
from launching import launch
from runs import ROOT, assert_close, train
from tolerances import float32_tolerance

FEW = ("train.max_steps=2", "data.max_train_samples=24", "data.max_eval_samples=5", "checkpoint.save_steps=null")


def some_files(folder: str) -> list[str]:
    return sorted(str(path) for path in (ROOT / "recipes/data" / folder / "validation").rglob("*.*"))[::20]


TEXTS = ["A fine pair of boots.", "It broke at once, &amp; soon.", "Good. " * 200]
KINDS = {
    "reviews": [{"text": "Dry feet at last."}, {"text": "It broke."}],
    "qa": [{"question": "What grows?", "context": "Clover grows here."}] * 2,
    "translation": [{"source": "A man in a hat."}, {"source": "Two dogs."}],
    "token_classification": [{"tokens": "Anna drove to Kiel ."}, {"tokens": "Rain ."}],
    "language_modeling": [{"text": "The river is high."}, {"text": "Rain."}],
    "language_modeling/smoke_chat": [{"messages": [{"role": "user", "content": word}]} for word in ("Hello", "Bread?")],
    "reviews/smoke_image": [{"image": path} for path in some_files("images")],
    "reviews/smoke_audio": [{"audio": path} for path in some_files("audio")],
    "speech_recognition/smoke_whisper": [{"audio": path} for path in some_files("audio")],
}
"""Rows for a run of each kind of script."""


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("kind", "labels", "settings"),
    [
        ("multi_label_classification", ["a,b", "b", "c,a", ""], ()),
        ("regression", ["1", "2.5", "-1", "4"], ()),
        ("regression", ["[1, 0]", "[2.5, 3]", "[-1, 7]", "[4, 5]"], ()),
        ("regression", ["[1000, 0]", "[2500, 3]", "[-1000, 7]", "[4000, 5]"], ("task.scale_targets=true",)),
    ],
)
def test_scripts_predict_several_labels_and_numbers(kind, labels, settings, tmp_path):
    rows = [{"text": f"{i} fine words", "label": labels[i % len(labels)] or ","} for i in range(24)]
    file = write_rows(tmp_path / "rows.csv", rows)
    files = (f"data.train_file={file}", "data.validation_file=null", "data.validation_split=0.2")
    train("reviews", tmp_path / "run", *FEW, *files, f"task.problem_type={kind}", *settings)
    folder = exported(tmp_path / "run", tmp_path)
    assert code_lines(folder) <= 41 + 2 * len(settings)  # two for the scale
    new = write_rows(tmp_path / "new.csv", [{"text": text, "label": "9"} for text in (*TEXTS, "")])
    assert_equal_answers(tmp_path / "run", folder, new, float32_tolerance())


def test_scripts_for_images_predict_scaled_numbers_in_their_unit(tmp_path):
    paths = [*some_files("images")] * 4
    rows = [{"image": path, "label": f"[{1000 + 100 * i}, {i}]"} for i, path in enumerate(paths)]
    file = write_rows(tmp_path / "rows.csv", rows)
    train("reviews/smoke_image", tmp_path / "run", *FEW, f"data.train_file={file}", "data.validation_file=null",
          "data.validation_split=0.2", "task.problem_type=regression", "task.scale_targets=true")  # fmt: skip
    new = write_rows(tmp_path / "new.csv", KINDS["reviews/smoke_image"])
    assert_equal_answers(tmp_path / "run", exported(tmp_path / "run", tmp_path), new, float32_tolerance(), ["error"])


def test_adapters_are_merged_and_tables_are_read_as_the_run_read_them(tmp_path):
    rows = [f'"{TEXTS[i % 3]}";{"good" if i % 3 else "bad"}' for i in range(24)]
    (tmp_path / "rows.csv").write_text("\n".join(["Review Text;label", *rows]))
    files = (f"data.train_file={tmp_path / 'rows.csv'}", "data.validation_file=null", "data.validation_split=0.2")
    reading = ("data.columns.text=Review Text", "data.unescape_html=true")
    adapters = ("model.peft.method=lora", "train.learning_rate=0.5")
    train("reviews", tmp_path / "run", *FEW, *files, *reading, *adapters)
    folder = exported(tmp_path / "run", tmp_path)
    assert not (folder / "model" / "adapter_config.json").exists()
    (tmp_path / "new.csv").write_text("\n".join(["ID;Review Text", *(f'{i};"{text}"' for i, text in enumerate(TEXTS))]))
    assert_equal_answers(tmp_path / "run", folder, tmp_path / "new.csv", float32_tolerance(steps=2))


def test_entities_are_decoded_in_files_in_texts_and_by_the_script(tmp_path, capsys):
    train("reviews", tmp_path / "run", *FEW, "data.unescape_html=true", "train.learning_rate=0.03")
    folder, text = exported(tmp_path / "run", tmp_path), "It &lt;b&gt;broke&lt;/b&gt;." + "&amp;" * 20
    new, output = write_rows(tmp_path / "new.csv", [{"text": text}]), tmp_path / "text.csv"
    assert run_command("predict", tmp_path / "run", "--input-text", text, "--output", output) == 0
    answers = [*read_table(output), *toolkit_answers(tmp_path / "run", new)]
    answers += [*script_answers(folder, new), *script_answers(folder, "--text", text)]
    assert [row["text"] for row in answers] == [text] * 4
    scores = [float(row["score"]) for row in answers]
    assert_close(scores, scores[:1] * 4, float32_tolerance())


def test_entities_are_decoded_in_lists_too(tmp_path):
    words = [["Anna", "O'Neil", "Tom"], ["Rain", "&"]]
    rows = [{"tokens": words[i % 2], "tags": ["B-PER"] * len(words[i % 2])} for i in range(24)]
    rows[1]["tags"] = ["O", "O"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = (f"data.train_file={tmp_path / 'rows.jsonl'}", "data.validation_file=null", "data.validation_split=0.2")
    reading = ("data.unescape_html=true", "train.learning_rate=0.03")
    train("token_classification", tmp_path / "run", *FEW, *files, *reading)
    new = [{"tokens": ["Anna", "O&#39;Neil", "Tom"]}, {"tokens": "Rain &amp;"}]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in new))
    answers = script_answers(exported(tmp_path / "run", tmp_path), tmp_path / "new.jsonl")
    assert "O'Neil" in answers[0]["entities"]
    assert_same_answers(toolkit_answers(tmp_path / "run", tmp_path / "new.jsonl"), answers, float32_tolerance(steps=2))


def test_json_lines_may_have_different_columns(tmp_path):
    train("reviews", tmp_path / "run", *FEW)
    rows = [{"text": TEXTS[0]}, {"ID": 7, "text": TEXTS[1]}]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    answers = script_answers(exported(tmp_path / "run", tmp_path), tmp_path / "new.jsonl")
    assert [(row["text"], row["ID"]) for row in answers] == [(TEXTS[0], ""), (TEXTS[1], "7")]
    expected = toolkit_answers(tmp_path / "run", tmp_path / "new.jsonl")
    assert [row["prediction"] for row in answers] == [row["prediction"] for row in expected]


def test_labels_and_columns_that_look_like_paths_are_kept(tmp_path):
    rows = [{"/in/text": f"{i} fine words", "label": ("/r/a", "/r/b")[i % 2]} for i in range(24)]
    file = write_rows(tmp_path / "rows.csv", rows)
    files = (f"data.train_file={file}", "data.validation_file=null", "data.validation_split=0.2")
    train("reviews", tmp_path / "run", *FEW, *files, "task.labels=[/r/a, /r/b]", "data.columns.text=/in/text")
    folder = exported(tmp_path / "run", tmp_path)
    assert json.loads((folder / "model" / "config.json").read_text())["id2label"] == {"0": "/r/a", "1": "/r/b"}
    new = write_rows(tmp_path / "new.csv", [{"/in/text": text} for text in TEXTS])
    assert_equal_answers(tmp_path / "run", folder, new, float32_tolerance())


@pytest.mark.slow
def test_long_documents_are_read_and_longer_ones_end_in_a_sentence(tmp_path):
    train("reviews", tmp_path / "run", *FEW)
    folder = exported(tmp_path / "run", tmp_path)
    new = write_rows(tmp_path / "new.csv", [{"text": "fine " * 40_000}, {"text": "It broke."}])
    expected, usual = toolkit_answers(tmp_path / "run", new), csv.field_size_limit()
    csv.field_size_limit(131_072)  # as where the toolkit is missing
    try:
        assert_same_answers(expected, script_answers(folder, new), float32_tolerance())
        too_long = write_rows(tmp_path / "long.csv", [{"text": "x" * (2**24 + 1)}])
        with pytest.raises(SystemExit, match=r"\nError: .*field limit"):
            script_answers(folder, too_long)
    finally:
        csv.field_size_limit(usual)


@pytest.mark.slow
def test_every_kind_of_script_answers_where_the_toolkit_is_missing(tmp_path):
    inputs, expected = {}, []
    for kind, rows in KINDS.items():
        root = tmp_path / kind.replace("/", "-")
        root.mkdir()
        file = root / "new.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        train(kind, root / "run", *FEW)
        inputs[exported(root / "run", root)] = file
        expected.append(toolkit_answers(root / "run", file))
    for ours, theirs in zip(expected, isolated_answers(inputs), strict=True):
        columns = theirs[0].keys() | {"error"}
        ours = [{name: cell for name, cell in row.items() if name in columns} for row in ours]
        assert_same_answers(ours, theirs, float32_tolerance(terms=4000))


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_predict_as_one_does(tmp_path):
    train("reviews", tmp_path / "run", *FEW)
    rows = [{"ID": i, "text": "fine words " * (i % 7)} for i in range(41)]  # every seventh is empty
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    arguments = ("predict", tmp_path / "run", "--input", tmp_path / "new.jsonl", "--output")
    assert run_command(*arguments, one) == 0
    done = launch(["-m", "toolkit", *arguments, two], 2)
    assert done.stdout.count(f"the predictions of 41 rows are in {two}") == 1
    expected, found = ([json.loads(line) for line in file.read_text().splitlines()] for file in (one, two))
    assert [row["ID"] for row in found if row["error"]] == list(range(0, 41, 7))
    assert_close(found, expected, float32_tolerance())
