"""The recipe `preference`: formats of rows, what is rejected, scores, predictions, exports, and data checks."""

from __future__ import annotations

import csv
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from commands import run_command
from exports import assert_equal_answers, exported
from runs import BY_SPLIT, ROOT, predictions, shipped, train

import toolkit
from toolkit.api.batch import BadRow
from toolkit.base.errors import ConfigError, DataError
from toolkit.recipe import load_settings, validate

ROWS = [json.loads(line) for line in (ROOT / "recipes/data/preference/train.jsonl").read_text().splitlines()]
FEW = (*BY_SPLIT, "train.max_steps=3", "eval.eval_steps=null", "checkpoint.save_steps=null", "eval.eval_on_start=false")
TEMPLATE = (
    "task.chat_template={% for message in messages %}{% if message.role == 'user' %}<|user|>{% else %}<|assistant|>"
    "{% endif %}{{ message.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def checked(row: dict[str, Any], *settings: str, labelled: bool = True) -> dict[str, Any]:
    given = [f"data.train_file={ROOT / 'recipes/data/preference/train.jsonl'}", *settings]
    config = ROOT / "recipes/configs/preference/smoke.yaml"
    return shipped("preference")(load_settings(shipped("preference"), config, given).config).check_row(row, labelled)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("preference") / "run"
    train("preference", folder, *FEW)
    return folder


@pytest.fixture(scope="module")
def reward(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("reward") / "run"
    settings = [setting for setting in FEW if "eval_on_start" not in setting]
    train("preference/smoke_reward", folder, *settings)
    return folder


def test_conversations_in_all_layouts_are_the_same_rows():
    prompt, good, bad = [said("user", "Hay?")], "Yes.", "No."
    layouts = [
        {"prompt": prompt, "chosen": [said("assistant", good)], "rejected": [said("assistant", bad)]},
        {"prompt": prompt, "chosen": good, "rejected": bad},
        {"prompt": "Hay?", "chosen": good, "rejected": [said("assistant", bad)]},
        {"prompt": None, "chosen": [*prompt, said("assistant", good)], "rejected": [*prompt, said("assistant", bad)]},
        {"prompt": prompt, "chosen": [*prompt, said("assistant", good)], "rejected": bad},
        {"chosen": [*prompt, said("assistant", good)], "rejected": [*prompt, said("assistant", bad)]},
        {"prompt": [{"from": "human", "value": "Hay?"}], "chosen": [{"from": "gpt", "value": good}], "rejected": bad},
    ]
    expected = {"prompt": json.dumps(prompt), "chosen": good, "rejected": bad}
    assert all(checked(row, "task.data_format=messages", TEMPLATE) == expected for row in layouts)
    single = {"prompt": prompt, "completion": good, "label": "0"}
    found = checked(single, "task.data_format=messages", TEMPLATE, "task.loss=kto")
    assert found == {"prompt": json.dumps(prompt), "completion": good, "label": False}


@pytest.mark.parametrize(
    ("row", "settings", "reason"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, (), "hold the same answer"),
        ({"prompt": "a", "chosen": " ", "rejected": "b"}, (), "the chosen is missing"),
        ({"prompt": None, "chosen": "c", "rejected": "b"}, (), "the prompt is missing"),
        ({"prompt": "a", "completion": "b", "label": "good"}, ("task.loss=kto",), "column 'label' holds 'good'"),
        ({"prompt": None, "chosen": "c", "rejected": "b"}, ("task.data_format=messages",), "column 'prompt' is empty"),
        (
            {"chosen": [said("user", "x"), said("assistant", "c")],
             "rejected": [said("user", "y"), said("assistant", "b")]},
            ("task.data_format=messages",), "differ before their last message",
        ),
        (
            {"prompt": [said("user", "x")], "chosen": [said("user", "y"), said("assistant", "c")], "rejected": "b"},
            ("task.data_format=messages",), "neither an answer to the prompt nor",
        ),
        ({"prompt": "x", "chosen": [said("user", "y")], "rejected": "b"}, ("task.data_format=messages",), "no answer"),
    ],
)  # fmt: skip
def test_unusable_rows_have_a_reason(row, settings, reason):
    with pytest.raises(BadRow, match=reason):
        checked(row, *settings, *([TEMPLATE] if settings == ("task.data_format=messages",) else []))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["task.loss=reward", "task.beta=0.5"], "task.beta"),
        (["task.loss=ipo", "task.label_smoothing=0.1"], "task.label_smoothing"),
        (["task.simpo_gamma=1"], "task.simpo_gamma"),
        (["task.chat_template=x"], "task.chat_template"),
        (["parallel.pipeline=2"], "parallel.pipeline"),
    ],
)
def test_settings_that_have_no_effect_or_cannot_be_used_are_rejected(settings, message, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2" if "pipeline" in message else "1")
    with pytest.raises(ConfigError, match=message):
        validate(shipped("preference"), ROOT / "recipes/configs/preference/smoke.yaml", settings).raise_problems()


def test_conversations_train_and_answers_follow_the_prompt(tmp_path):
    rows = [{"prompt": [said("user", row["prompt"].strip())], "chosen": row["chosen"], "rejected": row["rejected"]}
            for row in ROWS]  # fmt: skip
    file = write(tmp_path / "rows.jsonl", rows)
    train("preference", tmp_path / "run", *FEW, f"data.train_file={file}", "data.validation_file=null",
          "data.validation_split=0.1", "task.data_format=messages", TEMPLATE)  # fmt: skip
    found = predictions(tmp_path / "run")
    for row in found:
        assert row["prediction"] == pytest.approx(row["chosen_reward"] - row["rejected_reward"], abs=1e-6)
    (answer,) = toolkit.load(tmp_path / "run").predict([{"prompt": "How long are onions left?"}])
    assert isinstance(answer["prediction"], str)


def test_rows_with_one_prompt_stay_on_one_side(tmp_path):
    rows = [{**row, "chosen": f"{row['chosen']} {k}"} for row in ROWS[:20] for k in range(4)]
    file = write(tmp_path / "rows.jsonl", rows)
    train("preference", tmp_path / "run", *FEW, f"data.train_file={file}", "data.validation_file=null",
          "data.validation_split=0.3", "data.max_eval_samples=null")  # fmt: skip
    counts: dict[str, int] = {}
    for row in predictions(tmp_path / "run"):
        counts[row["prompt"]] = counts.get(row["prompt"], 0) + 1
    assert set(counts.values()) == {4}


def test_an_answer_beyond_the_limit_is_a_bad_row(tmp_path):
    rows = [*ROWS[:30], {"prompt": "x " * 60, "chosen": "yes", "rejected": "no"}]
    file = write(tmp_path / "rows.jsonl", rows)
    given = (f"data.train_file={file}", "data.validation_file=null", "data.validation_split=0.1")
    with pytest.raises(DataError, match=r"have an answer without a token within task.max_length \(64\)"):
        train("preference", tmp_path / "run", *FEW, *given, "data.bad_rows=error")


@pytest.mark.slow
def test_evaluate_compares_with_the_model_before_training(run, capsys):
    rows = [{name: row[name] for name in ("prompt", "chosen", "rejected")} for row in predictions(run)]
    result = json.loads((run / "run.json").read_text())["result"]
    found = toolkit.load(run).evaluate(rows)
    names = ("eval_loss", "eval_reward_accuracy", "eval_reward_margin", "eval_kl", "eval_chosen_logps")
    assert {name: found[name] for name in names} == pytest.approx({name: result[name] for name in names}, abs=1e-5)
    assert found["eval_reward_margin"] != 0
    low, high = (result[f"eval_reward_margin_{end}"] for end in ("low", "high"))
    assert low < result["eval_reward_margin"] < high


def test_a_reward_model_scores_answers(reward):
    recorded = predictions(reward)
    scored = toolkit.load(reward).predict([{"prompt": row["prompt"], "chosen": row["chosen"]} for row in recorded])
    assert [row["prediction"] for row in scored] == pytest.approx([row["chosen_reward"] for row in recorded], abs=1e-5)
    assert (reward / "model/README.md").read_text().count("pipeline_tag: text-classification") == 1


def test_an_archive_answers_prompts_as_the_run_does(run, tmp_path):
    rows = write(tmp_path / "rows.jsonl", [{"prompt": row["prompt"]} for row in ROWS[:3]])
    (tmp_path / "folder").mkdir()
    assert_equal_answers(run, exported(run, tmp_path / "folder"), rows, 0.0)
    assert "pipeline_tag: text-generation" in (run / "model/README.md").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("forked_trials")
def test_answers_that_differ_in_length_are_found(tmp_path, capsys):
    rows = [{"prompt": row["prompt"], "chosen": row["chosen"] + " Surely so.", "rejected": row["rejected"][:8]}
            for row in ROWS]  # fmt: skip
    given = [f"data.train_file={write(tmp_path / 'rows.jsonl', rows)}", "data.validation_file=null"]
    assert run_command("doctor", "preference", "--config", "smoke", *given, "--output", tmp_path / "doctor") == 0
    (found,) = [each for each in json.loads((tmp_path / "doctor/doctor.json").read_text())["findings"]
                if each["kind"] == "uneven_lengths"]  # fmt: skip
    assert found["count"] > 0.9 * len(rows)
    assert "chosen is longer than rejected" in found["message"]
    options = ("--no-model", "--output", tmp_path / "baseline")
    assert (
        run_command("baseline", "preference", "--config", "smoke", *given, "data.validation_split=0.2", *options) == 0
    )
    (longer,) = json.loads((tmp_path / "baseline/baseline.json").read_text())["baselines"]
    assert longer["name"] == "the longer answer"
    assert longer["scores"]["eval_reward_accuracy"] > 0.9


@pytest.mark.fast(2)
@pytest.mark.parametrize("layout", ["text", "conversations", "explicit", "labelled"])
def test_init_writes_a_configuration_for_each_layout(tmp_path, layout):
    rows: list[dict[str, Any]] = ROWS
    if layout == "conversations":
        rows = [{name: [said("user", row["prompt"].strip()), said("assistant", row[name])]
                 for name in ("chosen", "rejected")} for row in ROWS]  # fmt: skip
    elif layout == "explicit":
        rows = [{"prompt": [said("user", row["prompt"].strip())], "chosen": [said("assistant", row["chosen"])],
                 "rejected": [said("assistant", row["rejected"])]} for row in ROWS]  # fmt: skip
    elif layout == "labelled":
        rows = [{"prompt": row["prompt"], "completion": row[("chosen", "rejected")[k % 2]], "label": k % 2 == 0}
                for k, row in enumerate(ROWS)]  # fmt: skip
    file = write(tmp_path / "rows.jsonl", rows)
    assert run_command("init", file, "--output", tmp_path / "own.yaml") == 0
    text = (tmp_path / "own.yaml").read_text()
    assert ("data_format: messages" in text) == (layout in ("conversations", "explicit"))
    assert ("loss: kto" in text) == (layout == "labelled")
    assert (
        run_command("validate", "preference", "--config", tmp_path / "own.yaml", "--settings-only", "--elsewhere") == 0
    )


def test_init_asks_for_the_prompt_of_answers_without_one(tmp_path, capsys):
    file = write(tmp_path / "rows.jsonl", [{"chosen": row["chosen"], "rejected": row["rejected"]} for row in ROWS])
    assert run_command("init", file, "--output", tmp_path / "own.yaml") != 0
    assert "are answers without a column of prompts" in " ".join(capsys.readouterr().err.split())


def test_labelled_answers_become_pairs(tmp_path, monkeypatch, capsys):
    """recipes/data/preference/pair.py: the same pairs each time, and no warning about prompts with several."""
    monkeypatch.syspath_prepend(str(ROOT / "recipes/data/preference"))
    pair = import_module("pair").main
    rows = [(f"q{n}", f"answer {n} {k}", int(k < 2)) for n in range(6) for k in range(5)] + [("alone", "x", 1)]
    source, target = tmp_path / "rows.csv", tmp_path / "pairs.csv"
    source.write_text("question,text,right\n" + "".join(f"{q},{text},{label}\n" for q, text, label in rows))
    for _ in range(2):
        pair([str(source), str(target), "--columns", "question,text,right", "--most", "2"])
    with target.open(newline="") as file:
        found = list(csv.DictReader(file))
    labels = {text: label for _, text, label in rows}
    assert len(found) == 6 * 2 * 2
    assert all((labels[row["chosen"]], labels[row["rejected"]]) == (1, 0) for row in found)
    assert all(row["chosen"].split()[1] == row["prompt"][1:] == row["rejected"].split()[1] for row in found)
    assert "24 pairs; 1 prompts without a right or a wrong answer" in capsys.readouterr().out
    train("preference/smoke_reward", tmp_path / "run", f"data.train_file={target}", "data.validation_split=0.2",
          "data.validation_file=null", "train.max_steps=1")  # fmt: skip
    assert "another label" not in capsys.readouterr().out
    with pytest.raises(SystemExit, match="has no column 'prompt'"):
        pair([str(source), str(target)])
