"""Scores of rankings: where the documents that answer a query are among all documents; and of scored pairs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from toolkit.metrics.intervals import FEWEST_EXAMPLES, bootstrap, percentiles, resamples
from toolkit.metrics.score import Quality, Score

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

RECALLS = (1, 5, 10)
DEPTH = 10
"""Ranks that `mrr_at_10` and `ndcg_at_10` look at."""
RETRIEVAL = (*(Score(f"recall_at_{depth}") for depth in RECALLS), Score("mrr_at_10"), Score("ndcg_at_10"), Score("map"))
"""Recall, mean reciprocal rank, normalised discounted cumulative gain, and mean average precision."""
CORRELATION = (Score("spearman"), Score("pearson"))
CHUNK = 2**22
"""Most scores that are compared at once."""
DRAWS = 200
"""Draws of a correlation's interval, which ranks all pairs in each."""


def retrieval_scores(ranks: Sequence[Sequence[int]]) -> dict[str, float]:
    """Scores rankings, as the means over queries.

    Args:
        ranks: for each query, the ranks of all documents that answer it, from 1; none for a query without any, which
            counts with 0.

    Returns:
        The scores of `RETRIEVAL`: the share of the query's answers among the first `N` (`recall_at_N`), the reciprocal
        rank of the first answer if it is at most `DEPTH`, the normalised discounted cumulative gain of the first
        `DEPTH` (Järvelin and Kekäläinen 2002), and the average precision over the whole ranking.
    """
    table = _by_query(ranks)
    return dict(zip(_NAMES, table.mean(axis=0).tolist() if len(table) else [0.0] * len(_NAMES), strict=True))


def retrieval_quality(ranks: Sequence[Sequence[int]]) -> Quality:
    """Returns intervals of `retrieval_scores` over queries; the argument is the same."""
    import numpy as np

    table = _by_query(ranks)
    with_count = np.column_stack([table, np.ones(len(table))])
    return Quality(bootstrap(with_count, lambda sums: dict(zip(_NAMES, (sums[:, :-1] / sums[:, -1:]).T, strict=True))))


_NAMES = [score.name for score in RETRIEVAL]


def _by_query(ranks: Sequence[Sequence[int]]) -> np.ndarray:
    """Returns the scores of each query, `[queries, scores]`."""
    import numpy as np

    rows = []
    for each in ranks:
        found = np.sort(np.asarray(each, dtype=np.int64))
        if not len(found):
            rows.append([0.0] * len(_NAMES))
            continue
        near, best = found[found <= DEPTH], min(len(found), DEPTH)
        ideal = (1 / np.log2(np.arange(best) + 2)).sum()
        rows.append([
            *(float((found <= depth).mean()) for depth in RECALLS),
            1 / float(near[0]) if len(near) else 0.0,
            float((1 / np.log2(near + 1)).sum() / ideal),
            float((np.arange(1, len(found) + 1) / found).mean()),
        ])  # fmt: skip
    return np.array(rows, dtype=np.float64).reshape(-1, len(_NAMES))


def ranks_of(
    relevant: Sequence[Sequence[int]], documents: int, score: Callable[[slice], np.ndarray]
) -> tuple[list[list[int]], list[int]]:
    """Ranks documents for queries; of equally good documents, earlier ones come first.

    Args:
        relevant: for each query, the places of the documents that answer it.
        documents: number of documents.
        score: returns the scores `[queries, documents]` of some of the queries; greater is better.

    Returns:
        For each query, the ranks of the documents that answer it, in their order, and the place of the best document.
    """
    step, ranks, best = max(1, CHUNK // max(1, documents)), list[list[int]](), list[int]()
    for begin in range(0, len(relevant), step):
        part = slice(begin, min(begin + step, len(relevant)))
        for row, places in zip(score(part), relevant[part], strict=True):
            own = [(place, row[place]) for place in places]
            ranks.append([1 + int((row > value).sum() + (row[:place] == value).sum()) for place, value in own])
            best.append(int(row.argmax()))
    return ranks, best


def grouped_ranks(groups: Sequence[str], scores: Sequence[float], answers: Sequence[bool]) -> list[list[int]]:
    """Ranks the rows of each group by their scores, and returns the ranks of the answers.

    Groups without answers, and those without anything else, have no ranking. The arguments have an entry per row.
    """
    rows = defaultdict[str, list[tuple[float, bool]]](list)
    for group, score, answer in zip(groups, scores, answers, strict=True):
        rows[group].append((-score, answer))
    ordered = ([answer for _, answer in sorted(each, key=itemgetter(0))] for each in rows.values())
    ranks = ([rank for rank, answer in enumerate(each, start=1) if answer] for each in ordered)
    return [found for found, each in zip(ranks, rows.values(), strict=True) if 0 < len(found) < len(each)]


def correlations(predictions: ArrayLike, references: ArrayLike) -> dict[str, float]:
    """Returns Spearman's and Pearson's correlation of numbers `[rows]`; 0.0 if all of either are equal."""
    import numpy as np
    from scipy.stats import rankdata

    one, other = (np.asarray(values, dtype=np.float64) for values in (predictions, references))
    return {"spearman": _pearson(rankdata(one), rankdata(other)), "pearson": _pearson(one, other)}


def correlation_quality(predictions: ArrayLike, references: ArrayLike) -> Quality:
    """Returns intervals of `correlations` over rows; the arguments are the same."""
    import numpy as np

    one, other = (np.asarray(values, dtype=np.float64) for values in (predictions, references))
    if len(one) < FEWEST_EXAMPLES:
        return Quality()
    draws = [correlations(one[rows], other[rows]) for rows, _ in zip(resamples(len(one)), range(DRAWS), strict=False)]
    found = {score.name: percentiles([draw[score.name] for draw in draws]) for score in CORRELATION}
    return Quality({name: interval for name, interval in found.items() if interval is not None})


def _pearson(one: np.ndarray, other: np.ndarray) -> float:
    import numpy as np

    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])
