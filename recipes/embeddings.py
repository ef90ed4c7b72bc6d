"""Embeddings of texts for search and similarity, trained on pairs of texts that belong together, or on scored pairs.

accelerate launch recipes/embeddings.py --config recipes/configs/embeddings/smoke.yaml [section.key=value ...]
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from toolkit.api.batch import (
    IGNORE_INDEX,
    BadRow,
    Batch,
    Description,
    EvalData,
    ModelOutput,
    Omission,
    Predictions,
    Processor,
    Record,
    Row,
)
from toolkit.api.task import Task
from toolkit.base.errors import ConfigError, DataError
from toolkit.config.fields import Column
from toolkit.config.problems import unused_options
from toolkit.config.sections import STRICT, Config, Positive
from toolkit.main import main
from toolkit.metrics.retrieval import (
    CORRELATION,
    RETRIEVAL,
    correlation_quality,
    correlations,
    grouped_ranks,
    ranks_of,
    retrieval_quality,
    retrieval_scores,
)
from toolkit.metrics.score import Quality, Score
from toolkit.modalities import text
from toolkit.tasks.records import LazyRecords, as_number, checked_text, columns_of

if TYPE_CHECKING:
    from pathlib import Path

    import datasets
    import numpy as np
    from torch import Tensor, nn
    from transformers import PreTrainedConfig, PreTrainedModel

    from toolkit.api.random import RowRandom
    from toolkit.document.blocks import Section

SCORED = ("cosent", "cosine")
"""Losses of pairs of texts with a score; the others train on texts that belong together."""
COMPARING = ("multiple_negatives", "cosent")
"""Losses that compare the rows of a step with each other; those of the others are sums over rows."""
LOSS_SETTINGS = {
    "temperature": ("multiple_negatives", "cosent"),
    "symmetric": ("multiple_negatives",),
    "margin": ("triplet",),
    "score_range": ("cosine",),
    "ranking": ("cosent", "cosine"),
}
"""Settings that only some losses use."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingsOptions:
    """Options of the embeddings and their loss."""

    __pydantic_config__ = STRICT
    limits: ClassVar[Mapping[str, str]] = {"input": "max_length"}

    loss: Literal["multiple_negatives", "cosent", "cosine", "triplet"] = "multiple_negatives"
    """What is learned. From `anchor` and `positive`: `multiple_negatives`, that the positive is more similar to its
    anchor than all other texts of the step (InfoNCE), or `triplet`, than the row's own `negative`. From `text`,
    `text_pair` and `score`: `cosent`, the order of the scores, or `cosine`, the scores themselves."""
    max_length: Annotated[int, Field(ge=8)] = 256
    """Maximum number of tokens per text, with its prompt; how many rows have longer ones is reported."""
    pooling: Literal["mean", "cls", "last_token"] = "mean"
    """How the vectors of a text's tokens become one: their mean, or that of the first or the last token."""
    normalize: bool = True
    """Scale embeddings to length 1, so that their dot products, the similarities, are cosines."""
    temperature: Annotated[float, Field(gt=0)] = 0.05
    """Divisor of similarities in `multiple_negatives` and `cosent`; smaller values look more at the hardest texts."""
    symmetric: bool = False
    """Whether `multiple_negatives` also looks for the anchor of each positive among all anchors of the step."""
    margin: Annotated[float, Field(gt=0)] = 0.3
    """By how much a positive must be more similar than a negative (`triplet`)."""
    score_range: tuple[float, float] | None = None
    """Scores of texts that have nothing in common and of equal texts (`cosine`); null uses the smallest and the largest
    of the training rows."""
    ranking: bool = False
    """Whether to score how well the second texts of each first one are ranked, too (`map` and others); those whose
    score is in the upper half of the training rows' range are right. All rows of a first text stay in one split."""
    matryoshka_dims: list[Positive] | None = None
    """Lengths to which embeddings can be cut later: the loss is the mean of those of the first numbers, for each of
    these lengths and the full one (Kusupati et al. 2022, arXiv 2205.13147)."""
    query_prompt: str = ""
    """Text in front of each `anchor` or `text`, for instance `query: `."""
    document_prompt: str = ""
    """Text in front of each `positive`, `negative` or `text_pair`, for instance `passage: `."""

    def problems(self) -> list[str]:
        """Returns what is wrong in combination."""
        found = unused_options(self, "loss", LOSS_SETTINGS)
        if self.score_range is not None and not self.score_range[0] < self.score_range[1]:
            found.append(f"task.score_range: received {[*self.score_range]}, expected the smaller score first")
        return found


def _number(value: Any) -> float:
    """Returns a score; raises BadRow if it is no finite number."""
    if not math.isfinite(number := as_number(value)):
        raise BadRow(f"column 'score' holds {value!r}, not a number")
    return number


def _texts(value: Any) -> list[str]:
    """Returns the texts of a column: none, a text, a list, or a list as JSON. Raises BadRow for anything else."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(ValueError):
            value = json.loads(value)
    several = value if isinstance(value, list | tuple) else [value] if str(value or "").strip() else []
    return [checked_text(each, "negative", "column 'negative'") for each in several]


def _identity(text: str) -> int:
    """Returns a number of 62 bits that is the same for equal texts, in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 2


def _ranks_of(records: Iterable[Record]) -> list[list[int]]:
    """Returns the ranks of the documents of each query, which may have several records."""
    return [*{record["anchor"]: record["ranks"] for record in records}.values()]


@dataclass(frozen=True)
class Collection:
    """The queries and the documents of rows, each text once, in the order in which they are found."""

    queries: Mapping[str, int]
    """The first row of each query."""
    documents: Mapping[str, tuple[int, int]]
    """The first row of each document, and the number of the text in it."""
    relevant: Sequence[list[int]]
    """For each query, the places of the documents that answer it."""

    @staticmethod
    def of(rows: datasets.Dataset, most: int | None = None) -> Collection:
        """Collects anchors, positives, and at most so many negatives of each row."""
        queries, documents = dict[str, int](), dict[str, tuple[int, int]]()
        places, relevant = dict[str, int](), dict[str, dict[int, None]]()
        columns = (rows[name][:] for name in ("anchor", "positive", "negative"))
        for number, (anchor, positive, negatives) in enumerate(zip(*columns, strict=True)):
            for place, each in enumerate((positive, *negatives[:most]), start=1):
                documents.setdefault(each, (number, place))
                places.setdefault(each, len(places))
            queries.setdefault(anchor, number)
            relevant.setdefault(anchor, {})[places[positive]] = None
        return Collection(queries, documents, [[*each] for each in relevant.values()])

    def ranked(self, embeddings: np.ndarray) -> tuple[list[list[int]], list[str]]:
        """Returns the ranks of each query's documents, and its best document; embeddings are `[rows, texts, size]`."""
        rows, numbers = zip(*self.documents.values(), strict=True)
        documents, queries = embeddings[[*rows], [*numbers]].T, embeddings[[*self.queries.values()], 0]
        ranks, best = ranks_of(self.relevant, len(rows), lambda part: queries[part] @ documents)
        texts = [*self.documents]
        return ranks, [texts[place] for place in best]


def _column(help: str, scored: bool, label: bool = False, required: bool = True) -> Column:
    used: Callable[[Any], bool] = lambda options: options is None or (options.loss in SCORED) == scored  # noqa: E731
    return Column(help, label=label, required=required, used=used)


class Embeddings(Task):
    """Embeddings for search and similarity; see `toolkit.api.task.Task`."""

    Options: ClassVar[type] = EmbeddingsOptions
    columns: ClassVar[Mapping[str, Column]] = {
        "anchor": _column("the query", scored=False),
        "positive": _column("a text that answers it", scored=False, label=True),
        "negative": _column("a text that does not, or several", scored=False, label=True, required=False),
        "text": _column("a text", scored=True),
        "text_pair": _column("another text", scored=True, label=True),
        "score": _column("how similar they are, a number", scored=True, label=True),
    }
    modality = "text"
    library = "sentence-transformers"
    unread = ("pooler",)
    answer_columns = ("embedding",)

    options: EmbeddingsOptions

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self.scored = self.options.loss in SCORED
        ranked = not self.scored or self.options.ranking
        self.best_metric = "map" if self.options.ranking else "ndcg_at_10" if ranked else "spearman"
        self.error_name = "" if self.scored else "rank"
        self.state = {"score_range": None} if self.scored else {"negatives": None}
        self.first, self.second = ("text", "text_pair") if self.scored else ("anchor", "positive")

    @property
    def scores(self) -> Sequence[Score]:
        return [*(CORRELATION if self.scored else ()), *(RETRIEVAL if self.options.ranking or not self.scored else ())]

    def has(self, name: str) -> bool:
        return super().has(name) and (name != "window_loss" or self.options.loss in COMPARING)

    def auto_model(self, config: PreTrainedConfig) -> str:
        return "AutoModel"

    def configure(self, config: PreTrainedConfig) -> None:
        sizes, full = self.options.matryoshka_dims or [], config.hidden_size
        if longer := [size for size in sizes if size >= full]:
            raise ConfigError([
                f"task.matryoshka_dims: received {longer[0]}, expected less than the model's {full}, which is included"
            ])  # fmt: skip

    def schema(self) -> datasets.Features:
        from datasets import Features, List, Value

        more = {"score": Value("float64")} if self.scored else {"negative": List(Value("string"))}
        return Features({self.first: Value("string"), self.second: Value("string")} | more)

    def for_documents(self) -> Embeddings:
        task = type(self)(self.cfg)
        task.state = {**self.state, "given": self.second}  # part of the keys of cached rows
        return task

    @property
    def given(self) -> str:
        """The column of rows without labels."""
        return str(self.state.get("given", self.first))

    def read_columns(self) -> dict[str, Column]:
        columns = super().read_columns()
        return columns if self.given == self.first else {self.given: replace(columns[self.given], label=False)}

    def check_row(self, row: Row, labelled: bool) -> Row:
        if self.given == self.second:
            empty: Row = {self.first: None, **({"score": None} if self.scored else {"negative": []})}
            return {**empty, self.second: checked_text(row[self.second], self.second, f"column {self.second!r}")}
        found: Row = {self.first: checked_text(row[self.first], self.first, f"column {self.first!r}")}
        found[self.second] = (
            checked_text(row[self.second], self.second, f"column {self.second!r}") if labelled else None
        )
        if self.scored:
            return {**found, "score": _number(row["score"]) if labelled else None}
        negatives = _texts(row.get("negative")) if labelled else []
        if labelled and not negatives and self.options.loss == "triplet":
            raise BadRow("column 'negative' is empty or not there, and task.loss=triplet compares with it")
        return {**found, "negative": negatives}

    def learn(self, rows: datasets.Dataset) -> None:
        if not self.scored:
            self.state["negatives"] = max(map(len, rows["negative"]), default=0)
            return
        scores = rows["score"][:]
        if min(scores) == max(scores):
            raise DataError(
                f"data: all {len(scores):,} training rows have the score {scores[0]:g}; nothing can be learned"
            )
        self.state["score_range"] = [*(self.options.score_range or (min(scores), max(scores)))]

    def group_column(self) -> str | None:
        return self.first if self.options.ranking or not self.scored else None

    def inputs_of(self, row: Row) -> Mapping[str, Any]:
        return {self.first: [row[self.first], row[self.second]]}  # several texts may belong to one

    def training_texts(self, rows: datasets.Dataset) -> Iterator[str]:
        pairs = chain(rows[self.first], rows[self.second])
        return chain(pairs, (each for several in rows["negative"] for each in several)) if not self.scored else pairs

    def preprocess(
        self, rows: Mapping[str, Sequence[Any]], processor: Processor, labelled: bool
    ) -> dict[str, list[Any]]:
        groups = self._groups(rows, labelled)
        flat = text.encode(processor, self.options, list(chain.from_iterable(groups)))
        ends = [0, *accumulate(map(len, groups))]
        parts, size = [slice(*pair) for pair in pairwise(ends)], 2 + self._most if labelled else 1
        missing: list[Any] = [[]] * size
        columns: dict[str, list[Any]] = {
            name: [(flat[name][part] + missing)[:size] for part in parts] for name in flat if name in text.MODEL_INPUTS
        }
        columns["length"] = [size * max(flat["length"][part]) for part in parts]
        columns["truncated_input"] = [any(flat["truncated_input"][part]) for part in parts]
        return columns | {"label": self._labels(rows, size, labelled)}

    @property
    def _most(self) -> int:
        """The largest number of negatives of a training row; further ones of other rows are not read."""
        return self.state.get("negatives") or 0

    def _groups(self, rows: Mapping[str, Sequence[Any]], labelled: bool) -> list[list[str]]:
        """Returns the texts of each row, with their prompts."""
        prompts = {self.first: self.options.query_prompt, self.second: self.options.document_prompt}
        if not labelled:
            return [[prompts[self.given] + each] for each in rows[self.given]]
        negatives = rows.get("negative", [[]] * len(rows[self.first]))
        documents = zip(rows[self.second], negatives, strict=True)
        groups = [[prompts[self.second] + each for each in (one, *more[: self._most])] for one, more in documents]
        return [[prompts[self.first] + query, *own] for query, own in zip(rows[self.first], groups, strict=True)]

    def _labels(self, rows: Mapping[str, Sequence[Any]], size: int, labelled: bool) -> list[Any]:
        """Returns the score of each row, or numbers of its texts, which are equal where the texts are."""
        if self.scored:
            return [score if labelled else math.nan for score in rows["score"]]
        if not labelled:
            return [[IGNORE_INDEX]] * len(rows["anchor"])
        texts = zip(rows["anchor"], rows["positive"], rows["negative"], strict=True)
        found = [[_identity(each) for each in (query, document, *more)] for query, document, more in texts]
        return [(row + [IGNORE_INDEX] * size)[:size] for row in found]

    def omissions(self, rows: datasets.Dataset, features: datasets.Dataset) -> list[Omission]:
        if self.scored:
            return []
        counts = [len(each) for each in rows["negative"]]
        cut = sum(max(0, count - self._most) for count in counts)
        return [Omission(f"negatives beyond the {self._most} of training rows", cut, sum(counts))]

    def collate(self, features: list[dict[str, Any]], processor: Processor, random: RowRandom) -> Batch:
        import torch

        labels = torch.tensor([row["label"] for row in features])
        return {"inputs": text.pad(features, processor), "labels": labels}

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns the embeddings of a batch's texts before normalisation, `[B, texts, size]`; 0 for missing texts."""
        own, real = text.windows_of(batch["inputs"])
        found = POOLINGS[self.options.pooling](model(**own).last_hidden_state, own["attention_mask"])
        places = (real.flatten().cumsum(0) - 1).clamp(min=0)
        return found[places].view(*real.shape, -1) * real[..., None]

    def count_items(self, batch: Batch) -> Tensor:
        labels = batch["labels"]
        return super().count_items(batch) if self.scored else (labels[:, 0] != IGNORE_INDEX).sum()

    def loss_sum(self, outputs: ModelOutput, batch: Batch) -> Tensor:
        unlabelled = outputs.shape[1] == 1
        return outputs.new_zeros(()) if unlabelled else self.window_loss(outputs, batch["labels"])

    def window_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        import torch

        if self.options.loss == "cosine":
            low, high = self.state["score_range"]
            labels = (labels - low) / (high - low)
        loss, sizes = LOSSES[self.options.loss], self._lengths(outputs.shape[-1])
        return torch.stack([loss(self._scaled(outputs[..., :size]), labels, self.options) for size in sizes]).mean()

    def _lengths(self, full: int) -> list[int]:
        """Returns the lengths to which embeddings may be cut, and their own."""
        return sorted({*(self.options.matryoshka_dims or ()), full})

    def _scaled(self, embeddings: Tensor) -> Tensor:
        from torch.nn.functional import normalize

        return normalize(embeddings, dim=-1) if self.options.normalize else embeddings

    def predict(self, model: nn.Module, outputs: ModelOutput, batch: Batch) -> dict[str, Tensor]:
        """Returns `embeddings` `[B, texts, size]`, of length 1 if they are normalised."""
        return {"embeddings": self._scaled(outputs)}

    def decode(self, predictions: Predictions, data: EvalData) -> LazyRecords:
        found = predictions["embeddings"]
        if found.shape[1] == 1:
            pairs = lambda: zip(data.each_row(), found[:, 0], strict=True)  # noqa: E731
            return LazyRecords(
                lambda: ({self.given: row[self.given], "embedding": each.tolist()} for row, each in pairs())
            )
        if self.scored:
            similar = (found[:, 0].astype("float64") * found[:, 1]).sum(-1).tolist()
            return LazyRecords(
                lambda: ({**row, "prediction": each} for row, each in zip(data.each_row(), similar, strict=True))
            )
        collection = Collection.of(data.rows, self._most)
        ranks, best = collection.ranked(found)
        places = {query: place for place, query in enumerate(collection.queries)}
        documents = {document: place for place, document in enumerate(collection.documents)}

        def records() -> Iterator[Record]:
            for row in data.each_row():
                place = places[row["anchor"]]
                rank = ranks[place][collection.relevant[place].index(documents[row["positive"]])]
                pair = {name: row[name] for name in ("anchor", "positive")}
                yield pair | {"prediction": best[place], "rank": rank, "ranks": ranks[place]}

        return LazyRecords(records)

    def metrics(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> dict[str, float]:
        return self._scored(records) | {"loss": self._loss(predictions, data)}

    def _scored(self, records: Iterable[Record]) -> dict[str, float]:
        if not self.scored:
            return retrieval_scores(_ranks_of(records))
        return self._of_pairs(*columns_of(records, "text", "prediction", "score"))

    def _of_pairs(self, texts: Sequence[str], found: Sequence[float], scores: Sequence[float]) -> dict[str, float]:
        ranked = retrieval_scores(self._ranks(texts, found, scores)) if self.options.ranking else {}
        return correlations(found, scores) | ranked

    def _ranks(self, texts: Sequence[str], found: Sequence[float], scores: Sequence[float]) -> list[list[int]]:
        """Returns the ranks of the right second texts of each first one, by their similarities."""
        middle = sum(self.state["score_range"]) / 2
        return grouped_ranks(texts, found, [score > middle for score in scores])

    def _loss(self, predictions: Predictions, data: EvalData) -> float:
        """Returns the mean loss of windows as in training, of neighbouring rows, whatever the batches were."""
        import numpy as np
        import torch

        found, labels = predictions["embeddings"], np.asarray(data.features["label"][:])
        size, losses = self.cfg.train.rows_per_step(1), []
        for begin in range(0, len(found), size):
            part = slice(begin, begin + size)
            losses.append(
                float(self.window_loss(torch.from_numpy(found[part]).double(), torch.from_numpy(labels[part])))
            )
        return sum(losses) / len(found)

    def model_files(self, config: PreTrainedConfig) -> Mapping[str, Any]:
        kinds = ["Transformer", "Pooling", *(["Normalize"] if self.options.normalize else [])]
        modes = {"mean": "mean_tokens", "cls": "cls_token", "last_token": "lasttoken"}
        pooling = {f"pooling_mode_{mode}": name == self.options.pooling for name, mode in modes.items()}
        return {
            "modules.json": [
                {"idx": place, "name": str(place), "path": f"{place}_{kind}" if place else "",
                 "type": f"sentence_transformers.models.{kind}"}
                for place, kind in enumerate(kinds)
            ],
            "1_Pooling/config.json": {"word_embedding_dimension": config.hidden_size, **pooling},
            "sentence_bert_config.json": {"max_seq_length": self.options.max_length, "do_lower_case": False},
            "config_sentence_transformers.json": {
                "prompts": {"query": self.options.query_prompt, "document": self.options.document_prompt},
                "similarity_fn_name": "cosine" if self.options.normalize else "dot",
            },
        }  # fmt: skip

    def script(self) -> str:
        return "embedding"

    def script_values(self, model: PreTrainedModel, processor: Processor) -> Mapping[str, Any]:
        pooled = {"mean": ".mean(0)", "cls": "[0]", "last_token": "[-1]"}[self.options.pooling]
        return {"prompt": self.options.query_prompt, "pooled": pooled}

    def quality(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> Quality:
        if not self.scored:
            return retrieval_quality(_ranks_of(records))
        texts, found, scores = columns_of(records, "text", "prediction", "score")
        quality = correlation_quality(found, scores)
        if not self.options.ranking:
            return quality
        ranks = self._ranks(texts, found, scores)
        ranked = f"{len(ranks):,} of {len({*texts}):,} first texts have right and wrong second texts."
        intervals = {**quality.intervals, **retrieval_quality(ranks).intervals}
        return replace(quality, intervals=intervals, hints=(f"Ranking: {ranked}",))

    def report_sections(self, name: str, predictions: Predictions, data: EvalData, folder: Path) -> list[Section]:
        import torch

        from toolkit.document.blocks import Section, Table

        if not self.options.matryoshka_dims:
            return []
        found, names = torch.from_numpy(predictions["embeddings"]), [score.name for score in self.scores]
        cut = {size: self._scaled(found[..., :size]).numpy() for size in self._lengths(found.shape[-1])}
        rows = [[size, *self._scored(self.decode({"embeddings": own}, data)).values()] for size, own in cut.items()]
        return [Section(f"Scores of embeddings that are cut ({name})", [Table(["numbers", *names], rows)])]

    def answer(self, record: Record) -> dict[str, Any]:
        return {"embedding": record["embedding"]}

    def describe(self, record: Record) -> Description:
        if self.scored:
            both = f"{record['text']} / {record['text_pair']}"
            return Description(both, f"{record['prediction']:.3f}", f"{record['score']:g}")
        return Description(record["anchor"], record["prediction"], record["positive"])

    def error(self, record: Record) -> tuple[float, ...] | None:
        return None if record.get("rank", 1) == 1 else (float(record["rank"]),)

    def baselines(
        self, train: datasets.Dataset, sets: Mapping[str, datasets.Dataset]
    ) -> Iterator[tuple[str, dict[str, dict[str, float]]]]:
        from toolkit.tasks.baselines import ranked_by_words, similar_words

        if self.scored:
            texts = [*train["text"], *train["text_pair"]]
            scored = lambda similar, rows: self._of_pairs(rows["text"][:], similar.tolist(), rows["score"][:])  # noqa: E731
            yield from similar_words(texts, sets, scored, self.options.ranking)
            return
        yield from ranked_by_words({
            name: ([*found.queries], [*found.documents], found.relevant)
            for name, found in ((name, Collection.of(rows)) for name, rows in sets.items())
        })  # fmt: skip


def _mean(states: Tensor, mask: Tensor) -> Tensor:
    weights = mask[..., None].to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1)


def _last(states: Tensor, mask: Tensor) -> Tensor:
    import torch

    return states[torch.arange(len(states), device=states.device), (mask.sum(1) - 1).clamp(min=0)]


POOLINGS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": _mean,
    "cls": lambda states, mask: states[:, 0],
    "last_token": _last,
}
"""Functions that turn the vectors of tokens `[R, T, size]`, with the mask `[R, T]` of real ones, into `[R, size]`."""


def multiple_negatives(embeddings: Tensor, labels: Tensor, options: EmbeddingsOptions) -> Tensor:
    """Returns the summed loss of finding the positive of each row among the documents of all rows (InfoNCE).

    The cross entropy of van den Oord et al. 2018 (arXiv 1807.03748). Texts that answer an anchor in another row, which
    may have the same anchor or positive, are no negatives of it.

    Args:
        embeddings: `[N, texts, size]`: anchors, positives, then negatives.
        labels: `[N, texts]`, equal for equal texts; `IGNORE_INDEX` for missing ones.
        options: the task's options.
    """
    import torch
    from torch.nn.functional import cross_entropy

    count, documents = len(labels), labels[:, 1:].flatten()
    real, places = labels[:, 0] != IGNORE_INDEX, torch.arange(count, device=labels.device)
    same = (labels[:, None, 0] == labels[None, :, 0]).float()
    answers = same @ (labels[:, 1, None] == documents[None]).float() > 0  # of each anchor, by document
    step = labels.shape[1] - 1
    scores = embeddings[:, 0] @ embeddings[:, 1:].flatten(0, 1).T / options.temperature
    own = torch.nn.functional.one_hot(places * step, count * step).bool()
    hidden = (answers | (documents == IGNORE_INDEX)) & ~own
    losses = cross_entropy(scores.masked_fill(hidden, -math.inf), places * step, reduction="none")
    if options.symmetric:
        hidden = (answers[:, ::step].T | ~real) & ~own[:, ::step]
        other = cross_entropy(scores[:, ::step].T.masked_fill(hidden, -math.inf), places, reduction="none")
        losses = (losses + other) / 2
    return losses.masked_fill(~real, 0.0).sum()


def triplet(embeddings: Tensor, labels: Tensor, options: EmbeddingsOptions) -> Tensor:
    """Returns the summed hinge loss of each row's positive against its own negatives; arguments as above."""
    anchors, positives, negatives = embeddings[:, :1], embeddings[:, 1:2], embeddings[:, 2:]
    there = labels[:, 2:] != IGNORE_INDEX
    gaps = (anchors * negatives).sum(-1) - (anchors * positives).sum(-1)
    losses = (gaps + options.margin).clamp(min=0) * there
    return (losses.sum(1) / there.sum(1).clamp(min=1)).sum()


def cosine(embeddings: Tensor, labels: Tensor, options: EmbeddingsOptions) -> Tensor:
    """Returns the summed squared error of similarities as scores from 0 to 1; labels are `[N]`, NaN is ignored."""
    known = ~labels.isnan()
    errors = (embeddings[:, 0] * embeddings[:, 1]).sum(-1) - labels.nan_to_num().to(embeddings.dtype)
    return (errors**2 * known).sum()


def cosent(embeddings: Tensor, labels: Tensor, options: EmbeddingsOptions) -> Tensor:
    """Returns the CoSENT loss of all pairs of rows with different scores, times the number of rows (Su 2022).

    The logarithm of 1 plus the sum of exp((similarity of the row with the lower score - that of the other) /
    temperature); labels are `[N]`, NaN is ignored.
    """
    import torch

    similar = (embeddings[:, 0] * embeddings[:, 1]).sum(-1) / options.temperature
    gaps = similar[None, :] - similar[:, None]
    wrong = gaps.masked_fill(~(labels[:, None] > labels[None, :]), -math.inf)
    loss = torch.cat([gaps.new_zeros(1), wrong.flatten()]).logsumexp(0)
    return loss * (~labels.isnan()).sum()


LOSSES: Mapping[str, Callable[[Tensor, Tensor, EmbeddingsOptions], Tensor]] = {
    "multiple_negatives": multiple_negatives, "triplet": triplet, "cosine": cosine, "cosent": cosent,
}  # fmt: skip


TASK = Embeddings

if __name__ == "__main__":
    main(TASK)
