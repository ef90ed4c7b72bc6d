"""Comparisons: variants from switches, their runs, and figures with intervals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import needs_browser, open_page
from runs import ROOT, TINY
from scipy import stats

import toolkit
from toolkit.base.errors import ConfigError, InputError
from toolkit.commands.cli import main
from toolkit.config.sections import ParallelConfig
from toolkit.document.blocks import Table, shown
from toolkit.lab.compare.page import excuse, kept, legend, marked, notes, on_terminal, pairs, results
from toolkit.lab.compare.report import ComparisonReport, build
from toolkit.lab.compare.runs import (
    Comparison,
    busy_at_start,
    count_positions,
    keep_and_show,
    repeats_of,
    run_repeats,
    trained_run,
)
from toolkit.lab.compare.statistics import Figure, difference, metrics_of, pareto, summarise
from toolkit.lab.compare.variants import QUESTIONS, Checked, Variant, check_variants, combine, of_question, read_switch
from toolkit.lab.jobs import jobs
from toolkit.lab.jobs.jobs import Launch, step_rows
from toolkit.lab.jobs.strategies import BATCH, techniques, window_settings
from toolkit.metrics.score import Score
from toolkit.recipe import load_settings, load_task_type

pytestmark = pytest.mark.usefixtures("forked_trials")

ACCURACY = Score("eval_accuracy")
RECIPE, CONFIG = ROOT / "recipes/reviews.py", ROOT / "recipes/configs/reviews/smoke.yaml"


# Switches


def test_a_switch_is_a_key_and_its_values():
    assert read_switch("train.optim=sgd,adafactor", {}) == [{"train.optim": "sgd"}, {"train.optim": "adafactor"}]
    assert read_switch("train.optim_args={a: 1, b: 2},{}", {}) == [
        {"train.optim_args": "{a: 1, b: 2}"}, {"train.optim_args": "{}"},
    ]  # fmt: skip
    assert read_switch("model.freeze=[a, b],'x,y'", {})[1] == {"model.freeze": "x,y"}
    assert read_switch("task.source_prefix=don't say,translate: ", {}) == [
        {"task.source_prefix": "don't say"}, {"task.source_prefix": "translate: "},
    ]  # fmt: skip


def test_a_value_can_bring_further_settings():
    assert read_switch("train.optim=adamw_torch,sgd+train.learning_rate=0.1", {})[1] == {
        "train.optim": "sgd", "train.learning_rate": "0.1",
    }  # fmt: skip
    assert read_switch("data.train_file=a+b.csv,c.csv", {})[0] == {"data.train_file": "a+b.csv"}


def test_one_value_is_compared_with_what_is_configured():
    configured = {"train.optim": "adamw_torch"}
    assert read_switch("train.optim=sgd", configured) == [{"train.optim": "adamw_torch"}, {"train.optim": "sgd"}]


@pytest.mark.parametrize("text", ["train.optim", "=sgd", "train.optim=", "train.optim=sgd,sgd", "a.b=[1,2", "a.b='x,y"])
def test_what_is_no_switch_is_rejected(text):
    with pytest.raises(InputError, match="--switch: received"):
        read_switch(text, {})


@pytest.mark.parametrize("text", ["seed=1,2", "output_dir=a,b", "train.optim=sgd,adam+tracking.logging_steps=5"])
def test_what_the_comparison_sets_itself_is_no_switch(text):
    with pytest.raises(InputError, match="is set by the comparison itself"):
        read_switch(text, {})


def test_modes_combine_switches():
    switches = [[{"a.x": "1"}, {"a.x": "2"}], [{"b.y": "3"}, {"b.y": "4"}, {"b.y": "5"}]]
    names = {mode: [v.name for v in combine(switches, mode)] for mode in ("product", "one-at-a-time", "cumulative")}
    assert names["product"] == ["x=1, y=3", "x=1, y=4", "x=1, y=5", "x=2, y=3", "x=2, y=4", "x=2, y=5"]
    assert names["one-at-a-time"] == ["x=1, y=3", "x=2", "y=4", "y=5"]
    assert names["cumulative"] == ["x=1, y=3", "+ x=2", "+ y=4", "+ y=5"]
    assert combine(switches, "one-at-a-time")[2].settings == {"a.x": "1", "b.y": "4"}
    assert combine(switches, "cumulative")[3].settings == {"a.x": "2", "b.y": "5"}


def test_what_a_value_brings_goes_when_the_value_does():
    switch = [{"a.x": "1", "a.rate": "7"}, {"a.x": "2", "a.other": "8"}, {"a.x": "3"}]
    for mode in ("one-at-a-time", "cumulative"):
        assert [v.settings for v in combine([switch], mode)] == switch
    with pytest.raises(InputError, match=r"a\.x is in two switches"):
        combine([switch, [{"a.x": "4"}, {"a.x": "5"}]], "product")


# Checks before anything runs


def check(
    *variants: dict[str, str], launch: Launch | None = None, overrides: tuple[str, ...] = (), keep_window: bool = False
):
    named = [Variant(str(number), settings) for number, settings in enumerate(variants)]
    task_type = load_task_type(RECIPE)
    return check_variants(task_type, str(CONFIG), list(overrides), named, launch or Launch(None, 1, {}), keep_window)


def test_everything_wrong_is_named_before_anything_runs():
    checked = check(
        {"train.optim": "adamw_torch"},
        {"train.optim": "adamw"},
        {"train.optin": "sgd"},
        {"train.torch_compile_mode": "default"},  # without torch_compile: refused by the table
        {"train.mixed_precision": "fp16"},  # refused by the machine
    )
    assert list(checked.configs) == ["0"]
    with pytest.raises(ConfigError) as error:
        checked.raise_problems()
    text = str(error.value)
    for number, word in (("1", "'adamw'"), ("2", "did you mean train.optim?"), ("3", "torch_compile"), ("4", "fp16")):
        assert any(f"variant {number}:" in line and word in line for line in text.splitlines()), (number, text)
    checked = check({"train.optim": "sgd"}, {"train.optim": "nadam"}, {"train.optim": "nadam", "seed": "3"})
    with pytest.raises(ConfigError, match=r"2 of 3 variants: override train\.optim=nadam"):
        checked.raise_problems()


def test_rows_are_checked_before_anything_runs(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\na,good\nb,bad\nc,\n")
    overrides = (f"data.train_file={tmp_path / 'train.csv'}",)
    checked = check({}, {"data.bad_rows": "skip"}, overrides=overrides)
    assert list(checked.configs) == ["1"]
    assert "row 4: column 'label' is empty" in checked.refused["0"][0]


def test_what_is_wrong_with_all_is_said_once():
    with pytest.raises(ConfigError) as error:
        check({"train.optin": "sgd"}, {"train.optin": "adam"}, overrides=("train.learnig_rate=1",)).raise_problems()
    assert str(error.value).count("learning_rate?") == 1


BY_SPLIT = ("train.global_batch_size=null", "train.gradient_accumulation_steps=2")
"""Settings with which micro-batches and accumulation make a step of 16 rows on one process, as the file does."""


def test_a_step_keeps_its_rows():
    own = check({}, {"train.per_device_train_batch_size": "5"}, {"train.global_batch_size": "12"})
    assert [variant.fixed for variant in own.variants] == [{}, {}, {}]
    assert [step_rows(cfg, 1) for cfg in own.configs.values()] == [16, 16, 12]
    one, two, three = check(
        {"train.per_device_train_batch_size": "8"},
        {"train.per_device_train_batch_size": "4"},
        {"train.per_device_train_batch_size": "4", "train.gradient_accumulation_steps": "1"},
        overrides=BY_SPLIT,
    ).variants
    assert (one.fixed, two.fixed, three.fixed) == ({}, {"train.gradient_accumulation_steps": "4"}, {})
    sizes = [{"train.per_device_train_batch_size": size} for size in "85"]
    refused = check(*sizes, overrides=BY_SPLIT).refused
    assert "do not divide the 16" in refused["1"][0]


def test_accumulation_is_compared_with_the_same_rows_if_asked():
    steps = [{"train.gradient_accumulation_steps": count} for count in ("1", "4", "3")]
    assert [step_rows(cfg, 1) for cfg in check(*steps, overrides=BY_SPLIT).configs.values()] == [8, 32, 24]
    kept = check(*steps, {"train.per_device_train_batch_size": "2"}, overrides=BY_SPLIT, keep_window=True)
    assert kept.variants[1].fixed == {"train.per_device_train_batch_size": "2"}
    assert [step_rows(cfg, 1) for cfg in kept.configs.values()] == [8, 8]
    assert "3 rows do not divide the 8" in kept.refused["2"][0]
    assert kept.refused["3"] == ["has the same settings as the variant 1"]  # either setting can be switched
    both = {"train.gradient_accumulation_steps": "4", "train.per_device_train_batch_size": "4"}
    (problem,) = check(steps[0], both, overrides=BY_SPLIT, keep_window=True).refused["1"]
    assert problem.startswith(
        "--keep-window: train.per_device_train_batch_size 4 and train.gradient_accumulation_steps 4"
    )


def test_the_launchers_settings_count(tmp_path):
    file = tmp_path / "launch.yaml"
    file.write_text("num_processes: 2\nmixed_precision: bf16\n")
    launch = Launch.of(str(file), None)
    assert launch.processes == 2
    checked = check({}, {"train.mixed_precision": "no"}, launch=launch)
    assert checked.configs["0"].train.mixed_precision == "bf16"
    assert "the launcher says" in checked.refused["1"][0]
    with pytest.raises(InputError, match="3 processes are needed, received 2"):
        launch.check(3)
    assert Launch.of("ddp", 4).processes == 4
    with pytest.raises(InputError, match="set --processes N"):
        Launch.of(str(ROOT / "accelerate_configs/ddp.yaml"), None)
    with pytest.raises(InputError, match="for several machines"):
        Launch.of(str(ROOT / "accelerate_configs/multi_node.yaml"), 4)


def test_the_same_settings_twice_are_rejected():
    refused = check({"train.learning_rate": "1e-3"}, {"train.learning_rate": "0.001"}).refused
    assert refused == {"1": ["has the same settings as the variant 0"]}


def test_every_question_can_be_asked():
    cfg = load_settings(load_task_type(RECIPE), CONFIG).config
    for name, question in QUESTIONS.items():
        if not question.variants:  # the strategies, see below
            continue
        variants = of_question(question, cfg, question.processes)
        checked = check(*(v.settings for v in variants), launch=Launch(None, question.processes, {}))
        wrong = {name for name, problems in checked.refused.items() if not any("GPU" in text for text in problems)}
        assert not wrong, (name, checked.refused)
        assert len(checked.configs) >= 2


def checked_strategies(processes: int, *overrides: str) -> Checked:
    task_type = load_task_type(RECIPE)
    cfg = load_settings(task_type, CONFIG, overrides).config
    variants = of_question(QUESTIONS["strategies"], cfg, processes)
    return check_variants(task_type, str(CONFIG), overrides, variants, Launch(None, processes, {}))


def test_strategies_keep_the_rows_of_a_step():
    own = checked_strategies(2)
    assert {step_rows(cfg, 2) for cfg in own.configs.values()} == {16}
    assert {variant.name: variant for variant in own.variants}["pipeline, 1F1B"].fixed == {}
    checked = checked_strategies(2, *BY_SPLIT)
    named = {variant.name: variant for variant in checked.variants}
    assert named["tensor"].fixed == named["pipeline, 1F1B"].fixed == {"train.gradient_accumulation_steps": "4"}
    assert named["FSDP2 (ZeRO-3)"].fixed == named["DDP"].fixed == {}
    assert {step_rows(cfg, 2) for cfg in checked.configs.values()} == {8 * 2 * 2}
    for name, processes in (("HSDP", 4), ("3D", 8)):
        assert checked.refused[name] == [f"needs {processes} processes; this row is an estimate"]
        assert step_rows(checked.planned[name], processes) == 8 * 2 * 2
    assert set(checked.configs) | set(checked.refused) == set(named)
    assert "PyTorch recommends DistributedDataParallel" in checked.refused["nn.DataParallel"][0]
    small = checked_strategies(
        4, *BY_SPLIT, "train.per_device_train_batch_size=3", "train.gradient_accumulation_steps=1"
    )
    assert small.configs["HSDP"].train.per_device_train_batch_size == 3
    assert "does not divide the model's num_attention_heads (2)" in small.refused["tensor"][0]
    assert "needs at least 4 layers" in small.refused["pipeline, 1F1B"][0]


def test_a_configured_strategy_is_undone_and_what_cannot_be_kept_is_said():
    checked = checked_strategies(2, "parallel.fsdp=2", "parallel.reshard_after_forward=false")
    assert checked.configs["DDP"].parallel == ParallelConfig()
    assert checked.configs["FSDP2 (ZeRO-3)"].parallel == ParallelConfig(fsdp=2)
    cfg = load_settings(load_task_type(RECIPE), CONFIG, BY_SPLIT).config
    with pytest.raises(ConfigError, match="the 3 rows of a step cannot be divided over 2 processes"):
        window_settings(cfg, techniques(2)[0], 3)
    assert window_settings(cfg, techniques(2)[-3], 2) == {BATCH: "1"}


# Runs


WORKER = """
import json, os, sys
(trial,) = json.load(open(sys.argv[1]))
work, outcome = trial["arguments"], open(trial["outcome"], "w")
settings = dict(text.split("=", 1) for text in work["overrides"])
open(%r, "a").write(settings["train.optim"] + " " + settings["seed"] + "\\n")
if settings["train.optim"] == "sgd":
    sys.exit("no memory left")
if settings["train.optim"] == "muon" and settings["seed"] == "2":
    json.dump({"error": "step 3: the loss is not finite"}, outcome)
    outcome.close()
    sys.exit(1)
if settings["train.optim"] == "lamb_bnb_8bit":
    import signal
    os.kill(os.getpid(), signal.SIGKILL)
result = json.load(open(%r))
if settings["train.optim"] == "adafactor":
    result["figures"]["eval_accuracy"] += 0.01 * int(settings["seed"])
if trial["arguments"]["keep_model"]:
    os.makedirs(settings["output_dir"] + "/model")
json.dump({"result": result}, outcome)
"""


def measurement(peak: int = 100, speed: float = 1.0, score: float = 0.8, loss: float = 0.5) -> dict:
    draws = np.random.default_rng(1).normal(score, 0.01, 60).tolist()
    return {
        "metrics": {"eval_loss": {"greater_is_better": False, "draws": []},
                    "eval_accuracy": {"greater_is_better": True, "draws": draws}},
        "load": 1.0,
        "figures": {"eval_accuracy": score, "eval_loss": loss,
                    "optimizer_state_bytes_per_parameter": 8.0, "trainable_parameters": 10},
        "memory": {"parameters": 10, "gradients": 10, "optimizer_state": 20, "rest": peak - 40, "train_peak": peak},
        "steps": {
            "seconds": [9.0, *(speed * (1 + 0.01 * (i % 3)) for i in range(20))],
            "real": [80] * 21, "positions": [100] * 21, "items": [8] * 21,
        },
        "ranks": [{"parameters": 10, "gradients": 10, "optimizer_state": 20, "rest": peak - 40 + more,
                   "train_peak": peak + more} for more in (0, 8)],
        "exchange": {"collectives": 42, "bytes": 21 * 400},
        "loss": [[step, 1 / step] for step in range(1, 22)],
        "num_processes": 1, "device": "cpu", "hardware": {"cpus": 2, "gpus": []}, "versions": {"torch": "2"},
    }  # fmt: skip


@pytest.fixture
def comparison(tmp_path, monkeypatch):
    log, worker, measured = tmp_path / "log", tmp_path / "worker.py", tmp_path / "measured.json"
    worker.write_text(WORKER % (str(log), str(measured)))
    measured.write_text(json.dumps(measurement()))
    monkeypatch.setattr(jobs, "WORKER", (str(worker),))
    monkeypatch.chdir(ROOT)

    def make(*optimizers: str, seeds: tuple[int, ...] = (1, 2)) -> tuple[Comparison, Path]:
        checked = check(*({"train.optim": name} for name in optimizers))
        return Comparison(
            RECIPE, CONFIG, [], checked, Launch(None, 1, {}), seeds, 10, "code", tmp_path / "out", ACCURACY
        ), log  # fmt: skip

    return make


def test_runs_go_in_turn_and_a_failed_variant_is_a_row(comparison, tmp_path):
    asked, log = comparison("adamw_torch", "sgd", "lamb_bnb_8bit", "adafactor")
    repeats = repeats_of(asked)
    run_repeats(asked, repeats, lambda: None)
    assert log.read_text().splitlines() == [
        "adamw_torch 1", "sgd 1", "lamb_bnb_8bit 1", "adafactor 1", "adamw_torch 2", "adafactor 2",
    ]  # fmt: skip
    found = build(asked, repeats, {"command": ["toolkit", "compare"]})
    reasons = {row["name"]: row["reason"] for row in found["variants"]}
    assert "no memory left" in reasons["1"]
    assert "killed by signal 9 (out of memory?)" in reasons["2"]
    assert [row["name"] for row in found["variants"] if "figures" in row] == ["0", "3"]
    assert found["variants"][3]["differs"] == {"train.optim": ["adamw_torch", "adafactor"]}
    assert "train.optim=adafactor" in found["variants"][3]["command"]
    page = written(found, tmp_path)
    assert "2 1 did not run: its process ended with exit code 1" in page
    assert page.count("| 4 | 3 |") == 6  # variants, two tables of each metric, memory, intervals


def test_a_variant_that_failed_once_goes_on_with_other_seeds(comparison):
    asked, log = comparison("adamw_torch", "muon", seeds=(1, 2, 3))
    repeats = repeats_of(asked)
    run_repeats(asked, repeats, lambda: None)
    assert len(log.read_text().splitlines()) == 6
    found = build(asked, repeats, {})
    assert excuse(found, found["variants"][1]) == "1 ran 2 of 3 times: step 3: the loss is not finite"
    assert excuse(found, found["variants"][0]) is None


def test_what_is_finished_is_not_run_again(comparison):
    asked, log = comparison("adamw_torch", "adafactor")
    repeats = repeats_of(asked)
    with pytest.raises(KeyboardInterrupt):
        run_repeats(asked, repeats, lambda: stop_after(repeats, 3))
    asked, _ = comparison("adamw_torch", "adafactor")
    repeats = repeats_of(asked)
    assert [repeat.state for repeat in repeats] == ["kept", "kept", "kept", "waiting"]
    run_repeats(asked, repeats, lambda: None)
    assert len(log.read_text().splitlines()) == 4
    assert {repeat.state for repeat in repeats_of(comparison("adamw_torch", "adafactor", "muon")[0])} == {
        "kept",
        "waiting",
    }


def stop_after(repeats, number: int) -> None:
    if sum(repeat.state == "done" for repeat in repeats) == number:
        raise KeyboardInterrupt


def test_the_last_part_writes_the_comparison_although_runs_have_failed(comparison, tmp_path, capsys):
    _, log = comparison()
    asked = ["--switch", "train.optim=adamw_torch,sgd", "--seeds", "2", "--output", str(tmp_path / "out")]
    assert run_cli(*asked, "--part", "2/2") == 1
    assert "every run of this part failed" in capsys.readouterr().err
    assert not (tmp_path / "out/comparison.json").exists()
    assert run_cli(*asked, "--part", "1/2") == 0
    found = json.loads((tmp_path / "out/comparison.json").read_text())
    assert [row["runs"] for row in found["variants"]] == [2, 0]
    assert "no memory left" in found["variants"][1]["reason"]
    assert [line.split()[0] for line in log.read_text().splitlines()] == ["sgd", "adamw_torch", "adamw_torch"]
    assert run_cli(*asked, "--part", "2/2") == 0  # which tries again what has failed
    assert log.read_text().count("sgd") == 2


def test_equal_machines_share_a_comparison(comparison, monkeypatch):
    asked, _ = comparison("adamw_torch", "adafactor", seeds=(1,))
    run_repeats(asked, repeats_of(asked), lambda: None)
    here = jobs.hardware()
    more = {"memory_bytes": here["memory_bytes"] + 2**20, "system": "another kernel"}
    for change, states in ((more, ["kept"] * 2), ({"cpus": 999}, ["waiting"] * 2)):
        monkeypatch.setattr(jobs, "hardware", lambda change=change: here | change)
        assert [repeat.state for repeat in repeats_of(asked)] == states


@pytest.mark.slow
def test_another_question_is_run_anew(comparison, tmp_path):
    asked, _ = comparison("adamw_torch", "adafactor", seeds=(1,))
    run_repeats(asked, repeats_of(asked), lambda: None)
    launch = tmp_path / "launch.yaml"
    launch.write_text("num_processes: 1")
    for name, value in (
        ("draws", 11),
        ("overrides", ["train.max_steps=3"]),
        ("code", "other"),
        ("launch", Launch(launch, 1, {})),
    ):
        changed = replace(asked, **{name: value})
        assert [repeat.state for repeat in repeats_of(changed)] == ["waiting", "waiting"], name
    run_repeats(changed, repeats_of(changed), lambda: None)
    assert [repeat.state for repeat in repeats_of(asked)] == ["kept", "kept"]  # what was finished before is still there


def test_the_best_model_is_kept(comparison):
    asked, log = comparison("adamw_torch", "adafactor")
    asked = replace(asked, keep_best=True)
    repeats = repeats_of(asked)
    run_repeats(asked, repeats, lambda: None)
    models = [trained_run(asked, repeat).model for repeat in repeats]
    assert [model.is_dir() for model in models] == [True, False, False, True]  # one of each variant
    best = keep_and_show(asked, repeats)
    assert (best.variant.name, best.seed) == ("1", 2)
    assert [model.is_dir() for model in models] == [False, False, False, True]
    found = build(asked, repeats, {}, best)
    assert found["best"] == {
        "variant": "1", "seed": 2, "metric": "accuracy", "mean": pytest.approx(0.815),
        "run": str(models[3].parent),
    }  # fmt: skip
    assert kept(found) == (
        "The best variant is 1 (mean accuracy 0.815). The run with seed 2 is kept:",
        f"toolkit predict {models[3].parent} --input FILE",
    )
    lower = replace(asked, metric=Score("eval_accuracy", greater_is_better=False))
    again = keep_and_show(lower, repeats_of(lower))  # its model was deleted: it is trained once more
    assert (again.variant.name, again.seed) == ("0", 1)
    assert [model.is_dir() for model in models] == [True, False, False, False]
    assert len(log.read_text().splitlines()) == 5


# Figures


def test_figures_stand_against_the_baseline_with_their_intervals():
    slower = [measurement(peak=250, speed=2.0), measurement(peak=260, speed=2.1)]
    base = [measurement(), measurement(peak=104, speed=1.02)]
    one, other = (summarise(runs)["figures"] for runs in (base, slower))
    assert one["train_peak"] == Figure(102, 100, 104)
    assert one["step_seconds"].value == pytest.approx(1.02, abs=0.02)  # the first, slow steps do not count
    assert one["real_per_second"].value == pytest.approx(80 / one["step_seconds"].value, rel=0.02)
    against = {name: figure.against(one[name]) for name, figure in other.items()}
    assert against["train_peak"].ratio == 2.5
    assert (against["train_peak"].same, against["step_seconds"].same) == (False, False)
    assert [marked("x1.00", same) for same in (True, False, None)] == ["~ x1.00", "x1.00", "? x1.00"]


def test_one_run_has_no_interval():
    alone = summarise([measurement()])
    assert alone["figures"]["train_peak"].against(Figure(50, 40, 60)) == Figure(100, None, None, 2.0)
    assert all(figure.low is figure.high is None for figure in alone["figures"].values())
    assert alone["losses"] == []
    assert alone["padding"] == pytest.approx(0.2)
    assert alone["exchange"] == {"collectives": 2, "bytes": 400}
    assert len(alone["loss"]) == 21


def runs_of(scores: Sequence[float], losses: Sequence[float]) -> dict[int, dict]:
    return {
        seed: measurement(score=score, loss=loss) for seed, (score, loss) in enumerate(zip(scores, losses, strict=True))
    }


def test_differences_are_paired_by_seed():
    base = runs_of((0.6, 0.7, 0.8), (0.5, 0.7, 0.6))
    better = runs_of((0.62, 0.73, 0.825), (0.45, 0.66, 0.56))
    one, other = metrics_of(base, None), metrics_of(better, base)
    assert one["eval_accuracy"].difference is None
    accuracy, loss = other["eval_accuracy"], other["eval_loss"]
    assert (accuracy.value, accuracy.deviation) == (pytest.approx(0.725), pytest.approx(0.10259, abs=1e-5))
    assert accuracy.values == {0: 0.62, 1: 0.73, 2: 0.825}
    assert accuracy.low < one["eval_accuracy"].high  # side by side, they could not be told apart
    change = accuracy.difference
    assert (change.value, change.pairs, change.same) == (pytest.approx(0.025), 3, False)
    # Without draws of rows, this is a paired t test.
    scipy = stats.ttest_rel([0.45, 0.66, 0.56], [0.5, 0.7, 0.6]).confidence_interval()
    assert (loss.difference.low, loss.difference.high) == pytest.approx((scipy.low, scipy.high))


def test_the_chance_of_rows_widens_a_paired_difference():
    base, other = runs_of((0.8, 0.8, 0.8), (1, 1, 1)), runs_of((0.81, 0.81, 0.81), (1, 1, 1))
    assert difference(other, base, "eval_accuracy").same is False  # the same rows are difficult for both
    draws = np.random.default_rng(2).normal(0.81, 0.03, 1000).tolist()
    for runs in (base, other):
        for run in runs.values():
            run["metrics"]["eval_accuracy"]["draws"] = [0.8] * 1000 if runs is base else draws
    found = difference(other, base, "eval_accuracy")
    assert found.same
    assert found.high - found.low == pytest.approx(2 * 1.96 * np.std(draws), rel=0.01)


def test_pairs_need_the_same_seeds():
    base, other = runs_of((0.8, 0.7), (1, 1)), runs_of((0.9, 0.7), (1, 1))
    alone = difference({0: other[0]}, base, "eval_accuracy")
    assert (alone.value, alone.pairs, alone.same) == (pytest.approx(0.1), 1, None)
    assert difference({5: other[0]}, base, "eval_accuracy") is None


def found_with(comparison, *seeds: int, **changes: object) -> dict:
    asked, _ = comparison("adamw_torch", "adafactor", seeds=seeds)
    repeats = repeats_of(asked)
    for repeat in repeats:
        repeat.measured = measurement(score=0.8 + 0.01 * repeat.seed)
    found = build(asked, repeats, {"command": ["toolkit", "compare"], "load_at_start": 1.0})
    found["variants"][1] |= changes
    return found


def tables_of(found: dict) -> list[list[list[str]]]:
    """Returns the cells of the tables that the terminal shows."""
    return [[[*map(shown, row)] for row in each.rows] for each in on_terminal(found) if isinstance(each, Table)]


def written(found: dict, folder: Path) -> str:
    """Writes a comparison, and returns its page as Markdown."""
    ComparisonReport(found).save(folder)
    return (folder / "comparison.md").read_text()


def test_a_single_run_tells_nothing_about_time_or_quality(comparison):
    found = found_with(comparison, 1)
    (first,) = tables_of(found)
    assert [cell.splitlines()[1:] for cell in first[1]] == [
        [], ["(? x1.00)"], [], ["(? x1.00)"], ["(? x1.00)"], ["(? +0)"],
    ]  # fmt: skip
    assert legend(found).startswith("? a single run")
    several = found_with(comparison, 1, 2)
    assert legend(several) == "~ the difference from the baseline could be chance."
    _, metric = tables_of(several)
    assert metric == [
        ["0", "0.815", "0.0071", "2", "-", "-"], ["1", "0.815", "0.0071", "2", "+0", "+0\u00a0to\u00a0+0"],
    ]  # fmt: skip


def test_a_busy_machine_is_noticed(comparison, tmp_path):
    assert busy_at_start(2.4, 2) is None
    assert busy_at_start(2.6, 2) == (
        "The machine is busy: its load average is 2.6 with 2 CPUs. Step times will be unreliable; stop other programs "
        "first."
    )
    assert list(notes(found_with(comparison, 1))) == []
    (note,) = notes(found := found_with(comparison, 1, load=[1.0, 5.25]))
    assert "above its 2 CPUs during runs of 1 (5.2). Step times are unreliable" in note
    for variant in found["variants"]:
        variant["load"] = [7.0]
    (note,) = notes(found | {"load_at_start": 4.0})
    assert "before the first run (4.0) and during runs of all variants (up to 7.0)" in note
    written(found, tmp_path)
    assert "during runs of all variants" in (tmp_path / "comparison.html").read_text()


def test_rows_per_step_are_shown_if_they_differ(comparison):
    found = found_with(comparison, 1, 2, rows_per_step=64)
    assert results(found).header[:3] == ["#", "variant", "rows per step"]
    assert [row[1] for row in tables_of(found)[0]] == ["16", "64"]
    assert "--keep-window" in next(notes(found))
    assert results(found_with(comparison, 1, 2)).header[2] == "peak memory"


def test_all_metrics_and_seeds_are_on_the_page(comparison, tmp_path):
    found = found_with(comparison, 1, 2)
    page = written(found, tmp_path)
    assert "| 2 | 1 | 0.815 ± 0.0071 | 0.5 ± 0 |" in page  # the overview, the main metric first
    assert "| # | variant | mean | sd | n | difference | 95 % interval | seed 1 | seed 2 |" in page
    assert "| 1 | 0 | 0.815 | 0.0071 | 2 | - | - | 0.81 | 0.82 |" in page
    assert "<summary>loss by seed</summary>" in page
    assert json.loads((tmp_path / "comparison.json").read_text())["variants"][1]["metrics"]["eval_loss"]["values"] == {
        "1": 0.5, "2": 0.5,
    }  # fmt: skip
    assert (tmp_path / "loss.svg").read_text().count('stroke-width="1" stroke-opacity') == 4  # a line for each seed


def test_a_metric_beyond_numbers_or_of_one_variant_alone_is_left_out(comparison, tmp_path):
    asked, _ = comparison("adamw_torch", "adafactor", "muon", seeds=(1,))
    repeats = repeats_of(asked)
    for repeat in repeats:
        repeat.measured = measurement()
    repeats[1].measured["figures"]["eval_accuracy"] = None  # as JSON has infinity
    del repeats[2].measured["metrics"]["eval_accuracy"]
    found = build(asked, repeats, {"command": ["toolkit", "compare"]})
    written(found, tmp_path)
    assert ["eval_accuracy" in variant["figures"] for variant in found["variants"]] == [True, False, False]
    assert [row[-1] for row in tables_of(found)[0]] == ["0.8", "-", "-"]
    assert "inf" not in (tmp_path / "comparison.json").read_text().lower()


def test_pareto_points_are_those_that_none_beats():
    assert pareto([(1, 5), (2, 2), (3, 3), (5, 1), (2, 2)]) == [True, True, False, True, True]


def test_padding_is_counted_by_masks_or_rows():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]])
    ids = torch.tensor([4, 5, -1])
    assert count_positions({"inputs": {"attention_mask": mask}, "row_ids": ids}) == (3, 9)
    assert count_positions({"inputs": {"pixel_values": torch.zeros(3, 1)}, "row_ids": ids}) == (2, 3)


def test_measurements_stand_beside_their_estimates(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    checked = checked_strategies(2)
    guess = {"parameters": 11, "gradients": 12, "optimizer_state": 13, "peak": 60, "sent": 390}
    guesses = {name: guess | {"peak": 60 + number} for number, name in enumerate([*checked.configs, *checked.planned])}
    asked = Comparison(
        RECIPE, CONFIG, [], checked, Launch(None, 2, {}), [1], 10, "code", tmp_path / "out", ACCURACY, estimates=guesses
    )  # fmt: skip
    repeats = repeats_of(asked)
    for repeat in repeats:
        if repeat.state == "waiting":
            repeat.measured = measurement()
    found = build(asked, repeats, {"command": ["toolkit", "compare"]})
    named = {variant["name"]: variant for variant in found["variants"]}
    assert pairs(found, named["local SGD"]) == [(10, 11), (10, 12), (20, 13), (108, 61), (400, 390)], "the fuller one"
    assert [measured for measured, _ in pairs(found, named["3D"])] == [None] * 5
    assert named["3D"]["command"].startswith(f"toolkit train {RECIPE} --config {CONFIG} --processes 8 ")
    page = written(found, tmp_path)
    for words in (
        "| 10 | 3D | 8 | - (11 B) |",
        "| 12 | nn.DataParallel | low | never: DDP does the same faster |",
        "| 1 | DDP | 1 | 10 B | 10 B | 20 B | 68 B | 108 B |",
        "6 HSDP did not run: needs 4 processes; this row is an estimate",
    ):
        assert words in page, page
    *_, beside, uses = tables_of(found)
    assert beside[0] == ["DDP", "10 B\n(11 B)", "10 B\n(12 B)", "20 B\n(13 B)", "108 B\n(60 B)", "400 B\n(390 B)"]
    assert len(uses) == len(beside) + 1 == 12


# The page


@pytest.mark.slow
@needs_browser
def test_a_click_on_a_column_sorts_the_page(comparison, tmp_path, monkeypatch):
    asked, _ = comparison("adamw_torch", "adafactor", "muon", "sgd", seeds=(1,))
    repeats = repeats_of(asked)
    run_repeats(asked, repeats, lambda: None)
    for repeat, peak in zip(repeats, (300, 100, 200), strict=False):
        repeat.measured = measurement(peak=peak * 2**20)
    written(build(asked, repeats, {"command": ["toolkit", "compare"]}), tmp_path)
    script = """
        const table = document.querySelector("table.sortable");
        const order = () => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent);
        const click = () => [...table.querySelectorAll("th button")].find(
            (button) => button.textContent.startsWith("peak memory")).click();
        const found = [order()];
        click(); found.push(order());
        click(); found.push(order());
        return found;
    """
    for width in (1280, 400):
        document, orders = open_page(tmp_path / "comparison.html", script, width)
        assert orders == [["1", "2", "3", "4"], ["2", "3", "1", "4"], ["1", "3", "2", "4"]]
    assert document.count("<svg") == 3
    narrow = """
        const page = document.querySelector("main");
        page.style.width = "400px";
        const count = (path) => document.querySelectorAll(path).length;
        return [page.scrollWidth, count(".caption"), count(".box .caption")];
    """
    assert open_page(tmp_path / "comparison.html", narrow)[1] == [400, 1, 0]  # only tables scroll, without captions


# The command


def run_cli(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(RECIPE), "--config", str(CONFIG), *arguments])
    return int(ended.value.code)


def test_wrong_switches_end_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    output = ["--output", str(tmp_path / "out")]
    assert run_cli("--switch", "train.optim=adamw_torch,adafactr", "--switch", "train.optin=1,2", *output) == 2
    message = capsys.readouterr().err
    assert "'adafactr'" in message
    assert "train.optin: unknown key (did you mean train.optim?)" in message
    assert not (tmp_path / "out").exists()
    assert run_cli("--switch", "train.optim=adamw_torch,adafactor", "--metric", "acuracy", *output) == 2
    message = capsys.readouterr().err
    assert "--metric: received 'acuracy', this task has loss, accuracy," in message
    assert "did you mean 'accuracy'?" in message


@pytest.mark.slow
@pytest.mark.distributed
def test_the_command_compares_strategies(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    few = [each for each in techniques(2) if each.name in ("DDP", "FSDP2 (ZeRO-3)", "tensor", "pipeline, 1F1B", "3D")]
    monkeypatch.setattr("toolkit.lab.compare.variants.techniques", lambda processes: few)
    small = ["--processes", "2", "--seeds", "1", "--steps", "2", "--draws", "5", "data.max_train_samples=60", *TINY]
    assert run_cli("--preset", "strategies", *small, "--keep-best", "--output", str(tmp_path / "out")) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines()[:-3])) <= 80  # the others name folders
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    named = {variant["name"]: variant for variant in found["variants"]}
    refused = {name: variant["reason"] for name, variant in named.items() if "figures" not in variant}
    assert (len(named), refused.keys()) == (7, {"3D", "nn.DataParallel"}), "\n".join(map(str, refused.items()))
    for name in named.keys() - refused.keys():
        held = pairs(found, named[name])[:3]
        assert all(measured == pytest.approx(guess, rel=0.1) for measured, guess in held), (name, held)
        assert named[name]["figures"]["eval_accuracy"]["value"] > 0
        assert named[name]["exchange"]["bytes"] > 0
        assert len(named[name]["ranks"]) == 2
    assert toolkit.load(found["best"]["run"]).model.num_parameters() > 1000
    ddp, shards = (named[name]["ranks"][1]["parameters"] for name in ("DDP", "FSDP2 (ZeRO-3)"))
    assert shards < 0.55 * ddp


@pytest.mark.slow
def test_the_command_compares(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    output = tmp_path / "out"
    small = ["--seeds", "1", "--steps", "3", "--draws", "20", "--keep-best", "--metric", "f1_macro", *TINY]
    switch = ["--switch", "train.learning_rate=1e-3,1e30"]
    assert run_cli(*switch, *small, "checkpoint.save_steps=2", "--output", str(output)) == 0
    printed = capsys.readouterr().out
    assert "learning_rate=1e30 did not run" in printed
    *short, predicts, _, _ = printed.splitlines()
    said = [line for line in short if not line.startswith("  ")]  # the others are an error in its own words
    assert max(map(len, said)) <= 80  # the last name folders
    assert predicts.startswith(f"  toolkit predict {output}/runs/")
    found = json.loads((output / "comparison.json").read_text())
    fine, failed = found["variants"]
    assert fine["steps"] == 3
    assert found["metric"]["name"] == "eval_f1_macro"
    assert fine["figures"]["eval_f1_macro"]["low"] is None  # a single run
    assert 0 < fine["padding"] < 1
    assert fine["memory"]["optimizer_state"] > fine["memory"]["gradients"]
    assert sum(fine["memory"].values()) == fine["figures"]["train_peak"]["value"]  # a checkpoint's copy is in the rest
    assert "figures" not in failed
    assert fine["metrics"].keys() > {"eval_loss", "eval_accuracy", "eval_f1_macro"}
    assert fine["load"][0] > 0
    (measured,) = output.glob("runs/*/*/measurement.json")
    used = json.loads(measured.read_text())["steps"]["processor"]
    assert used == sorted(set(used))
    assert len(used) == 3
    assert found["costs"]["energy_wh"] == fine["costs"]["energy_wh"]["value"] > 0
    assert "all runs" in printed
    best = Path(found["best"]["run"])
    assert best.is_relative_to(output)
    assert 0 <= toolkit.load(best).evaluate([{"text": "good", "label": "positive"}])["eval_accuracy"] <= 1
    assert tables_of(found)[0][1][0] == "learning_rate=1e30"
    files = {"comparison.json", "comparison.md", "comparison.html", "trade_off.svg", "memory.svg", "loss.svg", "runs"}
    assert files | {".lock"} == {path.name for path in output.iterdir()}


def test_the_score_before_training_is_told(comparison, tmp_path):
    measured = measurement()
    measured["figures"]["start_accuracy"] = 0.25
    asked, _ = comparison("adamw_torch", "adafactor", seeds=(1,))
    (tmp_path / "measured.json").write_text(json.dumps(measured))
    repeats = repeats_of(asked)
    run_repeats(asked, repeats, lambda: None)
    found = build(asked, repeats, {"load_at_start": None})
    assert "Before training, accuracy is 0.25 (eval.eval_on_start)." in list(notes(found))
