"""Engine `loop`: the training loop on Accelerate, with one optimizer step per window of micro-batches."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.api.run import FitResult, Run
from toolkit.api.training import Callback
from toolkit.base.console import progress
from toolkit.engine.training import Session
from toolkit.optim.optimizers import build_optimizer
from toolkit.optim.schedules import build_schedule, in_steps
from toolkit.optim.state import unwrapped
from toolkit.system.phases import phase


def fit(run: Run, observers: Sequence[Callback] = ()) -> FitResult:
    """Trains a run to its end; see `toolkit.engine.fit`."""
    accelerator, strategy, train = run.accelerator, run.strategy, run.cfg.train
    with Session.opened(run, observers) as session:
        milestones = session.milestones
        optimizer = build_optimizer(run.model, train, strategy.outline)
        strategy.prepare_optimizer(optimizer)
        schedule = build_schedule(optimizer, in_steps(train, milestones.steps_per_epoch), milestones.total_steps)
        model, optimizer = accelerator.prepare(run.model, optimizer)
        session.start(model, optimizer, schedule)
        model.train()
        with progress(milestones.total_steps, "train", initial=session.state.step) as bar:
            while not session.over:
                for window in session.windows():
                    learning_rate = float(schedule.get_last_lr()[0])
                    scale = session.begin_window(window)
                    loss_sum = session.window_gradient(window, scale)
                    with phase("clip"):
                        grad_norm = strategy.clip(train.max_grad_norm)
                    session.check_update(grad_norm)
                    with phase("update"):
                        optimizer.step()  # does nothing if `check_update` has decided to skip this window
                        if not accelerator.optimizer_step_was_skipped:
                            schedule.step()
                        unwrapped(optimizer).zero_grad()  # accelerate's inspects its signature in each step
                    session.count_step(loss_sum, grad_norm, learning_rate)
                    session.after_step(milestones.after(session.state.step))
                    bar.set_postfix(session.shown(), refresh=False)
                    bar.update()
                    if session.over:
                        break
        return session.finish()
