"""The question answering recipe from end to end."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from commands import run_command
from exports import assert_equal_answers, code_lines, exported, toolkit_answers, write_rows
from runs import ROOT, lines, predictions, train
from tolerances import float32_tolerance

from toolkit.base.errors import ConfigError, DataError, InputError

FEW = ("train.max_steps=3", "data.max_train_samples=16", "data.max_eval_samples=7")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qa") / "run"
    train("qa", folder, *FEW)
    return folder


def test_predictions_keep_the_ids_and_stand_in_the_context(finished):
    data = json.loads((ROOT / "recipes/data/qa/validation.json").read_text())["data"]
    contexts = {qa["id"]: p["context"] for document in data for p in document["paragraphs"] for qa in p["qas"]}
    records = predictions(finished)
    assert [record["id"] for record in records] == list(contexts)[:7]
    for record in records:
        assert record["prediction_text"] in contexts[record["id"]]
        assert len(record["n_best"]) <= 20
    (line,) = lines(finished, "eval_loss")
    assert {"eval_exact_match", "eval_f1"} <= line.keys()


def test_windows_are_not_examples(finished):
    facts = json.loads((finished / "run.json").read_text())
    assert facts["num_rows"] == {"train": 16, "validation": 7}
    assert "(16 training rows" not in (finished / "model" / "README.md").read_text()  # long contexts gave more


def test_the_auto_class_loads_the_model_and_predict_answers(finished, tmp_path):
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(finished / "model")
    model = AutoModelForQuestionAnswering.from_pretrained(finished / "model")
    with torch.no_grad():
        outputs = model(**tokenizer("What is it?", "It is a hive.", return_tensors="pt"))
    assert outputs.start_logits.shape == outputs.end_logits.shape
    rows = [{"question": "What grows?", "context": "Clover grows on the hill."}]
    (tmp_path / "new.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    assert run_command("predict", finished, "--input", tmp_path / "new.jsonl", "--output", tmp_path / "out.jsonl") == 0
    (record,) = (json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines())
    assert record["prediction"] in rows[0]["context"]
    assert {"question", "context", "score", "n_best", "error"} < record.keys()


def test_single_questions_are_answered_on_the_terminal(finished, capsys):
    context, grows, flies = "context=Clover grows on the hill.", "question=What grows?", "question=What flies?"
    given = [word for text in (grows, context, flies, context) for word in ("--input-text", text)]
    assert run_command("predict", finished, *given) == 0
    assert capsys.readouterr().out.count("question: ") == 2
    assert run_command("predict", finished, "--input-text", grows) == 2
    assert "--input-text: question without context" in capsys.readouterr().err
    assert run_command("predict", finished, "--input-text", "What grows?") == 2
    assert '--input-text question="..." --input-text context="..."' in capsys.readouterr().err


def test_an_exported_run_finds_the_same_spans_with_transformers(finished, tmp_path):
    documents = json.loads((ROOT / "recipes/data/qa/validation.json").read_text())["data"]
    paragraphs = [paragraph for document in documents for paragraph in document["paragraphs"]]
    rows = [{"question": part["qas"][0]["question"], "context": part["context"]} for part in paragraphs[:5]]
    rows += [rows[0] | {"question": "Why? " * 60}, rows[0] | {"question": ""}]
    folder = exported(finished, tmp_path)
    assert code_lines(folder) <= 66
    assert_equal_answers(finished, folder, write_rows(tmp_path / "new.csv", rows), float32_tolerance())


def question(**changes):
    row = {"id": "a", "question": "What grows?", "context": "Clover grows here.",
           "answers": {"text": ["Clover"], "answer_start": [0]}}  # fmt: skip
    return row | changes


def write(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return f"data.train_file={path}"


def test_answers_that_are_not_in_their_context_are_named(tmp_path):
    good = [question(id=str(i)) for i in range(8)]
    bad = [
        question(answers={"text": ["Clover"], "answer_start": [3]}),
        question(answers={"text": [], "answer_start": []}),
        question(context="  "),
    ]
    with pytest.raises(DataError) as refused:
        train("qa", tmp_path / "run", write(tmp_path / "rows.jsonl", good + bad))
    for part in ("row 9: answer 'Clover' is not at answer_start 3", "row 10: the question has no answer",
                 "row 11: column 'context' is empty"):  # fmt: skip
        assert part in str(refused.value)


def test_unanswerable_questions_are_trained_on_and_scored(tmp_path):
    none = {"text": [], "answer_start": []}
    rows = [
        question(id=str(i), question=f"Question {i}?", answers=none if i % 2 else question()["answers"])
        for i in range(12)
    ]
    train("qa", tmp_path / "run", write(tmp_path / "rows.jsonl", rows), "data.validation_file=null",
          "data.validation_split=0.34", "data.group_column=question", "train.max_steps=2",
          "task.version_2_with_negative=true", "task.null_score_diff_threshold=-1000")  # fmt: skip
    line = lines(tmp_path / "run", "eval_loss")[-1]
    assert line["eval_no_answer_f1"] == 1.0  # with this threshold "no answer" always wins
    assert {record["prediction_text"] for record in predictions(tmp_path / "run")} == {""}
    asked = write_rows(tmp_path / "new.csv", [{name: question()[name] for name in ("question", "context")}] * 2)
    answer, kept = toolkit_answers(tmp_path / "run", asked)[0], ("--overwrite", "task.null_score_diff_threshold=1000")
    assert answer["score"] == answer["no_answer_score"]  # of the prediction, and of no answer
    assert_equal_answers(tmp_path / "run", exported(tmp_path / "run", tmp_path), asked, float32_tolerance())
    output = ("--output", tmp_path / "kept.jsonl")
    assert run_command("predict", tmp_path / "run", "--input", asked, *output, *kept) == 0
    made = json.loads((tmp_path / "kept.jsonl.settings.json").read_text())
    assert made == {"run": str(tmp_path / "run"), "overrides": ["task.null_score_diff_threshold=1000"]}
    record = json.loads((tmp_path / "kept.jsonl").read_text().splitlines()[0])
    assert record["prediction"] in question()["context"]
    assert record["no_answer_score"] == pytest.approx(float(answer["no_answer_score"]), abs=1e-5)
    assert record["score"] + record["no_answer_score"] <= 1 + 1e-9
    assert run_command("predict", tmp_path / "run", "--input", asked, *output, "--overwrite") == 0
    assert not (tmp_path / "kept.jsonl.settings.json").exists()  # these are made as in the run


def test_blanks_around_answers_are_taken_off_and_counted(tmp_path, capsys):
    rows = [question(id=str(i), answers={"text": [" grows "], "answer_start": [6]}) for i in range(8)]
    train("qa", tmp_path / "run", write(tmp_path / "rows.jsonl", rows), "train.max_steps=1")
    assert "answers without the blanks around them | 8 of 8" in (tmp_path / "run" / "report.md").read_text()


def test_a_window_longer_than_the_model_is_rejected_before_data_is_read(tmp_path):
    with pytest.raises(ConfigError, match=r"task\.max_length: received 200, .*bert .*128 tokens"):
        train("qa", tmp_path / "run", "task.max_length=200", write(tmp_path / "rows.jsonl", [{"no": "question"}]))


def test_unknown_fields_of_the_models_configuration_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"hidden_droput_prob.*did you mean 'hidden_dropout_prob'"):
        train("qa", tmp_path / "run", "model.config_overrides.hidden_droput_prob=0.3")


@pytest.mark.slow
def test_a_model_that_classified_reviews_can_learn_to_answer(tmp_path):
    train("reviews", tmp_path / "reviews", *FEW, 'task.labels=["positive", "negative", "neutral"]')
    train("qa", tmp_path / "run", *FEW, f"model.name_or_path={tmp_path / 'reviews' / 'model'}", "task.max_length=64",
          "task.doc_stride=16")  # fmt: skip
    assert lines(tmp_path / "run", "eval_loss")


def test_a_model_without_its_tokenizer_is_rejected(finished, tmp_path):
    shutil.copytree(finished / "model", tmp_path / "model")
    for file in (tmp_path / "model").glob("tokenizer*"):
        file.unlink()
    with pytest.raises(InputError, match="no tokenizer"):
        train("qa", tmp_path / "run", *FEW, f"model.name_or_path={tmp_path / 'model'}")


def test_every_evaluation_stands_once_in_the_metrics(finished):
    steps = [line["step"] for line in lines(finished, "eval_loss")]
    assert steps == sorted(set(steps))
