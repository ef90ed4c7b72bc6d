"""Text-to-text modality for encoder-decoders: tokenizers, source and target ids, decoder inputs, generation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from toolkit.api.batch import IGNORE_INDEX
from toolkit.api.task import limits_of
from toolkit.base.errors import InputError
from toolkit.config.messages import did_you_mean, nearest
from toolkit.config.paths import source_of
from toolkit.config.sections import Config, ModelConfig
from toolkit.modalities import text
from toolkit.modalities.text import longest as longest
from toolkit.modalities.text import too_long

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

STYLE = text.TokenizerStyle(
    {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}, ("$A </s>", None), lowercase=False
)
"""Special tokens of T5 and BART."""
AUTO_PROCESSOR, LIBRARIES = text.AUTO_PROCESSOR, text.LIBRARIES
MODEL_INPUTS = ("input_ids", "attention_mask")


def load_processor(source: str, model: ModelConfig, options: Any) -> PreTrainedTokenizerBase:
    """Loads a fast or slow tokenizer; Marian's and M2M100's have no fast version."""
    return text.load_tokenizer(source, model, fast_only=False)


def new_processor(texts: Iterator[str], config: PreTrainedConfig, options: Any) -> PreTrainedTokenizerBase:
    """Trains one byte-level BPE tokenizer for both languages; decoding restores the exact text."""
    limits = limits_of(options)
    longest = max(getattr(options, limits[side]) for side in ("source", "target"))
    return text.train_tokenizer(texts, config.vocab_size, STYLE, longest, MODEL_INPUTS)


def configure(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, new: bool) -> None:
    """Copies the tokenizer's vocabulary size and special ids into a new model's configuration."""
    text.configure(config, tokenizer, new)
    if new:
        config.decoder_start_token_id = tokenizer.bos_token_id
        for name, value in (("decoder_vocab_size", len(tokenizer)), ("forced_eos_token_id", tokenizer.eos_token_id)):
            if getattr(config, name, None) is not None:
                setattr(config, name, value)


def check_model(config: PreTrainedConfig, options: Any) -> list[str]:
    """Returns what is wrong between a model and the lengths that the task allows, as full messages."""
    if not config.is_encoder_decoder:
        wanted = "this task needs an encoder-decoder, for example t5, bart, marian, mbart or m2m_100"
        return [f"model: received a {config.model_type}, {wanted}"]
    return too_long(config, options)


@contextmanager
def languages(tokenizer: PreTrainedTokenizerBase, source: str | None, target: str | None) -> Iterator[None]:
    """Context manager that sets the languages of a multilingual tokenizer (mBART, NLLB, M2M100).

    The previous languages are restored because a tokenizer saves them, and saved files must not depend on earlier
    calls. Other tokenizers are not changed.

    Raises:
        InputError: if a multilingual tokenizer is not given both languages, or does not know one of them.
    """
    if not hasattr(tokenizer, "src_lang"):
        yield
        return
    token_of: dict[str, str] = getattr(tokenizer, "lang_code_to_token", {})  # M2M100 writes `en` as `__en__`
    known = list(token_of) or [token for token in tokenizer.all_special_tokens if "_" in token]
    for key, code in (("task.source_lang", source), ("task.target_lang", target)):
        if code not in known:
            example, *_ = *nearest(code, known), *known
            raise InputError(
                f"{key}: received {code!r}, but {type(tokenizer).__name__} needs one of its language "
                f"codes, for example {example} (it has {len(known)})"
            )
    before = tokenizer.src_lang, tokenizer.tgt_lang
    tokenizer.src_lang, tokenizer.tgt_lang = source, target
    try:
        yield
    finally:
        tokenizer.src_lang, tokenizer.tgt_lang = before


def language_ids(tokenizer: PreTrainedTokenizerBase, source: str | None, target: str | None) -> tuple[Any, Any]:
    """Returns the decoder's start id and the forced first id, each None if the language does not determine it.

    Both follow from the special tokens around an empty target. mBART-50, NLLB and M2M100 begin a target with its
    language, which is forced as the first token. mBART-25 ends it with the language, which is the decoder's start id
    after the shift to the right.
    """
    if not hasattr(tokenizer, "src_lang"):
        return None, None
    with languages(tokenizer, source, target):
        around = tokenizer(text_target="")["input_ids"]
    return (around[-1], None) if around[0] == tokenizer.eos_token_id else (None, around[0])


def encode_pairs(
    sources: Sequence[str],
    targets: Sequence[str] | None,
    tokenizer: PreTrainedTokenizerBase,
    max_source_length: int,
    max_target_length: int,
) -> dict[str, list[Any]]:
    """Tokenises pairs and truncates each side to its limit.

    Returns:
        `input_ids`, `attention_mask` and `labels` (empty without targets), `length` (tokens of both sides),
        `target_length`, and `truncated_source` and `truncated_target`.
    """
    encoded, source_cut = _encode(tokenizer, "text", sources, max_source_length)
    labels: list[list[int]] = [[] for _ in sources]
    target_cut = [False] * len(sources)
    if targets is not None:
        target, target_cut = _encode(tokenizer, "text_target", targets, max_target_length)
        labels = target["input_ids"]
    return {name: encoded[name] for name in MODEL_INPUTS} | {
        "labels": labels,
        "length": [len(ids) + len(label) for ids, label in zip(encoded["input_ids"], labels, strict=True)],
        "target_length": list(map(len, labels)),
        "truncated_source": source_cut,
        "truncated_target": target_cut,
    }


def pad_pairs(
    features: Sequence[dict[str, Any]], tokenizer: PreTrainedTokenizerBase, decoder_start: int
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Pads pairs on the right to the longest source and target (see `padding_to`).

    The model is called without labels, so `decoder_input_ids` are created here: `decoder_start` followed by the labels
    without the last one. `decoder_attention_mask` is 1 where there is a label, and at the start.

    Returns:
        The model's inputs, `[B, S]` and for the decoder `[B, T]` int64, and labels `[B, T]` int64, padded with
        `IGNORE_INDEX`. T is at least 1.
    """
    from toolkit.data.batching.budget import multiple_of

    inputs = text.pad(features, tokenizer)
    labels = pad_targets(features, multiple_of(tokenizer))
    inputs["decoder_input_ids"] = decoder_ids(labels, decoder_start, tokenizer.pad_token_id)
    held = labels != IGNORE_INDEX
    held[:, 0] = True  # an empty target begins too
    inputs["decoder_attention_mask"] = held.long()
    return inputs, labels


def pad_targets(features: Sequence[dict[str, Any]], multiple: int | None = None) -> torch.Tensor:
    """Returns labels `[B, T]` int64, padded on the right with `IGNORE_INDEX`; T is at least 1, and a `multiple`."""
    import torch

    from toolkit.data.batching.budget import padded_length

    longest = max(1, *(len(row["labels"]) for row in features))
    labels = torch.full((len(features), padded_length(longest, multiple)), IGNORE_INDEX)
    for place, row in zip(labels, features, strict=True):
        place[: len(row["labels"])] = torch.tensor(row["labels"], dtype=torch.int64)
    return labels


def decoder_ids(labels: torch.Tensor, start: int, pad: int) -> torch.Tensor:
    """Returns the decoder's input ids `[B, T]`: the `start` id, and the labels without the last one."""
    ids = labels.roll(1, dims=1)
    ids[:, 0] = start
    return ids.masked_fill(ids == IGNORE_INDEX, pad)


def generate(model: Any, outputs: Any, inputs: dict[str, torch.Tensor], **settings: Any) -> torch.Tensor:
    """Generates with greedy or beam search, without sampling.

    Args:
        model: a `PreTrainedModel`, not wrapped in DDP.
        outputs: outputs of its forward pass; their encoder states are reused.
        inputs: inputs of that pass, `[B, S]` int64 each.
        **settings: fields of `transformers.GenerationConfig`; None keeps the model's value.

    Returns:
        `[B, T]` int32 ids without the start token, padded with the padding id.
    """
    import torch
    from transformers.modeling_outputs import BaseModelOutput

    states, mask = outputs.encoder_last_hidden_state, inputs["attention_mask"]
    if virtual := states.shape[1] - mask.shape[1]:  # virtual tokens of prompt tuning, before the text
        mask = torch.cat([mask.new_ones(len(mask), virtual), mask], dim=1)
        model = model.get_base_model()  # the decoder has none
    ids: torch.Tensor = model.generate(
        encoder_outputs=BaseModelOutput(last_hidden_state=states),
        attention_mask=mask,
        do_sample=False,
        **{name: value for name, value in settings.items() if value is not None},
    )
    return ids[:, 1:].int()


def own_generation(config: PreTrainedConfig, cfg: Config) -> dict[str, Any]:
    """Returns the settings of generation that a pretrained model brings, without ids of tokens and our own settings."""
    from transformers import GenerationConfig

    source = source_of(cfg)
    if source.name_or_path is None:
        return {}
    try:
        found = GenerationConfig.from_pretrained(source.name_or_path, revision=source.revision or "main")
    except OSError:  # models without the file have the settings in their configuration
        found = GenerationConfig.from_model_config(config)
    ours = ("max_length", "max_new_tokens", "num_beams", "length_penalty", "transformers_version", "use_cache")
    settings = found.to_diff_dict().items()
    return {name: value for name, value in settings if name not in ours and "token_id" not in name and name[0] != "_"}


def inherited(brought: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Returns the note about settings of generation that a model brings and `task.generation` does not replace."""
    shown = ", ".join(f"{name}={value}" for name, value in brought.items() if name not in given)
    return [f"the model brings settings of generation, {shown}; task.generation replaces them."] if shown else []


def generation_problems(generation: Mapping[str, Any]) -> list[str]:
    """Returns which names are no settings of generation."""
    from transformers import GenerationConfig

    known = [name for name in vars(GenerationConfig()) if name[0] != "_"]
    return [
        f"task.generation.{name}: transformers has no such setting{did_you_mean(name, known)}"
        for name in generation
        if name not in known
    ]


def decode(ids: Any, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Decodes generated ids `[rows, T]`, padded with `IGNORE_INDEX`, into texts without special tokens."""
    rows = [[token for token in row if token != IGNORE_INDEX] for row in ids.tolist()]
    return [decoded.strip() for decoded in tokenizer.batch_decode(rows, skip_special_tokens=True)]


def _encode(
    tokenizer: PreTrainedTokenizerBase, side: str, texts: Sequence[str], max_length: int
) -> tuple[Any, list[bool]]:
    """Encodes `text` or `text_target`, and reports which were truncated, which slow tokenizers do not do."""
    encoded = tokenizer(**{side: list(texts)}, verbose=False)
    cut = [len(ids) > max_length for ids in encoded["input_ids"]]
    if any(cut):
        encoded = tokenizer(**{side: list(texts)}, truncation=True, max_length=max_length)
        if tokenizer.is_fast:
            text.forget_truncation(tokenizer)
    return encoded, cut
