"""Token classification: entities such as persons and places in a text, marked by a tag per token.

accelerate launch recipes/token_classification.py --config recipes/configs/token_classification/smoke.yaml [key=value]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from toolkit.api.batch import Batch, Description, EvalData, ModelOutput, Omission, Predictions, Processor, Record, Row
from toolkit.api.task import Task
from toolkit.base.errors import DataError
from toolkit.config.fields import Column
from toolkit.config.sections import STRICT, Config
from toolkit.main import main
from toolkit.metrics.entities import ENTITIES, PER_ENTITY, entities, entity_quality, entity_scores, num_entities
from toolkit.metrics.score import Score, per_class_scores
from toolkit.modalities import text
from toolkit.tasks import tagging
from toolkit.tasks.labels import set_labels
from toolkit.tasks.records import LazyRecords, columns_of
from toolkit.tasks.tokens import pad_labels, token_losses

if TYPE_CHECKING:
    import datasets
    from torch import Tensor, nn
    from transformers import PreTrainedConfig

    from toolkit.api.random import RowRandom
    from toolkit.document.blocks import Section
    from toolkit.metrics.score import Quality


@dataclass(frozen=True, kw_only=True)
class TokenClassificationOptions:
    """Options of windows and entity types."""

    __pydantic_config__ = STRICT
    limits: ClassVar[Mapping[str, str]] = {"input": "max_length"}

    max_length: Annotated[int, Field(ge=8)] = 256
    """Maximum number of the model's tokens per window; longer texts are split into several windows."""
    stride: Annotated[int, Field(ge=0)] = 32
    """Number of tokens that consecutive windows share; each token is predicted in the window where it has most
    context."""
    entity_types: list[str] | None = None
    """Entity types, in the order of their classes; null uses those of the training rows, sorted. Rows with other types
    are bad rows."""

    def problems(self) -> list[str]:
        """Returns what is wrong in combination."""
        found, types = [], self.entity_types
        if self.stride >= self.max_length:
            found.append(f"task.stride: received {self.stride}, must be below task.max_length ({self.max_length})")
        if types is not None and (not types or len(set(types)) != len(types) or not all(map(str.strip, types))):
            found.append(f"task.entity_types: received {types}, expected different names")
        return found

    @property
    def tokenizer_style(self) -> text.TokenizerStyle:
        """Format of a new model's tokenizer: case is kept, because names begin with capitals."""
        return replace(text.ENCODER, lowercase=False)


class TokenClassification(Task):
    """Token classification; see `toolkit.api.task.Task`."""

    Options: ClassVar[type] = TokenClassificationOptions
    columns: ClassVar[Mapping[str, Column]] = {
        "tokens": Column("the tokens of a text: a list, or text in which blanks separate them"),
        "tags": Column("their tags in the same form: `O`, `B-<type>` or `I-<type>` each", label=True),
    }
    options: TokenClassificationOptions
    modality = "text"
    predicts_tokens = True
    reference = "tags"
    best_metric = "f1"
    answer_columns = ("prediction", "entities")
    error_name = "wrong or missing entities"

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self.state = {"entity_types": self.options.entity_types}

    @property
    def scores(self) -> Sequence[Score]:
        return *ENTITIES, *per_class_scores(PER_ENTITY, self.state["entity_types"])

    @property
    def tags(self) -> list[str]:
        """Names of the classes."""
        return tagging.tag_names(self.state["entity_types"])

    def auto_model(self, config: PreTrainedConfig) -> str:
        return "AutoModelForTokenClassification"

    def schema(self) -> datasets.Features:
        from datasets import Features, List, Value

        return Features({name: List(Value("string")) for name in self.columns})

    def check_row(self, row: Row, labelled: bool) -> Row:
        tokens, tags = tagging.check_tokens(row["tokens"], "tokens"), None
        if labelled:
            tags = tagging.check_tags(tagging.check_tokens(row["tags"], "tags"), tokens, self.state["entity_types"])
        return {"tokens": tokens, "tags": tags}

    def learn(self, rows: datasets.Dataset) -> None:
        kinds = {kind for tags in rows["tags"] for kind, _, _ in entities(tags)}
        if not kinds:
            raise DataError("data: no training row has an entity; every tag is O.")
        self.state["entity_types"] = self.state["entity_types"] or sorted(kinds)

    def omissions(self, rows: datasets.Dataset, features: datasets.Dataset) -> list[Omission]:
        total = sum(map(len, rows["tokens"]))
        missing = total - sum(word >= 0 for words in features["words"] for word in words)
        return [Omission("tokens without a piece in the tokenizer, tagged O", missing, total)]

    def training_texts(self, rows: datasets.Dataset) -> Iterator[str]:
        return map(" ".join, rows["tokens"])

    def configure(self, config: PreTrainedConfig) -> None:
        set_labels(config, self.tags, None)

    def preprocess(
        self, rows: Mapping[str, Sequence[Any]], processor: Processor, labelled: bool
    ) -> dict[str, list[Any]]:
        windows = tagging.encode_words(rows["tokens"], processor, self.options.max_length, self.options.stride)
        number = {tag: i for i, tag in enumerate(self.tags)}
        tags = [[number[tag] for tag in row] if labelled else None for row in rows["tags"]]
        return windows | {"labels": tagging.labels_of(windows, tags)}

    def collate(self, features: list[dict[str, Any]], processor: Processor, random: RowRandom) -> Batch:
        inputs = text.pad(features, processor)
        return {"inputs": inputs, "labels": pad_labels([row["labels"] for row in features], inputs["input_ids"])}

    def loss_sum(self, outputs: ModelOutput, batch: Batch) -> Tensor:
        return token_losses(outputs.logits, batch["labels"])

    def predict(self, model: nn.Module, outputs: ModelOutput, batch: Batch) -> dict[str, Tensor]:
        scores, classes = outputs.logits.float().softmax(-1).max(-1)
        return {"classes": classes.int(), "scores": scores}

    def decode(self, predictions: Predictions, data: EvalData) -> LazyRecords:
        return LazyRecords(lambda: tagging.tagged(predictions, data.features, data.rows, self.tags))

    def metrics(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> dict[str, float]:
        predicted, expected = columns_of(records, "prediction", "tags")
        return entity_scores(predicted, expected, self.state["entity_types"])

    def quality(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> Quality:
        predicted, expected = columns_of(records, "prediction", "tags")
        return entity_quality(predicted, expected, self.state["entity_types"])

    def baselines(
        self, train: datasets.Dataset, sets: Mapping[str, datasets.Dataset]
    ) -> Iterator[tuple[str, dict[str, dict[str, float]]]]:
        from toolkit.tasks.baselines import frequent_tags

        tagged = frequent_tags(train)
        types = self.state["entity_types"]
        yield (
            "the most frequent tag of each word",
            {
                name: entity_scores(list(map(tagged, rows["tokens"][:])), rows["tags"][:], types)
                for name, rows in sets.items()
            },
        )

    def answer(self, record: Record) -> dict[str, Any]:
        return {"prediction": record["prediction"], "entities": record["entities"]}

    def script(self) -> str:
        return "token_classification"

    def describe(self, record: Record) -> Description:
        tokens, tags = record["tokens"], record["tags"]
        expected = None if tags is None else tagging.listed(tokens, tags)
        return Description(" ".join(tokens), tagging.listed(tokens, record["prediction"]), expected)

    def error(self, record: Record) -> tuple[float, ...] | None:
        if record["tags"] is None:
            return None
        wrong = set(entities(record["tags"])) ^ set(entities(record["prediction"]))
        return (float(len(wrong)),) if wrong else None

    def report_sections(self, name: str, predictions: Predictions, data: EvalData, folder: Path) -> list[Section]:
        from toolkit.document.blocks import Section
        from toolkit.tasks.heads.tables import score_table

        types = self.state["entity_types"]
        metrics = self.metrics(self.decode(predictions, data), predictions, data)
        table = score_table(types, metrics, PER_ENTITY, num_entities(data.rows["tags"], types), counted="entities")
        return [Section(f"Entities ({name})", [table])]


TASK = TokenClassification

if __name__ == "__main__":
    main(TASK)
