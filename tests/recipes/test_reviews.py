"""The reviews recipe from end to end: its output files, and the commands that use them."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
from pathlib import Path

import pytest
from commands import run_command
from exports import assert_equal_answers, code_lines, exported, script_answers, write_rows
from runs import ROOT, lines, predictions, train
from tolerances import float32_tolerance

from toolkit.base.errors import CheckpointError, ConfigError, DataError, RunError
from toolkit.report.facts import sealed

FEW = ("train.max_steps=3", "data.max_train_samples=24", "data.max_eval_samples=9")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reviews") / "run"
    test_file = f"data.test_file={ROOT / 'recipes/data/reviews/validation.csv'}"
    train("reviews", folder, *FEW, test_file, "eval.eval_steps=2")
    return folder


def test_a_run_leaves_exactly_these_files(finished):
    of_developers = {"uncommitted.diff"}  # only where the checkout that the tests run in has changes
    assert {path.name for path in finished.iterdir()} - of_developers == {
        ".lock", "checkpoints", "config.yaml", "curves.svg", "metrics.jsonl", "model", "predictions.jsonl",
        "predictions_test.jsonl", "processor", "report.html", "report.md", "run.json", "system.jsonl",
    }  # fmt: skip
    assert {path.name for path in (finished / "model").iterdir()} == {
        "README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    assert {path.name for path in (finished / "checkpoints").iterdir()} == {"step-2", "step-3"}
    cards = re.search(r'<dl class="highlights">(.*?)</dl>', (finished / "report.html").read_text(), re.S)[1]
    assert {"validation accuracy", "test accuracy"} <= {*re.findall(r"<dt>([^;<]+)", cards)}


def test_metrics_have_the_promised_names(finished):
    steps = lines(finished, "loss")
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert all({"step", "epoch", "loss", "grad_norm", "learning_rate", "num_items"} <= line.keys() for line in steps)
    evaluations = lines(finished, "eval_loss")
    assert [line["step"] for line in evaluations] == [2, 3]
    assert {"eval_accuracy", "eval_f1_macro", "eval_mcc", "eval_recall/negative"} <= evaluations[0].keys()
    assert 0 <= evaluations[0]["eval_accuracy"] <= 1
    assert [line["step"] for line in lines(finished, "test_loss")] == [3]


def test_predictions_are_in_row_order_and_agree_with_the_metric(finished):
    with (ROOT / "recipes/data/reviews/validation.csv").open() as file:
        rows = list(csv.DictReader(file))[:9]
    records = predictions(finished)
    assert [(record["text"], record["label"]) for record in records] == [(row["text"], row["label"]) for row in rows]
    accuracy = sum(record["prediction"] == record["label"] for record in records) / len(records)
    assert accuracy == pytest.approx(lines(finished, "eval_loss")[-1]["eval_accuracy"])
    assert all(math.isclose(sum(record["scores"].values()), 1, abs_tol=1e-6) for record in records)


def test_run_json_says_what_the_run_was(finished):
    facts = json.loads((finished / "run.json").read_text())
    assert facts["num_processes"] == 1
    assert facts["seed"] == 42
    assert len(facts["data_fingerprints"]["train"]) == 64
    assert facts["num_rows"] == {"train": 24, "validation": 9, "test": 9}
    assert facts["versions"]["torch"].startswith("2.")
    assert facts["result"]["eval_accuracy"] == lines(finished, "eval_loss")[-1]["eval_accuracy"]


def test_a_pipeline_answers_with_label_names(finished):
    from transformers import pipeline

    classify = pipeline("text-classification", str(finished / "model"))
    answers = classify([record["text"] for record in predictions(finished)])
    for answer, record in zip(answers, predictions(finished), strict=True):
        assert answer["label"] == record["prediction"]
        assert answer["score"] == pytest.approx(record["scores"][record["prediction"]], abs=float32_tolerance())


def test_predict_and_evaluate_repeat_the_runs_own_numbers(finished, tmp_path, capsys):
    new = tmp_path / "new.csv"
    with new.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text"])
        writer.writerows([record["text"]] for record in predictions(finished))
    assert run_command("predict", finished, "--input", new, "--output", tmp_path / "out.jsonl") == 0
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [record["prediction"] for record in records] == [record["prediction"] for record in predictions(finished)]

    labelled = tmp_path / "labelled.csv"
    source = (ROOT / "recipes/data/reviews/validation.csv").read_text().splitlines(keepends=True)
    labelled.write_text("".join(source[:10]))
    assert run_command("evaluate", finished, "--data", labelled, "--output", tmp_path / "scores.json") == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["eval_accuracy"] == lines(finished, "eval_loss")[-1]["eval_accuracy"]
    result = json.loads((finished / "run.json").read_text())["result"]
    ends = {name: result[name] for name in ("eval_accuracy_low", "eval_accuracy_high", "eval_accuracy_baseline")}
    assert ends.items() <= scores.items()
    low, high, baseline = (f"{value:.4g}" for value in ends.values())
    accuracy = rf"eval_accuracy +{scores['eval_accuracy']:.4g} \({low} to {high}; always 'positive': {baseline}\)"
    assert re.search(rf"eval_f1_macro .*always 'positive': .*{accuracy}", capsys.readouterr().out, re.S)
    assert run_command("evaluate", finished, "--data", labelled, "data.max_eval_samples=4") == 0
    assert "run on labelled.csv: 4 rows\n" in capsys.readouterr().out
    assert float(baseline) == pytest.approx(6 / 9, abs=1e-4)
    assert (
        f"| eval_accuracy | {scores['eval_accuracy']:.4g} | {low} to {high} | "
        in (finished / "model" / "README.md").read_text()
    )


def test_a_run_can_be_used_from_another_place_and_after_its_data_is_gone(finished, tmp_path, monkeypatch):
    moved = tmp_path / "moved"
    shutil.copytree(finished, moved)
    config = moved / "config.yaml"
    config.write_text(config.read_text().replace("recipes/data/reviews/train.csv", "gone.csv"))
    (tmp_path / "new.csv").write_text("text\nA fine pair of boots.\n")
    monkeypatch.chdir(tmp_path)
    assert run_command("predict", moved, "--input", "new.csv") == 0
    assert (
        (tmp_path / "new.predictions.csv").read_text().startswith("text,prediction,score,error\nA fine pair of boots.,")
    )


@pytest.mark.fast(5)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("predict", "nowhere", "--input", "x.csv"), "not a finished run"),
        (("predict", "{run}", "--input", "nowhere.csv"), "nowhere.csv"),
        (("evaluate", "{run}", "--data", "{unlabelled}"), "label"),
        (("evaluate", "{run}", "--data", "{unknown}"), "'neutral' is not one of negative, positive"),
        (
            ("predict", "{run}", "--input", "{unknown}", "--per-device-eval-batch-size", "0"),
            "--per-device-eval-batch-size",
        ),
        (("predict", "{run}", "--input", "{unknown}", "--recipe", "gone.py"), "gone.py"),
        (("predict", "{run}", "--input", "{unknown}", "--output", "gone/out.jsonl"), "there is no folder"),
        (
            ("predict", "{run}", "--input", "{unknown}", "--output", "out.txt"),
            "expected a name that ends in .csv, .tsv, ",
        ),
        (("predict", "{run}", "--input", "{unknown}", "--threshold", "2"), "received 2, must be a number from 0 to 1"),
        (("predict", "{run}", "--input", "{unknown}", "--input", "{unlabelled}"), "name it, for instance answers.csv"),
        (("predict", "{run}", "--input", "{unknown}", "train.seed=1"), "train.seed: unknown key (did you mean seed?)"),
        (
            ("evaluate", "{run}", "--data", "{unknown}", "train.optim=sgd"),
            "train.optim: a finished run is used as it was",
        ),
    ],
)
def test_wrong_use_of_a_run_is_said_plainly(finished, tmp_path, capsys, arguments, message):
    (tmp_path / "unlabelled.csv").write_text("text\nNice.\n")
    (tmp_path / "unknown.csv").write_text("text,label\nNice.,neutral\n")
    places = {"run": finished, "unlabelled": tmp_path / "unlabelled.csv", "unknown": tmp_path / "unknown.csv"}
    assert run_command(*(argument.format(**places) for argument in arguments)) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors


def test_bad_rows_stop_a_run_or_are_left_out_and_counted(tmp_path):
    rows = ["text,label", *(f"text number {i},{'good' if i % 2 else 'bad'}" for i in range(20)), ",good", "lonely,"]
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    files = (f"data.train_file={tmp_path / 'rows.csv'}", "data.validation_file=null", "train.max_steps=1")
    with pytest.raises(DataError) as refused:
        train("reviews", tmp_path / "error", *files)
    assert "row 22" in str(refused.value)
    assert "row 23" in str(refused.value)
    assert "data.bad_rows=skip" in str(refused.value)
    train("reviews", tmp_path / "skip", *files, "data.bad_rows=skip", "data.max_bad_rows=1")
    left_out = [json.loads(line) for line in (tmp_path / "skip" / "bad_rows.jsonl").read_text().splitlines()]
    assert [row["row"] for row in left_out] == [22, 23]
    assert json.loads((tmp_path / "skip" / "run.json").read_text())["bad_rows"] == {"train": 2}
    assert "2 bad rows" in (tmp_path / "skip" / "report.md").read_text()


def test_rows_that_cannot_be_used_are_named_before_what_follows_from_them(tmp_path):
    (tmp_path / "rows.csv").write_text("text,label\na text,good\nanother,\na third,\n")
    with pytest.raises(DataError, match=r"rows 3 and 4: column 'label' is empty"):
        train("reviews", tmp_path / "run", f"data.train_file={tmp_path / 'rows.csv'}", "data.validation_file=null")


def test_a_non_finite_update_stops_before_it_and_names_step_and_rows(tmp_path):
    wild = ("train.optim=sgd", "train.learning_rate=1e30", "train.max_grad_norm=0", "train.warmup_steps=0",
            "train.train_sampling_strategy=sequential", "train.per_device_train_batch_size=2")  # fmt: skip
    with pytest.raises(RunError, match=r"step \d: the gradient's norm is nan") as stopped:
        train("reviews", tmp_path / "run", *wild, "train.gradient_accumulation_steps=1", "train.max_steps=9")
    assert "Rows of this step in the training file: " in str(stopped.value)
    assert "another output_dir" in str(stopped.value)


def test_a_split_of_one_file_and_max_samples_count_examples(tmp_path):
    train("reviews", tmp_path / "run", "data.validation_file=null", "data.validation_split=0.25", "train.max_steps=1",
          "data.max_eval_samples=null")  # fmt: skip
    assert json.loads((tmp_path / "run" / "run.json").read_text())["num_rows"] == {"train": 420, "validation": 140}
    labels = [record["label"] for record in predictions(tmp_path / "run")]
    assert labels.count("positive") == 70


def test_code_in_a_runs_own_folder_is_not_run(finished, tmp_path, capsys):
    foreign = tmp_path / "foreign"
    shutil.copytree(finished, foreign)
    (foreign / "recipe.py").write_text("raise SystemExit('this code was run')")
    facts = json.loads((foreign / "run.json").read_text())
    (foreign / "run.json").write_text(json.dumps(sealed(facts | {"recipe": str(foreign / "recipe.py")})))
    assert run_command("predict", foreign, "--input", "x.csv") == 2
    assert "if you trust it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("eval.metric_for_best_model=eval_acuracy", r"'acuracy', this task has loss, accuracy.*did you mean"),
        ("model.config_overrides.problem_type=regression", r"problem_type: received .* set by the task"),
        ("model.from_config.hidden_size=33", r"model\.from_config: cannot build AutoModelForSequenceClassification"),
    ],
)
def test_settings_that_only_the_task_or_model_can_judge(tmp_path, setting, message):
    with pytest.raises(ConfigError, match=message):
        train("reviews", tmp_path / "run", *FEW, setting)


def test_labels_from_the_yaml_set_their_ids(tmp_path):
    train("reviews", tmp_path / "run", *FEW, 'task.labels=["positive", "negative"]')
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert config["id2label"] == {"0": "positive", "1": "negative"}


def test_odd_labels_are_names_like_others_or_bad_rows(tmp_path, capsys):
    names = ["[red]", "a|b", 2.0]
    rows = [json.dumps({"text": f"text {i}", "label": names[i % 3]}) for i in range(24)]
    rows.append('{"text": "what", "label": NaN}')
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    train("reviews", tmp_path / "run", f"data.train_file={tmp_path / 'rows.jsonl'}", "data.validation_file=null",
          "data.validation_split=0.25", "data.bad_rows=skip", "task.label_map.2=two", "train.max_steps=1")  # fmt: skip
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["task_state"]["labels"] == ["[red]", "a|b", "two"]
    assert facts["bad_rows"] == {"train": 1}
    counts = {"train": {"[red]": 6, "a|b": 6, "two": 6}, "validation": {"[red]": 2, "a|b": 2, "two": 2}}
    assert facts["labels"] == counts
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert config["id2label"] == {"0": "[red]", "1": "a|b", "2": "two"}
    report = (tmp_path / "run" / "report.md").read_text()
    assert "| a\\|b | 6 | 2 |" in report
    assert (
        "rows cannot be used | 1 of 25 | 4.0% | label nan is neither text nor a number (1, first in row 25)" in report
    )

    more = [{"text": f"text {i}", "label": label} for i, label in enumerate([2, "2.00", "two", "blue"])]
    (tmp_path / "more.jsonl").write_text("\n".join(map(json.dumps, more)))
    words = ("evaluate", tmp_path / "run", "--data", tmp_path / "more.jsonl")
    assert run_command(*words) == 2  # the run's own limit
    assert "data.max_bad_rows=0.1 allows 10%" in capsys.readouterr().err
    assert run_command(*words, "data.max_bad_rows=0.25") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "run on more.jsonl: 3 rows, 1 skipped as unusable (25.0%)" in out
    assert "label 'blue' is not one of [red], a|b, two (1, first in row 4). They are skipped;" in out


def test_a_start_that_failed_does_not_block_its_folder_but_a_finished_run_does(tmp_path):
    with pytest.raises(ConfigError):
        train("reviews", tmp_path / "run", *FEW, "model.from_config.hidden_size=33")
    train("reviews", tmp_path / "run", *FEW, "checkpoint.save_steps=null")
    with pytest.raises(CheckpointError, match="finished run without checkpoints"):
        train("reviews", tmp_path / "run", *FEW, "checkpoint.resume=auto")


MESSY = 'ID,Note,text,prediction\n7,"x, y",A fine pair of boots.,old\n8,,,old\n9,z,It broke.,old\n10,too,short\n'


def answers(finished, tmp_path, *arguments):
    (tmp_path / "new.csv").write_text(MESSY)
    output = tmp_path / "answers.csv"
    assert run_command("predict", finished, "--input", tmp_path / "new.csv", "--output", output, *arguments) == 0
    with output.open(newline="") as file:
        return list(csv.DictReader(file))


def test_answers_join_back_to_their_rows_those_without_a_prediction_too(finished, tmp_path, capsys):
    given = list(csv.DictReader(MESSY.splitlines()))
    found = answers(finished, tmp_path)
    assert list(found[0]) == ["ID", "Note", "text", "prediction", "prediction_2", "score", "error"]
    assert [(row["ID"], row["Note"], row["text"], row["prediction"]) for row in found] == [
        (row["ID"], row["Note"], row["text"], row["prediction"] or "") for row in given
    ]
    assert [row["error"] for row in found] == ["", "column 'text' is empty", "", "3 fields where the header has 4"]
    assert [row["prediction_2"] in ("positive", "negative") for row in found] == [True, False, True, False]
    assert 0.5 <= float(found[0]["score"]) <= 1
    assert (found[1]["prediction_2"], found[1]["score"]) == ("", "")
    said = capsys.readouterr().out
    assert "2 of 4 rows have no prediction" in said
    assert "new.csv, row 3: column 'text' is empty" in said


def test_unsure_answers_and_all_scores_have_columns(finished, tmp_path):
    found = answers(finished, tmp_path, "--threshold", "1", "--all-scores")
    assert list(found[0])[4:] == ["prediction_2", "score", "score_negative", "score_positive", "unsure", "error"]
    assert [row["unsure"] for row in found] == ["true", "", "true", ""]
    assert float(found[0]["score"]) == max(float(found[0]["score_negative"]), float(found[0]["score_positive"]))
    assert answers(finished, tmp_path, "--threshold", "0", "--overwrite")[0]["unsure"] == "false"
    assert all(len(row[name]) <= len("0.123456") for row in found for name in row if name.startswith("score"))
    arguments = ("--input", tmp_path / "new.csv", "--output", tmp_path / "whole.jsonl")
    assert run_command("predict", finished, *arguments) == 0
    whole = json.loads((tmp_path / "whole.jsonl").read_text().splitlines()[0])["score"]
    assert float(found[0]["score"]) == float(f"{whole:.6g}") != whole


def test_unusable_rows_may_be_rejected_instead(finished, tmp_path, capsys):
    (tmp_path / "new.csv").write_text(MESSY)
    assert run_command("predict", finished, "--input", tmp_path / "new.csv", "--bad-rows", "error") == 2
    assert "2 of 4 rows cannot be used" in capsys.readouterr().err


def test_several_inputs_other_columns_and_single_columns(finished, tmp_path, capsys):
    (tmp_path / "a.csv").write_text("ID,Review Text\n1,Nice boots.\n")
    (tmp_path / "b.txt").write_text("It broke.\n\nFine.\n")
    inputs = ("--input", tmp_path / "a.csv", "--input", tmp_path / "b.txt")
    output = tmp_path / "answers.jsonl"
    assert run_command("predict", finished, *inputs, "--output", output) == 2
    assert "a.csv has no column 'text'" in capsys.readouterr().err
    assert run_command("predict", finished, *inputs, "--output", output, "data.columns.text=Review Text") == 0
    found = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row.get("Review Text", row.get("text")) for row in found] == ["Nice boots.", "It broke.", "Fine."]
    assert [row["file"].rpartition("/")[2] for row in found] == ["a.csv", "b.txt", "b.txt"]
    assert "its only column" not in capsys.readouterr().out
    (tmp_path / "c.csv").write_text("body,label\nNice boots.,positive\n")
    arguments = ("--data", tmp_path / "c.csv", "data.columns.text=body", "--output", tmp_path / "scores.json")
    assert run_command("evaluate", finished, *arguments) == 0
    assert "run on c.csv: 1 row\n" in capsys.readouterr().out


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    ("header", "settings"),
    [("text,label", ["data.delimiter=;"]), ("text|label", ["data.delimiter=,"]), ("text:label", []), ("label", [])],
)
def test_a_line_that_was_not_divided_is_not_taken_for_a_text(finished, tmp_path, capsys, header, settings):
    (tmp_path / "new.csv").write_text(f"{header}\nNice boots{header[4:5]}positive\n")
    assert run_command("predict", finished, "--input", tmp_path / "new.csv", *settings) == 2
    said = capsys.readouterr().err
    assert f"has no column 'text': the review. Its columns are {header}" in said
    assert not (tmp_path / "new.predictions.csv").exists()


def test_single_texts_are_answered_on_the_terminal(finished, capsys):
    assert run_command("predict", finished, "--input-text", "Fine = good.", "--input-text", "It broke.") == 0
    said = capsys.readouterr().out
    assert said.count("prediction: ") == said.count("score: 0.") == 2
    assert "text: Fine = good.\n" in said


@pytest.fixture(scope="module")
def colleague(finished, tmp_path_factory):
    return exported(finished, tmp_path_factory.mktemp("export"))


def test_an_exported_run_answers_with_transformers_as_the_toolkit_does(finished, colleague, tmp_path):
    rows = [{"ID": str(i), "text": record["text"]} for i, record in enumerate(predictions(finished))]
    file = write_rows(tmp_path / "new.csv", [*rows, {"ID": "empty", "text": ""}])
    assert_equal_answers(finished, colleague, file, float32_tolerance())
    (answer,) = script_answers(colleague, "--text", rows[0]["text"])
    assert answer["prediction"] == predictions(finished)[0]["prediction"]
    for arguments, message in (
        ([write_rows(tmp_path / "other.csv", [{"body": "Fine."}])], "the column \"text\"(?s:.*)\n\nKeyError: 'text'$"),
        ([tmp_path / "nowhere.csv"], r"No such file or directory: '.*nowhere\.csv'$"),
        ([], r"python predict\.py input\.csv > output\.csv"),
    ):
        with pytest.raises(SystemExit, match=message):
            script_answers(colleague, *arguments)
    with pytest.raises(SystemExit) as ended:
        script_answers(colleague, "--help")
    assert ended.value.code is None


def test_an_export_is_complete_and_has_no_private_paths(finished, colleague):
    files = {path.relative_to(colleague).as_posix(): path for path in colleague.rglob("*") if path.is_file()}
    assert {"predict.py", "requirements.txt", "README.txt", "report.html", "model/README.md"} < files.keys()
    private = (str(finished), str(finished.parent), str(Path.home()), str(Path.cwd()), str(ROOT))
    for path in files.values():
        content = path.read_bytes()
        assert [folder for folder in private if folder.encode() in content] == [], path
    assert len(files["README.txt"].read_text().splitlines()) == 5
    assert code_lines(colleague) <= 41
    assert files["requirements.txt"].read_text().startswith("torch\ntransformers>=5")
    card = files["model/README.md"].read_text()
    for part in ("license: unknown", "| train | train.csv | 24 |", "| negative |", "## Intended use", "eval_accuracy"):
        assert part in card


def test_wrong_outputs_and_formats_of_an_export_are_named(finished, tmp_path, capsys):
    assert run_command("export", finished, "--output", tmp_path / "run.tar") == 2
    assert "expected a name that ends in .zip" in capsys.readouterr().err
    assert run_command("export", finished, "--parity-rows", 5) == 2
    assert "--parity-rows: a zip has the run's own model, which is not compared; remove it" in capsys.readouterr().err
    assert run_command("export", finished, "--format", "pickle") == 2
    known = "zip or merged or sentence_transformers or onnx or torch_export or int8"
    assert f"--format: received pickle, expected {known}" in capsys.readouterr().err


def test_a_run_from_another_machine_finds_the_toolkits_recipe(finished, tmp_path, capsys):
    moved = tmp_path / "moved"
    shutil.copytree(finished, moved)
    facts = json.loads((moved / "run.json").read_text())
    (moved / "run.json").write_text(json.dumps(sealed(facts | {"recipe": "/elsewhere/recipes/reviews.py"})))
    assert run_command("predict", moved, "--input-text", "Fine.") == 0
    assert "the toolkit's reviews is used" in capsys.readouterr().out
    (moved / "run.json").write_text(json.dumps(sealed(facts | {"recipe": "/elsewhere/my_task.py"})))
    assert run_command("predict", moved, "--input-text", "Fine.") == 2
    assert "my_task.py does not exist; name it with --recipe" in capsys.readouterr().err


@pytest.mark.parametrize("mark", ["\ufeff", ""])
def test_a_csv_of_answers_looks_like_its_input(finished, tmp_path, mark):
    (tmp_path / "new.csv").write_text(f"{mark}ID;text\n1;Schöne Stiefel, gut\n", encoding="utf-8")
    assert run_command("predict", finished, "--input", tmp_path / "new.csv") == 0
    written = (tmp_path / "new.predictions.csv").read_text(encoding="utf-8")
    assert written.startswith(f"{mark}ID;text;prediction;score;error\n1;Schöne Stiefel, gut;")


def test_answers_of_a_spreadsheet_are_a_spreadsheet(finished, tmp_path):
    from openpyxl import Workbook, load_workbook

    book = Workbook()
    for row in (["ID", "text"], [1, "Nice boots."], [2, None]):
        book.active.append(row)
    book.save(tmp_path / "new.xlsx")
    assert run_command("predict", finished, "--input", tmp_path / "new.xlsx") == 0
    rows = [[cell.value for cell in row] for row in load_workbook(tmp_path / "new.predictions.xlsx").active]
    assert rows[0] == ["ID", "text", "prediction", "score", "error"]
    assert rows[1][:2] == ["1", "Nice boots."]
    assert rows[2][2:] == [None, None, "column 'text' is empty"]
