"""The beats around an optimizer step, the same in every engine: seed, count, stop, log, evaluate, save."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from toolkit.api.run import Evaluation, FitResult, Run, TrainState, best_metric
from toolkit.api.supports import count_items
from toolkit.api.task import Batch
from toolkit.base.errors import Interrupted
from toolkit.distributed.collectives import all_sum, on_main, sum_dtype
from toolkit.distributed.random import seed_all
from toolkit.distributed.signals import StopSignal
from toolkit.distributed.strategies import build_strategy
from toolkit.engine.callbacks.extensions import as_result, build_extensions
from toolkit.engine.evaluation import evaluate
from toolkit.engine.milestones import Due, Plan
from toolkit.engine.saving import load_best, restore_session, write_checkpoint
from toolkit.engine.step import micro_batch
from toolkit.optim.state import state_bytes
from toolkit.tracking.tracker import Tracker


class Session:
    """One engine's training of one run, from its start or its checkpoint to its end.

    Args:
        run: what is trained.
        model: the prepared model.
        optimizer: its optimizer.
        schedule: its learning-rate schedule, unprepared.
        plan: when things happen.
        tracker: where numbers are written.
        stop: the flag that SIGTERM sets.
        engine_state: what the engine itself wants kept in checkpoints, JSON-able, by name.
    """

    def __init__(
        self,
        run: Run,
        model: nn.Module,
        optimizer: Optimizer,
        schedule: LambdaLR,
        plan: Plan,
        tracker: Tracker,
        stop: StopSignal,
        engine_state: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self.run, self.model, self.optimizer, self.schedule = run, model, optimizer, schedule
        self.plan, self.tracker, self.stop = plan, tracker, stop
        self.engine_state = engine_state
        self.state = TrainState()
        self.bare_model: nn.Module = run.accelerator.unwrap_model(model)
        self._pending_loss = torch.zeros((), dtype=sum_dtype(run.accelerator.device), device=run.accelerator.device)
        self._session_loss = self._session_items = self._train_seconds = 0.0
        self._saved_step = -1
        self._evaluated: tuple[int, Evaluation] | None = None
        self._window_items = self._beat = 0.0
        self.window: Sequence[Batch] = ()
        self._last: dict[str, float] = {}
        self.add_gradient: Callable[[Batch, float], torch.Tensor] = partial(
            micro_batch, run.accelerator, run.task, model
        )
        """How engines add a micro-batch's part, given it and its window's scale; an extension may do it instead."""
        self.strategy = build_strategy(self)
        # Ranks become one model before anything else looks at it.
        self.extensions = {run.cfg.train.strategy: self.strategy, **build_extensions(self)}

    def restore(self) -> None:
        """Puts parameters, optimizer, schedule and counters back to the run's checkpoint, if it has one."""
        if self.run.resume is not None:
            restore_session(self, self.run.resume)
            self._saved_step = self.state.step
        self.start_clock()

    def begin_window(self, batches: Sequence[Batch]) -> float:
        """Starts a step: seeds its random numbers, counts its items, and stops if any rank was told to.

        Args:
            batches: this rank's micro-batches of the window, on the CPU.

        Returns:
            What this rank multiplies its summed losses by, so that gradients add up to that of the step.

        Raises:
            Interrupted: on every rank, after saving, when one of them received SIGTERM.
            RunError: on every rank, when one of them had to leave out its last update.
        """
        # Dropout of a step depends on (seed, step, rank) only: nothing random has to be stored to resume exactly.
        seed_all(self.run.cfg.seed, self.state.step, self.run.accelerator.process_index)
        own_items = sum(float(count_items(self.run.task, batch)) for batch in batches)
        flags = float(self.stop.requested), float(self.strategy.failed)
        items, stop, failed = all_sum(self.run.accelerator, own_items, *flags)
        self.stop.beat()
        if failed:
            self.strategy.refuse()
        if stop:
            self._interrupt()
        self.window, self._window_items = batches, items
        return self.strategy.begin_step(own_items, items)

    def check_update(self, grad_norm: float, batches: Sequence[Batch]) -> None:
        """Refuses a non-finite update (see `Sync.check_gradient`); the update comes next."""
        self.strategy.check_gradient(self.state.step + 1, grad_norm, batches)
        for extension in self.extensions.values():
            extension.before_update()
        if self.run.observer is not None and not self.strategy.failed:
            self.run.observer.gradient(self.state.step + 1, self.bare_model)

    def count_step(self, loss_sum: torch.Tensor, grad_norm: float, learning_rate: float) -> None:
        """Ends a step.

        Args:
            loss_sum: this rank's summed loss over the window, a scalar tensor.
            grad_norm: norm of the gradient before clipping.
            learning_rate: the rate that this step used.
        """
        state = self.state
        state.step += 1
        state.skipped_steps += self.run.accelerator.optimizer_step_was_skipped
        state.num_items += self._window_items
        self._session_items += self._window_items
        self._pending_loss += loss_sum.detach()
        self._last = {"grad_norm": grad_norm, "learning_rate": learning_rate}
        for extension in self.extensions.values():
            extension.after_update()
        # A GPU may still be at the update; to read the loss is to wait for it, which then is part of the step's time.
        loss = None if self.run.observer is None else float(loss_sum)
        seconds = time.perf_counter() - self._beat
        self._train_seconds += seconds
        if self.run.observer is not None and loss is not None:
            figures = {"epoch": self.epoch, "loss_sum": loss, "num_items": self._window_items, "seconds": seconds}
            self.run.observer.step(state.step, self.window, figures | self._last)

    def after_step(self, due: Due) -> None:
        """Logs, evaluates and saves, in this order."""
        if due.log:
            self.log()
        if due.evaluate:
            self.evaluate()
        if due.save:
            self.save()
        self.start_clock()

    def start_clock(self) -> None:
        """Says that what comes next, fetching rows included, is the next step's time, and its memory."""
        self.run.memory.train()
        self._beat = time.perf_counter()

    def evaluate(self) -> dict[str, float]:
        """Evaluates on the validation rows, if there are any, and remembers the best step; returns the metrics."""
        result = self._evaluation("validation")
        if result is None:
            return {}
        run, state = self.run, self.state
        metrics = {f"eval_{name}": value for name, value in result.metrics.items()}
        self.tracker.log({"step": state.step, "epoch": self.epoch, **metrics})
        if state.evaluated_step == state.step:  # resumed right after this evaluation: it is counted already
            return metrics
        state.evaluated_step = state.step
        name, greater = best_metric(run.cfg, run.task)
        value = metrics[name]
        better = state.best_metric is None or (value > state.best_metric if greater else value < state.best_metric)
        if better and not math.isnan(value):
            state.best_metric, state.best_step, state.evaluations_since_best = value, state.step, 0
            if run.cfg.checkpoint.load_best_model_at_end:
                self.save()
        else:
            state.evaluations_since_best += 1
        for extension in self.extensions.values():
            extension.after_evaluation(metrics)
        return metrics

    def save(self) -> None:
        """Writes a checkpoint of this step, if there is none yet, and then removes those that are too many."""
        if self._saved_step == self.state.step:
            return
        self._reduce_loss()
        self.tracker.flush()
        self._before_pause()
        for extension in self.extensions.values():
            extension.before_save()
        with self.stop.unhurried():
            on_main(self.run.accelerator, write_checkpoint, self)
        self._saved_step = self.state.step

    def finish(self) -> FitResult:
        """Saves and evaluates the last step, and puts the best parameters back where that was asked for."""
        run, state = self.run, self.state
        run.memory.pause()
        if state.num_items and self._last:  # the run ended before its plan did
            self.log()
        if self.plan.save_every is not None:
            self.save()
        self.evaluate()
        (stop,) = all_sum(run.accelerator, float(self.stop.requested))
        if stop:
            self._interrupt()
        if run.cfg.checkpoint.load_best_model_at_end and state.best_step not in (None, state.step) and load_best(self):
            self._evaluated = None
        for extension in self.extensions.values():
            extension.finish()
        evaluations = {name: self._evaluation(name) for name in run.data.evals}
        if test := evaluations.get("test"):
            self.tracker.log(
                {"step": state.step, "epoch": self.epoch} | {f"test_{k}": v for k, v in test.metrics.items()}
            )
        further = {name: value for extension in self.extensions.values() for name, value in extension.result().items()}
        if further:
            self.tracker.log({"step": state.step, "epoch": self.epoch, **further})
        return FitResult(
            steps=state.step,
            train_loss=self._session_loss / self._session_items if self._session_items else None,
            evaluations={name: result for name, result in evaluations.items() if result is not None},
            best=state.best_metric,
            best_step=state.best_step,
            train_seconds=self._train_seconds,
            items_per_second=self._session_items / self._train_seconds if self._train_seconds else 0.0,
            memory=run.memory.use(self.bare_model, state_bytes(self.optimizer)),
            further=further,
        )

    def _evaluation(self, name: str) -> Evaluation | None:
        """Evaluates a set with the parameters as they are; that of the validation rows is remembered for its step."""
        run = self.run
        if name not in run.data.evals:
            return None
        if name == "validation" and self._evaluated is not None and self._evaluated[0] == self.state.step:
            return self._evaluated[1]
        self._before_pause()
        with as_result(list(self.extensions.values())):
            result = evaluate(run, self.bare_model, run.data.evals[name], name, self.stop.beat)
        if name == "validation":
            self._evaluated = (self.state.step, result)
        return result

    def end(self) -> None:
        """Ends training before the last planned step; the checkpoint of this step is written anew, to know it."""
        self.state.ended = True
        self._saved_step = -1

    def _before_pause(self) -> None:
        self.run.memory.pause()
        for extension in self.extensions.values():
            extension.before_pause()

    @property
    def over(self) -> bool:
        """Whether no step is left."""
        return self.state.ended or self.state.step >= self.plan.total_steps

    @property
    def epoch(self) -> float:
        """Passes over the training rows so far."""
        return round(self.state.step / self.plan.steps_per_epoch, 6)

    def log(self) -> dict[str, Any]:
        """Writes a line about the steps since the last one, and returns it."""
        self._reduce_loss()
        state = self.state
        line: dict[str, Any] = {
            "step": state.step,
            "epoch": self.epoch,
            "loss": state.loss_sum / state.num_items if state.num_items else float("nan"),
            **self._last,
            **{name: value for extension in self.extensions.values() for name, value in extension.figures().items()},
            "num_items": state.num_items,
            "train_items_per_second": self._session_items / self._train_seconds,
            "peak_memory_bytes": self.run.memory.peak,
        }
        self.tracker.log(line)
        state.loss_sum = state.num_items = 0.0
        return line

    def _reduce_loss(self) -> None:
        (loss,) = all_sum(self.run.accelerator, float(self._pending_loss))
        self.state.loss_sum += loss
        self._session_loss += loss
        self._pending_loss.zero_()

    def _interrupt(self) -> None:
        self.stop.disarm()
        if self.state.step > 0:
            self.save()
        raise Interrupted(
            f"SIGTERM: stopped after step {self.state.step} of {self.plan.total_steps}. "
            f"Go on with checkpoint.resume=auto (output_dir={json.dumps(str(self.run.output_dir))})."
        )
