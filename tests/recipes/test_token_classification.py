"""The token classification recipe from end to end."""

from __future__ import annotations

import csv
import json

import pytest
import torch
from commands import run_command
from exports import assert_equal_answers, code_lines, exported, write_rows
from runs import ROOT, SGD, assert_close, assert_same_weights, assert_splits_agree, lines, predictions, train
from tolerances import float32_tolerance

from toolkit.base.errors import ConfigError, DataError
from toolkit.data.sources import read_rows
from toolkit.metrics.entities import entity_scores

TASK = "token_classification"
FEW = ("train.max_steps=20", "data.max_train_samples=40", "data.max_eval_samples=12")
DATA = ROOT / "recipes/data" / TASK
WINDOWS = ("task.max_length=12", "task.stride=4")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tags") / "run"
    train(TASK, folder, *FEW, *WINDOWS)
    return folder


def rows(part: str) -> list[dict]:
    return [row.values for row in read_rows(DATA / f"{part}.conll")]


def test_scores_are_those_of_the_predictions_and_the_report_has_a_table(finished):
    records = predictions(finished)
    assert [(record["tokens"], record["tags"]) for record in records] == [
        tuple(r.values()) for r in rows("validation")[:12]
    ]
    expected = entity_scores([r["prediction"] for r in records], [r["tags"] for r in records], ["LOC", "ORG", "PER"])
    evaluation = lines(finished, "eval_loss")[-1]
    assert {name: evaluation[f"eval_{name}"] for name in expected} == pytest.approx(expected)
    report = (finished / "report.md").read_text()
    assert "| label | precision | recall | f1 | entities |" in report
    assert "pipeline_tag: token-classification" in (finished / "model" / "README.md").read_text()


def test_every_token_counts_once_whatever_the_windows(finished, tmp_path):
    epoch = ("train.num_train_epochs=1", "data.max_train_samples=11", "data.max_eval_samples=2")
    train(TASK, tmp_path / "one", *epoch, *WINDOWS)
    counts = [line["num_items"] for line in lines(tmp_path / "one", "loss")]
    assert sum(counts) == sum(len(row["tokens"]) for row in rows("train")[:11])
    assert len(counts) > 2  # steps of 8 windows, of which there are more than rows
    assert [len(record["prediction"]) for record in predictions(finished)] == [
        len(row["tokens"]) for row in rows("validation")[:12]
    ]


def test_the_model_folder_is_enough_for_the_pipeline_of_transformers(finished):
    from transformers import pipeline

    find = pipeline("token-classification", str(finished / "model"), ignore_labels=[])
    tags = [f"{prefix}-{kind}" for kind in ("LOC", "ORG", "PER") for prefix in "BI"]
    assert list(find.model.config.id2label.values()) == ["O", *tags]
    assert {each["entity"] for each in find("Anna drove to Kiel .")} <= {"O", *tags}


def test_predict_and_evaluate_repeat_the_runs_own_numbers(finished, tmp_path):
    known = rows("validation")[:12]
    with (tmp_path / "new.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("tokens",), *((" ".join(row["tokens"]),) for row in known)])
    assert run_command("predict", finished, "--data", tmp_path / "new.csv", "--output", tmp_path / "out.jsonl") == 0
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [record["prediction"] for record in records] == [record["prediction"] for record in predictions(finished)]
    found, expected = ([record["entities"] for record in run] for run in (records, predictions(finished)))
    assert_close(found, expected, float32_tolerance())
    (tmp_path / "known.jsonl").write_text("".join(json.dumps(row) + "\n" for row in known))
    arguments = ("--data", tmp_path / "known.jsonl", "--output", tmp_path / "scores.json")
    assert run_command("evaluate", finished, *arguments) == 0
    expected = {name: value for name, value in lines(finished, "eval_loss")[-1].items() if name.startswith("eval_")}
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert_close({name: scores[name] for name in expected}, expected, float32_tolerance())


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_an_exported_run_finds_the_same_entities_with_transformers(finished, suffix, tmp_path):
    given = [{"ID": str(i), "tokens": row["tokens"]} for i, row in enumerate(rows("validation")[:6])]
    given += [given[0] | {"tokens": [word for row in given for word in row["tokens"]]}, given[0] | {"tokens": []}]
    file = tmp_path / f"new.{suffix}"
    if suffix == "csv":
        write_rows(file, [row | {"tokens": " ".join(row["tokens"])} for row in given])
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in given))
    folder = exported(finished, tmp_path)
    assert code_lines(folder) <= 68
    assert_equal_answers(finished, folder, file, float32_tolerance())


def test_every_split_of_a_window_gives_the_same_training(tmp_path):
    assert_splits_agree(TASK, tmp_path, *SGD, *WINDOWS, "data.max_train_samples=13", "train.max_steps=4",
                        "eval.eval_steps=null", "checkpoint.save_steps=null")  # fmt: skip


def test_lists_and_text_are_the_same_data(tmp_path):
    (tmp_path / "lists.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows("train")[:20]))
    with (tmp_path / "text.csv").open("w", newline="") as file:
        table = [(" ".join(row["tokens"]), " ".join(row["tags"])) for row in rows("train")[:20]]
        csv.writer(file).writerows([("tokens", "tags"), *table])
    for name in ("lists.jsonl", "text.csv"):
        files = (f"data.train_file={tmp_path / name}", "data.validation_file=null", "data.validation_split=0.2")
        train(TASK, tmp_path / f"run-{name}", "train.max_steps=2", *files)
    assert_same_weights(tmp_path / "run-lists.jsonl", tmp_path / "run-text.csv")


def test_bad_rows_are_named_and_unknown_types_are_bad_rows(tmp_path):
    good = [{"tokens": ["Anna", "runs"], "tags": ["B-PER", "O"]}] * 4
    bad = [{"tokens": ["a", "b"], "tags": ["O"]}, {"tokens": [], "tags": []}, {"tokens": ["a"], "tags": ["PER"]}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*good, *bad]))
    (tmp_path / "other.jsonl").write_text(json.dumps({"tokens": ["Kiel"], "tags": ["B-LOC"]}) + "\n")
    files = (f"data.train_file={tmp_path / 'rows.jsonl'}", f"data.validation_file={tmp_path / 'other.jsonl'}")
    with pytest.raises(DataError) as refused:
        train(TASK, tmp_path / "run", *files)
    for reason in ("row 5: there are 1 tags for 2 tokens", "row 6: column 'tokens' holds []", "row 7: tag 1 is 'PER'",
                   "row 1: tag 1 is 'B-LOC', but the entity types are PER"):  # fmt: skip
        assert reason in str(refused.value)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"tokens": ["a"], "tags": ["O"]}) + "\n")
    with pytest.raises(DataError, match="entity"):
        train(TASK, tmp_path / "none", *files)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("task.stride=64",), r"task\.stride: received 64, must be below task\.max_length \(64\)"),
        (("task.entity_types=[PER, PER]",), r"task\.entity_types: received \['PER', 'PER'\], expected different names"),
        (("task.max_length=65",), r"task\.max_length: received 65, but this bert supports at most 64 tokens"),
        (
            ("model.peft.method=prompt_tuning",),
            r"prompt_tuning', but tags belong to positions in the text, which virtual tokens would shift; use lora",
        ),
    ],
)
def test_wrong_settings_are_rejected(settings, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        train(TASK, tmp_path / "run", *settings)


def test_tokens_that_the_tokenizer_does_not_have_are_tagged_o_and_counted(tmp_path):
    from transformers import AutoTokenizer, BertConfig, BertForTokenClassification, BertTokenizer

    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "anna", "runs", "."]
    BertTokenizer(vocab={word: i for i, word in enumerate(vocab)}).save_pretrained(tmp_path / "bert")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    torch.manual_seed(0)
    BertForTokenClassification(BertConfig(vocab_size=len(vocab), **sizes)).save_pretrained(tmp_path / "bert")
    assert AutoTokenizer.from_pretrained(tmp_path / "bert").tokenize("\u200b") == []
    tags = ["B-PER", "B-PER", "O"]
    rows = [{"tokens": ["Anna", "\u200b", "runs", *"." * n], "tags": [*tags, *"O" * n]} for n in range(6)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = (f"data.train_file={tmp_path / 'rows.jsonl'}", "data.validation_file=null", "data.validation_split=0.34")
    train(TASK, tmp_path / "run", f"model.name_or_path={tmp_path / 'bert'}", *files, "train.max_steps=1")
    assert {record["prediction"][1] for record in predictions(tmp_path / "run")} == {"O"}
    assert (
        "| train | tokens without a piece in the tokenizer, tagged O | 4 of "
        in (tmp_path / "run" / "report.md").read_text()
    )
