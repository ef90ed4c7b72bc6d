"""`toolkit batch-find`: which micro-batches are tried, which one is best, and what is said of those that do not fit."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from runs import ROOT, TINY

from toolkit.base.errors import RunError
from toolkit.commands.cli import main
from toolkit.lab import batch_find
from toolkit.lab.batch_find import Search, Size, Tried, best_of, sizes_of
from toolkit.lab.jobs.jobs import Launch, Outcome
from toolkit.recipe import load_settings, load_task_type

pytestmark = pytest.mark.usefixtures("forked_trials")

TASKS = ("translation", "language_modeling")
"""Those whose rows have targets of their own, and whose rows are cut anew; a third is on two processes."""
RECIPE = ROOT / "recipes" / "reviews.py"
CONFIG = str(ROOT / "recipes/configs/reviews/smoke.yaml")


def load(*overrides: str):
    return load_settings(load_task_type(RECIPE), CONFIG, [*TINY, *overrides]).config


def find(*arguments: str, code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["batch-find", *arguments])
    assert ended.value.code == code


def batches(sizes: list[Size]) -> list[tuple[int, int]]:
    return [(size.micro_batch, size.window) for size in sizes]


def sizes(
    scale: str | None = None, *overrides: str, batch: int = 6, accumulation: int = 4, most: int = 0
) -> list[Size]:
    window = (f"train.per_device_train_batch_size={batch}", f"train.gradient_accumulation_steps={accumulation}")
    cfg = load(*window, *overrides)
    return sizes_of(cfg, longest=10, most_rows=most, reference=batch * accumulation, scale=scale)


def test_the_window_stays_and_accumulation_changes():
    found = sizes()
    assert batches(found) == [(rows, 24) for rows in (1, 2, 3, 6, 12, 24)]
    for size in found:
        assert size.settings == {
            "train.per_device_train_batch_size": size.micro_batch,
            "train.gradient_accumulation_steps": 24 // size.micro_batch,
        }
    assert batches(sizes(batch=1, accumulation=1)) == [(1, 1)]
    assert (8, 24) in batches(sizes(batch=8, accumulation=3))  # the configured one is always there
    assert batches(sizes(batch=7, accumulation=1)) == [(1, 7), (7, 7)]


@pytest.mark.parametrize(("scale", "factors"), [("linear", [2, 4]), ("sqrt", [2**0.5, 2])])
def test_larger_windows_scale_the_rates(scale, factors):
    found = sizes(scale, "train.learning_rate=1e-3", "train.head_learning_rate=1e-2", most=100)
    assert batches(found)[-2:] == [(48, 48), (96, 96)]
    for size, factor in zip(found[-2:], factors, strict=True):
        assert size.settings["train.learning_rate"] == pytest.approx(1e-3 * factor, rel=1e-3)
        assert size.settings["train.head_learning_rate"] == pytest.approx(1e-2 * factor, rel=1e-3)
    assert all("train.learning_rate" not in size.settings for size in found[:-2])


def test_the_rate_may_be_meant_for_another_window():
    cfg = load("train.per_device_train_batch_size=8", "train.gradient_accumulation_steps=1", "train.learning_rate=1e-3")
    (*_, last) = sizes_of(cfg, longest=10, most_rows=8, reference=2, scale="linear")
    assert last.settings["train.learning_rate"] == pytest.approx(4e-3)


def test_budgets_of_tokens_are_sizes_too():
    found = sizes(None, "train.max_tokens_per_batch=50", batch=6, accumulation=1)
    assert [(size.micro_batch, size.rows) for size in found] == [(10, 1), (20, 2), (40, 4), (50, 5), (60, 6)]
    assert found[0].settings == {"train.max_tokens_per_batch": 10}
    larger = sizes("linear", "train.max_tokens_per_batch=50", batch=6, accumulation=1, most=12)[-1]
    assert larger.settings["train.max_tokens_per_batch"] == 120
    assert larger.settings["train.per_device_train_batch_size"] == larger.window == 12


def tried(rows: int, *seconds: float) -> Tried:
    return Tried(Size(rows, rows, 64, {}), 0, 0, [list(seconds)], [64.0] * len(seconds))


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ([16, 8, 4, 2, 1], 16),  # twice as fast with every doubling
        ([16, 8, 4, 3.8, 3.6], 4),  # then by 5 %
        ([4, 4.1, 4.2], 1),
        ([4, 3.9, 2], 4),  # which only the second doubling shows
    ],
)
def test_the_best_is_the_smallest_that_is_nearly_as_fast(seconds, best):
    assert best_of([tried(2**power, each) for power, each in enumerate(seconds)]).size.micro_batch == best


def test_a_step_counts_with_its_faster_round_and_ratios_are_of_the_same_steps():
    slow, fast = tried(1, 8.0, 4.0, 2.0), tried(2, 4.0, 2.0, 1.0)
    slow.seconds.append([80.0, 4.0, 1.0])
    assert slow.rates.tolist() == [8.0, 16.0, 64.0]
    assert fast.gain(slow) == pytest.approx(2.0)


REQUEST = SimpleNamespace(load=lambda more: load(*more), launch=Launch(None, 1, {}))


def searched(monkeypatch, outcomes: dict[int, list[Outcome]], capacity: int = 2**40) -> list[Tried]:
    """Returns what a search finds whose launches end as given; others train, with 1 MiB for each row."""
    cfg = load("train.per_device_train_batch_size=4", "train.gradient_accumulation_steps=2")
    subject = SimpleNamespace()
    monkeypatch.setattr(batch_find, "simulate", lambda subject: SimpleNamespace(rows=subject))
    monkeypatch.setattr(batch_find, "resized", lambda subject, cfg: cfg.train.per_device_train_batch_size)
    monkeypatch.setattr(batch_find, "Footprint", lambda rows: SimpleNamespace(rows=rows))
    monkeypatch.setattr(
        batch_find, "estimated", lambda found, cfg, processes: SimpleNamespace(states=0, passing=found.rows * 2**20)
    )

    def result(tried, work):
        rows = tried.size.micro_batch
        if work == "timed":
            return {"seconds": [9.0, 1.0 / rows], "rows": [8.0, 8.0]}
        return {"memory": {"train_peak": rows * 2**20}, "footprint": {"rows": rows}, "step_rows": 8, "epoch_rows": 9}

    def launched(self, *works):
        failed = outcomes.get(works[0][0].size.micro_batch)
        return failed or [Outcome(result(tried, work)) for tried, work, _ in works]

    monkeypatch.setattr(Search, "launched", launched)
    return Search(subject, REQUEST, capacity, 1).run(sizes_of(cfg, 1, 8, 8, None))


def report(found: list[Tried], configured: int) -> batch_find.MicroBatches:
    return batch_find.report_of(
        found, configured, unit="rows", scale_lr=None, memory=0, steps=1, processes=1, config="", command=""
    )


def test_a_search_ends_at_the_first_that_runs_out_of_memory(monkeypatch):
    found = searched(monkeypatch, {4: [Outcome(error=batch_find.OUT_OF_MEMORY + "tried to allocate 2 GiB")]})
    assert [(each.size.micro_batch, each.fits) for each in found] == [(1, True), (2, True), (4, False)]
    assert found[-1].refused == "it does not fit: tried to allocate 2 GiB"
    assert [len(each.seconds) for each in found] == [2, 2, 0]
    result = report(found, 4)
    assert (result.best, result.largest, result.faster) == (2, 2, None)
    assert result.verdict()[-1] == "Largest: 2 rows; with 4, it does not fit."


def test_rounds_that_differ_are_told():
    calm, disturbed = tried(1, 4.0, 4.0, 4.0), tried(2, 2.0, 2.0, 2.0)
    for each, factor in ((calm, 1.1), (disturbed, 1.5)):
        each.seconds.append([seconds * factor for seconds in each.seconds[0]])
    assert "differ" not in "\n".join(report([calm], 1).verdict())
    assert "differ by up to 50%" in report([calm, disturbed], 1).verdict()[-1]


def test_a_process_that_the_system_kills_had_too_little_memory(monkeypatch):
    found = searched(monkeypatch, {2: [Outcome(error="its process was killed by signal 9", died=-9)]})
    assert [each.fits for each in found] == [True, False]


def test_what_the_estimate_rejects_is_not_trained(monkeypatch):
    found = searched(monkeypatch, {4: [Outcome(error="is not reached")]}, capacity=3 * 2**20)
    assert [each.fits for each in found] == [True, True, False]
    assert found[-1].refused == "its estimate of 4 MiB exceeds the memory"


def test_another_failure_is_no_lack_of_memory(monkeypatch):
    with pytest.raises(RunError, match="a micro-batch of 2: the loss is NaN"):
        searched(monkeypatch, {2: [Outcome(error="the loss is NaN")]})


def test_without_a_size_that_fits_the_reason_is_the_error(monkeypatch):
    found = searched(monkeypatch, {}, capacity=1)
    with pytest.raises(RunError, match=r"no micro-batch fits: with 1, its estimate of 1 MiB exceeds the memory"):
        best_of(found)


def test_settings_that_a_size_may_not_have_are_told(monkeypatch):
    made = [Size(3, 3, 8, {"train.per_device_train_batch_size": 0}), Size(8, 8, 8, {})]
    monkeypatch.setattr("toolkit.lab.batch_find.simulate", lambda subject: pytest.fail("was simulated"))
    found = Search(None, REQUEST, 0, 1).run(made[:1])
    assert "train.per_device_train_batch_size" in found[0].refused
    assert found[0].estimate is None


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory. Tried"), MemoryError("no")])
def test_errors_about_memory_are_told_apart(error):
    with pytest.raises(RunError, match=f"^{batch_find.OUT_OF_MEMORY}"), batch_find.told_of_memory():
        raise error
    with pytest.raises(RuntimeError, match="shapes"), batch_find.told_of_memory():
        raise RuntimeError("shapes do not match")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--reference-rows", "8"], "--reference-rows: has no effect without --scale-lr"),
        (["--memory", "16"], "--memory: received '16'"),
        (["--steps", "1"], "must be a whole number of at least 3"),
    ],
)
def test_what_has_no_effect_is_rejected(arguments, message, tmp_path, capsys):
    find("reviews", "--config", "smoke", "--output", str(tmp_path / "out"), *arguments, code=2)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_rate_that_the_optimizer_computes_cannot_be_scaled(tmp_path, capsys):
    without = tmp_path / "reviews.yaml"
    lines = (ROOT / "recipes/configs/reviews/smoke.yaml").read_text().splitlines()
    without.write_text("\n".join(line for line in lines if "learning_rate:" not in line))
    settings = ("train.optim=adafactor_relative", "train.lr_scheduler_type=constant", "train.warmup_steps=0")
    find("reviews", "--config", str(without), "--scale-lr", "linear", *settings, code=2)
    assert "--scale-lr: adafactor_relative computes its own learning rate" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.distributed
def test_the_command_writes_what_it_found_and_nothing_else(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "temporary").mkdir()
    window = (
        "train.global_batch_size=null",
        "train.per_device_train_batch_size=2",
        "train.gradient_accumulation_steps=1",
    )
    find("qa", "--config", "smoke", "--processes", "2", "--steps", "3", "--output", "out", "--scale-lr", "sqrt",
         "--memory", "10GiB", *TINY, *window, f"data.train_file={ROOT / 'recipes/data/qa/train.json'}",
         f"output_dir={tmp_path / 'run'}")  # fmt: skip
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    found = json.loads((tmp_path / "out" / "batch_find.json").read_text())
    assert [each["micro_batch"] for each in found["sizes"]] == [1, 2, 4, 8, 16]
    for each in found["sizes"]:
        assert each["fits"]
        assert [len(seconds) for seconds in each["rounds"]] == [3, 3]
        assert each["rows_per_second"] == pytest.approx(2 * each["rows_of_a_step"] / each["seconds"], rel=0.5)
    for each in found["sizes"][2:]:  # whose estimates are corrected; libraries alone need more than the first
        assert 0.5 * each["peak"] < each["estimate"] < 2 * each["peak"]
    assert f"  {found['overrides'][0]}" in shown
    load_settings(load_task_type(ROOT / "recipes/qa.py"), str(ROOT / "recipes/configs/qa/smoke.yaml"),
                  [*TINY, *found["overrides"]])  # fmt: skip
    names = [f"batch_find.{kind}" for kind in ("html", "json", "md", "svg")]
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == names
    assert {path.name for path in tmp_path.iterdir()} == {"out", "temporary"}
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("recipe", TASKS)
def test_other_tasks_have_a_best_size(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    window = ("train.global_batch_size=2",)
    find(recipe, "--config", "smoke", "--output", str(tmp_path / "out"), "--steps", "3", *window)
    found = json.loads((tmp_path / "out" / "batch_find.json").read_text())
    assert [each["fits"] for each in found["sizes"]] == [True, True]
