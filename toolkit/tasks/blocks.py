"""Language modelling: documents become blocks of tokens, and what was found for blocks belongs to documents again.

A token that is predicted is a *target*. Causal models predict each token from those before it, so a block takes the
token before its first target along: every token of the text is a target exactly once, however blocks are cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.api.task import IGNORE_INDEX, Predictions
from toolkit.base.errors import InputError

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase


def encode_documents(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, causal: bool) -> list[list[int]]:
    """Tokenises whole documents, uncut.

    Args:
        texts: one document each.
        tokenizer: any.
        causal: whether a document stands between the tokens for begin and end of text (either stands for both where a
            tokenizer has only one), as a causal model needs it; else it is as the tokenizer makes it.

    Raises:
        InputError: if the tokenizer lacks a special token that the objective needs.
    """
    if not causal and tokenizer.mask_token_id is None:
        raise InputError(
            "task.objective: masked needs a tokenizer with a mask token, and the one of this model has none. "
            "Take a model such as BERT, or task.objective=causal."
        )
    # The tokenizer's warning of texts longer than the model's input is about what blocks are for.
    ids: list[list[int]] = tokenizer(list(texts), add_special_tokens=not causal, verbose=False)["input_ids"]
    if not causal:
        return ids
    begin, end = separators(tokenizer)
    return [[begin, *document, end] for document in ids]


def separators(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """Returns the ids that begin and end a document.

    Raises:
        InputError: if the tokenizer has neither.
    """
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    if begin is None and end is None:
        raise InputError(
            "task.objective: causal needs a tokenizer with a token for the end of a text (eos_token), and the one of "
            "this model has none. Take a model that generates text, or task.objective=masked."
        )
    return (end if begin is None else begin), (begin if end is None else end)


def cut(
    documents: Iterable[dict[str, Any]], block_size: int, *, packing: bool, causal: bool
) -> Iterator[dict[str, Any]]:
    """Cuts documents into blocks. No token is lost: the last block, or that of a short document, is shorter.

    Args:
        documents: in order, with `tokens` and `example` (their row's index).
        block_size: most tokens that a model sees at once.
        packing: whether documents are joined before they are cut; if not, each begins a new block.
        causal: whether the token before a block's first target is taken along.

    Yields:
        Blocks with `tokens`, `example` (the row of the first target), `targets` (how many each row has from there on)
        and `length`.
    """
    before = int(causal)
    tokens: list[int] = []
    owners: list[int] = []
    for document in documents:
        ids = document["tokens"]
        # Where one token both begins and ends documents, it stands between two of them once.
        ids = ids[1:] if causal and ids[:1] == tokens[-1:] else ids
        tokens += ids
        owners += [document["example"]] * len(ids)
        start = 0
        while len(tokens) - start >= block_size + before:
            yield _block(tokens, owners, slice(start, start + block_size + before), before)
            start += block_size
        del tokens[:start], owners[:start]
        if not packing:
            yield from _last(tokens, owners, before)
            tokens, owners = [], []
    yield from _last(tokens, owners, before)


def _last(tokens: list[int], owners: list[int], before: int) -> Iterator[dict[str, Any]]:
    if len(tokens) > before:
        yield _block(tokens, owners, slice(None), before)


def _block(tokens: list[int], owners: list[int], part: slice, before: int) -> dict[str, Any]:
    rows = np.array(owners[part][before:])
    return {
        "tokens": tokens[part],
        "example": int(rows[0]),
        "targets": np.bincount(rows - rows[0]).tolist(),
        "length": len(rows),
    }


def mask_tokens(
    tokens: np.ndarray,
    special: np.ndarray,
    probability: float,
    mask_token: int,
    vocab_size: int,
    random: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Masks tokens as BERT's training did (Devlin et al. 2018, arXiv 1810.04805).

    Args:
        tokens: `[T]` ids.
        special: ids that are never chosen.
        probability: part of the tokens that is chosen; 80 % of them become the mask token, 10 % any token, and 10 %
            stay.
        mask_token: its id.
        vocab_size: ids that any token is drawn from.
        random: source of all of it.

    Returns:
        `[T]` input ids and `[T]` labels, the latter `IGNORE_INDEX` where nothing was chosen.
    """
    choice, fate = random.random((2, len(tokens)))
    anything = random.integers(vocab_size, size=len(tokens))
    chosen = (choice < probability) & ~np.isin(tokens, special)
    inputs = np.select([chosen & (fate < 0.8), chosen & (fate < 0.9)], [mask_token, anything], tokens)
    return inputs, np.where(chosen, tokens, IGNORE_INDEX)


def by_document(predictions: Predictions, features: Dataset, num_documents: int) -> Predictions:
    """Adds what was predicted for parts of blocks up to documents.

    Args:
        predictions: named `[blocks, parts]` sums, one entry for each of a block's `targets`.
        features: the blocks.
        num_documents: rows of the set.

    Returns:
        The same names, `[num_documents]` float64 each; 0 for a document without targets.
    """
    counts = [len(targets) for targets in features["targets"][:]]
    rows = np.concatenate([first + np.arange(n) for first, n in zip(features["example"][:], counts, strict=True)])
    parts = np.arange(max(counts)) < np.array(counts)[:, None]
    return {
        name: np.bincount(rows, weights=values[parts], minlength=num_documents) for name, values in predictions.items()
    }
