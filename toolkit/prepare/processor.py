"""Loads a run's processor, or creates one from the training rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import modalities
from toolkit.api.batch import Processor
from toolkit.api.task import Task
from toolkit.base.files import rust_errors_as_os_errors, written_folder
from toolkit.base.run_folder import CheckpointFolder, RunFolder
from toolkit.config.paths import source_of
from toolkit.config.sections import Config
from toolkit.data.loading import CheckedRows
from toolkit.distributed.collectives import on_main
from toolkit.system.rank_order import local_main_first

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedConfig

    from toolkit.api.run import Checkpoint


def build_processor(
    cfg: Config,
    task: Task,
    config: PreTrainedConfig,
    rows: CheckedRows,
    accelerator: Accelerator,
    output_dir: Path,
    resume: Checkpoint | None,
) -> Processor:
    """Loads the checkpoint's or the model's processor, or makes one from the training rows on the main process."""
    modality, model = modalities.load(task.modality), source_of(cfg)
    source = model.name_or_path
    if resume is not None:
        source = str(CheckpointFolder(resume.path).processor)
    elif source is None or modalities.completes_processor(task.modality, model, task.options):
        source = str(RunFolder(output_dir).processor)

        def make() -> None:
            processor = processor_of(cfg, task, config, task.training_texts(rows.splits["train"]))
            with written_folder(Path(source)) as folder, rust_errors_as_os_errors():
                processor.save_pretrained(folder)

        on_main(accelerator, make)
    with local_main_first(accelerator):
        return modality.load_processor(source, model, task.options)


def processor_of(cfg: Config, task: Task, config: PreTrainedConfig, texts: Iterator[str]) -> Processor:
    """Loads the model's processor, or makes one of these texts."""
    modality: Any
    modality, model = modalities.load(task.modality), source_of(cfg)
    if model.name_or_path is None:
        return modality.new_processor(texts, config, task.options)
    if modalities.completes_processor(task.modality, model, task.options):
        return modality.complete_processor(texts, config, task.options, model)
    return modality.load_processor(model.name_or_path, model, task.options)


def configure_model(config: PreTrainedConfig, task: Task, processor: Processor, new: bool) -> None:
    """Updates the model's configuration with values of the processor, then of the task, which knows its labels."""
    modalities.load(task.modality).configure(config, processor, new)
    task.configure(config)
