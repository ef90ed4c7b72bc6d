"""Preferences: language models that favour better answers over worse ones, or reward models that score answers.

accelerate launch recipes/preference.py --config recipes/configs/preference/smoke.yaml [section.key=value ...]
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from toolkit.api.batch import (
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
    logits_at_labels,
)
from toolkit.api.task import Task
from toolkit.base.errors import DataError, problems_of
from toolkit.config.fields import Column
from toolkit.config.problems import unused_options
from toolkit.config.sections import STRICT, Config, Positive
from toolkit.main import main
from toolkit.metrics.intervals import bootstrap
from toolkit.metrics.score import Quality, Score
from toolkit.modalities import seq2seq, text
from toolkit.tasks import blocks, chat, conversations, generation
from toolkit.tasks.generation import settings_problems
from toolkit.tasks.preferences import LOSSES, REFERENCED
from toolkit.tasks.records import LazyRecords, as_flag, checked_text
from toolkit.tasks.tokens import labelled_positions, pad_labels, token_losses

if TYPE_CHECKING:
    import datasets
    import numpy as np
    from torch import Tensor, nn
    from transformers import PreTrainedConfig, PreTrainedModel

    from toolkit.api.random import RowRandom

LOSS_SETTINGS = {
    "beta": ("dpo", "ipo", "orpo", "simpo", "kto"),
    "label_smoothing": ("dpo",),
    "length_normalized": REFERENCED,
    "simpo_gamma": ("simpo",),
    "desirable_weight": ("kto",),
    "undesirable_weight": ("kto",),
    "max_new_tokens": ("dpo", "ipo", "orpo", "simpo", "kto"),
    "generation": ("dpo", "ipo", "orpo", "simpo", "kto"),
}
"""Settings that only some losses use."""


@dataclass(frozen=True, kw_only=True)
class PreferenceOptions:
    """Options of the loss and the data, named as in TRL."""

    __pydantic_config__ = STRICT
    limits: ClassVar[Mapping[str, str]] = {"input": "max_length"}

    loss: Literal["dpo", "ipo", "orpo", "simpo", "kto", "reward"] = "dpo"
    """What is learned from `prompt`, `chosen` and `rejected`: `dpo` (Rafailov et al. 2023, arXiv 2305.18290), `ipo`
    (Azar et al. 2023, arXiv 2310.12036), `orpo` (Hong et al. 2024, arXiv 2403.07691), `simpo` (Meng et al. 2024, arXiv
    2405.14734), or `reward`, a model that scores answers (Bradley and Terry 1952). From `prompt`, `completion` and
    `label`: `kto` (Ethayarajh et al. 2024, arXiv 2402.01306)."""
    beta: Annotated[float, Field(gt=0)] = 0.1
    """How closely the model is held to the one before training (`dpo`, `ipo`, `kto`), the weight of the odds ratio
    (`orpo`), or the scale of the log-probabilities (`simpo`, which the authors use with 2 to 10)."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """Assumed share of pairs whose answers are swapped (`dpo`; conservative DPO)."""
    length_normalized: bool = False
    """Divide log-probabilities of answers by their numbers of tokens (`dpo`, `ipo`, `kto`); `orpo` and `simpo` always
    do."""
    simpo_gamma: Annotated[float, Field(ge=0)] = 0.5
    """By how much the reward of the chosen answer should be larger (`simpo`)."""
    desirable_weight: Annotated[float, Field(gt=0)] = 1.0
    """Weight of completions with a positive label (`kto`)."""
    undesirable_weight: Annotated[float, Field(gt=0)] = 1.0
    """Weight of completions with a negative label (`kto`)."""
    data_format: Literal["prompt_completion", "messages"] = "prompt_completion"
    """Prompts and answers are text, or `messages`: a prompt is a list of objects with `role` and `content`, or the text
    of a user's message; an answer is text, or a list that ends with a message of the assistant. Without a prompt,
    answers are whole conversations."""
    chat_template: str | None = None
    """Chat template (Jinja) for `messages`; null uses that of the model's tokenizer."""
    max_length: Annotated[int, Field(ge=8)] = 1024
    """Maximum number of tokens of a prompt with an answer; longer ones are truncated at their end and counted."""
    max_new_tokens: Positive = 64
    """Maximum number of tokens per sample or predicted answer."""
    generation: dict[str, Any] = field(default_factory=dict)
    """Further fields of `transformers.GenerationConfig` for answers, for instance `{do_sample: true}`."""

    def problems(self) -> list[str]:
        """Returns what is wrong in combination."""
        found = unused_options(self, "loss", LOSS_SETTINGS) + settings_problems(self.generation)
        return found + unused_options(self, "data_format", {"chat_template": ("messages",)})

    @property
    def tokenizer_style(self) -> text.TokenizerStyle:
        """Format of a new model's tokenizer."""
        return replace(text.DECODER, extra_tokens=chat.control_tokens(self.chat_template or ""))


def _column(help: str, losses: Sequence[str] = (), label: bool = False, required: bool = True) -> Column:
    used: Callable[[Any], bool] = lambda options: options is None or not losses or options.loss in losses  # noqa: E731
    return Column(help, label=label, required=required, used=used)


ROUNDING = 1e-6
"""Relative error of a log-probability, the sum of some tokens' in float32."""
PAIRED = ("dpo", "ipo", "orpo", "simpo", "reward")
"""Losses that compare two answers to a prompt."""
PAIR = ("reward_accuracy", "reward_margin", "chosen_logps", "rejected_logps", "kl")
SINGLE = ("reward_accuracy", "reward_margin", "desirable_logps", "undesirable_logps", "kl")
"""Scores of pairs, and of single completions. `reward_accuracy`: how often the chosen answer has the larger reward, or
a completion's is above the reference point if it is desirable. `reward_margin`: the mean difference. Then the mean
log-probabilities of both kinds of answers, and the mean change of log-probabilities in training, which estimates the
divergence from the model before it: on both answers, or on completions of other prompts."""


class Preference(Task):
    """Preference tuning and reward models; see `toolkit.api.task.Task`."""

    Options: ClassVar[type] = PreferenceOptions
    columns: ClassVar[Mapping[str, Column]] = {
        "prompt": _column("what is answered"),
        "chosen": _column("the better answer", PAIRED, label=True),
        "rejected": _column("the worse answer", PAIRED, label=True),
        "completion": _column("an answer", ("kto",), label=True),
        "label": _column("whether it is a good one: true or false, 1 or 0", ("kto",), label=True),
    }
    modality = "text"
    best_metric = "reward_accuracy"
    error_name = "margin of rewards"
    several_labels = True
    decoding = ("max_new_tokens", "generation")

    options: PreferenceOptions

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        loss = self.options.loss
        self.loss, self.single, self.scores_answers = LOSSES[loss], loss == "kto", loss == "reward"
        self.chats = self.options.data_format == "messages"
        self.answers = ("completion",) if self.single else ("chosen", "rejected")
        self.initial = ("logps",) if loss in REFERENCED else ()
        self.alike = () if self.single else self.answers

    @property
    def scores(self) -> Sequence[Score]:
        names = SINGLE if self.single else PAIR if self.initial else PAIR[:2] if self.scores_answers else PAIR[:-1]
        return [Score(name, greater_is_better=name != "kl") for name in names]

    def has(self, name: str) -> bool:
        writes = not self.scores_answers
        own = {"window_loss": self.single, "regroup": self.single, "samples": writes, "prompt_ids": writes}
        return super().has(name) and own.get(name, True)

    def auto_model(self, config: PreTrainedConfig) -> str:
        return "AutoModelForSequenceClassification" if self.scores_answers else "AutoModelForCausalLM"

    def configure(self, config: PreTrainedConfig) -> None:
        if self.scores_answers:
            config.num_labels = 1
        else:
            blocks.configure_decoder(config)

    def read_columns(self) -> dict[str, Column]:
        columns = super().read_columns()
        if self.chats:
            columns["prompt"] = replace(columns["prompt"], required=False)
        if self.scores_answers:  # it is what a reward model reads
            columns["chosen"] = replace(columns["chosen"], label=False)
        return columns

    def schema(self) -> datasets.Features:
        from datasets import Features, Value

        names = ("prompt", *self.answers)
        return Features(dict.fromkeys(names, Value("string")) | ({"label": Value("bool")} if self.single else {}))

    def check_row(self, row: Row, labelled: bool) -> Row:
        names = self.answers if labelled else self.answers[:1] if self.scores_answers else ()
        found: Row = dict.fromkeys(self.answers)
        if self.chats:
            found |= _conversation(row.get("prompt"), {name: row[name] for name in names})
        else:
            texts = ("prompt", *names)
            found |= {name: checked_text(row[name], name, f"column {name!r}") for name in texts}
        if not self.single:
            if labelled and found["chosen"] == found["rejected"]:
                raise BadRow("columns 'chosen' and 'rejected' hold the same answer")
            return found
        return found | {"label": as_flag(row["label"], "label") if labelled else None}

    def inputs_of(self, row: Row) -> Mapping[str, Any]:
        return {"prompt": row["prompt"], **({"chosen": ""} if self.scores_answers else {})}

    def learn(self, rows: datasets.Dataset) -> None:
        if not self.scores_answers:
            self.state["prompts"] = [self._prompt(each) for each in dict.fromkeys(islice(rows["prompt"], 3))]
        if self.single and len({*rows["label"]}) == 1:
            raise DataError(f"data: all {len(rows):,} training rows have the label {rows['label'][0]}")

    def _prompt(self, stored: str) -> str | list[conversations.Message]:
        prompt: str | list[conversations.Message] = json.loads(stored) if self.chats else stored
        return prompt

    def training_texts(self, rows: datasets.Dataset) -> Iterator[str]:
        for row in rows:
            yield from (conversations.as_text(self._prompt(row["prompt"]), row[name]) for name in self.answers)

    def processor_problems(self, processor: Processor) -> list[str]:
        found = seq2seq.generation_problems(self.options.generation)
        if self.chats:
            return found + chat.end_problems(processor)
        return found if self.scores_answers else problems_of(lambda: blocks.separators(processor))

    def preprocess(
        self, rows: Mapping[str, Sequence[Any]], processor: Processor, labelled: bool
    ) -> dict[str, list[Any]]:
        names = self.answers if labelled else self.answers[:1] if self.scores_answers else ()
        columns: dict[str, list[Any]] = {
            name: [] for name in ("tokens", "answers", "label", "length", "truncated_input", "example")
        }
        columns |= {"token_type_ids": []} if (segments := self._segments(processor)) else {}
        limit = self.options.max_length + (not self.scores_answers)  # the last token of an answer is only predicted
        end = chat.answer_end(processor) if self.chats else None
        for place, prompt in enumerate(map(self._prompt, rows["prompt"])):
            with chat.of_row(rows["_number"][place]):
                texts = [self._encoded(prompt, rows[name][place], processor, end) for name in names]
            if not names:
                kept = self._how(processor).kept
                tokens = chat.encode_prompt(prompt, processor)
                texts, limit = [(tokens[-kept:], [False] * min(kept, len(tokens)))], kept
            if labelled and any(not any(mask[1:limit]) for _, mask in texts):
                continue
            label = [float(rows["label"][place])] if self.single and labelled else [1.0]
            found = [[tokens[:limit] for tokens, _ in texts], [mask[:limit] for _, mask in texts], label]
            longest = max(len(tokens) for tokens, _ in texts)
            found += [len(texts) * min(longest, limit), longest > limit, place]
            for column, value in zip(columns.values(), found, strict=False):
                column.append(value)
            if segments:
                columns["token_type_ids"].append([[int(each) for each in mask[:limit]] for _, mask in texts])
        return columns

    def _segments(self, processor: Processor) -> bool:
        """Whether the tokenizer tells the two texts of a pair apart by their types, as BERT's does."""
        return self._reads_pairs(processor) and "token_type_ids" in processor.model_input_names

    def _reads_pairs(self, processor: Processor) -> bool:
        return self.scores_answers and not self.chats and processor.eos_token_id is None

    def _encoded(
        self, prompt: str | list[conversations.Message], answer: str, processor: Processor, end: Sequence[int] | None
    ) -> chat.Encoded:
        """Returns the tokens of a prompt with an answer, and which of them are the answer."""
        if self._reads_pairs(processor):
            found = processor(prompt, answer, verbose=False)
            return found["input_ids"], [part == 1 for part in found.sequence_ids()]
        return chat.encode_answer(prompt, answer, processor, end)

    def regroup(self, features: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yields the rows with a second text, their prompt with the next row's completion (KTO's paper, section 4)."""
        left = iter(features)
        first = row = next(left, None)
        for other in chain(left, [first]):
            if row is None or other is None or not any(row["answers"][0]):
                yield from () if row is None else (row,)
            else:
                yield row | self._mismatched(row, other)
            row = other

    def _mismatched(self, row: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        limit, begin, end = self.options.max_length + 1, *(each["answers"][0].index(True) for each in (row, other))
        tokens = (row["tokens"][0][:begin] + other["tokens"][0][end:])[:limit]
        mask = (row["answers"][0][:begin] + other["answers"][0][end:])[:limit]
        length = 2 * max(len(tokens), len(row["tokens"][0]))
        return {"tokens": [*row["tokens"], tokens], "answers": [*row["answers"], mask], "length": length}

    def lost(self, rows: datasets.Dataset, features: datasets.Dataset) -> tuple[Sequence[int], str]:
        kept = set(features["example"][:])
        missing = [place for place in range(len(rows)) if place not in kept]
        return missing, f"have an answer without a token within task.max_length ({self.options.max_length})"

    def collate(self, features: list[dict[str, Any]], processor: Processor, random: RowRandom) -> Batch:
        import torch

        shift = not self.scores_answers and any(features[0]["answers"][0])  # a causal model reads all but the last
        ids = [[tokens[:-1] if shift else tokens for tokens in row["tokens"]] for row in features]
        rows: list[dict[str, Any]] = [{"input_ids": each} for each in ids]
        if "token_type_ids" in features[0]:
            rows = [row | {"token_type_ids": own["token_type_ids"]} for row, own in zip(rows, features, strict=True)]
        inputs = text.pad(rows, processor)
        extra: dict[str, Any] = {}
        if shift:
            flat = [
                [token if own else IGNORE_INDEX for token, own in zip(tokens[1:], mask[1:], strict=True)]
                for row in features
                for tokens, mask in zip(row["tokens"], row["answers"], strict=True)
            ]
            targets = pad_labels(flat, inputs["input_ids"].flatten(0, 1))
            extra = {"targets": targets.view_as(inputs["input_ids"]), "labelled": labelled_positions(targets)}
        elif not self.scores_answers:
            extra = {"prompts": [row["tokens"][0] for row in features], "how": self._how(processor)}
        size = len(features[0]["tokens"])
        before = [row.get("initial_logps", [math.nan if self.initial else 0.0] * size) for row in features]
        values = [[*row["label"], *each] for row, each in zip(features, before, strict=True)]
        labels = torch.tensor(values, dtype=torch.float64)
        return {"inputs": inputs, "labels": labels, "extra": extra}

    def count_items(self, batch: Batch) -> Tensor:
        return (~batch["labels"][:, 0].isnan()).sum()

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns `[B, texts, 2]`: the log-probability of each answer, or its score, and its number of tokens."""
        import torch

        shape = batch["inputs"]["input_ids"].shape
        inputs = {name: each.flatten(0, 1) for name, each in batch["inputs"].items()}
        if self.scores_answers:
            values = model(**inputs).logits[:, 0].view(shape[:2])
            return torch.stack([values, torch.ones_like(values)], dim=-1)
        extra = batch["extra"]
        targets = extra["targets"].flatten(0, 1) if "targets" in extra else inputs["input_ids"] * 0 + IGNORE_INDEX
        positions = extra.get("labelled", targets.new_zeros(0))
        with logits_at_labels({"inputs": {}, "labels": targets, "labelled": positions}):
            logits = model(**inputs, use_cache=False).logits
        losses = token_losses(logits, targets, "none", labelled=positions)
        counts = (targets != IGNORE_INDEX).sum(-1)
        return torch.stack([-losses.sum(-1), counts.to(losses.dtype)], dim=-1).view(*shape[:2], 2)

    def loss_sum(self, outputs: ModelOutput, batch: Batch) -> Tensor:
        unlabelled = not self.scores_answers and "targets" not in batch["extra"]
        return outputs.new_zeros(()) if unlabelled else self.window_loss(outputs, batch["labels"])

    def window_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        known = ~labels[:, 0].isnan()
        outputs, labels = outputs[known], labels[known].to(outputs)
        return self.loss(outputs, labels, self.options) if outputs.shape[1] > 1 else outputs.sum() * 0

    def predict(self, model: nn.Module, outputs: ModelOutput, batch: Batch) -> dict[str, Tensor]:
        """Returns `logps` and `tokens`, `[B, texts]`; `before`, those of the model before training; or `ids`."""
        if "prompts" in batch["extra"]:
            seeds = [self.cfg.seed + max(0, row_id) for row_id in batch["row_ids"].tolist()]
            return {"ids": generation.continue_all(model, batch["extra"]["prompts"], batch["extra"]["how"], seeds)}
        return {"logps": outputs[..., 0].contiguous(), "tokens": outputs[..., 1].contiguous(),
                "before": batch["labels"][:, 1:].contiguous()}  # fmt: skip

    def decode(self, predictions: Predictions, data: EvalData) -> LazyRecords:
        names = ("prompt", *self.answers)
        places = {example: place for place, example in enumerate(data.features["example"][:])}

        def records() -> Iterator[Record]:
            found = self._rewards(predictions) if "ids" not in predictions else None
            around = chat.margins(data.processor) if self.chats and found is None else ("", "")
            for number, row in enumerate(data.rows):
                record = {name: row[name] for name in names if row[name] is not None}
                if found is None:
                    ids = predictions["ids"][number : number + 1]
                    yield record | {"prediction": chat.decoded(ids, data.processor, around)[0]}
                    continue
                own = None if number not in places else found[places[number]].tolist()
                yield record | self._result(row, own)

        return LazyRecords(records)

    def _result(self, row: Row, rewards: list[float] | None) -> Record:
        """Returns the rewards of a row's answers, and the row's label of single completions."""
        if rewards is None:
            return {"prediction": None}
        if len(rewards) == 1:
            return {"prediction": rewards[0]}
        if self.single:
            return {"prediction": rewards[0], "label": row["label"]}
        return {"prediction": rewards[0] - rewards[1], "chosen_reward": rewards[0], "rejected_reward": rewards[1]}

    def _rewards(self, predictions: Predictions) -> np.ndarray:
        """Returns the rewards of all answers `[rows, texts]`."""
        logps, tokens = (predictions[name].astype("float64") for name in ("logps", "tokens"))
        if self.scores_answers:
            return logps
        if self.options.loss in ("orpo", "simpo"):
            return self.options.beta * logps / tokens.clip(min=1)
        moved = logps - predictions["before"]
        return self.options.beta * (moved / tokens.clip(min=1) if self.options.length_normalized else moved)

    def _noise(self, predictions: Predictions) -> np.ndarray:
        """Returns by how much rounding may change rewards `[rows, texts]`: those of the model before training are 0."""
        logps, tokens = (predictions[name].astype("float64") for name in ("logps", "tokens"))
        size = self.options.beta * ROUNDING * abs(logps) * bool(self.initial)
        noise: np.ndarray = size / tokens.clip(min=1) if self.options.length_normalized else size
        return noise

    def metrics(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> dict[str, float]:
        sums = self._table(predictions, data).sum(0, keepdims=True)
        found = {name: float(value[0]) for name, value in self._means(sums).items()}
        return found | ({"loss": self._loss(predictions, data)} if self.single else {})

    def quality(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> Quality:
        return Quality(bootstrap(self._table(predictions, data), self._means))

    def _table(self, predictions: Predictions, data: EvalData) -> np.ndarray:
        """Returns the numbers of each row whose means are scores, `[rows, numbers]`."""
        import numpy as np

        rewards, logps = self._rewards(predictions), predictions["logps"].astype("float64")
        moved = logps - predictions["before"]
        ones, noise = np.ones(len(logps)), self._noise(predictions)
        if not self.single:
            margin = rewards[:, 0] - rewards[:, 1]
            right = margin > noise.sum(1)
            return np.column_stack([ones, right, margin, logps, moved.mean(1)])
        good = np.asarray(data.features["label"][:])[:, 0] == 1
        point = self.options.beta * max(0.0, float(moved[:, 1].mean()))
        right = (rewards[:, 0] > point + noise[:, 0]) == good
        kinds = [good, ~good, rewards[:, 0] * good, rewards[:, 0] * ~good, logps[:, 0] * good, logps[:, 0] * ~good]
        return np.column_stack([ones, right, moved[:, 1], *kinds])

    def _means(self, sums: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the scores `[draws]` of sums of rows of the table, `[draws, numbers]`."""
        import numpy as np

        if not self.single:
            found = sums[:, 1:] / sums[:, :1]
            return {score.name: values for score, values in zip(self.scores, found.T, strict=False)}
        count, right, moved, good, bad, *kinds = sums.T
        with np.errstate(invalid="ignore", divide="ignore"):
            means = [total / number for total, number in zip(kinds, (good, bad, good, bad), strict=True)]
        values = (right / count, means[0] - means[1], *means[2:], moved / count)
        return dict(zip(SINGLE, map(np.nan_to_num, values), strict=True))

    def _loss(self, predictions: Predictions, data: EvalData) -> float:
        """Returns the mean loss of windows as in training, of neighbouring rows, whatever the batches were."""
        import numpy as np
        import torch

        outputs = torch.from_numpy(np.stack([predictions["logps"], predictions["tokens"]], axis=-1)).double()
        label = torch.tensor(data.features["label"][:], dtype=torch.float64)
        labels = torch.cat([label, torch.from_numpy(predictions["before"])], dim=1)
        parts = zip(*(each.split(self.cfg.train.rows_per_step(1)) for each in (outputs, labels)), strict=True)
        return sum(float(self.window_loss(*part)) for part in parts) / max(1, len(outputs))

    def baselines(
        self, train: datasets.Dataset, sets: Mapping[str, datasets.Dataset]
    ) -> Iterator[tuple[str, dict[str, dict[str, float]]]]:
        if not self.single:
            longer = {name: [len(row["chosen"]) > len(row["rejected"]) for row in rows] for name, rows in sets.items()}
            yield "the longer answer", {name: {PAIR[0]: sum(flags) / len(flags)} for name, flags in longer.items()}

    def describe(self, record: Record) -> Description:
        prompt, found = conversations.as_text(self._prompt(record["prompt"])), record["prediction"]
        if isinstance(found, str):
            return Description(prompt, found)
        shown = "no answer within task.max_length" if found is None else f"{found:.4g}"
        if "rejected" not in record:
            expected = None if "label" not in record else "good" if record["label"] else "bad"
            return Description(f"{prompt}\n{record[self.answers[0]]}", f"reward {shown}", expected)
        return Description(f"{prompt}\n+ {record['chosen']}\n- {record['rejected']}", f"margin {shown}", "above 0")

    def error(self, record: Record) -> tuple[float, ...] | None:
        margin = record["prediction"]
        if margin is None or isinstance(margin, str) or ("rejected" not in record and "label" not in record):
            return None
        margin = margin if record.get("label", True) else -margin
        return (-margin,) if margin <= 0 else None

    def prompt_ids(self, prompt: Any, processor: Processor) -> tuple[list[int], generation.Generating]:
        checked = conversations.checked_prompt(prompt, "messages" if self.chats else "text")
        with chat.of_row("1"):
            return chat.encode_prompt(checked, processor), self._how(processor)

    def samples(self, model: PreTrainedModel, processor: Processor) -> list[str]:
        how, data_format = self._how(processor), self.options.data_format
        return chat.samples(model, processor, self.state["prompts"], how, data_format, self.cfg.seed)

    def _how(self, processor: Processor) -> generation.Generating:
        """Returns how answers are generated."""
        end, options = chat.answer_end(processor, None if self.chats else ""), self.options
        around = chat.margins(processor) if self.chats else ("", "")
        return generation.Generating(end, options.max_new_tokens, options.max_length, options.generation, around)

    def script(self) -> str:
        return "chat"

    def generation_fields(self, model: PreTrainedModel, processor: Processor) -> Mapping[str, Any]:
        stops = self.script_values(model, processor).get("stops")
        return {"eos_token_id": stops} if stops else {}

    def script_values(self, model: PreTrainedModel, processor: Processor) -> Mapping[str, Any]:
        if self.scores_answers:
            return {}
        header = chat.header(processor) if self.chats else []
        return {"header": header} | generation.script_values(model, processor, self._how(processor))


def _conversation(prompt: Any, answers: Mapping[str, Any]) -> dict[str, str]:
    """Returns a prompt as JSON of its messages, and the text of each answer to it. Raises BadRow if there is none."""
    given = asked = None if prompt is None or prompt == "" else conversations.check_messages(prompt, labelled=False)
    found: dict[str, str] = {}
    for name, value in zip(answers, map(conversations.unprinted, answers.values()), strict=True):
        if isinstance(value, str):
            found[name] = checked_text(value, name, f"column {name!r}")
            continue
        messages = conversations.check_messages(value, labelled=True, begins=given is None)
        before, last = messages[:-1], messages[-1]["content"]
        if asked is not None and before not in ([], asked):
            raise BadRow(f"column {name!r} is neither an answer to the prompt nor a conversation that begins with it")
        given = before if given is None else given
        if asked is None and before != given:
            raise BadRow("columns 'chosen' and 'rejected' differ before their last message")
        found[name] = last
    if given is None:
        raise BadRow(
            "column 'prompt' is empty or not there; if rows are whole conversations, data.columns.prompt=chosen reads "
            "the messages before the answer"
        )
    return found | {"prompt": json.dumps(given, ensure_ascii=False)}


TASK = Preference

if __name__ == "__main__":
    main(TASK)
