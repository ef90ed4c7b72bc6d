"""`toolkit lr-find`: the curve of a range test, what is read from it, and that nothing is left behind."""

from __future__ import annotations

import json

import numpy as np
import pytest
from runs import ROOT, TINY

from toolkit.commands.cli import main
from toolkit.config.keys import written
from toolkit.lab.jobs.jobs import Trial, run_trials
from toolkit.lab.jobs.training import STEPS_ONLY
from toolkit.lab.lr_find import Reading, read, smooth
from toolkit.recipe import load_settings, load_task_type

pytestmark = pytest.mark.usefixtures("forked_trials")

RATES = np.geomspace(1e-5, 10, 120)
TASKS = ("reviews", "qa", "translation", "language_modeling", "summarization", "token_classification")


def quadratic(curvature: float, rates: np.ndarray, noise: float = 0.0) -> list[float]:
    """Returns the losses after each step of SGD on `curvature / 2 * x**2`."""
    random, x, losses = np.random.default_rng(0), 1.0, []
    for rate in rates:
        x -= rate * (curvature * x + noise * random.standard_normal())
        losses.append(curvature / 2 * x**2)
    return losses


def find(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["lr-find", *arguments])
    assert ended.value.code == 0


def reading_of(losses: list[float]) -> Reading:
    """Returns the reading of a test that ends once the loss is far above its first value."""
    kept = [loss for loss in losses if loss < 10 * losses[0]]
    return read(RATES[: len(kept)].tolist(), kept, blew_up=len(kept) < len(losses))


@pytest.mark.parametrize("curvature", [0.5, 3.0, 40.0])
def test_sgd_on_a_quadratic_diverges_from_two_over_its_curvature(curvature):
    reading = reading_of(quadratic(curvature, RATES))
    assert reading.divergence == pytest.approx(2 / curvature, rel=0.2)
    assert reading.decline < reading.steepest < reading.divergence
    assert reading.plain <= reading.divergence / 4
    assert reading.plain <= reading.high <= reading.divergence / 3


@pytest.mark.parametrize("noise", [0.01, 0.1, 0.3])
def test_noise_does_not_move_the_divergence_up(noise):
    reading = reading_of(quadratic(3.0, RATES, noise))
    assert reading.decline < reading.steepest < reading.divergence < 1.5 * 2 / 3.0
    assert reading.plain < 1 / 3.0


def test_a_curve_that_only_falls_has_no_divergence():
    reading = read(RATES.tolist(), (1 - np.linspace(0, 0.5, 120)).tolist())
    assert reading.divergence is None
    assert reading.high == pytest.approx(10)


def test_a_curve_that_does_not_fall_has_no_decline():
    noise = np.random.default_rng(1).normal(0, 0.002, 120)
    flat = read(RATES.tolist(), (0.7 + noise).tolist())
    assert (flat.decline, flat.steepest, flat.plain, flat.high) == (None, None, None, None)
    rising = 0.7 + noise + np.where(RATES > 0.1, np.log10(RATES / 0.1), 0)
    risen = read(RATES.tolist(), rising.tolist())
    assert risen.steepest is None
    assert 0.03 < risen.divergence < 0.3
    assert risen.plain == pytest.approx(risen.divergence / 10)


def test_smoothing_does_not_shift_a_curve_and_leaves_out_what_is_missing():
    line = np.linspace(0, 1, 80)
    assert smooth(line)[10:-10] == pytest.approx(line[10:-10])
    line[[20, 40]] = np.nan, np.inf
    assert smooth(line)[10:-10] == pytest.approx(np.linspace(0, 1, 80)[10:-10], abs=0.02)


@pytest.mark.slow
def test_the_command_writes_what_it_found_and_nothing_else(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "temporary").mkdir()
    find("reviews", "--config", "smoke", "--output", "out", "--steps", "40", "--end-lr", "3000", *TINY,
         f"output_dir={tmp_path / 'run'}", "train.optim=sgd", "train.learning_rate=0.1", "train.head_learning_rate=0.2",
         f"data.train_file={ROOT / 'recipes/data/reviews/train.csv'}",
         f"data.validation_file={ROOT / 'recipes/data/reviews/validation.csv'}")  # fmt: skip
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    found = json.loads((tmp_path / "out" / "lr_find.json").read_text())
    assert found["suggestion"] == found["others"]["plain"] > 0
    rates = [rate for rate, _ in found["curve"]]
    assert rates == pytest.approx(np.geomspace(1e-4, 3000, 40)[: len(rates)])
    assert found["ended"] in ("diverged", "not finite")
    assert found["others"]["divergence"] < 3000
    rate, head = (float(text.partition("=")[2]) for text in found["overrides"]["plain"])
    assert head == pytest.approx(2 * rate, rel=0.1)
    assert f"  {found['overrides']['plain'][0]}" in shown
    for overrides in found["overrides"].values():  # they can be used as they are
        load_settings(load_task_type(ROOT / "recipes/reviews.py"), str(ROOT / "recipes/configs/reviews/smoke.yaml"),
                      [*TINY, *overrides])  # fmt: skip
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        f"lr_find.{kind}" for kind in ("html", "json", "md", "svg")
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"out", "temporary"}
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--start-lr", "1", "--end-lr", "0.1"], "--start-lr: 1 is not below --end-lr (0.1)"),
        (["train.learning_rate=0"], "train.learning_rate: received 0, from which no range follows"),
        (["train.optim=schedule_free_adamw", "train.lr_scheduler_type=constant", "train.warmup_steps=0"],
         "train.optim: schedule_free_adamw averages weights instead of following a schedule"),
        (["--reset", "3", "parallel.backend=deepspeed", "parallel.zero_stage=2"], "--reset: DeepSpeed, power_sgd and"),
        (["--steps", "5"], "must be a whole number of at least 20"),
        (["--start-lr", "x"], "must be a number above 0"),
    ],
)  # fmt: skip
def test_what_has_no_range_is_rejected(arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["lr-find", "reviews", "--config", "smoke", "--output", str(tmp_path / "out"), *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def curve(folder, processes: int, *overrides: str, reset: int | None = None) -> list[list[float]]:
    settings = STEPS_ONLY | {
        "train.learning_rate": 1.0, "train.lr_scheduler_type": "range_test", "train.warmup_steps": 0,
        "train.lr_scheduler_kwargs": {"start_lr": 1e-4}, "train.max_steps": 12, "output_dir": str(folder / "run"),
        "train.optim": "sgd",
    }  # fmt: skip
    recipe = ROOT / "recipes" / "qa.py"
    job = {"recipe": str(recipe), "config": str(ROOT / "recipes/configs/qa/smoke.yaml"), "float64": True,
           "overrides": [*written(settings), *overrides], "reset": reset}  # fmt: skip
    (outcome,) = run_trials([Trial("lr_find", job, folder / "outcome.json")], folder / "log", processes)
    assert outcome.error is None, outcome.error
    return outcome.result["curve"]


@pytest.mark.slow
@pytest.mark.distributed
def test_the_curve_does_not_depend_on_processes_or_the_engine(tmp_path):
    one = curve(tmp_path / "one", 1, "train.global_batch_size=8", "train.per_device_train_batch_size=4")
    two = curve(tmp_path / "two", 2, "train.global_batch_size=8", "train.per_device_train_batch_size=4",
                "engine=trainer")  # fmt: skip
    assert len(one) == 11
    assert np.asarray(two) == pytest.approx(np.asarray(one), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", TASKS)
def test_every_task_has_a_curve(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    find(recipe, "--config", "smoke", "--output", str(tmp_path / "out"), "--steps", "20")
    found = json.loads((tmp_path / "out" / "lr_find.json").read_text())
    assert len(found["curve"]) >= 3
    assert all(np.isfinite(loss) for _, loss in found["curve"][:5])


@pytest.mark.fast(2)
@pytest.mark.parametrize("more", [
    (), ("model.freeze=backbone", "model.unfreeze={step_1: [bert.encoder.layer.1.*]}"), ("engine=trainer",),
], ids=["all", "unfrozen", "trainer"])  # fmt: skip
def test_with_a_reset_each_rate_starts_from_the_same_weights(more, tmp_path):
    same_rows = ["data.max_train_samples=1", "train.per_device_train_batch_size=1", "train.global_batch_size=1"]
    rates = ["train.optim=adamw_torch", "train.learning_rate=0.01", "train.lr_scheduler_kwargs={start_lr: 0.00999999}"]
    falling = curve(tmp_path / "falling", 1, *same_rows, *rates, *more)
    assert falling[-1][1] < 0.9 * falling[0][1]
    level = curve(tmp_path / "level", 1, *same_rows, *rates, *more, reset=3)
    assert len(level) == 4
    first, *others = (loss for _, loss in level)
    assert first == pytest.approx(falling[1][1], rel=1e-5)
    # Where parameters are unfrozen after a step, all of them are trained from the second rate on.
    assert others == pytest.approx([others[0] if len(more) > 1 else first] * 3, rel=1e-5)
