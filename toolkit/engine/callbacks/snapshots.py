"""Snapshot ensembles: one model per cycle of the schedule (Huang et al. 2017, arXiv 1704.00109)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from safetensors.torch import load_model, save_model

from toolkit.api.batch import Predictions
from toolkit.api.training import Callback, Training
from toolkit.base.console import warn
from toolkit.base.files import file_sha256, temporary_file
from toolkit.base.run_folder import RunFolder
from toolkit.distributed.collectives import on_main
from toolkit.engine.evaluation import predict
from toolkit.engine.non_finite import require_finite
from toolkit.optim.schedules import cycle_ends, in_steps


class Snapshots(Callback):
    """Writes `snapshots/step-<N>.safetensors` after each cycle and evaluates their mean prediction at the end."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self.files = RunFolder(training.run.output_dir)
        train = in_steps(training.run.cfg.train, training.milestones.steps_per_epoch)
        self.ends = frozenset(cycle_ends(train, training.milestones.total_steps))
        self.digests: dict[int, str | None] = {}
        """The sha256 of each snapshot by its step; None if it was written by an older version."""

    def after_update(self) -> None:
        """Saves a snapshot at the end of a cycle.

        Raises NonFiniteParameters on every rank, if the model is not finite; RunError on every rank, if parameters
        cannot be made the same on all.
        """
        step, accelerator = self.training.state.step, self.training.run.accelerator
        if step in self.ends:
            self.training.run.strategy.synchronize()
            with self.training.as_result():
                require_finite(accelerator, self.training.bare_model.state_dict(), step)
                self.digests[step] = on_main(accelerator, self._write, step)

    def _write(self, step: int) -> str:
        self.files.snapshots.mkdir(exist_ok=True)
        with temporary_file(self.files.snapshot(step)) as file:
            save_model(self.training.bare_model, str(file))
            return file_sha256(file)

    def _usable(self) -> list[int]:
        """Returns the steps of the snapshots that are as they were written; call it on the main process."""
        files = {step: self.files.snapshot(step) for step in self.digests}
        there = {step: file for step, file in files.items() if file.is_file()}
        return [step for step, file in there.items() if self.digests[step] in (None, file_sha256(file))]

    def final_metrics(self) -> dict[str, float]:
        """Returns the validation metrics of the snapshots' mean prediction."""
        training, run = self.training, self.training.run
        there = on_main(run.accelerator, self._usable)
        if there != [*self.digests]:
            where = self.files.snapshots
            warn(f"snapshots are missing or damaged in {where}: the ensemble uses those of steps {there}")
        if not there:
            return {}
        data, model, parts = run.data.evals["validation"], training.bare_model, list[Predictions]()
        final = {name: value.clone() for name, value in model.state_dict().items()}
        try:
            for step in there:
                load_model(model, self.files.snapshot(step))
                parts.append(predict(run, model, data, f"snapshot {step}", training.beat, training.is_stopping)[0])
        finally:
            model.load_state_dict(final)
        average = run.task.average

        def score() -> dict[str, float]:
            mean = average(parts)
            return run.task.metrics(run.task.decode(mean, data), mean, data)

        metrics = on_main(run.accelerator, score)
        return {"ensemble_size": len(there)} | {f"ensemble_{name}": value for name, value in metrics.items()}

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the steps of the snapshots, and their sha256."""
        return {}, {"steps": [*self.digests], "sha256": [*self.digests.values()]}

    def restore(self, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Restores the steps of the snapshots, and their sha256."""
        steps = values["steps"]
        self.digests = dict(zip(steps, values.get("sha256", [None] * len(steps)), strict=True))
