"""Saves a trained model as a folder that transformers can load."""

from __future__ import annotations

from toolkit.api.run import Run
from toolkit.base.run_folder import RunFolder
from toolkit.models.adapters import save_adapters


def save_model(run: Run) -> None:
    """Writes `model/` with weights, configuration and processor; transformers (or peft) can load it."""
    files, settings = RunFolder(run.output_dir), run.cfg.model
    folder = files.model
    if settings.peft.method == "none":
        run.model.save_pretrained(folder)
    else:
        save_adapters(run.model, folder, files.base, settings.name_or_path)
    run.processor.save_pretrained(folder)
    mode = (folder / "config.json" if settings.peft.method == "none" else folder / "adapter_config.json").stat().st_mode
    for weights in folder.rglob("*.safetensors"):  # safetensors creates files that only the owner can read
        weights.chmod(mode)
