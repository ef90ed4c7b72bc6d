"""What more labelled rows are worth: parts of the training rows, a power law, and the comparison of both."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from runs import ROOT, TINY

from toolkit.base.errors import ConfigError
from toolkit.commands.cli import main
from toolkit.data.loading import CheckedRows, check_rows
from toolkit.document.blocks import Figure, Table, Text
from toolkit.document.render import print_blocks
from toolkit.lab.compare.page import worth
from toolkit.lab.compare.statistics import power_law, worth_of_rows
from toolkit.lab.compare.variants import QUESTIONS, of_question
from toolkit.metrics.intervals import resamples
from toolkit.metrics.score import Score
from toolkit.recipe import load_settings, load_task_type

RECIPE, CONFIG = ROOT / "recipes/reviews.py", ROOT / "recipes/configs/reviews/smoke.yaml"
ACCURACY, LOSS = Score("eval_accuracy"), Score("eval_loss", greater_is_better=False)
ROWS = np.array([120, 250, 500, 1000])


# Parts of the rows


def rows_of(*overrides: str) -> CheckedRows:
    task_type = load_task_type(RECIPE)
    cfg = load_settings(task_type, CONFIG, overrides, environ={}).config
    return check_rows(cfg, task_type(cfg))


@pytest.fixture
def by_class(tmp_path: Path) -> Path:
    """Returns a file that is sorted by class, as many are; one class has three rows."""
    labels = ["bad"] * 100 + ["good"] * 60 + ["rare"] * 3
    lines = [f"text {number},{label}" for number, label in enumerate(labels)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    return tmp_path / "train.csv"


def test_a_smaller_fraction_is_part_of_a_larger_one_with_the_same_validation_rows(by_class):
    data = (f"data.train_file={by_class}", "data.validation_file=null")
    whole = rows_of(*data)
    texts, larger = whole.splits["validation"]["text"][:], set(whole.splits["train"]["text"][:])
    total = len(larger)
    for fraction in (0.5, 0.25, 0.12):
        found = rows_of(*data, f"data.train_fraction={fraction}")
        train = found.splits["train"]
        assert (len(train), found.splits["validation"]["text"][:]) == (round(fraction * total), texts)
        assert larger > set(train["text"][:])
        larger = set(train["text"][:])
        assert train["_number"][:] == sorted(train["_number"][:])
        counts = [train["label"][:].count(name) for name in ("bad", "good", "rare")]
        assert counts[:2] == pytest.approx([fraction * 90, fraction * 54], abs=1.5)
        assert counts[2] >= 1
        omitted = f"rows not used (data.train_fraction={fraction})"
        assert [each.count for each in found.findings.omissions if each.what == omitted] == [total - len(train)]
    assert larger != set(rows_of(*data, "data.train_fraction=0.12", "seed=7").splits["train"]["text"][:])


def test_a_fraction_is_of_the_limited_rows_and_at_least_one(by_class):
    limited = ("data.max_train_samples=40", f"data.train_file={by_class}", "data.validation_split=0")
    limited += ("data.validation_file=null", "task.labels=[bad, good, rare]", "eval.eval_steps=null")
    numbers = rows_of(*limited, "data.train_fraction=0.5").splits["train"]["_number"][:]
    assert (len(numbers), max(numbers) <= 41) == (20, True)
    assert len(rows_of(*limited, "data.train_fraction=0.001").splits["train"]) == 1
    with pytest.raises(ConfigError, match=r"data\.train_fraction"):
        rows_of("data.train_fraction=0")


def test_fewer_rows_get_as_many_epochs():
    task_type = load_task_type(RECIPE)
    cfg = load_settings(task_type, CONFIG, environ={}).config
    by_epochs = [each.settings for each in of_question(QUESTIONS["rows"], cfg, 1)]
    assert by_epochs == [{"data.train_fraction": share} for share in ("1.0", "0.5", "0.25", "0.12")]
    by_steps = of_question(QUESTIONS["rows"], cfg, 1, steps=100)
    assert [each.settings["train.max_steps"] for each in by_steps] == ["100", "50", "25", "12"]
    cfg = load_settings(task_type, CONFIG, ["train.max_steps=20"], environ={}).config
    assert [each.settings["train.max_steps"] for each in of_question(QUESTIONS["rows"], cfg, 1)] == [
        "20", "10", "5", "2",
    ]  # fmt: skip
    assert all("train.max_steps" not in each.settings for each in of_question(QUESTIONS["optimizers"], cfg, 1))


# The law


@pytest.mark.parametrize("law", [(0.95, -2.0, 0.4), (0.3, 5.0, 0.7), (1.0, -1.5, 0.2)])
def test_the_law_of_exact_points_is_found(law):
    start, factor, exponent = law
    assert power_law(ROWS, (start + factor * ROWS**-exponent)[:, None])[:, 0] == pytest.approx(law, rel=1e-6)


def runs_of(scores: np.ndarray, seeds: int, noise: float, random: np.random.Generator, **others: float) -> list[dict]:
    """Returns runs by seed for each number of rows, the largest first: 600 evaluated rows are right with `scores`."""
    difficulty = random.random(600)  # the same rows for all
    drawn = [order for order, _ in zip(resamples(600), range(100), strict=False)]
    found = []
    for count, score in reversed(list(zip(ROWS, scores, strict=True))):
        runs = {}
        for seed in range(seeds):
            right = difficulty < score + random.normal(0, noise)
            figures = {"eval_accuracy": right.mean(), "eval_loss": 2 * (1 - score) + random.normal(0, noise)} | others
            draws = {"eval_accuracy": [right[order].mean() for order in drawn], "eval_loss": []}
            metrics = {name: {"draws": draws.get(name, [])} for name in figures}
            runs[seed] = {"train_rows": int(count), "figures": figures, "metrics": metrics}
        found.append(runs)
    return found


def test_intervals_contain_what_the_law_says():
    random, kept = np.random.default_rng(0), 0
    for _ in range(20):
        runs = runs_of(0.95 - 2.0 * ROWS**-0.4, 3, 0.005, random)
        found = worth_of_rows(runs, ACCURACY)
        assert (found["rows"], found["more"]) == (ROWS.tolist(), 500)
        score = found["scores"]["eval_accuracy"]
        assert score["means"][::-1] == [
            np.mean([each["figures"]["eval_accuracy"] for each in r.values()]) for r in runs
        ]
        truth = 2.0 * (1000**-0.4 - 1500**-0.4)
        kept += score["interval"].low <= truth <= score["interval"].high
    assert kept >= 18
    loss = worth_of_rows(runs, LOSS)["scores"]["eval_loss"]
    assert loss["interval"].low <= loss["gain"] <= loss["interval"].high < 0


@pytest.mark.parametrize(("rows", "more"), [(1000, 500), (3567, 2000), (4500, 2000), (56, 30), (3, 2), (1, 1)])
def test_half_as_many_are_a_round_number(rows, more):
    run = {"train_rows": rows, "figures": {}, "metrics": {}}
    assert worth_of_rows([{1: run}], ACCURACY)["more"] == more


@pytest.mark.parametrize(
    ("scores", "reason"),
    [
        ([0.8, 0.8, 0.8, 0.8], "it does not clearly improve from 120 to 1,000 rows"),
        ([0.8, 0.75, 0.7, 0.65], "it does not clearly improve from 120 to 1,000 rows"),
        ([0.2, 0.2, 0.2, 0.9], "a power law explains only"),
    ],
)
def test_no_estimate_is_made_up(scores, reason):
    runs = runs_of(np.array(scores), 3, 0.01, np.random.default_rng(1))
    found = worth_of_rows(runs, ACCURACY)
    assert found["scores"]["eval_accuracy"]["reason"].startswith(reason)
    text, *_ = worth({"rows": found})
    assert text.text.startswith(f"500 more rows: accuracy cannot be told, because {reason}")


def test_a_law_needs_four_parts_and_runs_of_the_same_seeds():
    runs = runs_of(0.95 - 2.0 * ROWS**-0.4, 3, 0.005, np.random.default_rng(2))
    few = worth_of_rows([*runs[:3], {}], ACCURACY)  # the smallest part failed
    assert few["scores"]["eval_accuracy"]["reason"] == "it was not measured for four different numbers of rows"
    own = worth_of_rows(runs, Score("eval_mine"))["scores"]["eval_mine"]  # infinite, or missing
    assert own["reason"] == "it was not measured for four different numbers of rows"
    assert worth_of_rows([{}, {}], ACCURACY) is None
    assert worth_of_rows([{1: runs[0][1]}, {2: runs[1][2]}], ACCURACY) is None


def test_a_single_seed_has_an_estimate_without_an_interval():
    runs = runs_of(0.95 - 2.0 * ROWS**-0.4, 1, 0.0, np.random.default_rng(3))
    found = worth_of_rows(runs, ACCURACY)
    assert found["scores"]["eval_accuracy"]["interval"] is None
    assert next(worth({"rows": found})).text.startswith("500 more rows: accuracy ? +0.0")


def test_classes_are_listed_by_what_they_would_gain(capsys):
    random = np.random.default_rng(4)
    runs = runs_of(0.95 - 2.0 * ROWS**-0.4, 3, 0.002, random)
    laws = {"small": 0.9 - 1.0 * ROWS**-0.4, "large": 0.95 - 4.0 * ROWS**-0.4, "none": np.full(4, 0.7)}
    for part, each in enumerate(reversed(runs)):
        for run in each.values():
            for name, law in laws.items():
                run["figures"][f"eval_f1/{name}"] = law[part] + random.normal(0, 0.002)
                run["metrics"][f"eval_f1/{name}"] = {"draws": []}
    found = worth_of_rows(runs, ACCURACY)
    blocks = list(worth({"rows": found}))
    assert [type(block) for block in blocks] == [Text, Text, Figure, Table]
    table = blocks[-1]
    assert table.header == ["F1 of class", "120 rows", "250 rows", "500 rows", "1,000 rows", "500 more rows"]
    assert [row[0] for row in table.rows] == ["large", "small"]
    assert table.rows[0][1:5] == pytest.approx(laws["large"], abs=0.01)
    assert "500 more rows: accuracy +0.0" in blocks[0].text
    print_blocks(blocks)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    assert list(worth({})) == []


# The command


def run_cli(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(RECIPE), "--config", str(CONFIG), "--preset", "rows", *arguments])
    return int(ended.value.code)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_trials")
def test_the_command_says_what_more_rows_are_worth(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    output = tmp_path / "out"
    asked = ["--seeds", "2", "--draws", "20", "--steps", "24", *TINY, "data.max_train_samples=100",
             "train.per_device_train_batch_size=4", "train.global_batch_size=8", "--output", str(output)]  # fmt: skip
    assert run_cli(*asked) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines()[:-1])) <= 80  # the last names the folder
    found = json.loads((output / "comparison.json").read_text())
    assert found["rows"]["rows"] == [12, 25, 50, 100]
    assert found["rows"]["more"] == 50
    assert [variant["steps"] for variant in found["variants"]] == [24, 12, 6, 3]
    assert {name.partition("/")[0] for name in found["rows"]["scores"]} == {"eval_accuracy", "eval_f1"}
    means = [variant["metrics"]["eval_accuracy"]["value"] for variant in reversed(found["variants"])]
    assert found["rows"]["scores"]["eval_accuracy"]["means"] == pytest.approx(means)
    assert "eval_f1/positive" not in found["variants"][0]["metrics"]
    assert "50 more rows: accuracy " in printed
    assert "## What more rows are worth" in (output / "comparison.md").read_text()
    assert "<svg" in (output / "rows.svg").read_text()
    assert run_cli(*asked) == 0
    assert "0 runs to do, 8 done before" in capsys.readouterr().out
