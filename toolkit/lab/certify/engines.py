"""Certificate `engines`: the loop and the Trainer train identically (contract C2)."""

from __future__ import annotations

from pathlib import Path

from toolkit.base.run_folder import RunFolder
from toolkit.lab.certify.certificate import FAILED, OK, Certificate
from toolkit.lab.certify.trace import first_difference, read_trace, weight_difference, window
from toolkit.lab.certify.trainings import Experiment, Training, error_of

engines_promise = "The same YAML trains the same under both engines, on one process and on two."
TWO = {"train.per_device_train_batch_size": 2, "train.gradient_accumulation_steps": 2}
CAUSES = {
    "step": "one of them skipped steps",
    "rows": "the order of the rows (toolkit/data/batching/order.py)",
    "learning_rate": "the schedule (toolkit/optim/schedules.py), which is stepped once per update",
    "num_items": "the number of items (Task.count_items)",
    "random": "something draws from the global random numbers besides the model",
    "loss_sum": "the loss (Task.loss_sum), or parameters that differ already",
    "grad_norm": "the gradient: its scale, exchange or clipping",
}
"""The compared values of each step, causes before effects, and the likely reason for a difference in each."""


def engines_trainings(experiment: Experiment) -> list[Training]:
    """Returns trainings with both engines, on one and on two processes."""
    return [
        Training(f"{engine}-{processes}", {"engine": engine} | (TWO if processes == 2 else {}), processes)
        for processes in (1, 2)
        for engine in ("loop", "trainer")
    ]


def engines_judge(folder: Path, experiment: Experiment) -> Certificate:
    """Compares rows, learning rates, losses, gradient norms and parameters."""
    name = "engines"
    if error := error_of(folder, *(training.name for training in engines_trainings(experiment))):
        return Certificate(name, engines_promise, FAILED, [], [error])
    problems = []
    for processes, where in ((1, "one process"), (2, "two processes")):
        loop, trainer = f"loop-{processes}", f"trainer-{processes}"
        parted = [
            first_difference(read_trace(folder, loop, rank), read_trace(folder, trainer, rank), CAUSES)
            for rank in range(processes)
        ]
        last = str(RunFolder(Path()).checkpoint(read_trace(folder, loop)[-1]["step"]).model)
        parted.append(weight_difference(folder / loop, folder / trainer, last))
        problems += [f"loop against trainer on {where}: {found}" for found in parted if found][:1]
    problems += _across(folder)
    steps = len(read_trace(folder, "loop-1"))
    found = [f"rows, rates, losses, gradient norms and parameters of {steps} steps agree to the last bit"]
    return Certificate(
        name, engines_promise, FAILED if problems else OK, [] if problems else found, problems, {"steps": steps}
    )


def _across(folder: Path) -> list[str]:
    """Compares rows and learning rates of one and two processes; dropout may make all other values differ."""
    one, two = read_trace(folder, "loop-1"), read_trace(folder, "loop-2")
    for index, (left, right) in enumerate(zip(one, two, strict=False)):
        if left["learning_rate"] != right["learning_rate"]:
            return [
                f"one process against two, step {left['step']}: learning rate {left['learning_rate']} against "
                f"{right['learning_rate']}: the schedule is stepped once per process, not once per update "
                "(toolkit/optim/schedules.py)"
            ]
        rows = window(folder, "loop-1", 1, index), window(folder, "loop-2", 2, index)
        if rows[0] != rows[1]:
            return [f"one process against two, step {left['step']}: rows {rows[0]} against {rows[1]}: {CAUSES['rows']}"]
    if len(one) == len(two):
        return []
    return [f"one process trained {len(one)} steps, two processes {len(two)}: {CAUSES['rows']}"]
