"""A task outside of the package, with a forward pass and a loss of its own: which of two answers is preferred.

As in preference optimisation (Bradley and Terry 1952), the loss of a row is -log sigmoid(score of the preferred answer
- score of the rejected one); both answers go through the model in one call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toolkit.api.batch import IGNORE_INDEX, Description
from toolkit.api.task import Task
from toolkit.config.fields import STRICT, Column
from toolkit.main import main
from toolkit.metrics.score import Score


@dataclass(frozen=True, kw_only=True)
class PreferencesOptions:
    """How answers are truncated."""

    __pydantic_config__ = STRICT
    limits = {"input": "max_length"}  # noqa: RUF012

    max_length: int = 32
    """Maximum number of tokens of an answer."""


class Preferences(Task):
    """See `toolkit.api.task.Task`."""

    Options = PreferencesOptions
    columns = {  # noqa: RUF012
        "chosen": Column("the preferred answer", label=True),
        "rejected": Column("the other answer"),
    }
    modality = "text"
    scores = (Score("accuracy"), Score("margin"))
    best_metric = "accuracy"

    def auto_model(self, config: Any) -> str:
        """Returns the class of a model with one score per text."""
        return "AutoModelForSequenceClassification"

    def configure(self, config: Any) -> None:
        """Sets the number of scores."""
        config.num_labels = 1

    def schema(self) -> Any:
        """Returns two columns of text."""
        from datasets import Features, Value

        return Features({name: Value("string") for name in self.columns})

    def check_row(self, row: dict[str, Any], labelled: bool) -> dict[str, Any]:
        """Returns both answers."""
        return {name: None if row[name] is None else str(row[name]) for name in self.columns}

    def training_texts(self, rows: Any) -> Any:
        """Returns both answers of each row."""
        return (row[name] for row in rows for name in self.columns)

    def preprocess(self, rows: Any, processor: Any, labelled: bool) -> dict[str, list[Any]]:
        """Tokenises both answers."""
        from toolkit.modalities import text

        chosen, rejected = (text.encode(processor, self.options, rows[name]) for name in ("chosen", "rejected"))
        length = [max(pair) for pair in zip(chosen["length"], rejected["length"], strict=True)]
        return {**chosen, "rejected": rejected["input_ids"], "length": length}

    def collate(self, features: list[dict[str, Any]], processor: Any, random: Any) -> Any:
        """Pads both answers of all rows to one length."""
        import torch

        from toolkit.modalities import text

        sides = [{"input_ids": row[name]} for name in ("input_ids", "rejected") for row in features]
        both = {name: tensor.chunk(2) for name, tensor in text.pad(sides, processor).items()}
        return {
            "inputs": {name: chosen for name, (chosen, _) in both.items()},
            "extra": {name: rejected for name, (_, rejected) in both.items()},
            "labels": torch.zeros(len(features), dtype=torch.int64),
        }

    def forward(self, model: Any, batch: Any) -> Any:
        """Returns the outputs for all preferred and then all rejected answers."""
        import torch

        return model(**{name: torch.cat([chosen, batch["extra"][name]]) for name, chosen in batch["inputs"].items()})

    def loss_sum(self, outputs: Any, batch: Any) -> Any:
        """Returns the sum of the rows' losses."""
        from torch.nn.functional import logsigmoid

        return -logsigmoid(margins(outputs))[batch["labels"] != IGNORE_INDEX].sum()

    def predict(self, model: Any, outputs: Any, batch: Any) -> dict[str, Any]:
        """Returns the margin of each row."""
        return {"margin": margins(outputs)}

    def decode(self, predictions: Any, data: Any) -> list[dict[str, Any]]:
        """Returns each row with its margin."""
        return [{**row, "prediction": float(m)} for row, m in zip(data.rows, predictions["margin"], strict=True)]

    def metrics(self, records: Any, predictions: Any, data: Any) -> dict[str, float]:
        """Returns how often the preferred answer has the higher score, and by how much on average."""
        margin = predictions["margin"]
        return {"accuracy": float((margin > 0).mean()), "margin": float(margin.astype("float64").mean())}

    def describe(self, record: dict[str, Any]) -> Description:
        """Returns both answers and the margin."""
        return Description(f"{record['chosen']} / {record['rejected']}", f"{record['prediction']:.3f}")


def margins(outputs: Any) -> Any:
    """Returns the score of each preferred answer minus that of the rejected one, `[B]`."""
    chosen, rejected = outputs.logits.squeeze(-1).chunk(2)
    return chosen - rejected


TASK = Preferences

if __name__ == "__main__":
    main(TASK)
