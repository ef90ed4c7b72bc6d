"""`toolkit.train` and `toolkit.load` in one process: results, rows, errors, and the global state they restore."""

from __future__ import annotations

import csv
import json
import logging
import random
import shutil
import signal
import threading
from pathlib import Path

import datasets
import numpy as np
import pandas
import pytest
import torch
import transformers
from accelerate.state import AcceleratorState
from commands import run_command
from ruamel.yaml import YAML
from runs import ROOT, TINY, assert_same_weights, train

import toolkit
from toolkit.base.errors import InputError
from toolkit.base.trust import trust
from toolkit.data.loading import check_rows
from toolkit.data.readers.raw import Reading
from toolkit.data.table import given_table
from toolkit.deploy.trained import read_settings
from toolkit.recipe import load_task_type
from toolkit.report.facts import sealed

RECIPE, CONFIG = ROOT / "recipes/reviews.py", ROOT / "recipes/configs/reviews/smoke.yaml"
FEW = (*TINY, "train.max_steps=2", "data.max_train_samples=24", "data.max_eval_samples=9", "eval.eval_steps=1")
ROWS = [{"text": "A fine pair of boots."}, {"text": "It broke at once."}, {"text": "Good."}]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    output = f"output_dir={tmp_path_factory.mktemp('python') / 'run'}"
    return toolkit.train(RECIPE, CONFIG, [*FEW, "tracking.count_memory=true", output])


@pytest.fixture(scope="module")
def trained(result):
    return toolkit.load(result.output_dir)


def test_the_result_is_that_of_run_json(result):
    figures = json.loads((result.output_dir / "run.json").read_text())["result"]
    assert result.metrics == {name: value for name, value in figures.items() if isinstance(value, int | float)}
    assert len(figures["counted_peak_bytes"]) == 1
    assert all(type(value) is float for value in result.metrics.values())
    assert result.steps == 2
    assert (result.best, result.best_step) == (figures["best_metric"], figures["best_step"])
    assert result.output_dir.name == "run"


def test_what_a_notebook_shows_is_short(result, trained):
    shown = result._repr_html_()
    assert shown.count("<tr>") <= 12 < len(result.metrics)
    assert f"<th>eval_accuracy</th><td>{result.metrics['eval_accuracy']:.4g}</td>" in shown
    assert str(result.output_dir) in shown
    assert len(repr(trained)) < 200


def test_every_door_trains_the_same_model(result, tmp_path):
    with CONFIG.open() as file:
        sections = YAML(typ="safe").load(file)
    sections["output_dir"] = tmp_path / "dictionary"
    sections["train"]["max_steps"] = np.int64(2)
    changes = [change for change in FEW if not change.startswith("train.max_steps")]
    toolkit.train(load_task_type(RECIPE), sections, changes)
    train("reviews", tmp_path / "recipe", *FEW)
    assert_same_weights(result.output_dir, tmp_path / "dictionary")
    assert_same_weights(result.output_dir, tmp_path / "recipe")


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("recipe", ["reviews", "qa", "translation", "token_classification", "embeddings"])
def test_features_of_a_few_rows_are_those_that_datasets_maps(recipe, labelled, tmp_path, monkeypatch):
    train(recipe, tmp_path / "run", *FEW[len(TINY) :])
    run = toolkit.load(tmp_path / "run")
    rows = check_rows(run.cfg, run.task).splits["validation"].select(range(9))
    table = given_table(rows, run.task, {}, labelled, Reading())
    quick = run.preprocessed(table.rows, labelled).features
    monkeypatch.setattr("toolkit.data.tokenise.MAP_ROWS", 0)
    mapped = run.preprocessed(table.rows, labelled).features
    assert quick.features == mapped.features
    assert quick[:] == mapped[:]


def test_rows_of_every_kind_are_predicted_as_the_command_does(result, trained, tmp_path):
    file, output = tmp_path / "new.jsonl", tmp_path / "out.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert run_command("predict", result.output_dir, "--input", file, "--output", output) == 0
    written = [json.loads(line) for line in output.read_text().splitlines()]
    cache = Path(datasets.config.HF_DATASETS_CACHE)
    before = set(cache.rglob("*.arrow"))
    kinds = (ROWS, datasets.Dataset.from_list(ROWS), pandas.DataFrame(ROWS, index=["a", "b", "c"]), tuple(ROWS))
    for rows in kinds:
        shared = ("text", "prediction", "scores")
        predicted = trained.predict(rows)
        assert [{name: row[name] for name in shared} for row in predicted] == [
            {name: row[name] for name in shared} for row in written
        ]
    assert set(cache.rglob("*.arrow")) == before


def test_scores_of_the_runs_own_rows_are_the_runs_own(result, trained):
    with (ROOT / "recipes/data/reviews/validation.csv").open() as file:
        rows = list(csv.DictReader(file))[:9]
    scores = trained.evaluate(pandas.DataFrame(rows))
    assert scores == trained.evaluate(rows)
    assert scores == {name: result.metrics[name] for name in scores}
    assert {"eval_loss", "eval_accuracy"} < scores.keys()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([*ROWS, {"text": " "}, {"text": None}], "2 of 5 rows cannot be used:\n  rows, rows 4 and 5: "),
        (pandas.DataFrame({"text": ["good", None]}), "rows, row 2: column 'text' is empty"),
        (["good"], "rows, row 1: expected a dictionary, received str"),
        ([{"review": "good"}], "rows has no column 'text'.*Its columns are review"),
        ({"text": "good"}, "received dict, expected a list of dictionaries"),
        ("new.csv", "received str, expected a list of dictionaries.*`toolkit predict`"),
        ([], "rows has no rows"),
        (pandas.DataFrame([[1, 2]], columns=["text", "text"]), "more than one column is named 'text'"),
    ],
)
def test_rows_that_cannot_be_used_are_named(trained, rows, message):
    with pytest.raises(toolkit.DataError, match=f"(?s){message}"):
        trained.predict(rows)


def test_labels_are_needed_for_scores_only(trained):
    with pytest.raises(toolkit.DataError, match="rows has no column 'label'"):
        trained.evaluate(ROWS)
    with pytest.raises(toolkit.DataError, match=r"row 1: .*'unheard of'"):
        trained.evaluate([{"text": "good", "label": "unheard of"}])


def test_a_share_of_bad_rows_that_is_not_allowed_ends_an_evaluation(result, tmp_path, capsys):
    file = tmp_path / "new.csv"
    file.write_text("text,label\nGood boots.,positive\n,positive\n")
    skip = ("evaluate", result.output_dir, "--data", file, "--bad-rows", "skip")
    assert run_command(*skip, "data.max_bad_rows=0.01") == 2
    assert "data.max_bad_rows=0.01 allows 1%" in capsys.readouterr().err
    assert run_command(*skip, "data.max_bad_rows=0.5") == 0
    assert "1 row, 1 skipped as unusable (50.0%)" in capsys.readouterr().out
    assert run_command(*skip, "data.bad_rows=error") == 2
    assert "--bad-rows, data.bad_rows: both were given" in capsys.readouterr().err
    assert run_command(*skip[:-1], "error", "data.max_bad_rows=0.5") == 2
    assert "every bad row stops the run" in capsys.readouterr().err


@pytest.mark.parametrize("override", ["data.bad_rows=skip", "data.max_bad_rows=0.5"])
def test_what_happens_to_bad_rows_is_not_set_where_none_is_skipped(result, tmp_path, capsys, override):
    key, _, _ = override.partition("=")
    overrides = {"data.bad_rows=skip", override}
    with pytest.raises(toolkit.ConfigError, match=f"{key}: no rows are skipped here"):
        toolkit.load(result.output_dir, overrides=sorted(overrides))
    assert run_command("predict", result.output_dir, "--input-text", "good", *sorted(overrides)) == 2
    assert f"{key}: no rows are skipped here" in capsys.readouterr().err


@pytest.mark.parametrize("written", ["rows.jsonl", "folder/../rows.jsonl", "link.jsonl"])
def test_an_input_is_not_overwritten(result, tmp_path, monkeypatch, capsys, written):
    monkeypatch.chdir(tmp_path)
    content = "".join(json.dumps(row | {"label": "positive"}) + "\n" for row in ROWS)
    Path("rows.jsonl").write_text(content)
    Path("folder").mkdir()
    Path("link.jsonl").symlink_to("rows.jsonl")
    for words in (
        ("predict", result.output_dir, "--input", "rows.jsonl"),
        ("evaluate", result.output_dir, "--data", "rows.jsonl"),
        ("init", "rows.jsonl"),
        ("plan", "reviews", "--config", "rows.jsonl"),
        ("slurm", "reviews", "--time", "1:00:00", "--config", "smoke", "data.train_file=rows.jsonl"),
    ):
        assert run_command(*words, "--output", written, "--overwrite") == 2
        assert f"--output: {written} is an input and would be overwritten; use another file" in capsys.readouterr().err
    assert Path("rows.jsonl").read_text() == content
    assert Path("link.jsonl").is_symlink()


def test_a_table_named_as_lines_of_text_is_rejected(result, tmp_path, capsys):
    for name, content in (("header.txt", "text;label\ngood;x\n"), ("lines.txt", "a text; or two\nbad\n")):
        (tmp_path / name).write_text(content)
        code = run_command("predict", result.output_dir, "--input", tmp_path / name, "--output", tmp_path / "x.csv")
        assert code == (2 if name == "header.txt" else 0)
    assert "its first line, 'text;label', is the header of a table" in capsys.readouterr().err


def test_a_sheet_and_a_list_of_bad_rows_are_inputs_too(result, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("book.xlsx", "a.bad_rows.jsonl"):
        Path(name).write_text("as it was")
    assert run_command("predict", result.output_dir, "--input", "book.xlsx#2026", "--output", "book.xlsx") == 2
    assert run_command("evaluate", result.output_dir, "--data", "a.bad_rows.jsonl", "--output", "a.json") == 2
    said = capsys.readouterr().err
    assert "--output: book.xlsx is an input" in said
    assert "--data: the list of unusable rows: a.bad_rows.jsonl is an input" in said
    assert {Path(name).read_text() for name in ("book.xlsx", "a.bad_rows.jsonl")} == {"as it was"}


def test_wrong_settings_are_named_with_their_place(tmp_path):
    with pytest.raises(toolkit.ConfigError) as refused:
        toolkit.train(RECIPE, {"output_dir": str(tmp_path), "train": {"learning_rat": 1}}, {"train.optim": "adamw"})
    listed = "\n".join(refused.value.problems)
    assert "config: train.learning_rat: unknown key (did you mean train.learning_rate?)" in listed
    assert "override train.optim=adamw: train.optim: received 'adamw'" in listed
    with pytest.raises(toolkit.ConfigError, match="of type Tensor"):
        toolkit.train(RECIPE, {"train": {"learning_rate": torch.ones(1)}})
    broken = tmp_path / "broken.py"
    broken.write_text("import toolkit.no_such_module\n")
    with pytest.raises(toolkit.InputError, match=r"ModuleNotFoundError: .*broken\.py, line 1"):
        toolkit.train(broken, {})
    with pytest.raises(toolkit.InputError, match="no such recipe"):
        toolkit.train("nowhere.py", CONFIG)
    with pytest.raises(toolkit.InputError, match="not a finished run"):
        toolkit.load(tmp_path)


def state_of_the_process() -> list:
    return [
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.get_rng_state().tolist(),
        signal.getsignal(signal.SIGTERM),
        dict(AcceleratorState._shared_state),
        transformers.utils.logging.get_verbosity(),
        datasets.utils.logging.get_verbosity(),
        transformers.utils.logging.is_progress_bar_enabled(),
        logging.getLogger("bitsandbytes").level,
        torch.get_float32_matmul_precision(),
    ]


def test_another_precision_in_the_same_process_and_all_is_as_it_was(result, trained, tmp_path):
    records, before = trained.predict(ROWS), state_of_the_process()
    other = toolkit.train(RECIPE, CONFIG, [*FEW, "train.mixed_precision=bf16", f"output_dir={tmp_path / 'bf16'}"])
    assert state_of_the_process() == before
    assert other.metrics["train_loss"] != result.metrics["train_loss"]
    half = toolkit.load(other.output_dir)
    assert (half.accelerator.mixed_precision, trained.accelerator.mixed_precision) == ("bf16", "no")
    assert half.predict(ROWS) != records
    assert trained.predict(ROWS) == records


def test_a_run_finds_its_files_from_any_folder(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    Path("mine.csv").write_text("text,label\n" + "".join(f"text {row},{'ab'[row % 2]}\n" for row in range(40)))
    own = ["data.train_file=mine.csv", "data.validation_file=null", "data.validation_split=0.2", "output_dir=run"]
    toolkit.train(RECIPE, CONFIG, [*FEW, *own])
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text("other rows\n")
    cfg, _ = read_settings(tmp_path / "there/run", None)
    assert Path(cfg.data.train_file) == tmp_path / "there/mine.csv"
    (tmp_path / "there/mine.csv").unlink()
    assert read_settings(tmp_path / "there/run", None)[0].data.train_file == "mine.csv"


def test_a_thread_can_train(result, tmp_path):
    got = []
    settings = [*FEW, f"output_dir={tmp_path / 'thread'}"]
    thread = threading.Thread(target=lambda: got.append(toolkit.train(RECIPE, CONFIG, settings)))
    thread.start()
    thread.join()
    assert_same_weights(got[0].output_dir, result.output_dir)


def test_code_is_not_run_because_a_runs_folder_names_it(result, tmp_path, monkeypatch):
    recipe, proof = tmp_path / "reviews.py", tmp_path / "proof"
    recipe.write_text(f"{RECIPE.read_text()}\n__import__('pathlib').Path({str(proof)!r}).touch()\n")
    run = tmp_path / "run"
    shutil.copytree(result.output_dir, run)
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(sealed(facts | {"recipe": str(recipe)})))
    for command in (("predict", run, "--input-text", "good"), ("reproduce", run)):
        assert run_command(*command) == 2
    with pytest.raises(InputError, match="--recipe"):
        toolkit.load(run)
    assert not proof.exists()
    assert toolkit.load(run, recipe=recipe).task is not None
    proof.unlink()
    trust(recipe)  # as a training does
    toolkit.load(run)
    assert proof.exists()
