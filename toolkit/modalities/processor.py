"""The processor of a run: loaded, or made from the training rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from toolkit import modalities
from toolkit.api.task import Processor, Task
from toolkit.base.run_folder import CheckpointFolder, RunFolder
from toolkit.config.sections import Config
from toolkit.data.prepare import CheckedRows
from toolkit.distributed.collectives import on_main

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
    """Loads the processor: that of the checkpoint, of the pretrained model, or one made from the training rows.

    A new one is made once, on the main process, and read back from the run's folder by all.
    """
    modality = modalities.load(task.modality)
    source = cfg.model.name_or_path
    if resume is not None:
        source = str(CheckpointFolder(resume.path).processor)
    elif source is None:
        source = str(RunFolder(output_dir).processor)

        def make() -> None:
            modality.new_processor(task.training_texts(rows.splits["train"]), config, task.options).save_pretrained(
                source
            )

        on_main(accelerator, make)
    with accelerator.local_main_process_first():
        return modality.load_processor(source, cfg.model, task.options)
