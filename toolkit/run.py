"""A run as one story: claim the folder, read the rows, build the model, train it, write down what came out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit import modalities
from toolkit.api.run import FitResult, Observer, Run, best_metric
from toolkit.api.task import Task
from toolkit.base.console import quiet_libraries, say, warn
from toolkit.base.errors import ConfigError
from toolkit.base.exits import leave_group
from toolkit.base.memory import MemoryWatch
from toolkit.base.processes import die_with_launcher
from toolkit.checkpoint.lock import OutputLock, probe
from toolkit.checkpoint.resume import decide_resume, refuse_changes
from toolkit.checks.machine import machine_notes
from toolkit.checks.run import check_run
from toolkit.config.sections import Config
from toolkit.data.prepare import load_rows, prepare
from toolkit.distributed.collectives import on_main
from toolkit.distributed.launch import build_accelerator
from toolkit.distributed.main_alone import main_alone
from toolkit.distributed.mesh import mesh_of
from toolkit.distributed.process_state import own_process_state
from toolkit.distributed.signals import STOP_DEADLINE_SECONDS
from toolkit.distributed.strategies import build_strategy
from toolkit.engine import fit
from toolkit.engine.warm_up import import_all
from toolkit.modalities.processor import build_processor, configure_model
from toolkit.models.activations import spare_activations
from toolkit.models.adapter_checks import check_prompts, check_room
from toolkit.models.compilation import compile_training
from toolkit.models.load import (
    batch_dependence,
    build_model,
    check_head,
    load_model_config,
    refuse_lost_overrides,
    refuse_unused_parameters,
)
from toolkit.models.trainable import make_trainable
from toolkit.report.facts import identity, write_start
from toolkit.report.results import summary_figures, write_results
from toolkit.tracking.jsonl import bring_metrics

if TYPE_CHECKING:
    from accelerate import Accelerator

    from toolkit.api.run import Checkpoint


def run(
    cfg: Config, task: Task, recipe: Path, observer: Observer | None = None, ends_process: bool = False
) -> FitResult:
    """Trains, evaluates and reports.

    Args:
        cfg: resolved configuration.
        task: the recipe's task.
        recipe: the recipe's file, written down so that `toolkit predict` finds it again.
        observer: looks on, or None.
        ends_process: whether the process does nothing after this. Its part in the process group then ends with
            training, and only the main process stays to write the results; otherwise the others wait for it.

    Returns:
        The result, its figures the same on every process.

    Raises:
        ToolkitError: with a message for people, and the exit code to end with.
    """
    with own_process_state(), prepared_run(cfg, task, recipe, observer) as job:
        result = fit(job)
        result = replace(result, figures=on_main(job.accelerator, summary_figures, job, result))
        # What follows can take longer than any collective may: train.ddp_timeout is for training.
        if not ends_process:
            main_alone(job.accelerator, write_results, job, result)
        else:
            leave_group()
            if job.accelerator.is_main_process:
                write_results(job, result)
    return result


@contextmanager
def prepared_run(cfg: Config, task: Task, recipe: Path, observer: Observer | None = None) -> Iterator[Run]:
    """Claims the folder, reads the rows and builds the model; arguments and errors are those of `run`."""
    die_with_launcher()
    check_run(cfg, task)
    accelerator = build_accelerator(cfg)
    for note in machine_notes(cfg, accelerator.device):
        warn(f"{note}.")
    with quiet_libraries(), claimed_folder(cfg, accelerator) as (output_dir, resume):
        config = load_model_config(cfg.model)
        modality, auto_model = modalities.load(task.modality), task.auto_model(config)
        problems = modality.check_model(config, task.options) or check_head(cfg.model, config, auto_model)
        if problems := problems or check_prompts(cfg.model, auto_model):
            raise ConfigError(problems)
        rows = load_rows(cfg, task, accelerator, output_dir)
        facts = identity(cfg, rows, accelerator.num_processes)
        if resume is not None:
            refuse_changes(resume.state["identity"], facts)
        processor = build_processor(cfg, task, config, rows, accelerator, output_dir, resume)
        configure_model(config, task, processor, new=cfg.model.from_config is not None)
        refuse_lost_overrides(cfg.model, config)
        if accelerator.num_processes > 1 and not cfg.train.ddp_find_unused_parameters:
            refuse_unused_parameters(config)
        on_main(accelerator, write_start, cfg, task, rows, recipe, accelerator.num_processes, output_dir)
        data = prepare(rows, task, processor, cfg, accelerator)
        check_room(cfg.model, config, data)
        import_all(cfg, config, auto_model)
        memory = MemoryWatch(accelerator.device)
        with accelerator.local_main_process_first():
            model = build_model(cfg.model, config, auto_model, cfg.seed)
        model = make_trainable(model, cfg, auto_model, accelerator, output_dir)
        for reason in batch_dependence(model):
            warn(f"results of this model depend on the batch size and the number of processes: {reason}.")
        spare_activations(model, cfg.train)
        compile_training(model, cfg.train)
        mesh = mesh_of(accelerator)
        strategy = build_strategy(cfg, accelerator, mesh)
        model = strategy.prepare(model)
        best = best_metric(cfg, task)
        yield Run(
            cfg,
            task,
            accelerator,
            model,
            processor,
            data,
            output_dir,
            resume,
            facts,
            memory,
            mesh,
            strategy,
            best,
            observer,
        )


@contextmanager
def claimed_folder(cfg: Config, accelerator: Accelerator) -> Iterator[tuple[Path, Checkpoint | None]]:
    """Holds the output folder for this run, and says which checkpoint the run goes on from.

    Raises:
        CheckpointError: if the folder cannot be written, is in use, or holds something that would be mixed up.
    """
    output_dir = Path(cfg.output_dir)
    held = ExitStack()

    def claim() -> Checkpoint | None:
        probe(output_dir)
        held.enter_context(OutputLock(output_dir, patience_seconds=STOP_DEADLINE_SECONDS + 5))
        checkpoint, messages = decide_resume(output_dir, cfg.checkpoint.resume)
        for message in messages:
            say(message)
        if checkpoint is not None:
            bring_metrics(checkpoint.path.parents[1], output_dir)
        return checkpoint

    with held:
        checkpoint = on_main(accelerator, claim)
        if checkpoint is not None:
            say(f"resuming from {checkpoint.path}")
        yield output_dir, checkpoint
