"""The report of a run: its contents in both formats, and that rows cannot inject HTML."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from browser import needs_browser, open_page
from runs import ROOT, predictions, train

from toolkit.config.describe import changes
from toolkit.document.blocks import shown
from toolkit.recipe import load_settings, load_task_type
from toolkit.report import curves, examples
from toolkit.report.sections import memory_table
from toolkit.system.memory import MemoryUse

NASTY = "<script>alert(1)</script> & \"quoted\" | 'and' `ticks` <img src=x>"
HEADINGS = [
    "Result", "Curves", "Classes (validation)", "Classes (test)", "Data", "Largest errors", "Example predictions",
    "Environment", "Time, energy and machine", "Techniques used", "Where the time goes", "Memory",
    "Changed settings", "Reproduce",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a short run on rows that contain HTML."""
    folder = tmp_path_factory.mktemp("reports")
    rows = [{"text": f"{NASTY} {i}", "label": ["<b>bad</b>", "good"][i % 2]} for i in range(24)]
    for name, part in {"train": rows, "validation": rows[:12], "test": rows[:6]}.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, part)))
    files = [f"data.{name}_file={folder / f'{name}.jsonl'}" for name in ("train", "validation", "test")]
    run = folder / "a run"
    train(
        "reviews", run, *files, "train.max_steps=4", "eval.eval_steps=2", "train.activation_checkpointing=full",
        "train.optim=adafactor", "train.gradient_accumulation_steps=1", "checkpoint.save_steps=null",
        predict_memory=True,
    )  # fmt: skip
    return run


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    return (folder / "report.md").read_text(encoding="utf-8")


def part(page: str, heading: str) -> str:
    """Returns the HTML below a heading."""
    found = re.search(rf"<h2[^>]*>{re.escape(heading)}</h2>(.*?)</section>", page, re.DOTALL)
    assert found is not None, heading
    return found[1]


def cells(page: str, heading: str) -> list[list[str]]:
    """Returns the cells of the first table below a heading, as text."""
    body = part(page, heading).split("<tbody>", 1)[1].split("</tbody>")[0]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in body.split("</tr>")]
    return [[html.unescape(cell) for cell in row] for row in rows if row]


def test_both_forms_have_the_same_parts(page: str, text: str) -> None:
    assert re.findall(r"<h2[^>]*>(.*?)</h2>", page) == HEADINGS
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == HEADINGS
    assert "a new bert model on 24 rows, 8 per step, one process" in page
    for name in ("best_step", "eval_accuracy", "peak_memory", "trainable_parameters"):
        assert f"| {name} | " in text
        assert f">{name}</td>" in page


def test_rows_stay_text(page: str, text: str) -> None:
    assert page.count("<script") == 1
    assert "<img" not in page
    assert "<b>bad" not in page
    assert "&lt;b&gt;bad&lt;/b&gt;" in page
    assert "<script" not in text.split("## Reproduce")[0]
    assert "<b>" not in text.split("## Reproduce")[0]


def test_it_is_one_small_file(folder: Path, page: str) -> None:
    assert "://" not in page
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    assert (folder / "report.html").stat().st_size < 100_000
    assert (folder / "curves.svg").read_text().startswith("<svg xmlns=")


def test_curves_show_all_that_metrics_jsonl_has(page: str) -> None:
    titles = re.findall(r"<figcaption>(.*?)</figcaption>", part(page, "Curves"))
    assert titles[:2] == ["Loss", "Accuracy (validation)"]
    assert titles[-4:] == ["Learning rate", "Gradient norm", "Speed", "Peak memory so far"]
    drawn = part(page, "Curves")
    assert "training, step 3: " in drawn
    assert "validation, step 4: " in drawn


def test_the_worst_errors_are_the_surest_wrong_ones(folder: Path, page: str) -> None:
    rows = cells(page, "Largest errors")
    records = predictions(folder)
    wrong = [
        (record["scores"][record["prediction"]], line)
        for line, record in enumerate(records, start=1)
        if record["prediction"] != record["label"]
    ]
    assert wrong
    expected = sorted(wrong, key=lambda each: -each[0])[: examples.SHOWN]
    assert [int(row[0]) for row in rows] == [line for _, line in expected]
    assert [row[1] for row in rows] == [shown(score) for score, _ in expected]
    assert rows[0][2].startswith("<script>alert(1)</script> &")
    assert [row[3].split(" (")[0] for row in rows] == [records[line - 1]["prediction"] for _, line in expected]
    assert [row[4] for row in rows] == [records[line - 1]["label"] for _, line in expected]


def test_switches_say_what_they_do(page: str) -> None:
    rows = {name: (value, words) for name, value, words in cells(page, "Techniques used")}
    assert rows.keys() == {"train.optim", "train.activation_checkpointing"}
    value, words = rows["train.activation_checkpointing"]
    assert value == "full"
    assert words.startswith("Recompute activations in the backward pass instead of storing them")


def test_changed_settings_stand_beside_their_defaults(page: str) -> None:
    rows = {name: (value, default) for name, value, default in cells(page, "Changed settings")}
    assert rows["train.max_steps"] == ("4", "-1")
    assert rows["train.optim"] == ("adafactor", "adamw_torch_fused")
    assert rows["output_dir"][1] == "required"
    assert "train.mixed_precision" not in rows
    assert "train.weight_decay" not in rows


def test_the_state_of_the_certificate_and_the_lock_are_there(folder: Path, page: str, text: str) -> None:
    assert "none for this configuration; create one with `toolkit certify`" in page
    assert f"toolkit reproduce '{folder}'" in text
    lock = html.unescape(part(page, "Reproduce"))
    assert (folder / "config.yaml").read_text().strip() in lock
    facts = json.loads((folder / "run.json").read_text())
    assert f"<td>{facts['versions']['torch']}</td>" in lock
    assert facts["data_fingerprints"]["train"] in lock


MEASURED = MemoryUse(2**20, 2**20, 2 * 2**20, baseline=300 * 2**20, train_peak=10 * 2**20, peak=400 * 2**20)


def test_memory_stands_beside_what_was_predicted(page: str) -> None:
    parts = [row[0] for row in cells(page, "Memory")]
    assert parts == [
        "weights and buffers", "gradients", "optimizer state", "copy of a checkpoint", "activations and the rest",
        "peak of training steps",
    ]  # fmt: skip
    assert all(row[1] == row[2] for row in cells(page, "Memory")[:3])  # what was predicted of the states is exact
    words, table = memory_table(MEASURED)
    assert "above the 300 MiB" in words.text
    assert "On a GPU, that is what torch has allocated, otherwise what was resident; samples" in words.text
    assert [[shown(cell) for cell in row] for row in table.rows] == [
        [name, size] for name, size in zip(parts, ("1 MiB", "1 MiB", "2 MiB", "0 B", "6 MiB", "10 MiB"), strict=True)
    ]
    predicted = {"parameters": 2**20, "rest": 3 * 2**20}
    _, table = memory_table(MEASURED, predicted, "cpu")
    assert [shown(row[3]) for row in table.rows] == ["1", "-", "-", "-", "-", "-"]
    _, table = memory_table(MEASURED, predicted)
    assert table.header == ["part", "measured", "predicted", "predicted / measured"]
    assert [[shown(cell) for cell in row[2:]] for row in table.rows] == [
        ["1 MiB", "1"], ["-", "-"], ["-", "-"], ["-", "-"], ["3 MiB", "0.5"], ["-", "-"],
    ]  # fmt: skip


def test_curves_leave_out_what_is_not_there() -> None:
    history = [{"step": 1, "loss": None, "eval_loss": 2.0}, {"step": 2, "loss": 1.0, "eval_x": 1.0}]
    (chart,) = curves.charts(history, "eval_x")
    assert chart.title == chart.figure.title == "Loss"  # one point of a metric is no curve
    assert "training (1 not finite)" in chart.figure.drawing.svg()
    assert curves.charts([], "eval_x") == []
    one = {"step": 7, "loss": 1.0, "learning_rate": 0.1, "interval_items_per_second": 5.0, "peak_memory_bytes": 2}
    assert curves.charts([one], "eval_x") == []


def test_speed_is_that_of_the_interval() -> None:
    history = [{"step": i, "train_items_per_second": 1.0, "interval_items_per_second": float(i)} for i in (1, 2)]
    (chart,) = curves.charts(history, "eval_x")
    assert "speed, step 2: 2<" in chart.figure.drawing.svg()


class Plain:
    error_name = "how much"

    def error(self, record: dict[str, Any]) -> tuple[float, ...] | None:
        return record["error"]


def test_only_the_worst_are_kept_and_equal_ones_in_order() -> None:
    seen = examples.Worst(Plain())
    errors = [None, *((float(i % 500), 1.0) for i in range(1000)), (499.0, 2.0)]
    for line, error in enumerate(errors, start=1):
        seen.see(line, {"error": error})
    found = seen.found()
    assert [wrong.line for wrong in found[:4]] == [1002, 501, 1001, 500]
    assert len(found) == examples.SHOWN


QA = {"question": "?", "prediction_text": "a red fox", "score": 0.25}
LM = {"text": "a", "perplexity": 1.0, "num_tokens": 3}


@pytest.mark.parametrize(
    ("recipe", "record", "error"),
    [
        ("qa", QA | {"answers": ["the red fox"]}, None),
        ("qa", QA | {"answers": ["red", "blue"]}, (pytest.approx(1 / 3), 0.25)),
        ("qa", QA | {"answers": []}, (1.0, 0.25)),
        ("translation", {"prediction": "a b", "reference": "a b"}, None),
        ("translation", {"prediction": "a b", "reference": None}, None),
        ("translation", {"prediction": "xyz", "reference": "abc"}, (100.0,)),
        ("language_modeling", LM | {"loss": 2.5}, (2.5,)),
        ("language_modeling", LM | {"loss": None}, None),
    ],
)
def test_how_wrong_a_prediction_is(recipe: str, record: dict, error: tuple | None) -> None:
    task_type = load_task_type(ROOT / "recipes" / f"{recipe}.py")
    assert task_type(SimpleNamespace(task=task_type.Options())).error(record) == error


def test_changes_name_groups_of_settings_too() -> None:
    task_type = load_task_type(ROOT / "recipes/reviews.py")
    settings = ["model.peft.method=lora", "task.image.random_crop=0.5", "task.modality=image"]
    config = load_settings(task_type, ROOT / "recipes/configs/reviews/smoke_image.yaml", settings).config
    found = {change.key: change for change in changes(config)}
    assert found["model.peft.method"].default == "none"
    assert found["model.peft.method"].help.startswith("Low-rank updates")
    assert found["task.image.random_crop"].value == 0.5
    assert "seed" not in found


SCRIPT = """
const wide = [1280, 400].map((width) => {
  document.body.style.width = `${width}px`;
  for (const each of document.querySelectorAll("details")) each.open = true;
  return document.body.scrollWidth;
});
const table = [...document.querySelectorAll("table.sortable")].find((each) => each.textContent.includes("confidence"));
const order = () => [...table.tBodies[0].rows].map((row) => Number(row.cells[0].textContent));
table.tHead.rows[0].cells[0].querySelector("button").click();
return [wide, order(), document.images.length];
"""


@pytest.mark.slow
@needs_browser
def test_a_browser_shows_and_sorts_it_without_a_word(folder: Path, page: str, tmp_path: Path) -> None:
    shutil.copy(folder / "report.html", tmp_path)
    _, (wide, order, images) = open_page(tmp_path / "report.html", SCRIPT)
    assert wide == [1280, 400]
    assert order == sorted(int(row[0]) for row in cells(page, "Largest errors"))
    assert images == 0
