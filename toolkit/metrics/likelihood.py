"""How well a language model predicts text, from summed losses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from toolkit.metrics.intervals import bootstrap, ratio
from toolkit.metrics.score import Quality, Score

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

LIKELIHOOD = (Score("perplexity", greater_is_better=False), Score("token_accuracy"))


def perplexity(mean_loss: float) -> float:
    """Returns e to the power of the mean loss in nats; infinity on overflow."""
    try:
        return math.exp(mean_loss)
    except OverflowError:
        return math.inf


def likelihood_scores(
    loss_sum: float, num_tokens: float, num_correct: float, num_bytes: int | None
) -> dict[str, float]:
    """Scores predicted tokens.

    Args:
        loss_sum: their summed loss in nats.
        num_tokens: number of predicted tokens.
        num_correct: number of tokens whose most likely prediction was right.
        num_bytes: number of UTF-8 bytes of their text; None if only some of its tokens were predicted.

    Returns:
        `perplexity` per token, `token_accuracy` (0 to 1) and, with `num_bytes`, `bits_per_byte`, which does not depend
        on the tokenizer; NaN if there are no tokens or bytes.
    """
    scores = {
        "perplexity": perplexity(loss_sum / num_tokens) if num_tokens else math.nan,
        "token_accuracy": num_correct / num_tokens if num_tokens else math.nan,
    }
    if num_bytes is not None:
        scores["bits_per_byte"] = loss_sum / math.log(2) / num_bytes if num_bytes else math.nan
    return scores


def likelihood_quality(losses: ArrayLike, tokens: ArrayLike, correct: ArrayLike) -> Quality:
    """Returns how far `perplexity` and `token_accuracy` of `likelihood_scores` can be trusted.

    Documents are drawn, not tokens, which depend on each other.

    Args:
        losses: `[documents]` summed loss of each in nats.
        tokens: `[documents]` number of predicted tokens of each.
        correct: `[documents]` number of tokens of each whose most likely prediction was right.
    """
    import numpy as np

    def scores(sums: np.ndarray) -> dict[str, np.ndarray]:
        loss, count, right = sums.T
        return {"perplexity": np.exp(ratio(loss, count)), "token_accuracy": ratio(right, count)}

    with np.errstate(over="ignore"):  # the loss of an untrained model
        return Quality(bootstrap(np.stack([np.asarray(each) for each in (losses, tokens, correct)], axis=1), scores))
