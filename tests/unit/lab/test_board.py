"""Boards of runs: which runs and columns they show, and the page in a browser."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from browser import needs_browser, open_page

from toolkit.base.errors import InputError
from toolkit.lab import board
from toolkit.lab.board import Entry, chosen, entry_of
from toolkit.report.facts import sealed
from toolkit.report.runs import find_records

FACTS = {
    "recipe": "/x/reviews.py", "engine": "loop", "num_rows": {}, "data_fingerprints": {}, "versions": {},
    "hardware": {}, "num_processes": 1, "git": None, "total_steps": 40, "metric_for_best_model": "eval_accuracy",
}  # fmt: skip


def write_run(folder: Path, rate: float, settings: str = "", finished: bool = True, steps: int = 40) -> None:
    """Writes the records of a run whose loss is 1/step, with four items per step and two per second."""
    folder.mkdir(parents=True)
    lines: list[dict[str, Any]] = []
    for step in range(2, steps + 1, 2):
        loss = None if step == 4 else 1 / step
        lines.append({"step": step, "loss": loss, "num_items": 8, "interval_items_per_second": 2.0, "epoch": step / 4})
        if step % 10 == 0:
            lines.append({"step": step, "eval_loss": 2 / step, "eval_accuracy": step / 40, "eval_f1/good": 1.0})
    cut = "" if finished else '{"step": 12, "lo'
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + cut)
    figures = {"steps": steps, "train_seconds": 160.0, "train_loss": 0.1, "eval_accuracy": 1.0}
    result = {"result": figures | {"eval_accuracy_low": 0.9}} if finished else {}
    (folder / "run.json").write_text(json.dumps(sealed(FACTS | result)))
    (folder / "config.yaml").write_text(
        f"output_dir: {json.dumps(str(folder))}\nseed: 42\nengine: loop\n"
        f"train:\n  learning_rate: {rate}\n  bf16: true\n{settings}\ntracking:\n  logging_steps: {steps}\n"
    )


def entries(folder: Path) -> list[Entry]:
    return [entry_of(record, folder) for record in find_records(folder)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("outputs")
    write_run(made / "a", 1e-5, "  optim: sgd")
    write_run(made / "below" / "b", 2e-4, "  optim: adamw_torch")
    write_run(made / "c", 0.001, "  optim: auto\n  warmup_steps: 0.1", finished=False, steps=10)
    return made


@pytest.mark.parametrize(
    ("conditions", "names"),
    [
        (["train.learning_rate>1e-4"], ["below/b", "c"]),
        (["train.learning_rate >= 2e-4", "train.learning_rate<0.001"], ["below/b"]),
        (["train.learning_rate=1e-5"], ["a"]),
        (["train.optim=sgd"], ["a"]),
        (["train.optim!='sgd'"], ["below/b", "c"]),
        (["finished=true"], ["a", "below/b"]),
        (["finished!=true", "train.bf16=true"], ["c"]),
        (["train.warmup_steps<=0.1"], ["c"]),
        (["train.warmup_steps=null"], ["a", "below/b"]),
        (["eval_accuracy<0.5"], ["c"]),
        (["steps=10"], ["c"]),
        (["run=below/b"], ["below/b"]),
        (["train.optim>3"], []),
    ],
)
def test_conditions_choose_runs(folder, conditions, names):
    assert [entry.name for entry in chosen(entries(folder), conditions)] == names


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("train.learning_rate", r"received 'train.learning_rate', expected a name, one of = != < <= > >=, and a value"),
        ("train.learning_rte>1", r"received 'train.learning_rte', no setting .* \(did you mean 'train.learning_rate'"),
        ("train.optim>sgd", "'sgd' is not a number; > compares numbers"),
        ("train.bf16>=true", "'true' is not a number"),
    ],
)
def test_a_condition_that_cannot_be_met_is_rejected(folder, condition, message):
    with pytest.raises(InputError, match=f"--where: .*{message}"):
        chosen(entries(folder), [condition])


def test_columns_are_what_differs_and_what_was_measured(folder):
    found = entries(folder)
    names = board.default_columns(found)
    assert names == [
        "train.learning_rate", "train.optim", "train.warmup_steps", "eval_accuracy", "eval_loss", "train_loss", "loss",
        "steps", "train_seconds",
    ]  # fmt: skip
    rows = list(csv.reader(io.StringIO(board.as_csv(found, names))))
    assert rows[0] == ["run", "state", *names]
    assert rows[1] == ["a", "finished", "1e-05", "sgd", "", "1.0", "", "0.1", "", "40", "160.0"]
    assert rows[3] == ["c", "step 10 of 40", "0.001", "auto", "0.1", "0.25", "0.2", "", "0.1", "10", ""]


def test_a_curve_has_steps_and_the_training_time(folder):
    drawn = board.overlay(entries(folder))
    assert (drawn.runs, drawn.chosen) == (["a", "below/b", "c"], [0, 1, 2])
    assert list(drawn.charts) == ["loss", "eval_loss", "eval_accuracy", "interval_items_per_second"]
    assert drawn.shown == ["loss", "eval_loss", "eval_accuracy"]
    steps, seconds, values = drawn.charts["loss"][2]
    assert list(steps) == [2, 4, 6, 8, 10]
    assert list(seconds) == [4, 8, 12, 16, 20]
    assert list(values) == [0.5, None, 0.166667, 0.125, 0.1]
    assert drawn.charts["eval_accuracy"][0][:2] == ([10, 20, 30, 40], [20, 40, 60, 80])


@pytest.mark.slow
def test_two_hundred_long_runs_make_a_page_of_a_few_megabytes(tmp_path):
    for number in range(200):
        write_run(tmp_path / f"run-{number}", number / 1e5, steps=600)
    found = entries(tmp_path)
    drawn = board.overlay(found)
    assert len(drawn.chosen) == board.FIRST
    assert sum(len(steps) for runs in drawn.charts.values() for steps, _, _ in runs.values()) <= 1.1 * board.POINTS
    steps, _, values = drawn.charts["loss"][0]
    assert (steps[0], steps[-1], values[0]) == (2, 600, 0.5)
    html = board.render(found, board.default_columns(found), "Runs")
    assert html.count("data-run=") == 200
    assert len(html) < 8e6


PROBE = """
const paths = () => document.querySelectorAll("figure:not([hidden]) path.line:not(.raw)").length;
const shown = () => [...document.querySelectorAll("figure:not([hidden]) figcaption")].map((each) => each.textContent);
const first = () => document.querySelector("figure:not([hidden]) path.line:not(.raw)").getAttribute("d");
const axis = document.querySelector(".overlay select");
const [logX, logY] = document.querySelectorAll(".controls input[type=checkbox]");
const [all, none] = document.querySelectorAll(".controls button");
const set = (control, value, event) => { control.value = value; control.dispatchEvent(new Event(event)); };
const labels = () => [...document.querySelector("figure svg").querySelectorAll("text")].map((each) => each.textContent);
const found = { charts: shown(), paths: paths(), points: first().match(/[ML]/g).length, labels: labels() };
found.boxes = document.querySelectorAll("td[data-run] input:checked").length;
found.gap = first().match(/M/g).length;
none.click();
found.none = [paths(), document.querySelector("figure p").textContent];
all.click();
found.all = paths();
document.querySelector("td[data-run] input").click();
found.oneLess = paths();
document.querySelector("td[data-run] input").click();
set(axis, "1", "change");
found.time = labels();
set(axis, "0", "change");
logY.click();
found.logY = labels();
logX.click();
found.logX = labels();
set(document.querySelector("input[type=range]"), "0.9", "input");
found.raw = document.querySelectorAll("figure:not([hidden]) path.raw").length;
document.querySelectorAll("fieldset input")[3].click();
found.more = shown();
document.querySelector("figure svg").dispatchEvent(new PointerEvent("pointermove", { clientX: 0, clientY: 0 }));
found.pointed = document.querySelector("figure output").textContent;
set(document.querySelector("input[type=search]"), "SGD", "input");
found.filtered = [...document.querySelectorAll("tbody tr")].filter((row) => !row.hidden).length;
document.querySelectorAll("th button")[2].click();
document.querySelectorAll("th button")[2].click();
found.sorted = [...document.querySelectorAll("td[data-run]")].map((cell) => cell.textContent);
found.wide = document.documentElement.scrollWidth;
return found;
"""


@pytest.mark.slow
@needs_browser
def test_the_page_in_a_browser(tmp_path):
    evil = "</script><script>alert(1)</script>"
    write_run(tmp_path / "runs" / "a", 1e-5, "  optim: sgd")
    write_run(tmp_path / "runs" / "b", 2e-4, f"  optim: {json.dumps(evil)}")
    write_run(tmp_path / "runs" / "c & <b>", 0.001, "  optim: auto", finished=False, steps=10)
    found = entries(tmp_path / "runs")
    html = board.render(found, board.default_columns(found), f"Runs {evil}")
    assert "<script>alert" not in html
    assert html.count("://") == html.count('NS("http://www.w3.org/2000/svg"') == 1  # a name, no address
    (tmp_path / "board.html").write_text(html, encoding="utf-8")
    _, at = open_page(tmp_path / "board.html", PROBE, width=1280)
    assert at["charts"] == ["loss", "eval_loss", "eval_accuracy"]
    assert (at["paths"], at["boxes"], at["gap"]) == (9, 3, 2)
    assert at["points"] == 19  # of 20 values, one of them missing
    assert at["none"] == [0, "Choose runs in the table."]
    assert (at["all"], at["oneLess"]) == (9, 6)
    assert at["labels"][-1] == at["logY"][-1] == "optimizer step"
    assert at["time"][-1] == "seconds of training"
    assert {"10", "20", "30", "40"} <= set(at["labels"])
    assert {"20", "40", "60", "80"} <= set(at["time"])
    assert {"0.05", "0.1", "0.2", "0.5"} <= set(at["logY"])
    assert {"2", "5", "10", "20"} <= set(at["logX"])
    assert at["raw"] == 9
    assert at["more"] == [*at["charts"], "interval_items_per_second"]
    assert at["pointed"] == "a, step 2: 0.5"
    assert at["filtered"] == 1
    assert at["sorted"] == ["c & <b>", "b", "a"]
    assert at["wide"] <= 1280
    narrow = """
        const page = document.querySelector("main");
        page.style.width = "400px";
        document.querySelector("select").dispatchEvent(new Event("change"));
        return [page.scrollWidth, document.querySelectorAll("figure svg").length];
    """
    assert open_page(tmp_path / "board.html", narrow, width=400)[1] == [400, 3]


def test_values_that_are_not_finite_are_missing_cells():
    assert board.cell(math.nan) is None
    assert board.cell(None) is None
    assert board.cell([1, "a"]) == '[1, "a"]'
    assert board.cell(True) == "true"
