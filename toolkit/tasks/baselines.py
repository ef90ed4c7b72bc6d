"""Answers without a neural network: the most frequent class, TF-IDF with a linear model, the first sentences."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.base.console import shorten
from toolkit.metrics.retrieval import ranks_of, retrieval_scores

if TYPE_CHECKING:
    from datasets import Dataset

    from toolkit.tasks.heads import Head

Scores = dict[str, dict[str, float]]
"""Scores without prefix, by evaluation set."""
LINEAR = "TF-IDF with a linear model"
COSINE = "cosine of the texts' TF-IDF with a linear model"
F1_OF_LABELS = "f1_micro"
"""The best metric of heads with several labels per row."""
LETTERS = 40
MOST_ITERATIONS = 1000
_SENTENCE = re.compile("(?<=[.!?\u3002\uff01\uff1f])\\s+|(?<=[\u3002\uff01\uff1f])")
"""Between sentences; the marks of Chinese and Japanese have no blank after them."""


def first_sentences(text: str, count: int) -> str:
    """Returns the first sentences of a text."""
    return " ".join(sentences(text)[:count])


def sentences(text: str) -> list[str]:
    """Returns the sentences of a text: what ends with a full stop, an exclamation mark or a question mark."""
    return [part for part in _SENTENCE.split(text) if part.strip()]


def usual_sentences(texts: Sequence[str]) -> int:
    """Returns the median number of sentences of texts, at least 1."""
    return max(1, round(median(len(sentences(text)) for text in texts)))


def of_head(
    head: Head, columns: Sequence[str], train: Dataset, sets: Mapping[str, Dataset]
) -> Iterator[tuple[str, Scores]]:
    """Yields the baselines of a classification or regression from its checked rows; the head has learned its labels.

    The `columns` are that of the texts, or both of pairs; empty if inputs are no texts.
    """
    targets = np.array([head.target(label) for label in train["label"][:]])
    name, constant = _constant(head, targets)

    def scored(predicted: Callable[[Dataset], np.ndarray]) -> Scores:
        return {
            part: head.metrics(predicted(rows), np.array([head.target(label) for label in rows["label"][:]]))
            for part, rows in sets.items()
        }

    yield name, scored(lambda rows: np.tile(constant, (len(rows), 1)))
    if not columns:
        return
    from sklearn.feature_extraction.text import TfidfVectorizer

    def joined(rows: Dataset) -> list[str]:
        return ["\n".join(texts) for texts in zip(*(rows[name][:] for name in columns), strict=True)]

    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b").fit(joined(train))
    predict = _linear(head, targets, lambda rows: words.transform(joined(rows)), train)
    yield LINEAR, scored(predict)
    if len(columns) == 2:

        def cosines(rows: Dataset) -> np.ndarray:
            first, second = (words.transform(rows[name][:]) for name in columns)
            return np.asarray(first.multiply(second).sum(1))

        yield COSINE, scored(_linear(head, targets, cosines, train))


def _constant(head: Head, targets: np.ndarray) -> tuple[str, np.ndarray]:
    """Returns a name for the best constant answer of the training rows, and its scores `[N]`."""
    labels = head.state["labels"]
    if targets.ndim == 1:
        largest = int(np.bincount(targets).argmax())
        return f"always {shorten(labels[largest], LETTERS)!r}", np.eye(len(labels))[largest]
    if head.best_metric == F1_OF_LABELS:
        known = Counter(tuple(row) for row in np.nan_to_num(targets).tolist())
        best = np.array(known.most_common(1)[0][0])
        named = ", ".join(name for name, value in zip(labels, best, strict=True) if value) or "nothing"
        return f"always {shorten(named, LETTERS)!r}", best
    return "the mean of the training rows", np.nanmean(targets, axis=0)


def _linear(
    head: Head, targets: np.ndarray, features_of: Callable[[Dataset], Any], train: Dataset
) -> Callable[[Dataset], np.ndarray]:
    """Returns a function that predicts the scores `[rows, N]` of rows, after fitting to the training rows.

    The features, of words and pairs of words, weighted by TF-IDF (with the logarithm of counts), go into logistic
    regression for classes and for each of several labels, and into ridge regression for numbers, with scikit-learn's
    default penalties.
    """
    fitted = _fitted(targets, features_of(train), head.best_metric == F1_OF_LABELS)

    def predict(rows: Dataset) -> np.ndarray:
        features, scores = features_of(rows), np.zeros((len(rows), len(head.state["labels"])))
        for place, model in enumerate(fitted):
            if not hasattr(model, "predict_proba"):
                scores[:, place] = model if isinstance(model, float) else model.predict(features)
            elif targets.ndim == 1:
                scores[:, model.classes_] = model.predict_proba(features)
            else:
                scores[:, place] = model.predict_proba(features)[:, 1]
        return scores

    return predict


def _fitted(targets: np.ndarray, found: Any, several: bool) -> list[Any]:
    """Returns the model of `[rows]` classes, or of each of N labels or numbers (a float where all rows agree)."""
    from sklearn.linear_model import LogisticRegression, Ridge

    if targets.ndim == 1:
        return [LogisticRegression(max_iter=MOST_ITERATIONS).fit(found, targets)]
    models: list[Any] = []
    for column in targets.T:
        there = np.flatnonzero(~np.isnan(column))
        known = column[there]
        if len(np.unique(known)) < 2:
            models.append(float(known[0]) if len(known) else 0.0)
        elif several:
            models.append(LogisticRegression(max_iter=MOST_ITERATIONS).fit(found[there], known))
        else:
            models.append(Ridge().fit(found[there], known))
    return models


def ranked_by_words(
    sets: Mapping[str, tuple[Sequence[str], Sequence[str], Sequence[Sequence[int]]]],
) -> Iterator[tuple[str, Scores]]:
    """Yields rankings by the words that queries and documents share: BM25, and the cosine of their TF-IDF.

    A set has queries, documents, and for each query the places of the documents that answer it.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    def scored(score: Callable[[Sequence[str], Sequence[str]], Callable[[slice], np.ndarray]]) -> Scores:
        return {
            name: retrieval_scores(ranks_of(relevant, len(documents), score(queries, documents))[0])
            for name, (queries, documents, relevant) in sets.items()
        }

    def bm25(queries: Sequence[str], documents: Sequence[str]) -> Callable[[slice], np.ndarray]:
        found = _bm25(documents)
        return lambda part: found(queries[part])

    def cosines(queries: Sequence[str], documents: Sequence[str]) -> Callable[[slice], np.ndarray]:
        words = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
        table = words.fit_transform(documents).T
        return lambda part: (words.transform(queries[part]) @ table).toarray()

    yield "BM25", scored(bm25)
    yield "cosine of TF-IDF", scored(cosines)


def _bm25(documents: Sequence[str]) -> Callable[[Sequence[str]], np.ndarray]:
    """Returns a function of queries with the BM25 scores of all documents, `[queries, documents]`."""
    import bm25s

    model, none = bm25s.BM25(), np.zeros(len(documents), dtype=np.float32)
    model.index([_words(each) for each in documents], show_progress=False)
    return lambda queries: np.stack([
        model.get_scores(found) if (found := _words(each)) else none for each in queries
    ])  # fmt: skip


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def similar_words(
    texts: Sequence[str],
    sets: Mapping[str, Dataset],
    score: Callable[[np.ndarray, Dataset], dict[str, float]],
    ranked: bool,
) -> Iterator[tuple[str, Scores]]:
    """Yields the similarity of the words of `text` and `text_pair`, scored by a function of it and the rows.

    Similarities are the cosine of TF-IDF, whose words are those of the given texts, and, for rankings, BM25 in all
    second texts of the set.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b").fit(texts)

    def cosines(rows: Dataset) -> np.ndarray:
        one, other = (words.transform(rows[column][:]) for column in ("text", "text_pair"))
        return np.asarray(one.multiply(other).sum(1)).ravel()

    def bm25(rows: Dataset) -> np.ndarray:
        places = {text: place for place, text in enumerate(dict.fromkeys(rows["text_pair"]))}
        found, queries = _bm25([*places]), [*dict.fromkeys(rows["text"])]
        table = dict(zip(queries, found(queries), strict=True))
        return np.array([table[one][places[other]] for one, other in zip(rows["text"], rows["text_pair"], strict=True)])

    yield "cosine of TF-IDF", {name: score(cosines(rows), rows) for name, rows in sets.items()}
    if ranked:
        yield "BM25", {name: score(bm25(rows), rows) for name, rows in sets.items()}


def frequent_text(
    column: str,
    train: Dataset,
    sets: Mapping[str, Dataset],
    scores: Callable[[Sequence[str], Sequence[str]], dict[str, float]],
) -> Iterator[tuple[str, Scores]]:
    """Yields the most frequent text of a column as the answer to every row; `scores` compares texts with references."""
    answer = Counter(train[column][:]).most_common(1)[0][0]
    found = {name: scores([answer] * len(rows), rows[column][:]) for name, rows in sets.items()}
    yield f"always {shorten(answer, LETTERS)!r}", found


def frequent_tags(train: Dataset) -> Callable[[Sequence[str]], list[str]]:
    """Returns a function that tags each token as it was tagged most often in the training rows, or else `O`."""
    counts: dict[str, Counter[str]] = {}
    for tokens, tags in zip(train["tokens"][:], train["tags"][:], strict=True):
        for token, tag in zip(tokens, tags, strict=True):
            counts.setdefault(token, Counter())[tag] += 1
    best = {token: seen.most_common(1)[0][0] for token, seen in counts.items()}
    return lambda tokens: [best.get(token, "O") for token in tokens]
