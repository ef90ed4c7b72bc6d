"""Language modelling: splits documents into blocks of tokens, and sums the results of blocks per document.

A predicted token is called a *target*. Causal models predict each token from the previous ones, so a block also
contains the token before its first target. Every token of the text is a target exactly once, for any block size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from toolkit.api.batch import IGNORE_INDEX, Predictions
from toolkit.base.errors import InputError
from toolkit.metrics.likelihood import perplexity
from toolkit.tasks.tokens import are_correct, token_losses

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


def encode_documents(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, causal: bool) -> list[list[int]]:
    """Tokenises documents without truncation.

    Args:
        texts: one document each.
        tokenizer: the tokenizer.
        causal: whether to enclose each document in the begin- and end-of-text tokens (one token is used for both if
            the tokenizer has only one); otherwise the tokenizer's special tokens are used.

    Returns:
        The token ids of each document.

    Raises:
        InputError: if the tokenizer lacks a special token that the objective needs.
    """
    if not causal and tokenizer.mask_token_id is None:
        raise InputError(
            "task.objective: masked needs a mask token, which this model's tokenizer does not have. "
            "Use a model such as BERT, or task.objective=causal."
        )
    # Texts may be longer than the model's input, because they are split into blocks.
    ids: list[list[int]] = tokenizer(list(texts), add_special_tokens=not causal, verbose=False)["input_ids"]
    if not causal:
        return ids
    begin, end = separators(tokenizer)
    return [[begin, *document, end] for document in ids]


def encode_beginning(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns the tokens of a document without its end, which a causal model continues."""
    return [separators(tokenizer)[0], *encode_plain(text, tokenizer)]


def encode_plain(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns the tokens of a text, and none that begins or ends it."""
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return ids


def separators(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """Returns the ids that begin and end a document; raises InputError if the tokenizer has no such token."""
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    if begin is None and end is None:
        raise InputError(
            "task.objective: causal needs an end-of-text token (eos_token), which this model's tokenizer does not "
            "have. Use a model that generates text, or task.objective=masked."
        )
    return (end if begin is None else begin), (begin if end is None else end)


def cut(
    documents: Iterable[dict[str, Any]], block_size: int, *, packing: bool, causal: bool
) -> Iterator[dict[str, Any]]:
    """Splits documents into blocks. No token is lost; the last block, or that of a short document, is shorter.

    Args:
        documents: documents in order, with `tokens` and `example` (the row's index).
        block_size: largest number of tokens that the model reads of a block.
        packing: whether documents are concatenated before splitting; otherwise each document starts a new block.
        causal: whether each block includes the token before its first target.

    Yields:
        Blocks with `tokens`, `example` (row of the first target), `targets` (number of targets of that row and each
        following row) and `length`.
    """
    before = int(causal)
    tokens: list[int] = []
    owners: list[int] = []
    for document in documents:
        ids = document["tokens"]
        # A token that both begins and ends documents appears only once between two of them.
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
    import numpy as np

    rows = np.array(owners[part][before:])
    return {
        "tokens": tokens[part],
        "example": int(rows[0]),
        "targets": np.bincount(rows - rows[0]).tolist(),
        "length": len(rows),
    }


def next_tokens(tokens: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> tuple[np.ndarray, np.ndarray]:
    """Returns the input ids and the labels `[T - 1]` of a causal block: each token's successor.

    The token that begins documents is predicted only if it also ends them.
    """
    import numpy as np

    begin, end = separators(tokenizer)
    targets = tokens[1:]
    return tokens[:-1], targets if begin == end else np.where(targets == begin, IGNORE_INDEX, targets)


def mask_tokens(
    tokens: np.ndarray,
    special: np.ndarray,
    probability: float,
    mask_token: int,
    vocab_size: int,
    random: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Masks tokens as in BERT's pretraining (Devlin et al. 2018, arXiv 1810.04805).

    Args:
        tokens: `[T]` ids.
        special: ids that are never masked.
        probability: fraction of tokens to select; 80 % of them become the mask token, 10 % a random token, and 10 %
            are unchanged.
        mask_token: id of the mask token.
        vocab_size: size of the vocabulary for random tokens.
        random: source of randomness.

    Returns:
        `[T]` input ids, and `[T]` labels that are `IGNORE_INDEX` at tokens that were not selected.
    """
    import numpy as np

    choice, fate = random.random((2, len(tokens)))
    anything = random.integers(vocab_size, size=len(tokens))
    chosen = (choice < probability) & ~np.isin(tokens, special)
    inputs = np.select([chosen & (fate < 0.8), chosen & (fate < 0.9)], [mask_token, anything], tokens)
    return inputs, np.where(chosen, tokens, IGNORE_INDEX)


def pad_parts(targets: Sequence[Sequence[int]], input_ids: Tensor) -> Tensor:
    """Returns for each token of a batch, `[B, T]`, which part of its block it belongs to; 0 for padding.

    For each block, `targets` has the number of targets of each part.
    """
    import numpy as np

    parts = input_ids.new_zeros(input_ids.shape)
    for place, counts in zip(parts, targets, strict=True):
        if len(counts) > 1:  # a single part may have tokens that are no targets
            place[: sum(counts)] = parts.new_tensor(np.repeat(np.arange(len(counts)), counts))
    return parts


def sums_of_parts(logits: Tensor, labels: Tensor, parts: Tensor, labelled: Tensor | None = None) -> dict[str, Tensor]:
    """Returns `loss`, and the number of `tokens` and of `correct` ones, summed for each part of each block.

    Args:
        logits: `[B, T, vocabulary]`, or `[1, n, vocabulary]` at the labelled positions.
        labels: `[B, T]`.
        parts: `[B, T]` from `pad_parts`.
        labelled: the labelled positions, as for `token_losses`.

    Returns:
        Sums `[B, parts]` by name.
    """
    values = {
        "loss": token_losses(logits, labels, "none", labelled=labelled),
        "tokens": (labels != IGNORE_INDEX).long(),
        "correct": are_correct(logits, labels, labelled).long(),
    }
    shape = (len(labels), int(parts.max()) + 1)
    places, host = parts.cpu(), {name: each.cpu() for name, each in values.items()}  # a GPU would add in any order
    sums = {name: each.new_zeros(shape).scatter_add(1, places, each) for name, each in host.items()}
    return {name: each.to(logits.device) for name, each in sums.items()}


def scored_documents(predictions: Predictions, features: Dataset, num_documents: int) -> Iterator[dict[str, Any]]:
    """Yields the `loss` (mean over its tokens, in nats), `perplexity` and `num_tokens` of each document.

    Arguments are those of `by_document`. Loss and perplexity of a document without targets are None.
    """
    found = by_document(predictions, features, num_documents)
    for loss, tokens in zip(found["loss"], found["tokens"], strict=True):
        mean = float(loss / tokens) if tokens else None
        yield {"loss": mean, "perplexity": None if mean is None else perplexity(mean), "num_tokens": int(tokens)}


def by_document(predictions: Predictions, features: Dataset, num_documents: int) -> Predictions:
    """Sums predictions `[blocks, parts]`, with an entry for each of a block's `targets`, per document.

    Returns:
        Sums `[num_documents]` float64 by name; 0 for a document without targets.
    """
    import numpy as np

    counts = [len(targets) for targets in features["targets"][:]]
    rows = np.concatenate([first + np.arange(n) for first, n in zip(features["example"][:], counts, strict=True)])
    held = np.array(counts)[:, None]
    # Some of the blocks alone, as a bootstrap draws them, may have fewer parts than all of them together.
    return {
        name: np.bincount(rows, weights=values[np.arange(values.shape[1]) < held], minlength=num_documents)
        for name, values in predictions.items()
    }


def configure_decoder(config: PreTrainedConfig) -> None:
    """Sets the fields of a causal model's configuration, in place."""
    if hasattr(config, "is_decoder"):  # else models such as BERT see the token that they predict
        config.is_decoder = True
    # A padding token's embedding is never trained, so that may not be a token of the text, as in GPT-2's tokenizer.
    pad, *ends = (getattr(config, f"{name}_token_id", None) for name in ("pad", "bos", "eos"))
    if pad is not None and pad in ends:
        config.pad_token_id = None
