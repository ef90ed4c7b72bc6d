"""A trained model as a folder that transformers can load."""

from __future__ import annotations

from toolkit.api.run import Run
from toolkit.models.adapters import BASE, save_adapters


def save_model(run: Run) -> None:
    """Writes `model/`: weights, configuration and processor, loadable by transformers (or peft) alone."""
    folder, settings = run.output_dir / "model", run.cfg.model
    if settings.peft.method == "none":
        run.model.save_pretrained(folder)
    else:
        save_adapters(run.model, folder, run.output_dir / BASE, settings.name_or_path)
    run.processor.save_pretrained(folder)
    mode = (folder / "config.json" if settings.peft.method == "none" else folder / "adapter_config.json").stat().st_mode
    for weights in folder.rglob("*.safetensors"):  # safetensors lets only the owner read; colleagues read a result too
        weights.chmod(mode)
