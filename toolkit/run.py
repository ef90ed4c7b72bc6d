"""Runs a training: claims the output folder, reads the inputs, builds the model, trains and reports."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.api.mesh import Mesh
from toolkit.api.run import ASYNC_SAVE, FIRST_ATTEMPT, Attempt, FitResult, Run, best_metric
from toolkit.api.state import Milestones
from toolkit.api.task import Task
from toolkit.api.training import Callback
from toolkit.base.cli_errors import leave_group
from toolkit.base.console import quiet_libraries, warn
from toolkit.base.processes import die_with_launcher, train_on_without_output
from toolkit.checkpoint.output_folder import claim
from toolkit.checkpoint.tensors import DamagedCheckpoint
from toolkit.checkpoint.writing import collected
from toolkit.checks.machine import warn_of_machine
from toolkit.checks.run import check_run, check_steps
from toolkit.config.keys import flatten
from toolkit.config.sections import Config, TrainConfig
from toolkit.data.batching.batches import training_order
from toolkit.data.row_cache import code_fingerprint
from toolkit.distributed.collectives import on_main, require_same
from toolkit.distributed.launch import build_accelerator, own_process_state
from toolkit.distributed.stop import DeferredStop
from toolkit.distributed.strategies import build_strategy
from toolkit.distributed.watchdog import heartbeat
from toolkit.engine import fit, import_all
from toolkit.engine.initial import weights_digest, with_initial
from toolkit.engine.non_finite import GoBack, NonFiniteParameters
from toolkit.models.adapters import warn_of_untrained
from toolkit.models.build import build_for, in_float64, make_trainable
from toolkit.models.load import with_generation
from toolkit.models.parts import freeze_modules
from toolkit.prepare.auto import saves_in_background
from toolkit.prepare.inputs import Inputs, read_inputs
from toolkit.report.facts import write_start
from toolkit.report.results import qualities, summary_figures, write_results
from toolkit.system.environment import versions
from toolkit.system.memory import MemoryWatch
from toolkit.system.watch import SystemWatch
from toolkit.tracking.tracker import RunTrackers

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel


PLACES = (
    "output_dir", "offline_dir", "data.train_file", "data.validation_file", "data.test_file", "data.media_cache",
    "data.stage_to",
)  # fmt: skip
"""Settings that may differ between nodes: `claim` looks for the same folder, and `prepare` compares the rows."""


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
    with trained_run(cfg, task, recipe, work, float64=float64) as (_, result):
        return result


@contextmanager
def trained_run(
    cfg: Config,
    task: Task,
    recipe: Path,
    work: Callable[[Run], FitResult],
    change: Callable[[Run], Run] = lambda run: run,
    float64: bool = False,
) -> Iterator[tuple[Run, FitResult]]:
    """Prepares and trains a run, again after a damaged checkpoint or a rollback, and keeps it open.

    `work` trains a prepared run, and `change` returns the run to train in its place; other arguments and errors as for
    `run`.

    Yields:
        The run and its result.
    """
    attempt, is_trained = FIRST_ATTEMPT, False
    while True:
        try:
            with _attempted(prepared_run(cfg, task, recipe, attempt, float64), change, work) as found:
                is_trained = True
                yield found
            return
        except (DamagedCheckpoint, GoBack, NonFiniteParameters) as error:
            if is_trained:  # raised by the block of the caller
                raise
            attempt = next_attempt(attempt, error, cfg.train)
        gc.collect()  # frees the model and the optimizer of this attempt, which `error` held, before the next one


@contextmanager
def _attempted(
    prepared: AbstractContextManager[Run], change: Callable[[Run], Run], work: Callable[[Run], FitResult]
) -> Iterator[tuple[Run, FitResult]]:
    """Trains a run once; a function of its own, so that nothing keeps the run of a failed attempt in memory."""
    with prepared as run:
        run = change(run)
        yield run, work(run)


def next_attempt(
    attempt: Attempt, error: DamagedCheckpoint | GoBack | NonFiniteParameters, train: TrainConfig
) -> Attempt:
    """Returns what the next attempt at a run knows, or raises the error if there is none."""
    if isinstance(error, DamagedCheckpoint):  # found while loading: start over with the checkpoint before it
        path = error.checkpoint.path
        if path in attempt.damaged:
            raise error
        return replace(attempt, damaged={**attempt.damaged, path: error.problem})
    rollbacks = attempt.rollbacks + 1
    if isinstance(error, GoBack):
        warn("the run goes back to its newest checkpoint")
        return replace(attempt, skipped=(*attempt.skipped, error.window), suspect_step=0, rollbacks=rollbacks)
    # Each window can take two attempts: one to find the update that breaks the parameters, one without it.
    if train.non_finite != "rollback" or rollbacks > 2 * train.max_non_finite_steps:
        raise error
    warn(f"{error.what}; the run goes back to its newest checkpoint to find the update that broke it")
    return replace(attempt, suspect_step=error.step, rollbacks=rollbacks)


def fit_and_report(run: Run, observers: Sequence[Callback], ends_process: bool) -> FitResult:
    """Trains a prepared run and writes its results on the main process; arguments, result and errors as for `run`."""
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
    cfg: Config, task: Task, recipe: Path, attempt: Attempt = FIRST_ATTEMPT, float64: bool = False
) -> Iterator[Run]:
    """Claims the output folder, reads the inputs and builds the model, in a process state of its own.

    `attempt` is what earlier attempts found out; other arguments and errors as for `run`.

    Yields:
        The run; its output folder is locked until the block ends.
    """
    die_with_launcher()
    train_on_without_output()
    with own_process_state(), quiet_libraries():
        check_run(cfg, task)
        accelerator = build_accelerator(cfg)
        require_same(accelerator, _deciding(cfg, task))
        mesh = Mesh.of(cfg.parallel, accelerator.num_processes, accelerator.process_index)
        warn_of_machine(cfg, mesh, accelerator.device)
        system = SystemWatch(cfg.tracking.system_interval, accelerator.process_index, accelerator.device)
        watched = heartbeat(accelerator, cfg.train.heartbeat_timeout, Path(cfg.output_dir))
        with watched, claim(cfg, accelerator, attempt.damaged, again=attempt.rollbacks > 0) as claimed, system:
            inputs = read_inputs(cfg, task, accelerator, claimed)
            milestones = Milestones.of(cfg, training_order(inputs.data.train, cfg, mesh).windows_per_epoch)
            check_steps(cfg, milestones, claimed.resume)
            import_all(cfg, inputs.model_config, inputs.auto_model)
            memory = MemoryWatch(accelerator.device)
            model = _trainable_model(cfg, task, inputs, mesh, accelerator, claimed.output_dir, float64)
            weights = on_main(accelerator, weights_digest, model) if task.initial else ""
            strategy = build_strategy(cfg, accelerator, mesh)
            run = Run(
                cfg=cfg, task=task, accelerator=accelerator, model=strategy.prepare(model), processor=inputs.processor,
                data=inputs.data, output_dir=claimed.output_dir, resume=claimed.resume, identity=inputs.identity,
                memory=memory, mesh=mesh, strategy=strategy, best=best_metric(cfg, task),
                system=system, attempt=attempt, resolved=inputs.resolved, trackers=RunTrackers(cfg, claimed.output_dir),
                record=partial(write_start, rows=inputs.rows, recipe=recipe, milestones=milestones),
            )  # fmt: skip
            run = with_initial(run, weights)
            yield replace(run, resolved={**run.resolved, ASYNC_SAVE: saves_in_background(run)})  # by the memory left


def _deciding(cfg: Config, task: Task) -> Mapping[str, str]:
    """Returns what decides the numbers of a run and each process reads for itself, by dotted key."""
    code = {"code of toolkit and recipe (sha256)": code_fingerprint(task), **versions()}
    return {key: str(value) for key, value in (flatten(cfg) | code).items() if key not in PLACES}


def _trainable_model(
    cfg: Config, task: Task, inputs: Inputs, mesh: Mesh, accelerator: Accelerator, output_dir: Path, float64: bool
) -> PreTrainedModel:
    further = task.pretrained_options(inputs.model_config, inputs.processor)
    model = build_for(mesh, accelerator, cfg, inputs.model_config, inputs.auto_model, further)
    model = with_generation(model, task.generation_fields(model, inputs.processor))
    freeze_modules(model, task.unread)
    model = in_float64(model) if float64 else model
    warn_of_untrained(model, inputs.processor, cfg.model.peft)
    return make_trainable(model, cfg, inputs.auto_model, accelerator, output_dir, inputs.resolved)
