"""Engine `loop`: the training loop on Accelerate, with one optimizer step per window of micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from toolkit.api.batch import Batch
from toolkit.api.run import FitResult, Run
from toolkit.api.training import Callback
from toolkit.base.console import progress
from toolkit.data.batching.batches import Windows
from toolkit.engine.training import Session, evaluate_start, finish, opened
from toolkit.optim.optimizers import build_optimizer
from toolkit.optim.schedules import build_schedule, in_steps
from toolkit.system.phases import phase


def fit(run: Run, observers: Sequence[Callback] = ()) -> FitResult:
    """Trains a run to its end; see `toolkit.engine.fit`."""
    accelerator, strategy, train = run.accelerator, run.strategy, run.cfg.train
    with opened(run) as setup:
        milestones = setup.milestones
        optimizer = build_optimizer(run.model, train, strategy.outline)
        strategy.prepare_optimizer(optimizer)
        lengths = in_steps(train, milestones.steps_per_epoch)
        schedule = build_schedule(optimizer, lengths, milestones.total_steps)
        model, optimizer = accelerator.prepare(run.model, optimizer)
        session = Session(run, model, optimizer, schedule, setup, observers=observers)
        session.restore()
        session.catch_up(session.evaluate)
        evaluate_start(session)
        model.train()
        with progress(milestones.total_steps, "train", initial=session.state.step) as bar:
            while not session.context.over:
                # In every epoch: a resumed run has the step of its checkpoint here, and begins in the middle of one.
                setup.sampler.seek(*divmod(session.state.step, milestones.steps_per_epoch))
                for window in _fetched(setup.windows):
                    learning_rate = float(schedule.get_last_lr()[0])
                    scale = session.begin_window(window)
                    loss_sum = session.window_gradient(window, scale)
                    with phase("clip"):
                        grad_norm = strategy.clip(train.max_grad_norm)
                    session.check_update(grad_norm, window)
                    with phase("update"):
                        optimizer.step()  # does nothing if `check_update` has decided to leave this window out
                        if not accelerator.optimizer_step_was_skipped:
                            schedule.step()
                        optimizer.zero_grad()
                    session.count_step(loss_sum, grad_norm, learning_rate)
                    session.after_step(milestones.after(session.state.step))
                    bar.set_postfix(session.shown(), refresh=False)
                    bar.update()
                    if session.context.over:
                        break
        return finish(session)


def _fetched(windows: Windows) -> Iterator[list[Batch]]:
    """Yields windows; the time until each is there counts as that of fetching."""
    remaining = iter(windows)
    while True:
        with phase("fetch"):
            window = next(remaining, None)
        if window is None:
            return
        yield window
