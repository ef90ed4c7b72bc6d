"""A trained model as a folder that transformers can load."""

from __future__ import annotations

from typing import Any

from toolkit.api.run import Run
from toolkit.models.adapters import BASE, save_adapters
from toolkit.report import card


def save_model(run: Run, figures: dict[str, Any]) -> None:
    """Writes `model/`: weights, configuration, processor and model card, loadable by transformers (or peft) alone."""
    folder, settings = run.output_dir / "model", run.cfg.model
    if settings.peft.method == "none":
        run.model.save_pretrained(folder)
    else:
        save_adapters(run.model, folder, run.output_dir / BASE, settings.name_or_path)
    run.processor.save_pretrained(folder)
    (folder / "README.md").write_text(card.model_card(run, figures), encoding="utf-8")
    for weights in folder.rglob(
        "*.safetensors"
    ):  # safetensors lets only the owner read; a result is for colleagues too
        weights.chmod((folder / "README.md").stat().st_mode)
