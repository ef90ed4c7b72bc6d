"""Snapshot ensembles: one model per cycle of the schedule (Huang et al. 2017, arXiv 1704.00109)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from safetensors.torch import load_model, save_model

from toolkit.api.callback import Callback, TrainingContext
from toolkit.api.supports import SupportsEnsembling
from toolkit.api.task import Predictions
from toolkit.base.console import warn
from toolkit.base.files import temporary_file
from toolkit.base.run_folder import RunFolder
from toolkit.distributed.collectives import on_main
from toolkit.engine.evaluation import predict
from toolkit.optim.schedules import cycle_ends


class Snapshots(Callback):
    """Writes `snapshots/step-<N>.safetensors` after each cycle and evaluates their mean prediction at the end."""

    def __init__(self, context: TrainingContext) -> None:
        self.context = context
        self.files = RunFolder(context.run.output_dir)
        self.ends = frozenset(cycle_ends(context.run.cfg.train, context.milestones.total_steps))
        self.steps: list[int] = []

    def after_update(self) -> None:
        """Saves a snapshot at the end of a cycle."""
        step = self.context.state.step
        if step in self.ends:
            with self.context.as_result():
                on_main(self.context.run.accelerator, self._write, step)
            self.steps.append(step)

    def _write(self, step: int) -> None:
        self.files.snapshots.mkdir(exist_ok=True)
        with temporary_file(self.files.snapshot(step)) as file:
            save_model(self.context.bare_model, str(file))

    def final_metrics(self) -> dict[str, float]:
        """Returns the validation metrics of the snapshots' mean prediction."""
        context, run = self.context, self.context.run
        there = on_main(run.accelerator, lambda: [step for step in self.steps if self.files.snapshot(step).is_file()])
        if there != self.steps:
            where = self.files.snapshots
            warn(f"snapshots are missing in {where}: the ensemble uses those of steps {there}")
        if not there:
            return {}
        data, model, parts = run.data.evals["validation"], context.bare_model, list[Predictions]()
        final = {name: value.clone() for name, value in model.state_dict().items()}
        try:
            for step in there:
                load_model(model, self.files.snapshot(step))
                parts.append(predict(run, model, data, f"snapshot {step}", context.beat, context.is_stopping)[0])
        finally:
            model.load_state_dict(final)
        assert isinstance(run.task, SupportsEnsembling)
        average = run.task.average

        def score() -> dict[str, float]:
            mean = average(parts)
            return run.task.metrics(run.task.decode(mean, data), mean, data)

        metrics = on_main(run.accelerator, score)
        return {"ensemble_size": len(there)} | {f"ensemble_{name}": value for name, value in metrics.items()}

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the steps of the snapshots."""
        return {}, {"steps": self.steps}

    def restore(self, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Restores the steps of the snapshots."""
        self.steps = list(values["steps"])
