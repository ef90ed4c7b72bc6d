"""One training from its start or checkpoint to its result: its resources, and the order of all hooks around a step."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from toolkit.api.batch import Batch
from toolkit.api.run import FitResult, Run, overall_scores
from toolkit.api.state import Due, Milestones, TrainState
from toolkit.api.strategy import Replica
from toolkit.api.training import Callback, TrainingContext
from toolkit.base.console import format_duration, warn
from toolkit.base.run_folder import RunFolder
from toolkit.checkpoint.state import SavedState
from toolkit.data.batching.batches import Windows, training_loader
from toolkit.data.batching.budget import over_budget
from toolkit.data.batching.order import WindowSampler
from toolkit.data.batching.workers import WatchedLoader, ended_workers, num_workers
from toolkit.distributed.collectives import all_sum, data_sum, on_main
from toolkit.distributed.non_finite import refuse_non_finite
from toolkit.distributed.stop import StopSignal
from toolkit.distributed.window import seed_all
from toolkit.engine.callbacks import build_callbacks
from toolkit.engine.callbacks.costs import total_of
from toolkit.engine.checkpointing import BackgroundSave, Checkpointer, refuse_full_disk
from toolkit.engine.evaluation import Evaluator
from toolkit.engine.meter import ProgressMeter, TimeEstimate
from toolkit.engine.micro_batches import packs_tokens, splitter, training_processor
from toolkit.engine.non_finite import UpdateGuard
from toolkit.engine.stopping import Abandoned, Stopper
from toolkit.optim.state import state_bytes
from toolkit.system.phases import PhaseClock, in_phase, phase, timed_phases
from toolkit.tracking.tracker import Tracker

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR


@dataclass(frozen=True)
class Setup:
    """Resources of one training.

    Args:
        loader: this rank's micro-batches.
        windows: the same, grouped into windows.
        sampler: determines where the loader starts.
        milestones: steps at which to log, evaluate, save and end.
        tracker: receives the metrics.
        stop: the flag that a stop signal sets.
        background: writes checkpoints while training goes on.
        phases: receives the seconds of each phase.
    """

    loader: WatchedLoader
    windows: Windows
    sampler: WindowSampler
    milestones: Milestones
    tracker: Tracker
    stop: StopSignal
    background: BackgroundSave
    phases: PhaseClock


@contextmanager
def opened(run: Run) -> Iterator[Setup]:
    """Opens the resources of a run's training and closes them when the block ends.

    Raises:
        CheckpointError: if the run does not fit on the disk.
    """
    workers = num_workers(run.cfg.train, run.task, run.accelerator.device)
    loader, sampler = training_loader(
        run.data.train, run.task, training_processor(run), run.cfg, run.mesh, workers, run.data.kept, packs_tokens(run)
    )
    _note_long_rows(run)
    milestones = Milestones.of(run.cfg, sampler.order.windows_per_epoch)
    on_main(run.accelerator, refuse_full_disk, run, milestones)
    start_step, mark = (run.resume.step, SavedState.from_json(run.resume.state).metrics) if run.resume else (0, None)
    metrics = RunFolder(run.output_dir).metrics
    with (
        ended_workers(loader),
        StopSignal(run.accelerator.num_processes) as stop,
        Tracker(run.accelerator, run.cfg, metrics, start_step, (run.best.name,), mark, run.trackers) as tracker,
        BackgroundSave(run.accelerator.num_processes) as background,
        timed_phases() as phases,
    ):
        yield Setup(loader, Windows(loader, sampler), sampler, milestones, tracker, stop, background, phases)


def _note_long_rows(run: Run) -> None:
    """Says which rows are longer than a token budget."""
    budgets = [("train", run.cfg.train.max_tokens_per_batch, run.data.train)]
    budgets += [("eval", run.cfg.eval.max_tokens_per_batch, data.features) for data in run.data.evals.values()]
    for section, tokens, features in budgets:
        for note in over_budget(f"{section}.max_tokens_per_batch", tokens, features, run.task.modality):
            warn(note)


class Session:
    """One training of a run from its start or checkpoint to its end; defines the order of all hooks.

    Args:
        run: the run.
        model: the prepared model.
        optimizer: the prepared optimizer.
        schedule: the learning-rate schedule, not prepared.
        setup: when it logs, evaluates, saves and ends, its tracker, stop signals and clocks.
        engine_state: returns the engine's own JSON-able state for checkpoints, by name.
        on_save: called after each checkpoint has been written.
        observers: callbacks that were made before the run.
    """

    def __init__(
        self,
        run: Run,
        model: nn.Module,
        optimizer: Optimizer,
        schedule: LambdaLR,
        setup: Setup,
        engine_state: Callable[[], dict[str, Any]] = dict,
        on_save: Callable[[], None] = lambda: None,
        observers: Sequence[Callback] = (),
    ) -> None:
        self.run, self.strategy, self.tracker, self.stop = run, run.strategy, setup.tracker, setup.stop
        self.state = TrainState()
        bare_model: nn.Module = run.accelerator.unwrap_model(model)
        milestones, beat = setup.milestones, setup.stop.beat
        split = splitter(run, self.state, milestones)
        self.strategy.attach(Replica(run.task, model, bare_model, optimizer, self.state, split, beat))
        self.context = TrainingContext(run, model, bare_model, optimizer, schedule, milestones, self.state, beat=beat)
        self.context.callbacks |= build_callbacks(self.context)
        self.callbacks = list(self.context.callbacks.values())
        self.stops = Stopper(self.context, setup.stop, partial(self.save, now=True))
        self.context.is_stopping = self.stops.asked
        self.context.request_stop = partial(setup.stop.receive, signal.SIGTERM)
        self.observers = [each.watching(self.context) for each in observers]
        self.meter = ProgressMeter(run, self.state, setup.phases)
        self.evaluator = Evaluator(self.context, self.pause)
        self.checkpointer = Checkpointer(self.context, setup.stop, setup.background, engine_state, on_save)
        self.updates = UpdateGuard(self.context, self.checkpointer.join)
        self._own_items = self._window_items = 0.0
        self._estimate = TimeEstimate(milestones.total_steps - (run.resume.step if run.resume else 0))

    def restore(self) -> None:
        """Restores the run's checkpoint, if any, then begins to write into its folder, and starts the clock.

        Raises:
            CheckpointError: if the checkpoint does not match the model or the optimizer; no file has changed.
            DamagedCheckpoint: on every rank, if any rank found a damaged file; no file has changed.
            RunError: on every rank, if a tracker cannot be started, or a file cannot be written.
        """
        if self.run.resume is not None:
            self.checkpointer.restore(self.run.resume)
        self.state.left_out = sorted({*self.state.left_out, *self.run.retry.left_out})
        on_main(self.run.accelerator, self._begin_files)
        self.meter.phases.start()
        if self.state.best_step == self.state.step and self.run.cfg.checkpoint.load_best_model_at_end:
            self.save()  # unless this run has it: the checkpoint may be that of another one
        self.run.system.begin(RunFolder(self.run.output_dir).system(self.run.system.rank), lambda: self.state.step)
        self.meter.start()

    def _begin_files(self) -> None:
        """Changes the files of the run, which may be a finished one: nothing can refuse to go on with it any more."""
        self.tracker.connect()
        self.run.record(self.run)
        self.tracker.open()

    def begin_window(self, batches: Sequence[Batch]) -> float:
        """Starts a step: seeds its random numbers, counts its items, and stops if any rank received a stop signal.

        Args:
            batches: this rank's micro-batches of the window, on the CPU.

        Returns:
            The factor for this rank's summed losses, so that the gradients of all ranks combine to that of the step.

        Raises:
            Interrupted: on every rank, after saving, if any rank received a stop signal.
            RunError: on every rank, if any rank lost its last update and the run may not go on, or could not write its
                part of a checkpoint.
        """
        run = self.run
        # Dropout depends only on (seed, step, data rank), so exact resume needs no stored random state.
        seed_all(run.cfg.seed, self.state.step, run.mesh.data_rank)
        self._own_items = sum(float(run.task.count_items(batch)) for batch in batches)
        (items,) = data_sum(run.accelerator, run.mesh, self._own_items)
        own = *self.stops.received(), float(self.strategy.lost is not None), *self.checkpointer.flags()
        *stops, lost, failed, written = all_sum(run.accelerator, *own)
        self.stop.beat()
        if lost:
            self.strategy.agree_on_lost()
        self.checkpointer.heed(failed, written)
        self.stops.stop_if(stops)
        self.updates.begin()
        self.context.window, self._window_items = batches, items
        return self.strategy.begin_step(self._own_items, items)

    def window_gradient(self, batches: Sequence[Batch], scale: float) -> torch.Tensor:
        """Computes the gradient of a window.

        Args:
            batches: this rank's micro-batches of the window.
            scale: the factor that `begin_window` returned.

        Returns:
            This rank's summed loss, a detached scalar.
        """
        loss_sum = self.strategy.window_gradient(batches, scale)
        for callback in self.callbacks:
            callback.after_gradient()
        return loss_sum

    @in_phase("update")
    def check_update(self, grad_norm: float, batches: Sequence[Batch]) -> None:
        """Decides about an update before it is applied.

        Args:
            grad_norm: norm of the exchanged gradient, before clipping.
            batches: this rank's micro-batches of the window.

        Raises:
            RunError: as `UpdateGuard.check`.
        """
        self.updates.check(grad_norm, batches)
        self.checkpointer.wait_for_copy()  # also where no update follows: a strategy may change parameters after it
        if self.updates.leaves_out:
            return
        for callback in self.callbacks:
            callback.before_update()
        if self.strategy.lost is None:
            for observer in self.observers:
                observer.before_update()

    def count_step(self, loss_sum: torch.Tensor, grad_norm: float, learning_rate: float) -> None:
        """Ends a step.

        Args:
            loss_sum: this rank's summed loss over the window, a scalar tensor.
            grad_norm: norm of the gradient before clipping.
            learning_rate: learning rate of this step.
        """
        self.state.step += 1
        self.state.skipped_steps += self.run.accelerator.optimizer_step_was_skipped
        if not self.updates.leaves_out:
            lost_items = None if self.strategy.lost is None else self._own_items
            self.meter.add(loss_sum, self._window_items, grad_norm, learning_rate, lost_items)
        with phase("update"):
            self.strategy.after_update()
            self.updates.check_parameters(self.context.window)
            for callback in self.callbacks:
                callback.after_update()
        listening = [
            each for each in (*self.callbacks, *self.observers) if type(each).after_step is not Callback.after_step
        ]
        if not listening:
            self._stop_clock()
            return
        # Reading the loss waits for the GPU to finish the update, so that it is part of the step's time.
        record = {"epoch": self.context.epoch, "loss_sum": float(loss_sum), "num_items": self._window_items}
        record["seconds"] = self._stop_clock()
        for each in listening:
            each.after_step(record | self.meter.last_step)

    def _stop_clock(self) -> float:
        seconds = self.meter.stop()
        self._estimate.add(seconds)
        self.stops.stepped(seconds)
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
        for callback in self.callbacks:
            metrics |= callback.log_metrics()
        line = self.meter.line(self.context.epoch, metrics)
        self.tracker.log(line)
        return line

    def evaluate(self, tell: Callable[[dict[str, float]], None] = lambda metrics: None) -> dict[str, float]:
        """Evaluates on the validation rows, if any, tracks the best step and returns the metrics.

        Args:
            tell: tells the engine's own callbacks of the metrics, before a checkpoint of the best step has their state.
        """
        with self.abandoned_if_stopped(due=True):
            result = self.evaluator.evaluate("validation")
        if result is None:
            return {}
        metrics = {f"eval_{name}": value for name, value in result.metrics.items()}
        self.tracker.log({"step": self.state.step, "epoch": self.context.epoch, **metrics})
        if self.state.evaluated_step == self.state.step:  # resumed right after this evaluation, which counts already
            tell(metrics)
            return metrics
        self.state.evaluated_step = self.state.step
        is_best = self.evaluator.note_best(metrics)
        for callback in self.callbacks:
            callback.after_evaluation(metrics)
        tell(metrics)
        if is_best and self.run.cfg.checkpoint.load_best_model_at_end:
            self.save()
        for each in (*self.callbacks, *self.observers):
            each.on_evaluated(metrics)
        return metrics

    def save(self, now: bool = False) -> None:
        """Writes a checkpoint of this step unless it exists; with `now`, it is complete at the end."""
        with phase("save"), self.stops.saving():
            if not self.checkpointer.is_saved:
                self.meter.reduce()
                self.tracker.flush()
                self.pause()
                self.checkpointer.save(now)
            if now:
                self.checkpointer.join()

    def catch_up(self, evaluate: Callable[[], object]) -> None:
        """Evaluates the step of the checkpoint if a stop signal has ended that, and saves it anew if that was due.

        Args:
            evaluate: the engine's evaluation.
        """
        if not self.state.evaluation_is_due:
            return
        self.state.evaluation_is_due = False
        evaluate()
        if self.context.milestones.after(self.state.step).save:
            self.checkpointer.forget()
            self.save()

    @contextmanager
    def abandoned_if_stopped(self, due: bool = False) -> Iterator[None]:
        """Saves and stops, on every rank, if an evaluation inside the block is abandoned.

        Args:
            due: whether a resumed run repeats it before anything else.
        """
        try:
            yield
        except Abandoned:
            self.state.evaluation_is_due = due
            self.stops.stop_now()
            raise

    def pause(self) -> None:
        """Synchronises the parameters of all ranks before they are read."""
        self.run.memory.pause()
        self.checkpointer.wait_for_copy()
        self.strategy.settle()


def outcome(
    context: TrainingContext,
    evaluator: Evaluator,
    meter: ProgressMeter,
    tracker: Tracker,
    copy_bytes: int,
    left_out: Mapping[str, float],
) -> FitResult:
    """Evaluates the final model and returns the result. Every rank must call it.

    Args:
        context: the training, which is over.
        evaluator: evaluates all evaluation sets.
        meter: its sums of losses and times.
        tracker: receives the metrics of the test rows, and the figures of the strategy and the callbacks.
        copy_bytes: memory of the copy of a checkpoint.
        left_out: figures of the updates that were left out.
    """
    run, state = context.run, context.state
    place = {"step": state.step, "epoch": context.epoch}
    evaluations = {name: found for name in run.data.evals if (found := evaluator.evaluate(name)) is not None}
    if test := evaluations.get("test"):
        tracker.log(place | {f"test_{name}": value for name, value in test.metrics.items()})
    further = {**run.strategy.exchanged(), **left_out}
    further |= {f"start_{score.name}": value for score in overall_scores(run.task)
                if (value := state.start_scores.get(score.name)) is not None}  # fmt: skip
    for callback in context.callbacks.values():
        further |= callback.final_metrics()
    if further:
        tracker.log(place | further)
    run.system.end()
    return FitResult(
        steps=state.step,
        train_loss=meter.train_loss,
        evaluations=evaluations,
        best=state.best_metric,
        best_step=state.best_step,
        train_seconds=meter.seconds,
        items_per_second=meter.items_per_second,
        memory=run.memory.use(context.bare_model, state_bytes(context.optimizer), copy_bytes),
        further=further,
        phases=meter.phases.seconds(),
        costs=total_of(context).figures(run.cfg.tracking),
    )


def finish(session: Session) -> FitResult:
    """Saves and evaluates the last step, and restores the best parameters if configured."""
    run, state, checkpoint = session.run, session.state, session.run.cfg.checkpoint
    run.memory.pause()
    if state.num_items and session.meter.last_step:  # the run ended before its last milestone
        session.log()
    if session.context.milestones.save_every is not None:
        session.save()
    session.evaluate()
    session.stops.stop_now()
    session.checkpointer.join()
    best_is_earlier = state.best_step not in (None, state.step)
    replaced = any(type(callback).finish is not Callback.finish for callback in session.callbacks)
    if checkpoint.load_best_model_at_end and best_is_earlier and session.checkpointer.load_best():
        session.evaluator.forget()
        replaced = True
    session.pause()
    session.stops.can_save = session.checkpointer.is_saved or not replaced
    for callback in session.callbacks:
        callback.finish()
    refuse_non_finite(run.accelerator, session.strategy.own_parameters(), state.step)
    with session.abandoned_if_stopped():
        copy_bytes, left_out = session.checkpointer.copy_bytes, session.updates.metrics()
        return outcome(session.context, session.evaluator, session.meter, session.tracker, copy_bytes, left_out)


def evaluate_start(session: Session) -> None:
    """Evaluates the validation rows with `eval.eval_on_start`, unless the run goes on from a later step.

    No callback hears of it, and it selects no best model. Every rank must call it.

    Raises:
        Interrupted: on every rank, if any rank received a stop signal; the next session evaluates again.
    """
    state = session.state
    if not session.run.cfg.eval.eval_on_start or state.step > 0:
        return
    with session.abandoned_if_stopped():
        result = session.evaluator.evaluate("validation")
    if result is not None:
        state.start_scores = dict(result.metrics)
        scores = {f"eval_{name}": value for name, value in result.metrics.items()}
        session.tracker.log({"step": 0, "epoch": 0.0, **scores})
