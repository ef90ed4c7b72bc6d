"""Text: tokenizers, token ids, padding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from toolkit.api.random import RowRandom
from toolkit.api.task import BadRow, limits_of
from toolkit.base.errors import pretrained_error
from toolkit.config.sections import ModelConfig

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

AUTO_PROCESSOR = "AutoTokenizer"
ROBERTA_POSITIONS = frozenset(
    [
        "camembert",
        "data2vec-text",
        "esm",
        "ibert",
        "layoutlmv3",
        "lilt",
        "longformer",
        "luke",
        "markuplm",
        "mpnet",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    ]
)
RELATIVE_POSITIONS = frozenset({"t5", "mt5", "umt5", "xlnet"})
MODEL_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class TokenizerStyle:
    """What the tokenizer of a new model is like; a task's options may have another as `tokenizer_style`.

    Args:
        special_tokens: by their names in transformers; one text may have several names.
        template: what stands around a text, and around a pair of texts (None: there are no pairs), or None.
        lowercase: whether case and other variants of characters (NFKC) are made one. If not, each text can be had back
            from its tokens, byte for byte.
    """

    special_tokens: Mapping[str, str]
    template: tuple[str, str | None] | None
    lowercase: bool


ENCODER = TokenizerStyle(
    {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    },
    ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
    lowercase=True,
)
"""BERT's."""
DECODER = TokenizerStyle(
    {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|pad|>"}, None, lowercase=False
)
"""GPT-2's, with a token of its own for padding."""


def auto_model(config: PreTrainedConfig) -> str:
    """Returns the name of the auto class that classifies."""
    return "AutoModelForSequenceClassification"


def feature() -> Any:
    """Returns the Arrow type of a checked value."""
    from datasets import Value

    return Value("string")


def check(value: Any, options: Any) -> str:
    """Returns the text.

    Raises:
        BadRow: if it is none.
    """
    if not isinstance(value, str):
        raise BadRow(f"column 'text' holds {value!r}, not text")
    return value


def load_processor(source: str, model: ModelConfig, options: Any) -> PreTrainedTokenizerBase:
    """Loads a fast tokenizer, since slow ones give no character offsets; see `toolkit.api.modality.Modality`.

    Raises:
        InputError: if there is none that can be used.
    """
    return load_tokenizer(source, model, fast_only=True)


def load_tokenizer(source: str, model: ModelConfig, fast_only: bool) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a pretrained model, a run or a checkpoint.

    Args:
        source: hub id or folder.
        model: for `revision` (of `name_or_path`, not of another source) and `trust_remote_code`.
        fast_only: whether a slow one is refused.

    Raises:
        InputError: if there is none that can be used.
    """
    from transformers import AutoTokenizer

    revision = model.revision if source == model.name_or_path else None
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source, revision=revision or "main", trust_remote_code=model.trust_remote_code
        )
        if fast_only and not tokenizer.is_fast:
            raise ValueError(f"{type(tokenizer).__name__} is a slow tokenizer; save its fast version with the model")
        if len(tokenizer) <= len(tokenizer.all_special_ids):  # what transformers makes of a folder without one
            raise ValueError("it holds no tokenizer (tokenizer.json, vocab.txt or the like)")
    except Exception as error:  # hub, file format and conversion errors alike are about this one setting
        raise pretrained_error("model.name_or_path", source, error) from error
    if tokenizer.pad_token is None:  # decoders such as GPT-2 were trained without padding; masked, it may be any token
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def new_processor(texts: Iterator[str], config: PreTrainedConfig, options: Any) -> PreTrainedTokenizerBase:
    """Trains a tokenizer on the training text: BERT's style, or that of the options.

    Args:
        texts: the training text.
        config: of the new model; segment ids are made only for a model with two of them.
        options: the task's options, for the limit of `input` (see `limits_of`) and `tokenizer_style`.
    """
    segments = getattr(config, "type_vocab_size", 0) > 1
    style = getattr(options, "tokenizer_style", ENCODER)
    inputs = MODEL_INPUTS if segments else MODEL_INPUTS[:2]
    return train_tokenizer(texts, config.vocab_size, style, _longest_input(options), inputs)


def _longest_input(options: Any) -> int:
    limits = limits_of(options)
    if "input" not in limits:
        raise TypeError(f"{type(options).__name__} must name the option that limits a text: limits = {{'input': ...}}")
    longest: int = getattr(options, limits["input"])
    return longest


def train_tokenizer(
    texts: Iterator[str], vocab_size: int, style: TokenizerStyle, max_length: int, model_inputs: Sequence[str]
) -> PreTrainedTokenizerBase:
    """Trains a byte-level BPE tokenizer.

    BPE (Sennrich et al. 2016, arXiv 1508.07909) because its training is deterministic; WordPiece and Unigram
    training give another vocabulary in another process.

    Args:
        texts: the training text.
        vocab_size: the most entries that the tokenizer may have.
        style: its special tokens, and what becomes of case.
        max_length: most tokens of an input.
        model_inputs: names of what it makes.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token=style.special_tokens.get("unk_token")))
    if style.lowercase:
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=style.lowercase)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(dict.fromkeys(style.special_tokens.values())),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if style.template is not None:
        single, pair = style.template
        ids = [(token, tokenizer.token_to_id(token)) for token in style.special_tokens.values() if token in single]
        tokenizer.post_processor = processors.TemplateProcessing(single, pair, ids)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        model_input_names=list(model_inputs),
        clean_up_tokenization_spaces=False,  # a text is to come back as it was
        **style.special_tokens,
    )


def configure(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, new: bool) -> None:
    """Gives a new model's configuration the size and special ids of its tokenizer; any model needs the padding id."""
    if new:
        config.vocab_size = len(tokenizer)
    for name in ("pad", "bos", "eos", "cls", "sep", "mask", "unk"):
        key = f"{name}_token_id"
        if hasattr(config, key) and (new or (name == "pad" and getattr(config, key) is None)):
            setattr(config, key, getattr(tokenizer, key))
    if new and config.is_encoder_decoder:  # such models find the end of a text, and start their decoder, by these
        ends = (tokenizer.eos_token_id, tokenizer.sep_token_id)
        config.eos_token_id = next(end for end in ends if end is not None)
        config.decoder_start_token_id = tokenizer.pad_token_id


def check_model(config: PreTrainedConfig, options: Any) -> list[str]:
    """Returns what is wrong between a model and the longest input that the task allows, as full messages."""
    if not hasattr(config, "vocab_size"):
        return [f"model: a {config.model_type} model takes no text"]
    return too_long(config, options)


def too_long(config: PreTrainedConfig, options: Any) -> list[str]:
    """Returns which limits of the options are above the model's number of positions, as full messages."""
    room = getattr(config, "max_position_embeddings", None)
    if room is None or config.model_type in RELATIVE_POSITIONS:
        return []
    # RoBERTa and models like it count positions from the padding id on.
    room -= (config.pad_token_id or 0) + 1 if config.model_type in ROBERTA_POSITIONS else 0
    given = {name: getattr(options, name) for name in limits_of(options).values()}
    takes = f"this {config.model_type} takes at most {room} tokens"
    return [f"task.{name}: received {value}, but {takes}" for name, value in given.items() if value and value > room]


def preprocess(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, options: Any) -> dict[str, list[Any]]:
    """Tokenises single texts; see `encode`."""
    return encode(tokenizer, options, texts)


def encode(tokenizer: PreTrainedTokenizerBase, options: Any, *texts: Sequence[str]) -> dict[str, list[Any]]:
    """Tokenises texts, or pairs of them, cut to the task's limit of `input`.

    Args:
        tokenizer: a fast one.
        options: the task's, with the limit (see `limits_of`).
        *texts: the texts or, for pairs, the first and then the second ones.

    Returns:
        What the model takes of `input_ids`, `attention_mask` and `token_type_ids`, `length` (tokens), and which were
        cut, `truncated_input`.
    """
    encoded = tokenizer(*map(list, texts), truncation=True, max_length=_longest_input(options))
    forget_truncation(tokenizer)
    columns = {name: encoded[name] for name in MODEL_INPUTS if name in encoded}
    return columns | {
        "length": [len(ids) for ids in columns["input_ids"]],
        "truncated_input": [bool(encoding.overflowing) for encoding in encoded.encodings],
    }


def forget_truncation(tokenizer: PreTrainedTokenizerBase) -> None:
    """Undoes what a tokenizer keeps, and would save, of its last truncation: files must not depend on what ran."""
    tokenizer.backend_tokenizer.no_truncation()


def collate(
    features: Sequence[dict[str, Any]], tokenizer: PreTrainedTokenizerBase, options: Any, random: RowRandom
) -> dict[str, torch.Tensor]:
    """Pads token columns; as `pad`, since nothing of a text is drawn at random."""
    return pad(features, tokenizer)


def pad(features: Sequence[dict[str, Any]], tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
    """Pads token columns on the right to the longest row; returns `[B, T]` int64 tensors."""
    columns = [{name: row[name] for name in MODEL_INPUTS if name in row} for row in features]
    return dict(tokenizer.pad(columns, padding_side="right", return_tensors="pt"))


def shown(text: str) -> str:
    """Returns what stands for a text in messages and predictions: itself."""
    return text


def thumbnail(text: str, options: Any) -> None:
    """Returns None: a text is shown as it is."""
