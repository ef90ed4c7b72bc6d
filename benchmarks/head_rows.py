"""Eight rows per kind of problem for the head scan, batched as in the toolkit and as in a Trainer script.

The toolkit's batches come from the real recipes' `collate` wherever rows are text. Rows have different lengths,
and different numbers of labelled tokens where a problem has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast, Wav2Vec2FeatureExtractor

from toolkit.api.batch import IGNORE_INDEX, Batch
from toolkit.api.random import RowRandom
from toolkit.api.task import Task
from toolkit.data.batching.batches import collate
from toolkit.recipe import load_settings, load_task_type

ROOT = Path(__file__).resolve().parents[1]
VOCABULARY = ["<pad>", "<s>", "</s>", "<mask>", "<unk>", *(f"t{number}" for number in range(35))]
SPECIAL = 5
"""Ids below this one are the special tokens."""
CLASSES = ["a", "b", "c"]
LENGTHS = (4, 15, 7, 11, 5, 13, 9, 14)
SIDE = 16
"""Height and width of images in pixels; number of mel bins and of frames of log-mel spectrograms."""
RANDOM = RowRandom(seed=0, epoch=0)

Features = list[dict[str, Any]]
Inputs = dict[str, Any]


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer with only a vocabulary, for the recipes' collators."""
    names = {"pad": 0, "bos": 1, "eos": 2, "mask": 3, "unk": 4}
    ids = {token: number for number, token in enumerate(VOCABULARY)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(ids, unk_token="<unk>")),
        **{f"{name}_token": VOCABULARY[number] for name, number in names.items()},
    )


def recipe_task(recipe: str, *overrides: str, smoke: str = "smoke") -> Any:
    """Builds a recipe's task from its smoke configuration and overrides."""
    task_type = load_task_type(ROOT / "recipes" / f"{recipe}.py")
    file = ROOT / "recipes" / "configs" / recipe / f"{smoke}.yaml"
    cfg = load_settings(task_type, file, overrides, environ={}, check_files=False)
    return task_type(cfg.config)


class TokenTask(Task):
    """Token classification, with only those members of a task that a step needs; no recipe has this task."""

    auto_model = schema = check_row = preprocess = predict = decode = metrics = describe = scores = None

    def __init__(self) -> None:
        pass

    def configure(self, config: Any) -> None:
        """Sets the number of classes."""
        config.num_labels = len(CLASSES)

    def collate(self, features: Features, processor: Any, random: Any) -> Batch:
        """Pads tokens and labels on the right to `[rows, length]`."""
        from toolkit.modalities import text

        inputs = text.pad(features, processor)
        labels = torch.full_like(inputs["input_ids"], IGNORE_INDEX)
        for place, row in zip(labels, features, strict=True):
            place[: len(row["tags"])] = torch.tensor(row["tags"])
        return {"inputs": inputs, "labels": labels}

    def loss_sum(self, outputs: Any, batch: Batch) -> Tensor:
        """Returns the summed cross entropy of the labelled tokens."""
        logits, labels = outputs.logits.flatten(0, 1), batch["labels"].flatten()
        return cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum")


@dataclass(frozen=True)
class Problem:
    """A kind of problem.

    Args:
        task: returns a new task of the recipe.
        columns: returns the columns of a row except `row_id`, given a random generator and the row's length.
        plain: returns the model's inputs in a Trainer script, given the rows and the toolkit's batch.
        collate: returns the toolkit's batch, given a task and rows.
    """

    task: Callable[[], Any]
    columns: Callable[[np.random.Generator, int], dict[str, Any]]
    plain: Callable[[Features, Batch], Inputs]
    collate: Callable[[Any, Features], Batch]

    def features(self) -> Features:
        """Returns the eight rows, the same in every call."""
        generator = np.random.default_rng(0)
        return [{"row_id": number, **self.columns(generator, length)} for number, length in enumerate(LENGTHS)]

    def batch(self, task: Any, features: Features) -> Batch:
        """Returns the toolkit's batch of the rows, with floats in float64."""
        made = self.collate(task, features)
        return made | {"inputs": widened(made["inputs"])}

    def plain_batch(self, task: Any, features: Features) -> Inputs:
        """Returns the model's inputs in a plain Trainer, with labels, and with floats in float64."""
        return widened(self.plain(features, self.batch(task, features)))


def widened(inputs: Inputs) -> Inputs:
    """Returns the model's inputs with float64 in place of float32."""
    floats = {name: value for name, value in inputs.items() if torch.is_tensor(value) and value.is_floating_point()}
    return inputs | {name: value.double() for name, value in floats.items()}


def _tokens(generator: np.random.Generator, length: int) -> list[int]:
    return generator.integers(SPECIAL, len(VOCABULARY), length).tolist()


def _text(generator: np.random.Generator, length: int) -> dict[str, Any]:
    """Returns tokens that end with the end-of-text token, which BART and T5 use to classify."""
    return {"input_ids": [*_tokens(generator, length - 1), tokenizer().eos_token_id], "attention_mask": [1] * length}


def _class(generator: np.random.Generator) -> int:
    return int(generator.integers(len(CLASSES)))


def _text_class(generator: np.random.Generator, length: int) -> dict[str, Any]:
    return _text(generator, length) | {"label": _class(generator)}


def _text_numbers(generator: np.random.Generator, length: int) -> dict[str, Any]:
    return _text(generator, length) | {"label": generator.normal(size=1).tolist()}


def _text_labels(generator: np.random.Generator, length: int) -> dict[str, Any]:
    return _text(generator, length) | {"label": generator.integers(0, 2, len(CLASSES)).astype(float).tolist()}


def _tagged_text(generator: np.random.Generator, length: int) -> dict[str, Any]:
    tags = generator.integers(len(CLASSES), size=length)
    tags[generator.random(length) < 0.2] = IGNORE_INDEX  # like the inner tokens of words
    return _text(generator, length) | {"tags": tags.tolist()}


def _window(generator: np.random.Generator, length: int) -> dict[str, Any]:
    start, end = sorted(generator.integers(0, length, 2).tolist())
    return _text(generator, length) | {"start": start, "end": end, "offsets": [0, 1] * length}


def _pair(generator: np.random.Generator, length: int) -> dict[str, Any]:
    target = _tokens(generator, int(generator.integers(2, 16)))
    return _text(generator, length) | {"labels": [*target, tokenizer().eos_token_id]}


def _causal_block(generator: np.random.Generator, length: int) -> dict[str, Any]:
    return {"tokens": _tokens(generator, length), "targets": [length - 1]}


def _masked_block(generator: np.random.Generator, length: int) -> dict[str, Any]:
    return {"tokens": _tokens(generator, length), "targets": [length]}


def _picture(generator: np.random.Generator, length: int) -> dict[str, Any]:
    return {"pixel_values": generator.normal(size=(3, SIDE, SIDE)), "label": _class(generator)}


def _waveform(generator: np.random.Generator, length: int) -> dict[str, Any]:
    return {"waveform": generator.normal(size=100 * length).astype(np.float32), "label": _class(generator)}


def _frames(name: str) -> Callable[[np.random.Generator, int], dict[str, Any]]:
    return lambda generator, length: {name: generator.normal(size=(SIDE, SIDE)), "label": _class(generator)}


def _with_labels(features: Features, batch: Batch) -> Inputs:
    return batch["inputs"] | {"labels": batch["labels"]}


def _pair_with_labels(features: Features, batch: Batch) -> Inputs:
    """Batches like `DataCollatorForSeq2Seq` without a model: the model shifts the labels itself."""
    return {name: batch["inputs"][name] for name in ("input_ids", "attention_mask")} | {"labels": batch["labels"]}


def _with_positions(features: Features, batch: Batch) -> Inputs:
    start, end = batch["labels"].unbind(-1)
    return batch["inputs"] | {"start_positions": start, "end_positions": end}


def _tokens_as_labels(features: Features, batch: Batch) -> Inputs:
    """Batches like `DataCollatorForLanguageModeling`: labels are the tokens, and the model shifts them."""
    inputs: Inputs = dict(tokenizer().pad([{"input_ids": row["tokens"]} for row in features], return_tensors="pt"))
    return inputs | {"labels": inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, IGNORE_INDEX)}


def _collate(task: Any, features: Features) -> Batch:
    return collate(features, task, tokenizer(), RANDOM)


def _stacked(task: Any, features: Features) -> Batch:
    """Stacks rows that are tensors; the recipe's collator would decode files."""
    name = next(name for name in features[0] if name not in ("row_id", "label"))
    return _labelled(features, {name: torch.from_numpy(np.stack([row[name] for row in features]))})


def _padded_waveforms(task: Any, features: Features) -> Batch:
    extractor = Wav2Vec2FeatureExtractor(return_attention_mask=True)
    clips = [row["waveform"] for row in features]
    return _labelled(features, dict(extractor(clips, sampling_rate=16000, padding=True, return_tensors="pt")))


def _labelled(features: Features, inputs: Inputs) -> Batch:
    labels, row_ids = ([row[name] for row in features] for name in ("label", "row_id"))
    return {"inputs": inputs, "labels": torch.tensor(labels), "row_ids": torch.tensor(row_ids)}


def _reviews(problem_type: str, names: Sequence[str], modality: str = "text") -> Callable[[], Any]:
    smoke = "smoke" if modality == "text" else f"smoke_{modality}"
    overrides = (f"task.problem_type={problem_type}", f"task.labels=[{','.join(names)}]")
    return lambda: recipe_task("reviews", *overrides, smoke=smoke)


SINGLE = "single_label_classification"
PICTURES = _reviews(SINGLE, CLASSES, "image")
RECORDINGS = _reviews(SINGLE, CLASSES, "audio")

PROBLEMS = {
    "text classification": Problem(_reviews(SINGLE, CLASSES), _text_class, _with_labels, _collate),
    "regression": Problem(_reviews("regression", ["x"]), _text_numbers, _with_labels, _collate),
    "multi-label": Problem(_reviews("multi_label_classification", CLASSES), _text_labels, _with_labels, _collate),
    "token classification": Problem(TokenTask, _tagged_text, _with_labels, _collate),
    "question answering": Problem(lambda: recipe_task("qa"), _window, _with_positions, _collate),
    "translation": Problem(lambda: recipe_task("translation"), _pair, _pair_with_labels, _collate),
    "causal LM": Problem(lambda: recipe_task("language_modeling"), _causal_block, _tokens_as_labels, _collate),
    "masked LM": Problem(
        lambda: recipe_task("language_modeling", smoke="smoke_masked"), _masked_block, _with_labels, _collate
    ),
    "image classification": Problem(PICTURES, _picture, _with_labels, _stacked),
    "audio classification": Problem(RECORDINGS, _waveform, _with_labels, _padded_waveforms),
    "audio (AST)": Problem(RECORDINGS, _frames("input_values"), _with_labels, _stacked),
    "audio (Whisper)": Problem(RECORDINGS, _frames("input_features"), _with_labels, _stacked),
}
"""Problems by the name of their head in the table; audio inputs have three forms."""
