"""Saves a trained model as a folder that transformers can load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolkit.api.batch import Processor
from toolkit.api.run import Run
from toolkit.base.files import written_folder
from toolkit.base.run_folder import RunFolder
from toolkit.config.sections import ModelConfig
from toolkit.models.adapters import save_adapters

_MAX_FILE = "5GB"
"""Greatest size of a file with weights; safetensors copies a file's tensors in memory before it writes them."""


def save_model(run: Run, replacing: Callable[[], object]) -> None:
    """Writes `model/` with weights, configuration and processor; transformers (or peft) can load it.

    Args:
        run: the run, with a complete model.
        replacing: called when the new folder is complete, before it gets this name.
    """
    files = RunFolder(run.output_dir)
    with written_folder(files.model, replacing) as folder:
        write_model(run.model, run.processor, run.cfg.model, folder, files.base, files.model)


def write_model(model: Any, processor: Processor, settings: ModelConfig, folder: Path, base: Path, final: Path) -> None:
    """Writes a folder that transformers (or peft) can load.

    Args:
        model: the model, with its adapters if it has any.
        processor: tokenizer, image processor or feature extractor.
        settings: the section `model`.
        folder: folder to write to.
        base: folder of a new base model, which becomes part of the folder.
        final: where the folder will be.
    """
    if settings.peft.method == "none":
        model.save_pretrained(folder, max_shard_size=_MAX_FILE)
    else:
        save_adapters(model, folder, base, settings.name_or_path, final)
    processor.save_pretrained(folder)
    mode = (folder / "config.json" if settings.peft.method == "none" else folder / "adapter_config.json").stat().st_mode
    for weights in folder.rglob("*.safetensors"):  # safetensors creates files that only the owner can read
        weights.chmod(mode)
