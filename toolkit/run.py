"""Runs a training: claims the output folder, reads the inputs, builds the model, trains and reports."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.api.mesh import Mesh, mesh_of
from toolkit.api.run import ASYNC_SAVE, FIRST_TRY, FitResult, Retry, Run, best_metric
from toolkit.api.state import Milestones
from toolkit.api.task import Task
from toolkit.api.training import Callback
from toolkit.base.cli_errors import leave_group
from toolkit.base.console import quiet_libraries
from toolkit.base.processes import die_with_launcher
from toolkit.checkpoint.output_folder import claim
from toolkit.checkpoint.store import NOTHING
from toolkit.checkpoint.tensors import DamagedCheckpoint
from toolkit.checkpoint.writing import collected
from toolkit.checks.machine import warn_of_machine
from toolkit.checks.run import refuse_wrong_run, refuse_wrong_steps
from toolkit.config.sections import Config
from toolkit.data.batching.batches import training_order
from toolkit.distributed.collectives import on_main
from toolkit.distributed.launch import build_accelerator, own_process_state
from toolkit.distributed.non_finite import GoBack, NonFiniteParameters, after_non_finite
from toolkit.distributed.stop import DeferredStop
from toolkit.distributed.strategies import build_strategy
from toolkit.distributed.watchdog import heartbeat
from toolkit.engine import fit, import_all
from toolkit.models.build import build_for, in_float64, make_trainable
from toolkit.prepare.auto import saves_in_background
from toolkit.prepare.inputs import Inputs, read_inputs
from toolkit.report.facts import write_start
from toolkit.report.results import qualities, summary_figures, write_results
from toolkit.system.memory import MemoryWatch
from toolkit.system.watch import SystemWatch
from toolkit.tracking.tracker import RunTrackers

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel


def run(
    cfg: Config,
    task: Task,
    recipe: Path,
    observers: Sequence[Callback] = (),
    ends_process: bool = False,
    float64: bool = False,
) -> FitResult:
    """Trains, evaluates and reports.

    Args:
        cfg: resolved configuration.
        task: the recipe's task.
        recipe: the recipe's file, recorded so that `toolkit predict` can find it.
        observers: callbacks that see the training without changing it.
        ends_process: whether the process ends after this call. Other processes then leave the process group after
            training and only the main process writes the results; otherwise they wait for it.
        float64: whether to compute in float64, to compare runs more precisely than float32 allows.

    Returns:
        The result; its figures are the same on every process.

    Raises:
        ToolkitError: if the run cannot start or fails, with a message for the user and an exit code.
    """
    work = partial(fit_and_report, observers=observers, ends_process=ends_process)
    with fitted(cfg, partial(prepared_run, cfg, task, recipe, float64=float64), work) as (_, result):
        return result


@contextmanager
def fitted(
    cfg: Config, prepare: Callable[..., AbstractContextManager[Run]], work: Callable[[Run], FitResult]
) -> Iterator[tuple[Run, FitResult]]:
    """Prepares and trains a run, again if it has to go back to an earlier checkpoint, and keeps it open.

    Args:
        cfg: resolved configuration.
        prepare: `prepared_run` with all arguments but `skip` and `retry`.
        work: trains a prepared run.

    Yields:
        The run and its result.

    Raises:
        ToolkitError: if the run cannot start, fails or is stopped.
    """
    damaged, retry = dict[Path, str](), FIRST_TRY
    while True:
        try:
            with ExitStack() as attempt:
                found = _attempt(attempt, prepare(skip=damaged, retry=retry), work)
                kept = attempt.pop_all()
            break
        except (GoBack, NonFiniteParameters) as error:
            retry = after_non_finite(cfg.train, retry, error)
        except DamagedCheckpoint as error:  # found while loading: start over with the checkpoint before it
            if error.checkpoint.path in damaged:
                raise
            damaged[error.checkpoint.path] = error.problem
        gc.collect()  # free the model and optimizer of this attempt before building new ones
    with kept:
        yield found


def _attempt(
    stack: ExitStack, prepared: AbstractContextManager[Run], work: Callable[[Run], FitResult]
) -> tuple[Run, FitResult]:
    run = stack.enter_context(prepared)
    return run, work(run)


def fit_and_report(run: Run, observers: Sequence[Callback], ends_process: bool) -> FitResult:
    """Trains a prepared run and writes its results on the main process.

    Args:
        run: the prepared run.
        observers: as for `run`.
        ends_process: as for `run`.

    Returns:
        The result; its figures are the same on every process.

    Raises:
        ToolkitError: if the run fails or is stopped.
    """
    advice = "Finish it with checkpoint.resume=auto." if run.cfg.checkpoint.save_steps is not None else ""
    with DeferredStop(advice) as stop, closing(run.trackers):
        result = fit(run, observers)
        run = replace(run, model=run.strategy.complete_model(partial(collected, run.output_dir)))
        result = replace(result, quality=on_main(run.accelerator, qualities, run, result))
        result = replace(result, figures=on_main(run.accelerator, summary_figures, run, result))
        if not ends_process:
            on_main(run.accelerator, write_results, run, result, stop.model_is_kept)
        else:
            leave_group()
            if run.accelerator.is_main_process:
                write_results(run, result, stop.model_is_kept)
        return result


@contextmanager
def prepared_run(
    cfg: Config,
    task: Task,
    recipe: Path,
    skip: Mapping[Path, str] = NOTHING,
    float64: bool = False,
    retry: Retry = FIRST_TRY,
) -> Iterator[Run]:
    """Claims the output folder, reads the inputs and builds the model, in a process state of its own.

    Args:
        cfg: resolved configuration.
        task: the recipe's task.
        recipe: the recipe's file.
        skip: folders of damaged checkpoints, and the reasons.
        float64: whether to compute in float64.
        retry: what is known from before the run went back to a checkpoint.

    Yields:
        The run; its output folder is locked until the block ends.

    Raises:
        ToolkitError: if the run cannot start.
    """
    die_with_launcher()
    with own_process_state(), quiet_libraries():
        refuse_wrong_run(cfg, task)
        accelerator = build_accelerator(cfg)
        mesh = mesh_of(cfg.parallel, accelerator.num_processes, accelerator.process_index)
        warn_of_machine(cfg, accelerator.device)
        system = SystemWatch(cfg.tracking.system_interval, accelerator.process_index, accelerator.device)
        watched = heartbeat(accelerator, cfg.train.heartbeat_timeout, Path(cfg.output_dir))
        with watched, claim(cfg, accelerator, skip, again=retry.count > 0) as claimed, system:
            inputs = read_inputs(cfg, task, accelerator, claimed)
            milestones = Milestones.of(cfg, training_order(inputs.data.train, cfg, mesh).windows_per_epoch)
            refuse_wrong_steps(cfg, milestones, claimed.resume)
            import_all(cfg, inputs.model_config, inputs.auto_model)
            memory = MemoryWatch(accelerator.device)
            model = _trainable_model(cfg, inputs, mesh, accelerator, claimed.output_dir, float64)
            strategy = build_strategy(cfg, accelerator, mesh)
            run = Run(
                cfg=cfg, task=task, accelerator=accelerator, model=strategy.prepare(model), processor=inputs.processor,
                data=inputs.data, output_dir=claimed.output_dir, resume=claimed.resume, identity=inputs.identity,
                memory=memory, mesh=mesh, strategy=strategy, best=best_metric(cfg, task),
                system=system, retry=retry, resolved=inputs.resolved, trackers=RunTrackers(cfg, claimed.output_dir),
                record=partial(write_start, rows=inputs.rows, recipe=recipe, milestones=milestones),
            )  # fmt: skip
            yield replace(run, resolved={**run.resolved, ASYNC_SAVE: saves_in_background(run)})  # by the memory left


def _trainable_model(
    cfg: Config, inputs: Inputs, mesh: Mesh, accelerator: Accelerator, output_dir: Path, float64: bool
) -> PreTrainedModel:
    model = build_for(mesh, accelerator, cfg, inputs.model_config, inputs.auto_model)
    model = in_float64(model) if float64 else model
    return make_trainable(model, cfg, inputs.auto_model, accelerator, output_dir, inputs.resolved)
