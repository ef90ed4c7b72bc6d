"""Search in documents with the embeddings of a finished run: rankings for `toolkit predict` and `serve`, and mining."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.api.batch import EvalData, Predictions
from toolkit.base.console import counted, say
from toolkit.base.errors import DataError, InputError
from toolkit.config.messages import join
from toolkit.data.readers.raw import Reading
from toolkit.data.table import apply_policy, load_table
from toolkit.data.writers import OutputTable, write_table
from toolkit.deploy.predict import columns_for, needed_columns
from toolkit.deploy.trained import TrainedRun
from toolkit.distributed.collectives import on_main
from toolkit.system.rank_order import local_main_first

CHUNK = 2**24
"""Most scores that are in memory at once."""
SEARCHED = ("rank", "score", "document", "document_row")
"""What each document of a ranking has."""


@dataclass(frozen=True)
class Corpus:
    """Documents, each text once, with their embeddings."""

    texts: Sequence[str]  # the documents
    rows: Sequence[int]  # the row of each in its file, from 1; of equal documents, the first one's
    embeddings: np.ndarray  # `[documents, size]`

    def best(self, queries: np.ndarray, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the places of each query's most similar documents, best first, and their scores, `[count]` each.

        Of equally good documents, earlier ones come first. Scores are dot products of the embeddings.
        """
        count, step = min(count, len(self.texts)), max(1, CHUNK // len(self.texts))
        for begin in range(0, len(queries), step):
            for scores in queries[begin : begin + step] @ self.embeddings.T:
                least = np.partition(scores, -count)[-count]
                found = np.flatnonzero(scores >= least)
                places = found[np.argsort(-scores[found], kind="stable")][:count]
                yield places, scores[places]

    def rankings(self, count: int) -> Callable[[Predictions], Iterator[list[dict[str, Any]]]]:
        """Returns a function of unlabelled predictions, which yields the best documents of each (see `ranking`)."""
        return lambda predictions: self.ranking(embedded(predictions), count)

    def ranking(self, queries: np.ndarray, count: int) -> Iterator[list[dict[str, Any]]]:
        """Yields the best documents of each query, with the entries `SEARCHED`."""
        for places, scores in self.best(queries, count):
            found = zip(places.tolist(), scores.tolist(), strict=True)
            yield [
                dict(zip(SEARCHED, (rank, score, self.texts[place], self.rows[place]), strict=True))
                for rank, (place, score) in enumerate(found, start=1)
            ]


def read_corpus(run: TrainedRun, file: str) -> Corpus:
    """Reads the documents of a file and embeds them; every process has the corpus.

    Raises InputError if the task does not embed documents; DataError if a row cannot be used or a column is missing.
    """
    task = run.task.for_documents()
    if task is None:
        raise InputError(f"--corpus: {type(run.task).__name__} has no embeddings to search with")
    side = replace(run, task=task)
    reading = Reading.of(run.cfg.data)
    with local_main_first(run.accelerator):  # the others use its cache
        columns = columns_for(file, task, run.cfg.data.columns, reading)
        table = load_table(file, task, columns, labelled=False, reading=reading)
    if skipped := apply_policy({file: table}, run.cfg.data.bad_rows, run.cfg.data.max_bad_rows)[file]:
        reason = table.bad[0].reason
        say(f"{file}: {counted(skipped, 'row')} skipped that cannot be used, the first because {reason}.")
    if not len(table.rows):
        raise DataError(f"{file}: there are no documents")
    (column,) = task.read_columns()
    first: dict[str, int] = {}
    for place, text in enumerate(table.rows[column][:]):
        first.setdefault(text, place)
    if repeated := len(table.rows) - len(first):
        say(f"{file}: {repeated:,} of {len(table.rows):,} documents occur again; each is searched once.")
    chosen = table.rows.select([*first.values()])
    data = side.preprocessed(chosen, labelled=False)
    for each in side.omissions("corpus", data):
        say(f"{each}.")
    predictions = side.predictions(data)
    return Corpus([*first], chosen["_number"][:], on_main(run.accelerator, lambda: embedded(predictions)))


def embedded(predictions: Predictions) -> Any:
    """Returns the embeddings `[rows, size]` of unlabelled rows; None on other processes than the main one."""
    return predictions["embeddings"][:, 0] if predictions else None


@dataclass(frozen=True)
class Mining:
    """How negatives are chosen."""

    depth: int = 50  # documents to look at, the most similar ones of each row
    count: int = 5  # most negatives of a row
    gap: float | None = None  # by how much their score must be below that of the row's own document, if at all
    pairs: bool = False  # whether to write a row per pair, with the label 1 or 0, for a reranker


def mine(run: TrainedRun, file: str, corpus: str | None, output: Path, mining: Mining) -> None:
    """Writes labelled rows with the most similar documents that do not answer them.

    Documents are those of the file or, if it is given, of `corpus`. Raises as `read_corpus`.
    """
    documents = run.task.for_documents()
    if documents is None:
        raise InputError(f"mine: {type(run.task).__name__} has no embeddings to search with")
    (query,), (document,) = needed_columns(run.task), documents.read_columns()
    labels = {name for name, column in run.task.read_columns().items() if column.label and column.required}
    if further := labels - {document}:
        raise InputError(
            f"mine: pairs with {join(sorted(further), 'and')} do not say which text answers which; use a run that was "
            "trained on pairs that belong together (task.loss: multiple_negatives)"
        )
    reading = Reading.of(run.cfg.data)
    table = load_table(file, run.task, run.cfg.data.columns, labelled=True, reading=reading)
    apply_policy({file: table}, run.cfg.data.bad_rows, run.cfg.data.max_bad_rows)
    data = run.preprocessed(table.rows, labelled=True)
    found = read_corpus(run, corpus or file)
    predictions = run.predictions(data)
    on_main(run.accelerator, _write_mined, data, found, predictions, (query, document), output, mining)


def _write_mined(
    data: EvalData, corpus: Corpus, predictions: Predictions, names: tuple[str, str], output: Path, mining: Mining
) -> None:
    queries, own = (data.rows[name][:] for name in names)
    answers = defaultdict[str, set[str]](set)
    for query, document in zip(queries, own, strict=True):
        answers[query].add(document)
    vectors = predictions["embeddings"]
    limits = (vectors[:, 0] * vectors[:, 1]).sum(-1) - (mining.gap or 0.0)
    rows, mined, close = list[dict[str, Any]](), 0, 0
    best = corpus.best(vectors[:, 0], mining.depth + max(map(len, answers.values())))
    for query, document, limit, (places, scores) in zip(queries, own, limits, best, strict=True):
        others = [(corpus.texts[place], score) for place, score in zip(places, scores, strict=True)
                  if corpus.texts[place] not in answers[query]][: mining.depth]  # fmt: skip
        kept = [text for text, score in others if mining.gap is None or score <= limit]
        close += len(others) - len(kept)
        chosen = kept[: mining.count]
        mined += len(chosen)
        if mining.pairs:
            texts = [(document, 1), *((text, 0) for text in chosen)]
            rows += [{"text": query, "text_pair": text, "label": label} for text, label in texts]
        else:
            rows.append({names[0]: query, names[1]: document, "negative": chosen})
    write_table(output, OutputTable([*rows[0]], lambda: iter(rows)))
    say(f"{mined:,} negatives for {len(own):,} rows are in {output}")
    if mining.gap is not None:
        say(f"{close:,} documents were too similar to be negatives (--gap {mining.gap:g})")
