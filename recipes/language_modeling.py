"""Language modelling: predict the next token of a text (causal) or its masked tokens (masked).

accelerate launch recipes/language_modeling.py --config recipes/configs/language_modeling/smoke.yaml [section.key=value]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from toolkit.api.batch import (
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
from toolkit.base.errors import problems_of
from toolkit.config.fields import Column
from toolkit.config.problems import unused_options
from toolkit.config.sections import STRICT, Config, Positive
from toolkit.main import main
from toolkit.metrics.generation import ANSWERS, quality_of_answers, scores_of_answers
from toolkit.metrics.likelihood import LIKELIHOOD, likelihood_quality, likelihood_scores
from toolkit.modalities import seq2seq, text
from toolkit.tasks import blocks, chat, conversations, generation
from toolkit.tasks.records import LazyRecords
from toolkit.tasks.tokens import labelled_positions, pad_labels, token_losses

if TYPE_CHECKING:
    import datasets
    import numpy as np
    from torch import Tensor, nn
    from transformers import PreTrainedConfig, PreTrainedModel

    from toolkit.api.random import RowRandom
    from toolkit.metrics.score import Quality, Score

AUTO_MODELS = {"causal": "AutoModelForCausalLM", "masked": "AutoModelForMaskedLM"}
BY_OBJECTIVE = {
    **dict.fromkeys(("prompts", "max_new_tokens", "generation"), ("causal",)),
    "mlm_probability": ("masked",),
}
"""Options that only some objectives use."""
CHATS = ("messages", "sharegpt")
BY_FORMAT = {
    **dict.fromkeys(("objective", "packing"), ("text",)),
    **dict.fromkeys(("chat_template", "thinking"), CHATS),
}
"""Options that have an effect, or other values than the default, only with some formats of the data."""


@dataclass(frozen=True, kw_only=True)
class LanguageModelingOptions:
    """Options of the objective, the data and the blocks, named as in transformers' `run_clm.py` and `run_mlm.py`."""

    __pydantic_config__ = STRICT
    limits: ClassVar[Mapping[str, str]] = {"input": "block_size"}

    objective: Literal["causal", "masked"] = "causal"
    """`causal` predicts each token from the previous ones (GPT-2, Llama), `masked` masked tokens from all others
    (BERT)."""
    data_format: Literal["text", "prompt_completion", "messages", "sharegpt", "alpaca"] = "text"
    """Columns of the data: `text`; `prompt` and `completion`; `messages`, a list of objects with `role` and `content`;
    `conversations`, with `from` and `value` (ShareGPT); or `instruction`, `input` and `output` (Alpaca, in its own
    prompt). Except for `text`, only answers are trained and scored: completions, or messages of the assistant."""
    chat_template: str | None = None
    """Chat template (Jinja) for `messages`; null uses that of the model's tokenizer. Saved with the tokenizer. Names of
    the form `<|name|>` become tokens of a new model's tokenizer."""
    thinking: Literal["keep", "drop"] = "keep"
    """Whether the thinking before an answer is given to the chat template and trained: `reasoning_content` of messages,
    and `<think>...</think>` at the beginning of their text."""
    block_size: Annotated[int, Field(ge=2)] = 1024
    """Maximum number of tokens that the model reads at once: of a block (`text`), or of an example, which is truncated
    at its end and counted. A causal model predicts the successor of each."""
    packing: bool = True
    """Concatenate documents in order and split them into blocks of `block_size`. If false, each document starts a new
    block; short documents are padded and long ones become several blocks. No token is lost in either case (`text`
    only)."""
    mlm_probability: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Fraction of tokens to predict (masked only); 80 % of them are masked, 10 % replaced and 10 % unchanged."""
    prompts: list[str] | None = None
    """Prompts for the samples in the report (causal only); an empty prompt starts a new text. Null uses an empty one
    (`text`) or those of the first training examples."""
    max_new_tokens: Positive = 64
    """Maximum number of tokens per sample or predicted answer (causal only)."""
    generation: dict[str, Any] = field(default_factory=dict)
    """Further fields of `transformers.GenerationConfig` for answers and continuations (causal only), for instance
    `{do_sample: true, temperature: 0.7}` or `{num_beams: 4}`. They replace those that the model brings, which a run
    names when it starts; without `do_sample`, nothing is sampled but the report's samples."""

    def problems(self) -> list[str]:
        """Returns what is wrong in combination."""
        found = unused_options(self, "objective", BY_OBJECTIVE) + unused_options(self, "data_format", BY_FORMAT)
        return found + generation.settings_problems(self.generation)

    @property
    def tokenizer_style(self) -> text.TokenizerStyle:
        """Format of a new model's tokenizer."""
        style = text.DECODER if self.objective == "causal" else text.ENCODER
        return replace(style, extra_tokens=chat.control_tokens(self.chat_template or ""))


def _answers(records: Iterable[Record]) -> tuple[list[str], list[str]]:
    """Returns the generated answers of records, and the given ones."""
    pairs = [(record["prediction"], conversations.answer_of(record) or "") for record in records]
    return [one for one, _ in pairs], [other for _, other in pairs]


def _column(data_format: str, help: str, label: bool = False) -> Column:
    used: Callable[[Any], bool] = lambda options: options is None or options.data_format == data_format  # noqa: E731
    return Column(f"{help} (task.data_format: {data_format})", label=label, used=used)


class LanguageModeling(Task):
    """Causal and masked language modelling; an example is a document or has answers. See `toolkit.api.task.Task`."""

    Options: ClassVar[type] = LanguageModelingOptions
    columns: ClassVar[Mapping[str, Column]] = {
        "text": _column("text", "a document"),
        "prompt": _column("prompt_completion", "a prompt"),
        "completion": _column("prompt_completion", "the text that answers it", label=True),
        "messages": _column("messages", "a conversation: a list of objects with `role` and `content`"),
        "conversations": _column("sharegpt", "a conversation: a list of objects with `from` and `value`"),
        "tools": Column(
            "the tools of a conversation, as its chat template expects them",
            required=False,
            used=lambda options: options is None or options.data_format in CHATS,
        ),
        "instruction": _column("alpaca", "what to do"),
        "input": replace(_column("alpaca", "what it is about"), required=False),
        "output": _column("alpaca", "the answer", label=True),
    }
    modality = "text"
    best_metric = "perplexity"
    error_name = "loss per token"
    decoding = ("max_new_tokens", "generation")
    scorable = predicts_tokens = True

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self.cfg = cfg
        self.causal = self.options.objective == "causal"
        self.answers, self.chats = self.options.data_format != "text", self.options.data_format in CHATS
        self.state = {"generation": {}} if self.causal else {}
        self.answer_columns = ("prediction",) if self.causal else ("prediction", "loss", "num_tokens")

    @property
    def scores(self) -> Sequence[Score]:
        return [*LIKELIHOOD, *(ANSWERS if self.cfg.eval.generate and self.answers else ())]

    def auto_model(self, config: PreTrainedConfig) -> str:
        return AUTO_MODELS[self.options.objective]

    def schema(self) -> datasets.Features:
        from datasets import Features, List, Value

        if self.chats:
            messages = List(dict.fromkeys(("role", "content", "more"), Value("string")))
            return Features(messages=messages, tools=Value("string"), ignored=Value("int64"), dropped=Value("int64"))
        names = ("prompt", "completion") if self.answers else ("text",)
        return Features(dict.fromkeys(names, Value("string")))

    def check_row(self, row: Row, labelled: bool) -> Row:
        if self.chats:
            given = row["messages" if self.options.data_format == "messages" else "conversations"]
            messages = conversations.check_messages(given, labelled)
            kept = conversations.without_thinking(messages) if self.options.thinking == "drop" else messages
            dropped = sum(one != other for one, other in zip(messages, kept, strict=True))
            ignored = len(given) - len(messages) if labelled else 0
            found = {"messages": conversations.stored(kept), "tools": conversations.checked_tools(row.get("tools"))}
            return {**found, "ignored": ignored, "dropped": dropped}
        if self.options.data_format == "alpaca":
            return conversations.check_alpaca(row, labelled)
        if self.answers:
            return conversations.check_pair(row, labelled)
        if not isinstance(row["text"], str):
            raise BadRow(f"column 'text' holds {row['text']!r}, not text")
        return {"text": row["text"]}

    def learn(self, rows: datasets.Dataset) -> None:
        if self.answers and self.options.prompts is None:
            self.state["prompts"] = [conversations.prompt_of(row) for row in islice(rows, 3)]

    def inputs_of(self, row: Row) -> dict[str, Any]:
        if self.chats:
            return {"messages": row["messages"][:-1]}
        return {"prompt": row["prompt"]} if self.options.data_format == "alpaca" else {}

    def omissions(self, rows: datasets.Dataset, features: datasets.Dataset) -> list[Omission]:
        if not self.answers:
            return []
        why = "task.block_size cuts it off, or it is outside of {% generation %} in the chat template"
        open_ended = len(features) - sum(features["ended"][:])
        ignored = dropped = 0
        kept: Sequence[Any] = []
        if self.chats:
            ignored, dropped, kept = sum(rows["ignored"]), sum(rows["dropped"]), rows["messages"]
        return [
            Omission("messages lose their thinking (task.thinking=drop)", dropped, sum(map(len, kept))),
            Omission("examples do not train the end of an answer", open_ended, len(features), why),
            Omission("messages after the last answer ignored", ignored, ignored + sum(map(len, kept))),
        ]

    def processor_problems(self, processor: Processor) -> list[str]:
        found = seq2seq.generation_problems(self.options.generation)
        if self.chats:
            return found + chat.end_problems(processor)
        return found + problems_of(lambda: blocks.encode_documents([""], processor, self.causal))

    def notes(self, rows: datasets.Dataset, features: datasets.Dataset) -> list[str]:
        return seq2seq.inherited(self.state.get("generation", {}), self.options.generation)

    def training_texts(self, rows: datasets.Dataset) -> Iterator[str]:
        if not self.answers:
            return iter(rows["text"])
        return (conversations.as_text(conversations.prompt_of(row), conversations.answer_of(row) or "") for row in rows)

    def configure(self, config: PreTrainedConfig) -> None:
        if self.causal:
            blocks.configure_decoder(config)
            brought = seq2seq.own_generation(config, self.cfg)
            unused = ("do_sample", *generation.SAMPLING)  # without task.generation.do_sample
            self.state["generation"] = {name: value for name, value in brought.items() if name not in unused}

    def preprocess(
        self, rows: Mapping[str, Sequence[Any]], processor: Processor, labelled: bool
    ) -> dict[str, list[Any]]:
        if self.answers or (self.causal and not labelled):
            how, size = self._how(processor), self.options.block_size
            if self.answers:
                examples = chat.encode_examples(rows, processor, labelled, how.end)
            else:
                examples = ((blocks.encode_beginning(each, processor), []) for each in rows["text"])
            return chat.example_columns(examples, size, how.end, how.kept)
        tokens = blocks.encode_documents(rows["text"], processor, self.causal)
        return {"tokens": tokens, "length": [len(ids) for ids in tokens]}

    def regroup(self, features: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        rows = iter(features)
        first = next(rows, {})
        rows = chain([first] if first else [], rows)
        if "answers" in first:
            return chat.with_answers(rows)
        return blocks.cut(rows, self.options.block_size, packing=self.options.packing, causal=self.causal)

    def lost(self, rows: datasets.Dataset, features: datasets.Dataset) -> tuple[Sequence[int], str]:
        kept = set(features["example"][:]) if "answers" in features.column_names else range(len(rows))
        missing = [place for place in range(len(rows)) if place not in kept]
        return missing, f"have no answer within task.block_size ({self.options.block_size}) tokens"

    def collate(self, features: list[dict[str, Any]], processor: Processor, random: RowRandom) -> Batch:
        pairs = [self._input_and_labels(row, processor, random) for row in features]
        inputs = text.pad([{"input_ids": ids.tolist()} for ids, _ in pairs], processor)
        extra: dict[str, Any] = {"parts": blocks.pad_parts([row["targets"] for row in features], inputs["input_ids"])}
        if "answers" in features[0] and not features[0]["answers"]:  # prompts, whose answers are to be generated
            extra |= {"prompts": [row["tokens"] for row in features], "how": self._how(processor)}
        labels = pad_labels([labels for _, labels in pairs], inputs["input_ids"])
        # The cache of keys and values is for generation; it would be made, and kept, in every pass.
        cache = {"use_cache": False} if self.causal else {}
        return {"inputs": inputs | cache, "labels": labels, "labelled": labelled_positions(labels), "extra": extra}

    def _how(self, processor: Processor) -> generation.Generating:
        """Returns how answers are generated."""
        end = chat.answer_end(processor, None if self.chats else "")
        options = self.options
        around = chat.margins(processor) if self.chats else ("", "")
        return generation.Generating(end, options.max_new_tokens, options.block_size, options.generation, around)

    def _input_and_labels(
        self, row: dict[str, Any], processor: Processor, random: RowRandom
    ) -> tuple[np.ndarray, np.ndarray]:
        import numpy as np

        tokens = np.array(row["tokens"])
        if "answers" in row:
            return chat.inputs_and_labels(tokens, row["answers"])
        if self.causal:
            return blocks.next_tokens(tokens, processor)
        special = np.array([i for i in processor.all_special_ids if i != processor.unk_token_id])
        share, generator = self.options.mlm_probability, random.generator(row["row_id"])
        return blocks.mask_tokens(tokens, special, share, processor.mask_token_id, len(processor), generator)

    def loss_sum(self, outputs: ModelOutput, batch: Batch) -> Tensor:
        return token_losses(outputs.logits, batch["labels"], labelled=batch["labelled"])

    def predict(self, model: nn.Module, outputs: ModelOutput, batch: Batch) -> dict[str, Tensor]:
        extra = batch["extra"]
        found = blocks.sums_of_parts(outputs.logits, batch["labels"], extra["parts"], batch["labelled"])
        if "prompts" in extra:
            seeds = [self.cfg.seed + max(0, row_id) for row_id in batch["row_ids"].tolist()]
            found["ids"] = generation.continue_all(model, extra["prompts"], extra["how"], seeds)
        return found

    def decode(self, predictions: Predictions, data: EvalData) -> LazyRecords:
        sums = dict(predictions)
        ids = sums.pop("ids", None)
        around = chat.margins(data.processor) if self.chats and ids is not None else ("", "")

        def records() -> Iterator[Record]:
            if ids is not None:
                for row, own in zip(data.each_row(), ids, strict=True):
                    yield self._shown(row) | {"prediction": chat.decoded([own], data.processor, around)[0]}
                return
            scored = blocks.scored_documents(sums, data.features, len(data.rows))
            for row, scores in zip(data.each_row(), scored, strict=True):
                yield self._shown(row) | scores

        return LazyRecords(records)

    def _shown(self, row: Row) -> Record:
        """Returns what a row is about, for its record."""
        if not self.chats:
            return {name: row[name] for name in self.schema()}
        tools = {} if row["tools"] is None else {"tools": json.loads(row["tools"])}
        return {"messages": conversations.restored(row["messages"]), **tools}

    def metrics(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> dict[str, float]:
        sums = blocks.by_document(predictions, data.features, len(data.rows))
        complete = self.causal and not self.answers
        num_bytes = sum(len(document.encode()) for document in data.rows["text"]) if complete else None
        loss, tokens, correct = (float(sums[name].sum()) for name in ("loss", "tokens", "correct"))
        return likelihood_scores(loss, tokens, correct, num_bytes)

    def answer(self, record: Record) -> dict[str, Any]:
        if "prediction" in record:
            return {"prediction": record["prediction"]}
        return {"prediction": record["perplexity"], "loss": record["loss"], "num_tokens": record["num_tokens"]}

    def quality(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> Quality:
        sums = blocks.by_document(predictions, data.features, len(data.rows))
        return likelihood_quality(sums["loss"], sums["tokens"], sums["correct"])

    def describe(self, record: Record) -> Description:
        if "prediction" in record:
            predicted = str(record["prediction"])
        else:
            known = "no token was predicted" if record["loss"] is None else f"perplexity {record['perplexity']:.4g}"
            predicted = f"{known} ({record['num_tokens']} tokens)"
        if not self.answers:
            return Description(record["text"], predicted)
        return Description(
            conversations.as_text(conversations.prompt_of(record)), predicted, conversations.answer_of(record)
        )

    def error(self, record: Record) -> tuple[float, ...] | None:
        return None if record.get("loss") is None else (record["loss"],)

    def has(self, name: str) -> bool:
        own = {"prompt_ids": self.causal, "generated_scores": self.answers}
        return super().has(name) and own.get(name, True)

    def generated_scores(self, records: Iterable[Record]) -> dict[str, float]:
        return scores_of_answers(*_answers(records))

    def generated_quality(self, records: Iterable[Record]) -> Quality:
        return quality_of_answers(*_answers(records))

    def prompt_ids(self, prompt: Any, processor: Processor) -> tuple[list[int], generation.Generating]:
        checked = conversations.checked_prompt(prompt, "messages" if self.chats else "text")
        if self.options.data_format == "text":
            return blocks.encode_beginning(str(checked), processor), self._how(processor)
        with chat.of_row("1"):
            return chat.encode_prompt(checked, processor), self._how(processor)

    def samples(self, model: PreTrainedModel, processor: Processor) -> list[str]:
        if not self.causal:
            return []
        prompts = self.state.get("prompts", [""]) if self.options.prompts is None else self.options.prompts
        kind = "messages" if self.chats else self.options.data_format
        return chat.samples(model, processor, prompts, self._how(processor), kind, self.cfg.seed)

    def script(self) -> str:
        generation.require_causal(self.causal)
        return "chat"

    def graph_script(self) -> str:
        return self.script() if self.causal else "fill_mask"

    def generation_fields(self, model: PreTrainedModel, processor: Processor) -> Mapping[str, Any]:
        stops = self.script_values(model, processor).get("stops")
        return {"eos_token_id": stops} if stops else {}

    def script_values(self, model: PreTrainedModel, processor: Processor) -> Mapping[str, Any]:
        if not self.causal:
            return {}
        header = chat.header(processor) if self.chats else []
        return {"header": header} | generation.script_values(model, processor, self._how(processor))


TASK = LanguageModeling

if __name__ == "__main__":
    main(TASK)
