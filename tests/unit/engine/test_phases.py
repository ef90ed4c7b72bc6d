"""Where the time of a run goes: on a clock that only planted work moves, every phase has exactly its own."""

from __future__ import annotations

import json
import re
from pkgutil import resolve_name
from typing import Any

import pytest
from runs import train

from toolkit.system import phases
from toolkit.system.phases import OTHER, PHASES, PREFIX

STEPS, ACCUMULATION, EVERY = 4, 2, 2
WORK = {
    "torch.utils.data._utils.fetch._MapDatasetFetcher.fetch": 1.0,
    "toolkit.tasks.heads.single_label.SingleLabel.loss_sum": 10.0,
    "accelerate.Accelerator.backward": 100.0,
    "toolkit.distributed.strategies.replicas.clip": 1e3,
    "torch.optim.AdamW._init_group": 5e3,  # once for each of the two groups of parameters
    "toolkit.engine.callbacks.averages.AveragedWeights.after_update": 1e4,
    "toolkit.tracking.tracker.Tracker.write_line": 1e5,
    "toolkit.engine.checkpointing.commit": 1e6,
    "toolkit.engine.training.seed_all": 1e7,
}
"""Places of a run, and the seconds that each call takes."""
SETTINGS = (
    "train.ema_decay=0.9", "train.per_device_train_batch_size=4", f"train.gradient_accumulation_steps={ACCUMULATION}",
    f"train.max_steps={STEPS}", f"tracking.logging_steps={EVERY}", f"eval.eval_steps={EVERY}",
    f"checkpoint.save_steps={EVERY}", "checkpoint.async_save=false", "eval.per_device_eval_batch_size=8",
)  # fmt: skip
EVAL_BATCHES = 3


class Time:
    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Time:
    monkeypatch.setattr(phases, "time", made := Time())

    def plant(place: str, seconds: float) -> None:
        original = resolve_name(place)

        def work(*arguments: Any, **named: Any) -> Any:
            made.now += seconds
            return original(*arguments, **named)

        monkeypatch.setattr(place, work)

    for place, seconds in WORK.items():
        plant(place, seconds)
    return made


def seconds(line: dict[str, Any]) -> dict[str, float]:
    """Returns the phases of a line that took time."""
    found = {name.removeprefix(PREFIX): value for name, value in line.items() if name.startswith(PREFIX)}
    assert list(found) == [*PHASES, OTHER]
    return {name: value for name, value in found.items() if value}


@pytest.mark.parametrize("engine", ["loop", "trainer"])
def test_every_phase_has_its_own_time(engine, clock, tmp_path):
    train("reviews", tmp_path / "run", f"engine={engine}", *SETTINGS)
    folder = tmp_path / "run"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    first, second = (seconds(line) for line in lines if "loss" in line)
    step = {"fetch": 2.0, "forward": 20.0, "backward": 200.0, "clip": 1e3, "update": 2e4, OTHER: 1e7}
    assert first == {name: EVERY * value for name, value in step.items()}
    # A line is followed by its evaluation and its checkpoint; only the next line can have them.
    evaluation = EVAL_BATCHES * (1.0 + 10.0)
    assert second == first | {"log": 2e5, "evaluate": evaluation, "save": 1e6}
    assert not any(name.startswith(PREFIX) for line in lines if "eval_loss" in line for name in line)
    result = json.loads((folder / "run.json").read_text())["result"]
    whole = {name: STEPS * value for name, value in step.items()}
    assert seconds(result) == whole | {"log": 4e5, "evaluate": 2 * evaluation, "save": 2e6}
    report = (folder / "report.md").read_text()
    section = report.partition("## Where the time goes")[2].partition("##")[0]
    shares = dict(re.findall(r"^\| (\w+) \|[^|]+\| ([0-9.]+%) \|", section, re.M))
    total = sum(seconds(result).values())
    assert shares == {name: f"{value / total:.1%}" for name, value in seconds(result).items()}
    assert "main process" not in section  # there is no other
