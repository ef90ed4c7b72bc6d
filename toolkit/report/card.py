"""Writes the model card."""

from __future__ import annotations

from pathlib import Path

from toolkit import modalities
from toolkit.api.run import FitResult, Run
from toolkit.document.markdown import table
from toolkit.models.adapters import BASE
from toolkit.report.scores import Scores

PIPELINES = {
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForImageClassification": "image-classification",
    "AutoModelForAudioClassification": "audio-classification",
}
"""Auto classes that transformers has a pipeline for (5.x has none for question answering)."""


def model_card(run: Run, result: FitResult) -> str:
    """Returns the model card: base model, usage, metrics and training data."""
    model, data = run.cfg.model, run.cfg.data
    base = model.name_or_path
    if base and Path(base).is_dir():  # a local path is of no use to readers of the card
        base = Path(base).name
    origin = f"`{base}`, fine-tuned" if base else f"a new {run.model.config.model_type} model, trained from scratch"
    source = data.dataset_name or Path(str(data.train_file)).name
    processor = modalities.load(run.task.modality).AUTO_PROCESSOR
    auto_model = run.task.auto_model(run.model.config)
    task = PIPELINES.get(auto_model)
    if task == "image-classification" and processor != "AutoImageProcessor":
        task = None  # the pipeline does not compute spectrograms from audio
    adapted = model.peft.method != "none"
    usage = (
        adapter_usage(processor, auto_model, base or f"path/to/this/folder/{BASE}")
        if adapted
        else f'from transformers import pipeline\n\nmodel = pipeline("{task}", "path/to/this/folder")'
        if task
        else f"from transformers import {processor}, {auto_model}\n\n"
        f'model = {auto_model}.from_pretrained("path/to/this/folder")\n'
        f'processor = {processor}.from_pretrained("path/to/this/folder")'
    )
    front = [
        "---",
        f"library_name: {'peft' if adapted else 'transformers'}",
        *([f"pipeline_tag: {task}"] if task else []),
        "---",
    ]
    blocks = [
        "\n".join(front),
        f"# {run.output_dir.name}",
        f"{origin[0].upper()}{origin[1:]} on `{source}` ({len(run.data.train):,} training rows after tokenisation) "
        f"with finetune-toolkit, seed {run.cfg.seed}.",
        f"```python\n{usage}\n```",
        f"## Scores\n\n{score_text(run, result)}",
        "The settings, versions and data fingerprints are in `config.yaml` and `run.json` of the run.",
    ]
    return "\n\n".join(blocks) + "\n"


def score_text(run: Run, result: FitResult) -> str:
    """Returns the scores of all evaluation sets with intervals and baselines, and hints about them, as Markdown."""
    scores = Scores.of(result, run.task)
    header, rows = scores.table()
    return "\n\n".join([table(header, rows), *scores.hints]) if rows else "Not evaluated."


def adapter_usage(processor: str, auto_model: str, base: str) -> str:
    """Returns Python code that loads adapters, their base model and its processor.

    The task's labels are in the folder's configuration. The trained head replaces a base model's head of another size.
    """
    return (
        f"from peft import PeftModel\nfrom transformers import AutoConfig, {processor}, {auto_model}\n\n"
        'folder = "path/to/this/folder"\n'
        "config = AutoConfig.from_pretrained(folder)\n"
        f'base = {auto_model}.from_pretrained("{base}", config=config, ignore_mismatched_sizes=True)\n'
        "model = PeftModel.from_pretrained(base, folder)\n"
        f"processor = {processor}.from_pretrained(folder)"
    )
