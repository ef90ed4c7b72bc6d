"""A run as one story: claim the folder, read the rows, build the model, train it, write down what came out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit import modalities
from toolkit.activations import spare_activations
from toolkit.adaptable import check_prompts, check_room
from toolkit.checks import check_run
from toolkit.compilation import compile_training
from toolkit.config.sections import Config
from toolkit.console import quiet_libraries, say
from toolkit.data.prepare import CheckedRows, load_rows, prepare
from toolkit.distributed import STOP_DEADLINE_SECONDS, build_accelerator, on_main
from toolkit.engine import ENGINES
from toolkit.engine.run import FitResult, Observer, Run
from toolkit.errors import ConfigError
from toolkit.machine import machine_notes
from toolkit.memory import MemoryWatch
from toolkit.model import (
    batch_dependence,
    build_model,
    check_head,
    load_code,
    load_model_config,
    refuse_lost_overrides,
    refuse_unused_parameters,
)
from toolkit.outputs import OutputLock, bring_metrics, decide_resume, probe, refuse_changes
from toolkit.processes import die_with_launcher
from toolkit.report.facts import identity, write_start
from toolkit.report.results import write_results
from toolkit.task import Processor, Task
from toolkit.trainable import make_trainable

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedConfig

    from toolkit.checkpoint import Checkpoint


def run(cfg: Config, task: Task, recipe: Path, observer: Observer | None = None) -> FitResult:
    """Trains, evaluates and reports.

    Args:
        cfg: resolved configuration.
        task: the recipe's task.
        recipe: the recipe's file, written down so that `toolkit predict` finds it again.
        observer: looks on, or None.

    Raises:
        ToolkitError: with a message for people, and the exit code to end with.
    """
    with prepared_run(cfg, task, recipe, observer) as job:
        result = ENGINES[cfg.engine]()(job)
        on_main(job.accelerator, write_results, job, result)
    return result


@contextmanager
def prepared_run(cfg: Config, task: Task, recipe: Path, observer: Observer | None = None) -> Iterator[Run]:
    """Claims the folder, reads the rows and builds the model; arguments and errors are those of `run`."""
    die_with_launcher()
    check_run(cfg, task)
    quiet_libraries()
    accelerator = build_accelerator(cfg)
    for note in machine_notes(cfg, accelerator.device):
        say(f"warning: {note}.")
    with claimed_folder(cfg, accelerator) as (output_dir, resume):
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
        modality.configure(config, processor, new=cfg.model.from_config is not None)
        task.configure(config)
        refuse_lost_overrides(cfg.model, config)
        if accelerator.num_processes > 1 and not cfg.train.ddp_find_unused_parameters:
            refuse_unused_parameters(config)
        on_main(accelerator, write_start, cfg, task, rows, recipe, accelerator.num_processes, output_dir)
        data = prepare(rows, task, processor, cfg, accelerator)
        check_room(cfg.model, config, data)
        load_code(config, auto_model)  # some 100 MiB of libraries are no part of what training takes
        memory = MemoryWatch(accelerator.device)
        with accelerator.local_main_process_first():
            model = build_model(cfg.model, config, auto_model, cfg.seed)
        model = make_trainable(model, cfg, auto_model, accelerator, output_dir)
        for reason in batch_dependence(model):
            say(f"warning: other splits of a window, and other numbers of processes, give other numbers: {reason}.")
        spare_activations(model, cfg.train)
        compile_training(model, cfg.train)
        yield Run(cfg, task, accelerator, model, processor, data, output_dir, resume, facts, memory, observer)


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


def build_processor(
    cfg: Config,
    task: Task,
    config: PreTrainedConfig,
    rows: CheckedRows,
    accelerator: Accelerator,
    output_dir: Path,
    resume: Checkpoint | None,
) -> Processor:
    """Loads the processor: that of the checkpoint, of the pretrained model, or one made from the training rows.

    A new one is made once, on the main process, and read back from the run's folder by all.
    """
    modality = modalities.load(task.modality)
    source = cfg.model.name_or_path
    if resume is not None:
        source = str(resume.path / "processor")
    elif source is None:
        source = str(output_dir / "processor")

        def make() -> None:
            modality.new_processor(task.training_texts(rows.splits["train"]), config, task.options).save_pretrained(
                source
            )

        on_main(accelerator, make)
    with accelerator.local_main_process_first():
        return modality.load_processor(source, cfg.model, task.options)
