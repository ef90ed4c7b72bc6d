"""The numbers of tokens of texts, counted or estimated, and the limits that follow from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.lab.init.guess import Guess
from toolkit.lab.init.languages import characters_per_token, language_of

if TYPE_CHECKING:
    import datasets

    from toolkit.lab.init.models import Model

COUNTED_TEXTS = 2000
"""Number of evenly spaced texts whose tokens are counted."""
COVERED = 0.98
"""Fraction of the texts that a limit does not truncate."""
LONGEST = 512
"""Largest limit for a model that has none."""
LONGEST_QUESTION_WINDOW = 384
BLOCKS = (1024, 512, 256, 128, 64)
LEAST_BLOCKS = 100
"""Number of blocks that training text should be split into at least."""
_MULTIPLE = 16

Limits = Callable[["datasets.Dataset", "Model"], list[Guess]]
"""Returns the settings that follow from the lengths of the training rows, given the model."""


@dataclass(frozen=True)
class Tokens:
    """Numbers of tokens of texts.

    Args:
        counts: number of tokens of each text that was looked at.
        how: how they were found: an addition to a sentence.
    """

    counts: Sequence[int]
    how: str

    def share_above(self, limit: int) -> float:
        """Returns the fraction of the texts with more tokens than a limit."""
        return sum(count > limit for count in self.counts) / len(self.counts)


def tokens(texts: Sequence[str], folder: Path | None) -> Tokens:
    """Counts the tokens of texts.

    Args:
        texts: at least one text.
        folder: a folder with the files of a model; without a `tokenizer.json` in it, the numbers are estimated.
    """
    from tokenizers import Tokenizer

    some = evenly(texts, COUNTED_TEXTS)
    file = folder / "tokenizer.json" if folder else None
    if file is not None and file.is_file():
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return Tokens([len(each.ids) for each in tokenizer.encode_batch(some)], "counted with the model's tokenizer")
    characters = characters_per_token(language_of(some))
    return Tokens(
        [math.ceil(len(text) / characters) + 2 for text in some], f"estimated as {characters:g} characters per token"
    )


def quantile(numbers: Sequence[int], fraction: float) -> int:
    """Returns the number that this fraction of the numbers does not exceed."""
    return sorted(numbers)[max(math.ceil(fraction * len(numbers)) - 1, 0)]


def evenly(values: Sequence[Any], most: int) -> list[Any]:
    """Returns at most `most` evenly spaced values."""
    count = min(most, len(values))
    return [values[place * len(values) // count] for place in range(count)]


def truncation(**columns: str) -> Limits:
    """Returns a function that limits the tokens of columns; arguments are options of the task and their column."""

    def guesses(rows: datasets.Dataset, model: Model) -> list[Guess]:
        return [_truncation(option, rows[column][:], model) for option, column in columns.items()]

    return guesses


def _truncation(option: str, texts: Iterable[Any], model: Model) -> Guess:
    found = tokens([str(text) for text in texts], model.folder)
    needed = quantile(found.counts, COVERED)
    limit = _rounded(needed, model.longest or LONGEST)
    most = f"{COVERED:.0%} of the texts have at most {needed} tokens ({found.how})"
    if limit < needed:
        most += f"; {found.share_above(limit):.1%} are truncated"
    return Guess(f"task.{option}", limit, most)


def windows(rows: datasets.Dataset, model: Model) -> list[Guess]:
    """Returns the window of a question with its context."""
    pairs = [f"{row['question']} {row['context']}" for row in evenly(rows, COUNTED_TEXTS)]
    found = tokens(pairs, model.folder)
    needed = quantile(found.counts, COVERED)
    limit = _rounded(needed, min(model.longest or LONGEST, LONGEST_QUESTION_WINDOW))
    most = f"{COVERED:.0%} of the questions with their contexts have at most {needed} tokens ({found.how})"
    return [
        Guess("task.max_length", limit, f"{most}; longer contexts are split into windows"),
        Guess("task.doc_stride", limit // 3, "tokens that consecutive windows of a context share"),
    ]


def blocks(rows: datasets.Dataset, model: Model) -> list[Guess]:
    """Returns the size of the blocks that texts are split into."""
    texts = rows["text"][:]
    found = tokens(texts, model.folder)
    total = round(sum(found.counts) * len(texts) / len(found.counts))
    room = [size for size in BLOCKS if size <= (model.longest or LONGEST)] or [model.longest or LONGEST]
    size = next((size for size in room if total >= LEAST_BLOCKS * size), room[-1])
    return [Guess("task.block_size", size, f"about {total:,} tokens ({found.how}): {math.ceil(total / size):,} blocks")]


def answers(rows: datasets.Dataset, model: Model) -> list[Guess]:
    """Returns the longest example of a conversation, or of a prompt with its completion."""
    if "messages" in rows.column_names:
        texts = [" ".join(turn["content"] for turn in turns) for turns in rows["messages"][:]]
    else:
        texts = [f"{row['prompt']} {row['completion']}" for row in rows]
    return [_truncation("block_size", texts, model)]


def spans(rows: datasets.Dataset, model: Model) -> list[Guess]:
    """Returns the window of a text whose tokens are labelled."""
    limit = _truncation("max_length", map(" ".join, rows["tokens"][:]), model)
    return [
        replace(limit, reason=limit.reason.replace("are truncated", "are split into windows")),
        Guess("task.stride", limit.value // 4, "tokens that consecutive windows of a text share"),
    ]


def no_limits(rows: datasets.Dataset, model: Model) -> list[Guess]:
    """Returns nothing: the size of the input is that of the model."""
    return []


def _rounded(needed: int, longest: int) -> int:
    return min(math.ceil(max(needed, 2 * _MULTIPLE) / _MULTIPLE) * _MULTIPLE, longest)
