"""Writes the model card."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit import modalities
from toolkit.api.run import FitResult, Run
from toolkit.api.task import Task, limits_of
from toolkit.config.sections import Config, DataConfig
from toolkit.data.loading import SPLITS
from toolkit.document.render import line, table
from toolkit.models.adapters import BASE
from toolkit.report.scores import Scores, base_name

PIPELINES = {
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForImageClassification": "image-classification",
    "AutoModelForAudioClassification": "audio-classification",
    "AutoModelForCTC": "automatic-speech-recognition",
    "AutoModelForSpeechSeq2Seq": "automatic-speech-recognition",
}
"""Auto classes that transformers has a pipeline for (5.x has none for question answering)."""
SENTENCES = "sentence-transformers"
_SIDES = {
    **dict.fromkeys(("input", "source"), "Of an input, the model reads at once at most"),
    "target": "Of a target, training used at most",
    "generated": "A generated text has at most",
}
"""Beginning of the sentence about the limit of each side of the model (see `toolkit.api.task.limits_of`)."""
SHOWN_DIGITS = 12
"""Shown digits of a file's sha256."""
SCORES = "## Scores\n\n"


@dataclass(frozen=True)
class Card:
    """The content of a model card."""

    name: str  # title
    cfg: Config  # settings of the run
    task: Task  # its task
    config: Any  # configuration of the model
    facts: Mapping[str, Any]  # content of `run.json`
    scores: str  # the scores of all evaluation sets, as Markdown
    adapted: bool  # whether the model is a folder of adapters
    usage: str | None = None  # Python code that loads the model; None for code with transformers or peft


def card_of(run: Run, result: FitResult, facts: Mapping[str, Any]) -> Card:
    """Returns the card of the model of a run."""
    adapted = run.cfg.model.peft.method != "none"
    return Card(run.output_dir.name, run.cfg, run.task, run.model.config, facts, score_text(run, result), adapted)


def model_card(card: Card) -> str:
    """Returns the model card: base model, usage, intended use, data, labels, metrics and licence."""
    base = card.cfg.model.name_or_path
    kind = card.config.model_type
    origin = f"`{base_name(base)}`, fine-tuned" if base else f"a new {kind} model, trained from scratch"
    licence = _licence(base)
    blocks = [
        _front(card, licence),
        f"# {line(card.name)}",
        f"{origin[0].upper()}{origin[1:]} with finetune-toolkit, seed {card.cfg.seed}.",
        f"```python\n{card.usage or _usage(card)}\n```",
        f"## Intended use\n\n{_use(card.task)}",
        "## Data\n\n" + table(["set", "source", "rows", "fingerprint"], list(_sources(card.cfg.data, card.facts))),
        *_labels(card),
        f"{SCORES}{card.scores}",
        "## Limits\n\n" + "\n".join(f"- {each}" for each in _limits(card)),
        f"## Licence\n\nLicence of the base model: {licence}. That of the data is not known to the toolkit.",
        "The settings, versions and data fingerprints are in `config.yaml` and `run.json` of the run.",
    ]
    return "\n\n".join(blocks) + "\n"


def _pipeline(card: Card) -> str | None:
    if card.task.library == SENTENCES:
        return "sentence-similarity"
    task = PIPELINES.get(card.task.auto_model(card.config))
    if task == "image-classification" and _processor(card) != "AutoImageProcessor":
        return None  # the pipeline does not compute spectrograms from audio
    return task


def _processor(card: Card) -> str:
    return modalities.load(card.task.modality).AUTO_PROCESSOR


def _front(card: Card, licence: str) -> str:
    base, task = card.cfg.model.name_or_path, _pipeline(card)
    lines = [
        "---",
        *([] if card.usage else [f"library_name: {'peft' if card.adapted else card.task.library}"]),
        *([f"pipeline_tag: {task}"] if task else []),
        *([f"base_model: {base_name(base)}"] if base and not (Path(base).is_absolute() or Path(base).is_dir()) else []),
        f"license: {f'[{licence}]' if ', ' in licence else licence}",
        "---",
    ]
    return "\n".join(lines)


def _usage(card: Card) -> str:
    processor, auto_model = _processor(card), card.task.auto_model(card.config)
    base, task = card.cfg.model.name_or_path, _pipeline(card)
    if card.adapted:
        return adapter_usage(processor, auto_model, base_name(base) if base else f"path/to/this/folder/{BASE}")
    if card.task.library == SENTENCES:
        code = 'from sentence_transformers import SentenceTransformer\n\nmodel = SentenceTransformer("{}")'
        return code.format("path/to/this/folder")
    if task:
        return f'from transformers import pipeline\n\nmodel = pipeline("{task}", "path/to/this/folder")'
    return (
        f"from transformers import {processor}, {auto_model}\n\n"
        f'model = {auto_model}.from_pretrained("path/to/this/folder")\n'
        f'processor = {processor}.from_pretrained("path/to/this/folder")'
    )


def _use(task: Task) -> str:
    """Describes inputs and predictions of the model in the words of the task's columns."""
    columns = task.read_columns()
    inputs = "; ".join(column.help for column in columns.values() if not column.label)
    labels = "; ".join(column.help for column in columns.values() if column.label)
    output = f" Output: {labels}." if labels else ""
    return (
        f"Input: {inputs}.{output} The scores below hold for rows like those of the data; it was not tested on others."
    )


def _limits(card: Card) -> Iterator[str]:
    """Yields sentences about the limits of the model and its scores."""
    options, facts = card.task.options, card.facts
    for side, name in limits_of(options).items():
        if (most := getattr(options, name)) is not None:
            yield f"{_SIDES.get(side, 'The model uses at most')} {most:,} tokens (`task.{name}`)."
    if skipped := {name: count for name, count in facts.get("bad_rows", {}).items() if count}:
        sets = ", ".join(f"{count:,} of {name}" for name, count in skipped.items())
        yield f"Rows that could not be used were skipped in training and scores: {sets}."
    if card.cfg.checkpoint.load_best_model_at_end:
        yield "The validation rows also chose this model among those of several steps, so their scores are optimistic."
    if card.cfg.model.name_or_path:
        yield "What the base model learned from its own data, errors and biases included, is part of this model."
    yield "Languages, kinds of input and groups of people that the data lack were not tested."


def _sources(data: DataConfig, facts: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yields name, source, number of rows and fingerprint of every set; of a file only its name."""
    for name, number in facts["num_rows"].items():
        files = data.files(f"{name}_file") if name in SPLITS else ["the run that the model comes from"]
        names = ", ".join(Path(file).name for file in files)
        source = data.dataset_name or names or "split from the training rows"
        fingerprint = str(facts.get("data_fingerprints", {}).get(name, ""))
        shown = fingerprint[:SHOWN_DIGITS] if re.fullmatch("[0-9a-f]{64}", fingerprint) else fingerprint
        yield name, source, f"{number:,}", shown


def _labels(card: Card) -> list[str]:
    names = getattr(card.task, "state", {}).get("labels") or []
    counts = card.facts.get("labels", {}).get("train", {})
    if not names:
        return []
    rows = [[name, *([f"{counts.get(name, 0):,}"] if counts else [])] for name in names]
    return ["## Labels\n\n" + table(["label", *(["training rows"] if counts else [])], rows)]


def _licence(base: str | None) -> str:
    """Returns the licence that the base model's own card names, without asking the Hub, or `unknown`."""
    from huggingface_hub import try_to_load_from_cache
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    if base is None:
        return "unknown"
    found = Path(base) / "README.md" if Path(base).is_dir() else try_to_load_from_cache(base, "README.md")
    if not isinstance(found, str | Path) or not Path(found).is_file():
        return "unknown"
    front = Path(found).read_text(encoding="utf-8", errors="replace").partition("---\n")[2].partition("\n---")[0]
    try:
        fields = YAML(typ="safe").load(front)
    except YAMLError:  # a card that somebody has edited
        return "unknown"
    named = fields.get("license") if isinstance(fields, dict) else None
    names = [str(each) for each in (named if isinstance(named, list) else [named]) if each]
    return ", ".join(names) if names and all(re.fullmatch(r"[\w.-]+", name) for name in names) else "unknown"


def score_text(run: Run, result: FitResult) -> str:
    """Returns the scores of all evaluation sets with intervals and baselines, and hints about them, as Markdown."""
    scores = Scores.of(result, run.task)
    header, rows = scores.table()
    return "\n\n".join([table(header, rows), *map(line, scores.hints)]) if rows else "Not evaluated."


def with_section(card: str, title: str, content: str) -> str:
    """Returns a model card, maybe edited by hand, with a section at its end, which replaces one of this title.

    The `content` is Markdown without headings of this or a higher level.
    """
    before, heading, rest = f"\n{card}".partition(f"\n## {title}\n")
    after = re.split(r"^(?=## )", rest, maxsplit=1, flags=re.M)[1:] if heading else []
    parts = [before.strip("\n"), *(part.strip("\n") for part in after), f"## {title}\n\n{content}"]
    return "\n\n".join(parts) + "\n"


def scores_of(card: str) -> str:
    """Returns the scores in a model card."""
    return card.partition(SCORES)[2].partition("\n\n## ")[0].partition("\n\nThe settings, ")[0] or "Not evaluated."


def adapter_usage(processor: str, auto_model: str, base: str) -> str:
    """Returns Python code that loads adapters, their base model, whose head they replace, and its processor."""
    return (
        f"from peft import PeftModel\nfrom transformers import AutoConfig, {processor}, {auto_model}\n\n"
        'folder = "path/to/this/folder"\n'
        "config = AutoConfig.from_pretrained(folder)\n"
        f'base = {auto_model}.from_pretrained("{base}", config=config, ignore_mismatched_sizes=True)\n'
        "model = PeftModel.from_pretrained(base, folder)\n"
        f"processor = {processor}.from_pretrained(folder)"
    )
