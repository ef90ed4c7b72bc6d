"""The Accelerate loop: windows of micro-batches, one exact optimizer step each."""

from __future__ import annotations

from toolkit.api.run import FitResult, Run
from toolkit.base.console import progress
from toolkit.data.batches import ended_workers, training_loader
from toolkit.distributed.signals import StopSignal
from toolkit.engine.milestones import Plan, tracker_of
from toolkit.engine.session import Session
from toolkit.engine.step import accumulate, clip, windows
from toolkit.optim.optimizers import build_optimizer
from toolkit.optim.schedules import build_schedule


def fit(run: Run) -> FitResult:
    """Trains a run to its end.

    Raises:
        RunError: before a non-finite update.
        Interrupted: after SIGTERM, once a checkpoint is written.
    """
    accelerator, train = run.accelerator, run.cfg.train
    place = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
    loader, sampler = training_loader(run.data.train, run.task, run.processor, run.cfg, **place)
    plan = Plan.of(run.cfg, sampler.order.windows_per_epoch)
    optimizer = build_optimizer(run.model, train)
    schedule = build_schedule(optimizer, train, plan.total_steps)
    model, optimizer = accelerator.prepare(run.model, optimizer)
    accumulation = train.gradient_accumulation_steps or 1

    with ended_workers(loader), StopSignal(accelerator.num_processes) as stop, tracker_of(run) as tracker:
        session = Session(run, model, optimizer, schedule, plan, tracker, stop)
        session.restore()
        model.train()
        with progress(plan.total_steps, "train", initial=session.state.step) as bar:
            while not session.over:
                sampler.seek(*divmod(session.state.step, plan.steps_per_epoch))
                for window in windows(loader, accumulation):
                    learning_rate = float(schedule.get_last_lr()[0])
                    scale = session.begin_window(window)
                    loss_sum = accumulate(accelerator, model, window, scale, session.add_gradient, stop.beat)
                    session.strategy.exchange()
                    grad_norm = clip(accelerator, model, train.max_grad_norm)
                    session.check_update(grad_norm, window)
                    optimizer.step()
                    if not accelerator.optimizer_step_was_skipped:
                        schedule.step()
                    optimizer.zero_grad()
                    session.count_step(loss_sum, grad_norm, learning_rate)
                    session.after_step(plan.after(session.state.step))
                    bar.set_postfix(tracker.shown, refresh=False)
                    bar.update()
                    if session.over:
                        break
        return session.finish()
