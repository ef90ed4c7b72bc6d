"""Language modelling: predict the next token of a text (causal) or its masked tokens (masked).

accelerate launch recipes/language_modeling.py --config recipes/configs/language_modeling/smoke.yaml [section.key=value]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from toolkit.api.task import (
    IGNORE_INDEX,
    BadRow,
    Batch,
    Description,
    EvalData,
    ModelOutput,
    Predictions,
    Processor,
    Record,
    Row,
)
from toolkit.config.column import Column
from toolkit.config.rule import unused_options
from toolkit.config.sections import STRICT, Config, Positive
from toolkit.main import main
from toolkit.metrics.likelihood import LIKELIHOOD, likelihood_quality, likelihood_scores, perplexity
from toolkit.tasks.records import LazyRecords

if TYPE_CHECKING:
    import datasets
    import numpy as np
    from torch import Tensor, nn
    from transformers import PreTrainedConfig, PreTrainedModel

    from toolkit.api.random import RowRandom
    from toolkit.metrics.quality import Quality
    from toolkit.modalities.text import TokenizerStyle

AUTO_MODELS = {"causal": "AutoModelForCausalLM", "masked": "AutoModelForMaskedLM"}
ONLY_FOR = {"prompts": ("causal",), "max_new_tokens": ("causal",), "mlm_probability": ("masked",)}
"""Options that only some objectives use."""


@dataclass(frozen=True, kw_only=True)
class LanguageModelingOptions:
    """Options of the objective and the blocks, named as in transformers' `run_clm.py` and `run_mlm.py`."""

    __pydantic_config__ = STRICT
    limits: ClassVar[Mapping[str, str]] = {"input": "block_size"}

    objective: Literal["causal", "masked"] = "causal"
    """`causal` predicts each token from the previous ones (GPT-2, Llama), `masked` masked tokens from all others
    (BERT)."""
    block_size: Annotated[int, Field(ge=2)] = 1024
    """Maximum number of tokens per block."""
    packing: bool = True
    """Concatenate documents in order and split them into blocks of `block_size`. If false, each document starts a new
    block; short documents are padded and long ones become several blocks. No token is lost in either case."""
    mlm_probability: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Fraction of tokens to predict (masked only); 80 % of them are masked, 10 % replaced and 10 % unchanged."""
    prompts: list[str] = field(default_factory=lambda: [""])
    """Prompts for the samples in the report (causal only); an empty prompt starts a new text."""
    max_new_tokens: Positive = 64
    """Maximum number of tokens per sample (causal only)."""

    def problems(self) -> list[str]:
        """Returns what is wrong in combination."""
        return unused_options(self, "objective", ONLY_FOR)

    @property
    def tokenizer_style(self) -> TokenizerStyle:
        """Format of a new model's tokenizer."""
        from toolkit.modalities import text

        return text.DECODER if self.objective == "causal" else text.ENCODER


class LanguageModeling:
    """Causal and masked language modelling; an example is a document. See `toolkit.api.task.Task`."""

    Options: ClassVar[type] = LanguageModelingOptions
    columns: ClassVar[Mapping[str, Column]] = {"text": Column("a document")}
    modality = "text"
    scores = LIKELIHOOD
    best_metric = "perplexity"
    error_name = "loss per token"
    answer_columns = ("prediction", "loss", "num_tokens")

    def __init__(self, cfg: Config) -> None:
        self.cfg, self.options = cfg, cfg.task
        self.causal = self.options.objective == "causal"

    def auto_model(self, config: PreTrainedConfig) -> str:
        return AUTO_MODELS[self.options.objective]

    def schema(self) -> datasets.Features:
        from datasets import Features, Value

        return Features(text=Value("string"))

    def check_row(self, row: Row, labelled: bool) -> Row:
        if not isinstance(row["text"], str):
            raise BadRow(f"column 'text' holds {row['text']!r}, not text")
        return {"text": row["text"]}

    def configure(self, config: PreTrainedConfig) -> None:
        if not self.causal:
            return
        if hasattr(config, "is_decoder"):  # else models such as BERT see the token that they predict
            config.is_decoder = True
        # A padding token's embedding is never trained, so that may not be a token of the text, as in GPT-2's tokenizer.
        pad, *ends = (getattr(config, f"{name}_token_id", None) for name in ("pad", "bos", "eos"))
        if pad is not None and pad in ends:
            config.pad_token_id = None

    def preprocess(
        self, rows: Mapping[str, Sequence[Any]], processor: Processor, labelled: bool
    ) -> dict[str, list[Any]]:
        from toolkit.tasks.blocks import encode_documents

        tokens = encode_documents(rows["text"], processor, self.causal)
        return {"tokens": tokens, "length": [len(ids) for ids in tokens]}

    def regroup(self, features: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        from toolkit.tasks.blocks import cut

        return cut(features, self.options.block_size, packing=self.options.packing, causal=self.causal)

    def collate(self, features: list[dict[str, Any]], processor: Processor, random: RowRandom) -> Batch:
        import numpy as np
        import torch

        from toolkit.modalities import text

        pairs = [self._input_and_labels(row, processor, random) for row in features]
        inputs = text.pad([{"input_ids": ids.tolist()} for ids, _ in pairs], processor)
        labels = torch.full_like(inputs["input_ids"], IGNORE_INDEX)
        parts = torch.zeros_like(labels)
        for i, (row, (_, targets)) in enumerate(zip(features, pairs, strict=True)):
            labels[i, : len(targets)] = torch.as_tensor(targets)
            parts[i, : len(targets)] = torch.as_tensor(np.repeat(np.arange(len(row["targets"])), row["targets"]))
        return {
            # The cache of keys and values is for generation; it would be made, and kept, in every pass.
            "inputs": inputs | ({"use_cache": False} if self.causal else {}),
            "labels": labels,
            "extra": {"parts": parts},
        }

    def _input_and_labels(
        self, row: dict[str, Any], processor: Processor, random: RowRandom
    ) -> tuple[np.ndarray, np.ndarray]:
        import numpy as np

        from toolkit.tasks.blocks import mask_tokens, separators

        tokens = np.array(row["tokens"])
        if self.causal:
            begin, end = separators(processor)
            targets = tokens[1:]
            return tokens[:-1], targets if begin == end else np.where(targets == begin, IGNORE_INDEX, targets)
        special = np.array([i for i in processor.all_special_ids if i != processor.unk_token_id])
        generator = random.generator(row["row_id"])
        return mask_tokens(
            tokens, special, self.options.mlm_probability, processor.mask_token_id, len(processor), generator
        )

    def loss_sum(self, outputs: ModelOutput, batch: Batch) -> Tensor:
        return self._losses(outputs, batch, "sum")

    def predict(self, model: nn.Module, outputs: ModelOutput, batch: Batch) -> dict[str, Tensor]:
        labels, parts = batch["labels"], batch["extra"]["parts"]
        counted = labels != IGNORE_INDEX
        values = {
            "loss": self._losses(outputs, batch, "none").view_as(labels),
            "tokens": counted.long(),
            "correct": (counted & (outputs.logits.argmax(-1) == labels)).long(),
        }
        shape = (len(labels), int(parts.max()) + 1)
        return {name: each.new_zeros(shape).scatter_add(1, parts, each) for name, each in values.items()}

    def _losses(self, outputs: ModelOutput, batch: Batch, reduction: str) -> Tensor:
        from torch.nn.functional import cross_entropy

        logits, labels = outputs.logits.flatten(0, 1), batch["labels"].flatten()
        return cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction=reduction)

    def decode(self, predictions: Predictions, data: EvalData) -> LazyRecords:
        from toolkit.tasks.blocks import by_document

        def records() -> Iterator[Record]:
            sums = by_document(predictions, data.features, len(data.rows))
            for row, loss, tokens in zip(data.rows, sums["loss"], sums["tokens"], strict=True):
                mean = float(loss / tokens) if tokens else None
                yield {
                    "text": row["text"],
                    "loss": mean,
                    "perplexity": None if mean is None else perplexity(mean),
                    "num_tokens": int(tokens),
                }

        return LazyRecords(records)

    def metrics(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> dict[str, float]:
        from toolkit.tasks.blocks import by_document

        sums = by_document(predictions, data.features, len(data.rows))
        num_bytes = sum(len(text.encode()) for text in data.rows["text"]) if self.causal else None
        loss, tokens, correct = (float(sums[name].sum()) for name in ("loss", "tokens", "correct"))
        return likelihood_scores(loss, tokens, correct, num_bytes)

    def answer(self, record: Record) -> dict[str, Any]:
        shown = record.get("prediction", record["perplexity"])
        return {"prediction": shown, "loss": record["loss"], "num_tokens": record["num_tokens"]}

    def quality(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> Quality:
        from toolkit.tasks.blocks import by_document

        sums = by_document(predictions, data.features, len(data.rows))
        return likelihood_quality(sums["loss"], sums["tokens"], sums["correct"])

    def describe(self, record: Record) -> Description:
        known = "no token was predicted" if record["loss"] is None else f"perplexity {record['perplexity']:.4g}"
        return Description(record["text"], f"{known} ({record['num_tokens']} tokens)")

    def error(self, record: Record) -> tuple[float, ...] | None:
        return None if record["loss"] is None else (record["loss"],)

    def samples(self, model: PreTrainedModel, processor: Processor) -> list[str]:
        from toolkit.tasks.generation import continue_text

        if not self.causal:
            return []
        room = (self.options.max_new_tokens, self.options.block_size)
        seeded = enumerate(self.options.prompts, start=self.cfg.seed)
        return [continue_text(model, processor, prompt, *room, seed) for seed, prompt in seeded]


TASK = LanguageModeling

if __name__ == "__main__":
    main(TASK)
