"""The Accelerate loop: windows of micro-batches, one exact optimizer step each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import islice

import torch
from accelerate import Accelerator
from torch import nn

from toolkit.console import progress
from toolkit.data.batches import ended_workers, training_loader
from toolkit.distributed import StopSignal, sum_dtype
from toolkit.engine.run import FitResult, Plan, Run
from toolkit.engine.session import Session
from toolkit.optim.optimizers import build_optimizer
from toolkit.optim.schedules import build_schedule
from toolkit.task import Batch
from toolkit.tracking import Tracker


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

    with ended_workers(loader), StopSignal(accelerator.num_processes) as stop, Tracker(run, plan) as tracker:
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


def windows(batches: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    """Groups micro-batches into the windows of one step each; a whole window is fetched before it is trained on."""
    iterator = iter(batches)
    while window := list(islice(iterator, size)):
        yield window


def accumulate(
    accelerator: Accelerator,
    model: nn.Module,
    window: Sequence[Batch],
    scale: float,
    add_gradient: Callable[[Batch, float], torch.Tensor],
    beat: Callable[[], None],
) -> torch.Tensor:
    """Adds up the gradient of this rank's part of a window, from summed losses.

    Args:
        accelerator: the run's Accelerator.
        model: the prepared model; its gradients are zero.
        window: this rank's micro-batches.
        scale: what `Session.begin_window` returned.
        add_gradient: adds a micro-batch's part, given it and the scale, and returns its summed loss.
        beat: called after each micro-batch.

    Returns:
        This rank's summed loss, a detached scalar.
    """
    total = torch.zeros((), dtype=sum_dtype(accelerator.device), device=accelerator.device)
    for number, batch in enumerate(window, start=1):
        exchange = nullcontext() if number == len(window) else accelerator.no_sync(model)
        with exchange:
            total += add_gradient(batch, scale)
        beat()
    return total


def clip(accelerator: Accelerator, model: nn.Module, max_grad_norm: float) -> float:
    """Clips the gradient to a norm (0: leaves it) and returns its norm before that."""
    norm = accelerator.clip_grad_norm_(model.parameters(), max_grad_norm or float("inf"))
    return float(norm)
