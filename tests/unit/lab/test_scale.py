"""`toolkit scale`: the laws, efficiencies with intervals, and a command that goes on where it was stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from runs import ROOT, TINY

from toolkit.commands.cli import main
from toolkit.commands.plan import processes
from toolkit.lab.jobs import jobs
from toolkit.lab.scale import amdahl, fitted_serial, gustafson, scaled

pytestmark = pytest.mark.usefixtures("forked_trials")

TASKS = ("reviews", "reviews/smoke_image", "reviews/smoke_audio", "qa", "translation", "summarization",
         "token_classification", "language_modeling")  # fmt: skip

WORKER = """
import json, os, sys
if os.environ.get("RANK", "0") != "0":
    sys.exit(0)
(trial,) = json.load(open(sys.argv[1]))
work, log = trial["arguments"], %r
number, calls = int(os.environ.get("WORLD_SIZE", "1")), len(open(log).readlines())
open(log, "a").write(json.dumps([trial["work"], number, os.environ["OMP_NUM_THREADS"], work.get("overrides")]) + "\\n")
if calls == %d:
    sys.exit(3)
memory = {"parameters": 1, "gradients": 1, "optimizer_state": 1, "rest": 1, "train_peak": 4}
steps = {"seconds": [9.0] + [0.1 / (1 if number == 1 else 1.6)] * 10, "real": [80] * 11, "positions": [100] * 11,
         "items": [8] * 11}
figures = {"optimizer_state_bytes_per_parameter": 8.0, "trainable_parameters": 9, "energy_wh": 0.5, "run_seconds": 2.0}
footprint = %s
results = {
    "compare": {"steps": steps, "memory": memory, "ranks": [memory], "figures": figures, "loss": [[1, 2.0]],
                "exchange": {} if number == 1 else {"collectives": 11, "bytes": 11 * 2**20}, "device": "cpu",
                "hardware": {"cpus": 2, "gpus": []}, "versions": {"torch": "2"}, "energy_source": "estimated"},
    "collectives": {"seconds": {"all_reduce": [0.16]}},
    "calibrate": {"memory": memory, "footprint": footprint, "seconds": 0.08, "device": "cpu"},
}
json.dump({"result": results[trial["work"]]}, open(trial["outcome"], "w"))
"""


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Returns a function that runs the command with stand-ins for trainings, the nth of which fails."""
    from dataclasses import fields

    from toolkit.footprint.simulate import Footprint

    log, worker = tmp_path / "log", tmp_path / "worker.py"
    log.touch()
    footprint = {field.name: 4 for field in fields(Footprint)} | {"gradients": 2**20}
    monkeypatch.setattr(jobs, "WORKER", (str(worker),))
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def run(*arguments: str, code: int = 0, fails: int = -1) -> list[list[Any]]:
        before = len(log.read_text().splitlines())
        worker.write_text(WORKER % (str(log), fails, footprint))
        with pytest.raises(SystemExit) as ended:
            main(["scale", "reviews", "--config", "smoke", "--output", str(tmp_path / "out"), *arguments, *TINY])
        assert ended.value.code == code
        return [json.loads(line) for line in log.read_text().splitlines()[before:]]

    return run


def runs(speeds: dict[int, float], rounds: int = 3, slow: int = -1) -> dict[int, list[dict[str, Any]]]:
    """Returns measurements with these items per second; one round may be slow."""
    return {
        number: [
            {"steps": {"seconds": [9.0, *[(3 if place == slow else 1) / speed] * 20], "real": [1] * 21}}
            for place in range(rounds)
        ]
        for number, speed in speeds.items()
    }


@pytest.mark.parametrize("serial", [0.0, 0.07, 0.5, 1.0])
def test_the_serial_part_of_each_law_is_found(serial):
    numbers = (1, 2, 3, 8)
    assert fitted_serial({n: 7 * amdahl(serial, n) for n in numbers}, "strong") == pytest.approx(serial, abs=1e-9)
    assert fitted_serial({n: 7 * gustafson(serial, n) for n in numbers}, "weak") == pytest.approx(serial, abs=1e-9)
    assert fitted_serial({n: 7 * amdahl(serial, n) for n in (2, 4)}, "strong") == pytest.approx(serial, abs=1e-9)


def test_the_serial_part_stays_between_0_and_1():
    for mode in ("strong", "weak"):
        assert fitted_serial({1: 1.0, 2: 2.5}, mode) == 0.0
        assert fitted_serial({1: 1.0, 2: 0.8}, mode) == 1.0


def test_efficiency_is_the_speedup_per_process_and_slow_rounds_cancel():
    for slow in (-1, 1):
        found = scaled(runs({1: 10.0, 2: 16.0, 4: 20.0}, slow=slow), "strong")
        assert {n: round(each.value, 9) for n, each in found.efficiency.items()} == {1: 1.0, 2: 0.8, 4: 0.5}
        assert found.speedup[4].value == pytest.approx(2.0)
        for each in found.efficiency.values():
            assert each.low == pytest.approx(each.value)
            assert each.high == pytest.approx(each.value)
    assert scaled(runs({1: 10.0, 2: 16.0}, rounds=1), "strong").efficiency[2].low is None
    assert scaled(runs({2: 10.0, 4: 16.0}), "weak").speedup[2].value == 2.0  # the smallest number counts as efficient


def test_different_rounds_have_an_interval():
    measured = runs({1: 10.0, 2: 16.0})
    measured[2][0]["steps"]["seconds"] = [9.0, *[1 / 12] * 20]
    found = scaled(measured, "strong").efficiency[2]
    assert (round(found.low, 3), round(found.value, 3), round(found.high, 3)) == (0.6, 0.8, 0.8)


def test_numbers_of_processes_are_put_in_order_and_checked(capsys):
    assert processes("4,1,2") == (1, 2, 4)
    for wrong in ("1,1", "0,2", "two,1", "1,,2", "2"):
        with pytest.raises(SystemExit) as ended:
            main(["scale", "reviews", "--config", "smoke", "--processes", wrong])
        assert ended.value.code == 2
        assert f"received {wrong}, must be" in capsys.readouterr().err


@pytest.mark.slow
def test_numbers_run_in_turn_and_what_is_done_is_not_repeated(started, tmp_path, capsys):
    order = [("compare", 1), ("compare", 2), ("compare", 4)] * 2 + [("collectives", 2), ("collectives", 4)]
    order += [("calibrate", 1)] * 2
    first = started("--processes", "1,4,2", "--rounds", "2", "--steps", "5", code=1, fails=4)
    assert [(work, number) for work, number, *_ in first] == order[:5]
    assert "2 processes: its process ended with exit code" in capsys.readouterr().err
    rest = started("--processes", "1,2,4", "--rounds", "2", "--steps", "5")
    assert [(work, number) for work, number, *_ in rest] == order[4:]
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines()[:-1])) <= 80  # the last one names the folder
    assert len({threads for _, _, threads, _ in [*first, *rest]}) == 1
    assert started("--processes", "1,2,4", "--rounds", "2", "--steps", "5") == []
    found = json.loads((tmp_path / "out" / "scale.json").read_text())
    assert [point["processes"] for point in found["points"]] == [1, 2, 4]
    assert len({point["rows_per_step"] for point in found["points"]}) == 1
    one, two, _ = found["points"]
    assert two["speedup"]["value"] == pytest.approx(1.6)
    assert two["efficiency"]["value"] == pytest.approx(0.8)
    assert (one["exchange_share"], two["bandwidth"]) == (0.0, pytest.approx(2**24 / 0.16))
    assert two["exchange_share"] == pytest.approx(2**20 / (2**24 / 0.16) / (0.1 / 1.6))
    assert one["plan_speedup"] == 1.0
    assert 0 < two["plan_speedup"] <= 2
    assert found["amdahl"][1][1] == pytest.approx(amdahl(found["serial"]["value"], 2))
    assert found["costs"] == {"run_seconds": 12.0, "energy_wh": 3.0}
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names - {".lock"} == {"scale.json", "scale.md", "scale.html", "scale.svg", "runs"}
    drawn = (tmp_path / "out" / "scale.svg").read_text()
    assert all(name in drawn for name in ("measured", "Amdahl", "Gustafson", "plan", "ideal"))
    assert not [*(tmp_path / "out" / "runs").glob("running")]


def test_the_threads_are_those_that_the_environment_sets(started, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    done = started(
        "--rounds", "1", "--steps", "5", "model.freeze=[backbone]", "model.unfreeze={step_99: ['*encoder*']}"
    )
    found = json.loads((tmp_path / "out" / "scale.json").read_text())
    assert found["threads"] == 3
    assert {threads for work, _, threads, _ in done if work == "compare"} == {"3"}
    assert "Each process computes with 3 threads" in " ".join(capsys.readouterr().out.split())
    assert all("model.unfreeze={step_1: ['*encoder*']}" in settings for *_, settings in done if settings)


@pytest.mark.parametrize("mode", ["strong", "weak"])
def test_a_step_or_a_process_has_the_same_rows(mode, started, tmp_path, capsys):
    done = started("--mode", mode, "--rounds", "1", "--steps", "5")
    found = json.loads((tmp_path / "out" / "scale.json").read_text())
    rows = [point["rows_per_step"] for point in found["points"]]
    assert rows[1] == rows[0] * (2 if mode == "weak" else 1)
    same = [settings for work, _, _, settings in done if work == "compare"]
    changed = [[each for each in settings if "output_dir" not in each] for settings in same]
    assert (changed[0] == changed[1]) == (mode == "weak")
    assert found["points"][1]["speedup"]["low"] is None
    assert "single round" in capsys.readouterr().out


def test_everything_wrong_is_said_before_anything_runs(started, tmp_path, capsys):
    assert started("--processes", "1,3,7", code=2) == []
    printed = capsys.readouterr().err
    assert "3 processes: train.per_device_train_batch_size" in printed
    assert "7 processes: train.per_device_train_batch_size" in printed
    assert not (tmp_path / "out").exists()


@pytest.mark.fast(3)
@pytest.mark.parametrize("config", TASKS)
def test_every_task_can_be_scaled(config, monkeypatch, tmp_path):
    from toolkit.lab.jobs.jobs import Launch, step_rows
    from toolkit.lab.scale import scale_of
    from toolkit.lab.tool import Request
    from toolkit.recipe import load_settings, load_task_type

    name, _, yaml = config.partition("/")
    recipe, file = ROOT / "recipes" / f"{name}.py", ROOT / "recipes" / "configs" / name / f"{yaml or 'smoke'}.yaml"
    monkeypatch.chdir(ROOT)
    task_type = load_task_type(recipe)
    cfg = load_settings(task_type, file).config
    request = Request(recipe, file, [], task_type, cfg, Launch(None, 2, {}), tmp_path, "toolkit scale")
    requests = scale_of(request, (1, 2), "strong", 1, 3).requests
    assert step_rows(requests[1].cfg, 1) == step_rows(requests[2].cfg, 2)


@pytest.mark.slow
@pytest.mark.distributed
def test_the_command_measures_real_trainings(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    output = Path(tmp_path / "out")
    arguments = ["scale", "reviews", "--config", "smoke", "--rounds", "1", "--steps", "4", "--output", str(output)]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, *TINY])
    assert ended.value.code == 0, capsys.readouterr().err
    one, two = json.loads((output / "scale.json").read_text())["points"]
    assert one["exchange_bytes"] == 0
    assert two["exchange_bytes"] > 0 < two["bandwidth"]
    assert 0 < two["exchange_share"] <= 1
    assert 0 < two["plan_speedup"] <= 2
    assert one["speedup"]["value"] == 1
