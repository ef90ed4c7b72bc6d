"""One training of a run, from its start or checkpoint to its result, and the order of all hooks around a step."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from toolkit.api.batch import Batch, Record
from toolkit.api.random import RowRandom
from toolkit.api.run import FitResult, Run, overall_scores
from toolkit.api.state import Due, Milestones, TrainState
from toolkit.api.training import Callback, Training
from toolkit.base.console import format_duration, say, warn
from toolkit.base.files import write_text
from toolkit.base.run_folder import RunFolder
from toolkit.checkpoint.state import SavedState
from toolkit.data.batching.batches import Windows, split_batch, training_loader
from toolkit.data.batching.budget import over_budget, padding_to
from toolkit.data.batching.order import WindowSampler
from toolkit.data.batching.workers import WatchedLoader, ended_workers, num_workers
from toolkit.distributed.collectives import all_sum, data_sum, on_main
from toolkit.distributed.routing import load_metrics
from toolkit.distributed.stop import StopSignal
from toolkit.distributed.window import seed_all
from toolkit.engine.callbacks import build_callbacks
from toolkit.engine.callbacks.costs import total_of
from toolkit.engine.checkpointing import BackgroundSave, Checkpointer, require_disk_space
from toolkit.engine.evaluation import Evaluator
from toolkit.engine.meter import ProgressMeter, TimeEstimate
from toolkit.engine.non_finite import UpdateGuard, require_finite
from toolkit.engine.stopping import Abandoned, Stopper
from toolkit.models.unpadded.families import ISLANDS
from toolkit.optim.state import state_bytes
from toolkit.system.phases import PhaseClock, in_phase, phase, timed_phases
from toolkit.tracking.tracker import Tracker

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR


def training_batches(run: Run, workers: int) -> tuple[WatchedLoader, WindowSampler]:
    """Returns the loader of this rank's micro-batches, and the sampler that sets where it starts."""
    processor = padding_to(run.processor, run.cfg.train)
    packs_tokens = run.unpadded and run.model.config.model_type not in ISLANDS  # memory is taken by tokens alone
    return training_loader(run.data.train, run.task, processor, run.cfg, run.mesh, workers, run.data.kept, packs_tokens)


class Session(Training):
    """One training of a run, from its start or checkpoint to its end; defines the order of all hooks.

    An engine opens it, prepares model and optimizer, starts it, calls `begin_window` to `after_step` for each step, and
    takes the result from `finish`. Strategies and callbacks see it as their `Replica` and `Training`; its `observers`
    are callbacks that were made before the run.
    """

    stop_signal: StopSignal
    tracker: Tracker
    background: BackgroundSave
    phases: PhaseClock

    def __init__(self, run: Run, observers: Sequence[Callback]) -> None:
        self.run, self.task, self.strategy, self.state = run, run.task, run.strategy, TrainState()
        self.observers, self.callbacks, self.window = list(observers), {}, ()
        workers = num_workers(run.cfg.train, run.task, run.accelerator.device)
        self.loader, self.sampler = training_batches(run, workers)
        self.milestones = Milestones.of(run.cfg, self.sampler.order.windows_per_epoch)
        self._own_items = self._window_items = 0.0
        self._estimate = TimeEstimate(self.milestones.total_steps - (run.resume.step if run.resume else 0))

    @classmethod
    @contextmanager
    def opened(cls, run: Run, observers: Sequence[Callback] = ()) -> Iterator[Self]:
        """Opens what a run's training needs but its model and optimizer, and closes it when the block ends."""
        session = cls(run, observers)
        _note_long_rows(run)
        on_main(run.accelerator, require_disk_space, run, session.milestones)
        step, mark = 0, None
        if run.resume is not None:
            step, mark = run.resume.step, SavedState.from_json(run.resume.state).metrics
        metrics, processes = RunFolder(run.output_dir).metrics, run.accelerator.num_processes
        with (
            ended_workers(session.loader),
            StopSignal(processes) as session.stop_signal,
            Tracker(run.accelerator, run.cfg, metrics, step, (run.best.name,), mark, run.trackers) as session.tracker,
            BackgroundSave(processes) as session.background,
            timed_phases() as session.phases,
        ):
            yield session

    def start(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        schedule: LambdaLR,
        engine_state: Callable[[], dict[str, Any]] = dict,
        on_save: Callable[[], None] = lambda: None,
        evaluate: Callable[[], object] | None = None,
    ) -> None:
        """Takes what is trained, restores the run's checkpoint, if any, and evaluates what is due before a step.

        Model and optimizer are prepared, the schedule is not. The engine's own JSON-able state for checkpoints is
        returned by `engine_state`; `on_save` is called after each one. An engine may have its own way to `evaluate`.

        Raises:
            CheckpointError: if the checkpoint does not match the model or the optimizer; no file has changed.
            DamagedCheckpoint: on every rank, if any rank found a damaged file; no file has changed.
            RunError: on every rank, if a tracker cannot be started, or a file cannot be written.
            Interrupted: on every rank, if any rank received a stop signal; the next session evaluates again.
        """
        self.model, self.bare_model = model, self.run.accelerator.unwrap_model(model)
        self.optimizer, self.schedule = optimizer, schedule
        self.strategy.bind(self)
        self.callbacks |= build_callbacks(self)
        self.stopper = Stopper(self, self.stop_signal, partial(self.save, now=True))
        self.observers = [each.watching(self) for each in self.observers]
        everyone = (*self.callbacks.values(), *self.observers)
        self._hear_steps = [each for each in everyone if type(each).after_step is not Callback.after_step]
        self.meter = ProgressMeter(self.run, self.state, self.phases)
        self.evaluator = Evaluator(self, self.pause)
        self.checkpointer = Checkpointer(self, self.stop_signal, self.background, engine_state, on_save)
        self.updates = UpdateGuard(self, self.checkpointer.join)
        self.restore()
        self._catch_up(evaluate or self.evaluate)
        self._evaluate_start()

    def restore(self) -> None:
        """Restores the run's checkpoint, if any, then begins to write into its folder, and starts the clock."""
        if self.run.resume is not None:
            self.checkpointer.restore(self.run.resume)
        self.state.left_out = sorted({*self.state.left_out, *self.run.attempt.skipped})
        on_main(self.run.accelerator, self._begin_files)
        self.phases.start()
        if self.state.best_step == self.state.step and self.run.cfg.checkpoint.load_best_model_at_end:
            self.save()  # unless this run has it: the checkpoint may be that of another one
        self.run.system.begin(RunFolder(self.run.output_dir).system(self.run.system.rank), lambda: self.state.step)
        self.meter.start()

    def _begin_files(self) -> None:
        """Starts writing to the run's folder; all checks must have passed, since it may hold a finished run."""
        self.tracker.connect()
        self.run.record(self.run)
        self.tracker.open()

    def _catch_up(self, evaluate: Callable[[], object]) -> None:
        """Evaluates the step of the checkpoint if a stop signal ended that, and saves it anew if that was due."""
        if not self.state.evaluation_is_due:
            return
        self.state.evaluation_is_due = False
        evaluate()
        if self.milestones.after(self.state.step).save:
            self.checkpointer.forget()
            self.save()

    def _evaluate_start(self) -> None:
        """Evaluates with `eval.eval_on_start` before the first step; callbacks do not hear of it, nor is it a best."""
        if not self.run.cfg.eval.eval_on_start or self.state.step > 0:
            return
        with self._stopping_if_abandoned():
            result = self.evaluator.evaluate("validation")
        if result is not None:
            self.state.start_scores = dict(result.metrics)
            self._log_scores(result.metrics)
            on_main(self.run.accelerator, self._keep, result.generated)

    def _keep(self, generated: Iterable[Record]) -> None:
        if lines := [json.dumps(record, ensure_ascii=False) + "\n" for record in generated]:
            write_text(RunFolder(self.run.output_dir).generated("start"), "".join(lines))

    def seek(self) -> None:
        """Moves the loader to the next step; a resumed run begins in the middle of an epoch."""
        self.sampler.seek(*divmod(self.state.step, self.milestones.steps_per_epoch))

    def windows(self) -> Iterator[list[Batch]]:
        """Yields this rank's windows from the next step to the end of its epoch; waiting for them counts as `fetch`."""
        self.seek()
        remaining = iter(Windows(self.loader, self.sampler))
        while True:
            with phase("fetch"):
                window = next(remaining, None)
            if window is None:
                return
            yield window

    def begin_window(self, window: Sequence[Batch]) -> float:
        """Starts a step on every rank: joins the others, counts items, returns the factor for this rank's losses."""
        run = self.run
        # Dropout depends only on (seed, step, data rank, context rank), so exact resume needs no stored random state.
        seed_all(run.cfg.seed, self.state.step, *run.mesh.random_key)
        self._own_items = sum(float(run.task.count_items(batch)) for batch in window)
        (items,) = data_sum(run.accelerator, run.mesh, self._own_items)
        own = *self.stopper.received(), float(self.updates.lost is not None), *self.checkpointer.flags()
        *stops, lost, failed, written = all_sum(run.accelerator, *own)
        self.beat()
        self.updates.agree_if(lost)
        self.checkpointer.join_if(failed, written)
        self.stopper.stop_if(stops)
        self.updates.begin()
        self.window, self._window_items = window, items
        return self.strategy.begin_step(self._own_items, items)

    def window_gradient(self, window: Sequence[Batch], scale: float) -> torch.Tensor:
        """Computes the gradient of a window with the factor of `begin_window`; returns this rank's summed loss."""
        loss_sum = self.strategy.window_gradient(window, scale)
        for callback in self.callbacks.values():
            callback.after_gradient()
        return loss_sum

    @in_phase("update")
    def check_update(self, grad_norm: float) -> None:
        """Decides about an update before it is applied. Raises RunError as `UpdateGuard.check`."""
        self.updates.check(grad_norm)
        self.checkpointer.wait_for_copy()  # also where no update follows: a strategy may change parameters after it
        if self.updates.skips:
            return
        for callback in self.callbacks.values():
            callback.before_update()
        if self.updates.lost is None:
            for observer in self.observers:
                observer.before_update()

    def count_step(self, loss_sum: torch.Tensor, grad_norm: float, learning_rate: float) -> None:
        """Ends a step whose gradient had this norm before clipping."""
        self.state.step += 1
        self.state.skipped_steps += self.run.accelerator.optimizer_step_was_skipped
        if not self.updates.skips:
            lost_items = None if self.updates.lost is None else self._own_items
            self.meter.add(loss_sum, self._window_items, grad_norm, learning_rate, lost_items)
        with phase("update"):
            self.strategy.after_update()
            self.updates.check_parameters()
            for callback in self.callbacks.values():
                callback.after_update()
        if not self._hear_steps:
            self._stop_clock()
            return
        # Reading the loss waits for the GPU to finish the update, so that it is part of the step's time.
        record = {"epoch": self.epoch, "loss_sum": float(loss_sum), "num_items": self._window_items}
        record["seconds"] = self._stop_clock()
        for each in self._hear_steps:
            each.after_step(record | self.meter.last_step)

    def _stop_clock(self) -> float:
        seconds = self.meter.stop()
        self._estimate.add(seconds)
        self.stopper.stepped(seconds)
        return seconds

    def after_step(self, due: Due) -> None:
        """Logs, evaluates and saves, in this order."""
        if due.log and self.state.num_items:
            self.log()
        if due.evaluate:
            self.evaluate()
        if due.save:
            self.save()
        self.meter.start()

    def shown(self) -> dict[str, str]:
        """Returns what the progress bar shows: loss, main metric, and the age of this session's last checkpoint."""
        saved_at = self.checkpointer.written_at
        age = {} if saved_at is None else {"saved": f"{format_duration(time.monotonic() - saved_at)} ago"}
        return {**self.tracker.shown, **age}

    @in_phase("log")
    def log(self) -> dict[str, Any]:
        """Writes and returns a line about the steps since the last line."""
        metrics = self.strategy.log_metrics() | self.updates.metrics()
        metrics |= load_metrics(self.run.accelerator, self.run.mesh, self.bare_model)
        for callback in self.callbacks.values():
            metrics |= callback.log_metrics()
        line = self.meter.line(self.epoch, metrics)
        self.tracker.log(line)
        return line

    def _log_scores(self, scores: Mapping[str, float], prefix: str = "eval") -> dict[str, float]:
        """Writes a line about the scores of a set, and returns them with their prefix."""
        metrics = {f"{prefix}_{name}": value for name, value in scores.items()}
        self.tracker.log({"step": self.state.step, "epoch": self.epoch, **metrics})
        return metrics

    def evaluate(self, tell: Callable[[dict[str, float]], None] = lambda metrics: None) -> dict[str, float]:
        """Evaluates on the validation rows, if any, tracks the best step and returns the metrics.

        `tell` tells the engine's own callbacks, before a checkpoint of the best step has their state.
        """
        with self._stopping_if_abandoned(due=True):
            result = self.evaluator.evaluate("validation")
        if result is None:
            return {}
        metrics = self._log_scores(result.metrics)
        if self.state.evaluated_step == self.state.step:  # resumed right after this evaluation, which counts already
            tell(metrics)
            return metrics
        self.state.evaluated_step = self.state.step
        is_best = self.evaluator.note_best(metrics)
        for callback in self.callbacks.values():
            callback.after_evaluation(metrics)
        tell(metrics)
        if is_best and self.run.cfg.checkpoint.load_best_model_at_end:
            self.save()
        for each in (*self.callbacks.values(), *self.observers):
            each.on_evaluated(metrics)
        return metrics

    def save(self, now: bool = False) -> None:
        """Writes a checkpoint of this step unless it exists; with `now`, it is complete at the end."""
        with phase("save"), self.stopper.saving():
            if not self.checkpointer.is_saved:
                self.meter.reduce()
                self.tracker.flush()
                self.pause()
                self.checkpointer.save(now)
            if now:
                self.checkpointer.join()

    def pause(self) -> None:
        """Synchronises the parameters of all ranks before they are read."""
        self.run.memory.pause()
        self.checkpointer.wait_for_copy()
        self.strategy.synchronize()

    def split(self, batch: Batch, size: int) -> Iterator[Batch]:
        """Splits a micro-batch of the current step; see `toolkit.api.strategy.Replica`."""
        run = self.run
        random = RowRandom(run.cfg.seed, self.state.step // self.milestones.steps_per_epoch)
        processor = padding_to(run.processor, run.cfg.train)
        return split_batch(run.data.train, run.task, processor, random, batch, size, self.sampler.order.budget)

    def beat(self) -> None:
        """Signals that this process is alive."""
        self.stop_signal.beat()

    def agree_on_lost(self) -> None:
        """Skips the last step on all ranks, or ends the run, if any rank has dropped its update."""
        self.updates.agree()

    def stop(self, reason: str) -> None:
        """Makes every rank save a checkpoint and stop before the next step."""
        say(f"stopping before the next step: {reason}")
        self.stop_signal.receive(signal.SIGTERM)

    def is_stopping(self) -> bool:
        """Whether a stop signal has arrived, so that an evaluation is abandoned."""
        return self.stopper.asked()

    @contextmanager
    def _stopping_if_abandoned(self, due: bool = False) -> Iterator[None]:
        """Saves and stops, on every rank, if the block's evaluation is abandoned; a resumed run repeats it if `due`."""
        try:
            yield
        except Abandoned:
            self.state.evaluation_is_due = due
            self.stopper.stop_now()
            raise

    def finish(self) -> FitResult:
        """Saves and evaluates the last step, restores the best parameters if configured, and returns the result."""
        run, state, checkpoint = self.run, self.state, self.run.cfg.checkpoint
        run.memory.pause()
        if state.num_items and self.meter.last_step:  # the run ended before its last milestone
            self.log()
        if self.milestones.save_every is not None:
            self.save()
        self.evaluate()
        self.stopper.stop_now()
        self.checkpointer.join()
        best_is_earlier = state.best_step not in (None, state.step)
        replaced = any(type(callback).finish is not Callback.finish for callback in self.callbacks.values())
        if checkpoint.load_best_model_at_end and best_is_earlier and self.checkpointer.load_best():
            self.evaluator.forget()
            replaced = True
        self.pause()
        self.stopper.can_save = self.checkpointer.is_saved or not replaced
        for callback in self.callbacks.values():
            callback.finish()
        require_finite(run.accelerator, self.strategy.own_parameters(), state.step)
        with self._stopping_if_abandoned():
            return self._result()

    def _result(self) -> FitResult:
        """Evaluates the final model on all sets and returns the result."""
        run, state = self.run, self.state
        evaluations = {name: found for name in run.data.evals if (found := self.evaluator.evaluate(name)) is not None}
        if test := evaluations.get("test"):
            self._log_scores(test.metrics, "test")
        further: dict[str, Any] = {**self.strategy.exchanged(), **self.updates.metrics()}
        further |= {f"start_{score.name}": value for score in overall_scores(run.task)
                    if (value := state.start_scores.get(score.name)) is not None}  # fmt: skip
        for callback in self.callbacks.values():
            further |= callback.final_metrics()
        if further:
            numbers = {name: value for name, value in further.items() if not isinstance(value, list)}
            self.tracker.log({"step": state.step, "epoch": self.epoch, **numbers})
        run.system.end()
        return FitResult(
            steps=state.step, train_loss=self.meter.train_loss, evaluations=evaluations, best=state.best_metric,
            best_step=state.best_step, train_seconds=self.meter.seconds, items_per_second=self.meter.items_per_second,
            memory=run.memory.use(self.bare_model, state_bytes(self.optimizer), self.checkpointer.copy_bytes),
            further=further, phases=self.phases.seconds(), costs=total_of(self).figures(run.cfg.tracking),
        )  # fmt: skip


def _note_long_rows(run: Run) -> None:
    """Says which rows are longer than a token budget."""
    budgets = [("train", run.cfg.train.max_tokens_per_batch, run.data.train)]
    budgets += [("eval", run.cfg.eval.max_tokens_per_batch, data.features) for data in run.data.evals.values()]
    for section, tokens, features in budgets:
        for note in over_budget(f"{section}.max_tokens_per_batch", tokens, features, run.task.unit):
            warn(note)
