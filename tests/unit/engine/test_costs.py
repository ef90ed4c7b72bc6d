"""Time, energy and price of a run: over all sessions and processes, and until a metric reaches its target."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from runs import assert_same_weights, lines, train
from stopping import StoppedError, stopper

from toolkit.base.errors import ConfigError
from toolkit.engine.callbacks import costs
from toolkit.report.system import cost_rows, read_samples, samples_of, system_blocks

RUN = ("data.max_train_samples=24", "data.max_eval_samples=8", "train.per_device_train_batch_size=4",
       "train.gradient_accumulation_steps=1", "train.num_train_epochs=2", "eval.eval_steps=1",
       "checkpoint.save_steps=1", "checkpoint.resume=auto", "train.learning_rate=0.0")  # fmt: skip
PRICED = ("tracking.grid_intensity=400", "tracking.price_per_hour=7.2")


def result(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "run.json").read_text())["result"]
    return found


def test_energy_emissions_and_price_are_those_of_all_sessions(tmp_path, monkeypatch, capsys):
    run = tmp_path / "run"
    stopper(monkeypatch)(5)
    with pytest.raises(StoppedError):
        train("reviews", run, *RUN, *PRICED)
    stopper(monkeypatch)(None)
    state = json.loads((run / "checkpoints" / "step-4" / "state.json").read_text())["extensions"]["costs"]
    fit = train("reviews", run, *RUN, *PRICED)
    found = result(run)
    assert found["run_seconds"] > state["seconds"] > 0
    assert 3600 * found["energy_wh"] > state["joules"] > 0
    assert found["co2_grams"] == pytest.approx(found["energy_wh"] * 0.4)
    assert found["cost"] == pytest.approx(found["run_seconds"] * 0.002)
    assert fit.costs.items() <= fit.figures.items()
    assert " Wh (estimated)" in capsys.readouterr().out
    text = (run / "report.md").read_text()
    for part in ("Energy: CPU and memory: estimated", "400 g of CO2 for a kWh", "7.2 for an hour of all processes"):
        assert part in text
    clock = [sample["seconds"] for sample in read_samples(run / "system.jsonl")]
    assert [later <= earlier for earlier, later in pairwise(clock)].count(True) == 1  # two sessions
    assert "processors over time" in (run / "report.html").read_text().lower()


def test_nothing_is_sampled_without_an_interval_but_time_has_a_price(tmp_path):
    train("reviews", tmp_path / "run", *RUN, "tracking.system_interval=null", "tracking.price_per_hour=3600")
    found = result(tmp_path / "run")
    assert found["cost"] == pytest.approx(found["run_seconds"])
    assert found["cost"] > 0
    assert not {"energy_wh", "co2_grams"} & found.keys()
    assert not [*(tmp_path / "run").glob("system*")]
    with pytest.raises(ConfigError, match=r"tracking\.grid_intensity"):
        train("reviews", tmp_path / "b", *RUN, "tracking.system_interval=null", "tracking.grid_intensity=1")
    # A session that measures energy again does not know that of the first one.
    train("reviews", tmp_path / "run", *RUN, "train.num_train_epochs=3")
    assert "energy_wh" not in result(tmp_path / "run")


def test_processes_that_measure_the_same_counter_count_it_once(monkeypatch):
    ranks = [(10.0, {"machine package-0": 50.0, "GPU-1": 7.0}), (10.1, {"machine package-0": 51.0, "GPU-2": 8.0})]
    monkeypatch.setattr(costs, "objects_of_all", lambda own: ranks)

    class Context:
        class run:  # noqa: N801
            class system:  # noqa: N801
                interval, seconds = 1.0, 10.0

                @staticmethod
                def joules() -> dict[str, float]:
                    return {}

    total = costs.Costs(Context()).total()  # type: ignore[arg-type]
    assert total == costs.Used(10.0, 51.0 + 7.0 + 8.0)


@pytest.mark.parametrize("wrong", ["much", -1.0, float("inf"), float("nan"), [1]])
def test_figures_of_a_checkpoint_that_cannot_be_right_are_rejected(wrong):
    with pytest.raises((TypeError, ValueError)):
        costs.Costs(None).restore({}, {"seconds": 1.0, "joules": wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["loop", pytest.param("trainer", marks=pytest.mark.slow)])
def test_a_run_ends_at_its_target_and_goes_on_with_another(engine, tmp_path, capsys):
    """At a learning rate of 0 the accuracy stays as it is, so every evaluation reaches a target of 0."""
    run, settings = tmp_path / "run", (*RUN, f"engine={engine}")
    fit = train("reviews", run, *settings, "eval.eval_steps=3", "train.target_metric={eval_accuracy: 0.0}")
    assert fit.steps == 3
    found = result(run)
    assert found["target_step"] == 3
    assert 0 < found["target_seconds"] <= found["run_seconds"]
    assert 0 < found["target_energy_wh"] <= found["energy_wh"]
    assert "reaches the target of 0 after step 3" in capsys.readouterr().out
    assert {"target_step": 3}.items() <= lines(run, "target_step")[-1].items()
    again = train("reviews", run, *settings, "eval.eval_steps=3", "train.target_metric={eval_accuracy: 0.0}")
    assert (again.steps, result(run)["target_seconds"]) == (3, found["target_seconds"])
    further = train("reviews", run, *settings, "eval.eval_steps=3", "train.target_metric={accuracy: 1.1}")
    assert further.steps == 12
    assert "target_step" not in result(run)
    assert "| until accuracy 1.1 | not reached |" in (run / "report.md").read_text()
    train("reviews", tmp_path / "whole", *settings, "eval.eval_steps=3")
    assert_same_weights(run, tmp_path / "whole")


def test_a_loss_reaches_its_target_from_above(tmp_path):
    for goal, steps in ((100.0, 1), (0.0, 12)):
        fit = train("reviews", tmp_path / str(goal), *RUN, f"train.target_metric={{loss: {goal}}}")
        assert fit.steps == steps
    assert train("reviews", tmp_path / "100.0", *RUN).steps == 12  # no target any more


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("train.target_metric={acuracy: 0.9}",), r"train\.target_metric: received 'acuracy'.*accuracy"),
        (("train.target_metric={accuracy: high}",), r"train\.target_metric\.accuracy: received 'high'"),
        (("train.target_metric={accuracy: 0.9, loss: 0.1}",), r"train\.target_metric: received .*1"),
        (("train.target_metric={accuracy: 0.9}", "eval.eval_steps=null"), r"train\.target_metric.*eval\.eval_steps"),
        (
            ("train.target_metric={accuracy: 0.9}", "data.validation_file=null", "data.validation_split=0"),
            r"train\.target_metric.*validation",
        ),
    ],
)
def test_targets_that_cannot_be_reached_are_rejected(settings, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        train("reviews", tmp_path / "run", *RUN, *settings)


def test_curves_of_each_process_go_on_over_sessions(tmp_path):
    for name, shift in (("system.jsonl", 0.0), ("system-rank1.jsonl", 1.0)):
        samples = [{"seconds": at, "cpu_cores": 1.0 + shift} for at in (0.0, 2.0, 4.0, 0.0, 3.0)]
        (tmp_path / name).write_text("".join(f"{json.dumps(each)}\n" for each in samples) + '{"half')
    samples = samples_of(tmp_path, processes=3)  # the third one wrote nothing
    assert [*samples] == [0, 1]
    table, gallery = system_blocks(samples)
    assert [cell.value for cell in table.rows[0][1:]] == [1.5, 1, 2, 2]  # type: ignore[union-attr]
    (figure,) = gallery.figures  # type: ignore[union-attr]
    drawn = "".join(figure.drawing.parts)
    assert "process 1, at 7: 2<" in drawn
    assert "seconds of training" in drawn
    assert system_blocks({}) == []


def test_a_target_that_was_reached_is_shown_with_what_it_took():
    figures = {"target_step": 30, "target_seconds": 61.0, "target_energy_wh": 0.5}
    rows = cost_rows(figures, "measured", {"eval_accuracy": 0.93})
    assert rows == {"until eval_accuracy 0.93": "step 30, 61 s, 0.5 Wh"}
