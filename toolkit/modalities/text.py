"""Text: tokenizers, token ids, positions and padding, and inputs that are longer than the model's limit."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.api.batch import BadRow, ModelOutput, Omission
from toolkit.api.task import limits_of
from toolkit.base.errors import DataError, InputError, pretrained_error
from toolkit.config.sections import ModelConfig

if TYPE_CHECKING:
    import numpy as np
    import torch
    from tokenizers import Encoding
    from torch import nn
    from transformers import BatchEncoding, PreTrainedConfig, PreTrainedTokenizerBase

    from toolkit.api.random import RowRandom


ROBERTA_POSITIONS = frozenset({
    "camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm", "mpnet",
    "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
})  # fmt: skip
RELATIVE_POSITIONS = frozenset({"t5", "mt5", "umt5", "xlnet"})


def too_long(config: PreTrainedConfig, options: Any) -> list[str]:
    """Returns which limits of the options are above the model's number of positions, as full messages."""
    room = positions(config)
    if room is None:
        return []
    given = {name: getattr(options, name) for name in limits_of(options).values()}
    takes = f"this {config.model_type} supports at most {room} tokens"
    return [f"task.{name}: received {value}, but {takes}" for name, value in given.items() if value and value > room]


def prefix_problems(config: PreTrainedConfig, options: Any, num_virtual_tokens: int) -> list[str]:
    """Returns a full message if the longest input and a prefix of virtual tokens exceed the model's positions."""
    room, limits = positions(config), limits_of(options)
    name = limits.get("input", limits.get("source", ""))
    longest = getattr(options, name, None)
    if room is None or longest is None or not longest <= room < longest + num_virtual_tokens:
        return []  # `too_long` rejects inputs that are too long without a prefix
    return [
        f"model.peft.num_virtual_tokens: received {num_virtual_tokens}, but task.{name} allows inputs of {longest} "
        f"tokens, and this {config.model_type} has {room} positions for both; lower one of them"
    ]


def shape_problems(config: PreTrainedConfig, options: Any, multiple: int, num_virtual_tokens: int = 0) -> list[str]:
    """Returns which limits of the options, rounded up to `multiple`, exceed the model's positions, as full messages."""
    from toolkit.data.batching.budget import padded_length

    room = positions(config)
    if room is None:
        return []
    room -= num_virtual_tokens
    given = {name: getattr(options, name) for side, name in limits_of(options).items() if side != "generated"}
    return [
        f"train.pad_to_multiple_of: received {multiple}, with which task.{name}={value} becomes "
        f"{padded_length(value, multiple)} tokens, but this {config.model_type} supports at most {room}; set "
        f"task.{name} to {room // multiple * multiple}"
        for name, value in given.items()
        if value and value <= room < padded_length(value, multiple)
    ]


def positions(config: PreTrainedConfig) -> int | None:
    """Returns the largest number of tokens of an input, None if the model does not limit it."""
    room: int | None = getattr(config, "max_position_embeddings", None)
    if room is None or config.model_type in RELATIVE_POSITIONS:
        return None
    # RoBERTa and similar models count positions from the padding id.
    return room - ((config.pad_token_id or 0) + 1 if config.model_type in ROBERTA_POSITIONS else 0)


AUTO_PROCESSOR = "AutoTokenizer"
LIBRARIES: tuple[str, ...] = ()
MODEL_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class TokenizerStyle:
    """Format of a new model's tokenizer; a task's options may define another one as `tokenizer_style`.

    Args:
        special_tokens: special tokens by their names in transformers; one token may have several names.
        template: templates of special tokens for a single text and for a pair (None without pairs), or None.
        lowercase: whether to lowercase and normalise characters (NFKC). If false, decoding restores the exact text.
        extra_tokens: further special tokens, for instance those of a chat template.
    """

    special_tokens: Mapping[str, str]
    template: tuple[str, str | None] | None
    lowercase: bool
    extra_tokens: tuple[str, ...] = ()


ENCODER = TokenizerStyle(
    {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"},
    ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
    lowercase=True,
)
"""BERT's."""
DECODER = TokenizerStyle(
    {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|pad|>"}, None, lowercase=False
)
"""Special tokens of GPT-2, with an additional padding token."""


def auto_model(config: PreTrainedConfig) -> str:
    """Returns the name of the auto class for classification."""
    return "AutoModelForSequenceClassification"


def feature() -> Any:
    """Returns the Arrow type of a checked value."""
    from datasets import Value

    return Value("string")


def check(value: Any, options: Any) -> str:
    """Returns a text; raises BadRow if the value is not text."""
    if not isinstance(value, str):
        raise BadRow(f"column 'text' holds {value!r}, not text")
    return value


def omissions(values: Sequence[str], options: Any) -> list[Omission]:
    """Returns nothing: truncated texts are counted where they are tokenised."""
    return []


def load_processor(source: str, model: ModelConfig, options: Any) -> PreTrainedTokenizerBase:
    """Loads a fast tokenizer; slow ones have no character offsets. See `toolkit.api.modality.Modality`."""
    return _with_chat_template(load_tokenizer(source, model, fast_only=True), options)


def _with_chat_template(tokenizer: PreTrainedTokenizerBase, options: Any) -> PreTrainedTokenizerBase:
    """Sets the chat template of the task's options, if they have one; it is saved with the tokenizer."""
    if (template := getattr(options, "chat_template", None)) is not None:
        tokenizer.chat_template = template
    return tokenizer


def load_tokenizer(source: str, model: ModelConfig, fast_only: bool) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a pretrained model, a run or a checkpoint; it has a padding token.

    Raises InputError if the tokenizer cannot be loaded, or is slow despite `fast_only`.
    """
    from transformers import AutoTokenizer

    revision = model.revision if source == model.name_or_path else None
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source, revision=revision or "main", trust_remote_code=model.trust_remote_code
        )
        if fast_only and not tokenizer.is_fast:
            raise ValueError(f"{type(tokenizer).__name__} is a slow tokenizer; save the fast version with the model")
        # For a folder without a tokenizer, transformers returns an empty one.
        if len(tokenizer) <= len(tokenizer.all_special_ids):
            raise ValueError("it contains no tokenizer (tokenizer.json, vocab.txt or similar)")
    except Exception as error:  # Hub, file format and conversion errors are all caused by this setting
        raise pretrained_error("model.name_or_path", source, error) from error
    for name in ("is_local", "local_files_only"):  # where it was read from, in which equal tokenizers would differ
        tokenizer.init_kwargs.pop(name, None)
    if tokenizer.pad_token is None:  # as GPT-2's; padding is masked, so any token works
        known = (getattr(tokenizer, f"{name}_token") for name in ("eos", "sep", "bos", "unk"))
        tokenizer.pad_token = next((token for token in known if token), None)
    if tokenizer.pad_token is None:
        raise InputError(
            f"model.name_or_path: the tokenizer of {source} has no token to pad with; add one: "
            "tokenizer.add_special_tokens({'pad_token': '<pad>'}), model.resize_token_embeddings(len(tokenizer)), and "
            "save both"
        )
    return tokenizer


def new_processor(texts: Iterator[str], config: PreTrainedConfig, options: Any) -> PreTrainedTokenizerBase:
    """Trains a tokenizer on the training text, in BERT's style or the options' `tokenizer_style`.

    It returns token type ids only if the model has two types.

    Raises:
        TypeError: if the options do not name a limit of `input` (see `limits_of`).
    """
    segments = getattr(config, "type_vocab_size", 0) > 1
    style = getattr(options, "tokenizer_style", ENCODER)
    inputs = MODEL_INPUTS if segments else MODEL_INPUTS[:2]
    tokenizer = train_tokenizer(texts, config.vocab_size, style, _longest_input(options), inputs)
    return _with_chat_template(tokenizer, options)


def _longest_input(options: Any) -> int:
    limits = limits_of(options)
    if "input" not in limits:
        raise TypeError(f"{type(options).__name__} must name the option that limits a text: limits = {{'input': ...}}")
    longest: int = getattr(options, limits["input"])
    return longest


def train_tokenizer(
    texts: Iterator[str], vocab_size: int, style: TokenizerStyle, max_length: int, model_inputs: Sequence[str]
) -> PreTrainedTokenizerBase:
    """Trains a byte-level BPE tokenizer for inputs of at most `max_length` tokens.

    BPE (Sennrich et al. 2016, arXiv 1508.07909) is used because its training is deterministic; WordPiece and Unigram
    training give different vocabularies in different processes.
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
        special_tokens=list(dict.fromkeys((*style.special_tokens.values(), *style.extra_tokens))),
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
        clean_up_tokenization_spaces=False,  # decoding must restore the exact text
        **style.special_tokens,
        **({"extra_special_tokens": list(style.extra_tokens)} if style.extra_tokens else {}),
    )


def configure(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, new: bool) -> None:
    """Copies the padding id, and for a new model the vocabulary size and special ids, into the configuration."""
    if new:
        config.vocab_size = len(tokenizer)
    size = getattr(config.get_text_config(), "vocab_size", math.inf)
    if beyond := [token for token, number in tokenizer.get_vocab().items() if number >= size]:
        raise InputError(
            f"model.name_or_path: the model has embeddings of {size:,} tokens, and its tokenizer {len(beyond):,} more "
            f"({', '.join(map(repr, beyond[:3]))}); call model.resize_token_embeddings(len(tokenizer)), and save it"
        )
    for name in ("pad", "bos", "eos", "cls", "sep", "mask", "unk"):
        key = f"{name}_token_id"
        if hasattr(config, key) and (new or (name == "pad" and getattr(config, key) is None)):
            setattr(config, key, getattr(tokenizer, key))
    if (
        new and config.is_encoder_decoder
    ):  # encoder-decoders use these to find the end of a text and to start the decoder
        ends = (tokenizer.eos_token_id, tokenizer.sep_token_id)
        config.eos_token_id = next(end for end in ends if end is not None)
        config.decoder_start_token_id = tokenizer.pad_token_id


def longest(options: Any, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Returns the largest number of tokens of an input or source, or None."""
    limits = limits_of(options)
    return getattr(options, limits.get("input", limits.get("source", "")), None)


def check_model(config: PreTrainedConfig, options: Any) -> list[str]:
    """Returns what is wrong between a model and the longest input that the task allows, as full messages."""
    if not hasattr(config, "vocab_size"):
        return [f"model: a {config.model_type} model does not take text"]
    return too_long(config, options)


def preprocess(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, options: Any) -> dict[str, list[Any]]:
    """Tokenises single texts, see `encode`."""
    return encode(tokenizer, options, texts)


def encode(tokenizer: PreTrainedTokenizerBase, options: Any, *texts: Sequence[str]) -> dict[str, list[Any]]:
    """Tokenises texts, or pairs of texts, to at most as many tokens as the task's limit of `input`.

    Longer ones are truncated, pairs as `options.truncation` says; if `options.long_texts` is "windows", the model's
    inputs are a list of windows per text, of which neighbours share `options.stride` tokens.

    Args:
        tokenizer: a fast tokenizer.
        options: the task's options, with the limit (see `limits_of`).
        *texts: the texts or, for pairs, all first texts and all second texts.

    Returns:
        The model's inputs, `length` (tokens, of all windows), and `truncated_input` or `tokens`, those of the text.

    Raises:
        TypeError: if the options do not name a limit of `input`.
        DataError: if a text that `truncation` does not allow to truncate is too long.
        InputError: if the tokenizer puts nothing between the texts of a pair.
    """
    special = tokenizer.num_special_tokens_to_add
    if len(texts) > 1 and special(pair=True) == special(pair=False):
        raise InputError(
            "model.name_or_path: the tokenizer puts nothing between the texts of a pair, as GPT-2's; join them by a "
            'template instead: data.columns.text: "{first}\\n{second}"'
        )
    limit, windows = _longest_input(options), getattr(options, "long_texts", None) == "windows"
    truncation = True if len(texts) == 1 else getattr(options, "truncation", True)
    call = partial(encode_with_overflow, tokenizer, stride=options.stride) if windows else tokenizer
    try:
        encoded = call(*map(list, texts), truncation=truncation, max_length=limit)
    except Exception as error:  # the library has no class of its own for this
        if "Truncation error" not in str(error):
            raise
        raise DataError(
            f"task.truncation={truncation}: the other text of a pair alone has more tokens than {limit}; "
            "use longest_first, or raise the limit"
        ) from error
    finally:
        forget_truncation(tokenizer)
    columns: dict[str, list[Any]] = {name: encoded[name] for name in MODEL_INPUTS if name in encoded}
    if windows:
        return _by_text(encoded, columns, options.stride, int(truncation == "only_second"))
    return columns | {
        "length": [len(ids) for ids in columns["input_ids"]],
        "truncated_input": [bool(encoding.overflowing) for encoding in encoded.encodings or ()],
    }


def _by_text(encoded: BatchEncoding, columns: Mapping[str, Any], stride: int, side: int) -> dict[str, list[Any]]:
    """Returns the windows of each text; text `side` of a pair is in windows, each of which repeats the other one."""
    windows: list[list[int]] = []
    for window, text in enumerate(encoded["overflow_to_sample_mapping"]):
        windows += [[]] if text == len(windows) else []
        windows[text].append(window)
    own = {name: [[values[window] for window in each] for each in windows] for name, values in columns.items()}
    lengths = [sum(map(len, each)) for each in own["input_ids"]]
    again = [stride + sum(part != side for part in encoded.sequence_ids(each[0])) for each in windows]
    tokens = [whole - more * (len(each) - 1) for whole, more, each in zip(lengths, again, windows, strict=True)]
    return own | {"length": lengths, "tokens": tokens}


def forget_truncation(tokenizer: PreTrainedTokenizerBase) -> None:
    """Resets a tokenizer's truncation, which it would save; saved files must not depend on earlier calls."""
    tokenizer.backend_tokenizer.no_truncation()


def collate(
    features: Sequence[dict[str, Any]], tokenizer: PreTrainedTokenizerBase, options: Any, random: RowRandom
) -> dict[str, torch.Tensor]:
    """Pads token columns like `pad`; training rows with their `TEXTS` are augmented."""
    if random.training:
        features = [_augmented_row(row, tokenizer, options, random) if TEXTS in row else row for row in features]
    return pad(features, tokenizer)


TEXTS = "texts"
"""Column of feature rows with what is augmented: a text, or a pair."""


def _augmented_row(
    row: dict[str, Any], tokenizer: PreTrainedTokenizerBase, options: Any, random: RowRandom
) -> dict[str, Any]:
    """Returns a feature row with tokens of its augmented texts, at most as many as it has.

    It stays as it is if `options.truncation` does not allow to cut the text that became too long.
    """
    generator, own = random.generator(row["row_id"]), {limits_of(options)["input"]: len(row["input_ids"])}
    changed = [augmented(text, options.augment, generator) for text in row[TEXTS]]
    if changed == row[TEXTS]:
        return row
    try:
        columns = encode(tokenizer, replace(options, **own), *([text] for text in changed))
    except DataError:
        return row
    return row | {name: columns[name][0] for name in MODEL_INPUTS if name in columns}


def augmented(text: str, options: Any, generator: np.random.Generator) -> str:
    """Returns a text with some words replaced, then swapped, then left out, as `task.augment` says; one stays."""
    found = re.findall(r"(\s*)(\S+)", text)
    if not found:
        return text
    # All numbers are always drawn, so that one setting does not change the effect of another.
    change, which, swap, other, delete = generator.random((5, len(found)))
    words, known = [word for _, word in found], synonyms(options.synonyms_file)
    for place, word in enumerate(words):
        if change[place] < options.synonym_replacement:
            words[place] = _replaced(word, known, which[place])
    for place in range(len(words) if len(words) > 1 else 0):
        if swap[place] < options.random_swap:
            to = int(other[place] * (len(words) - 1))
            to += to >= place
            words[place], words[to] = words[to], words[place]
    kept = [place for place in range(len(words)) if delete[place] >= options.random_deletion]
    kept = kept or [int(delete.argmax())]
    blanks = [found[0][0], *(found[place][0] for place in kept[1:])]
    end = text[len(text.rstrip()) :]
    return "".join(blank + words[place] for blank, place in zip(blanks, kept, strict=True)) + end


def _replaced(word: str, known: Mapping[str, Sequence[str]], which: float) -> str:
    """Returns a synonym of a word, or of the word without the punctuation around it, or the word itself."""
    for before, core, after in (("", word, ""), *re.findall(r"^(\W*)(.*?)(\W*)$", word)):
        if choices := known.get(core.lower()):
            new = choices[int(which * len(choices))]
            return before + (new[0].upper() + new[1:] if core[0].isupper() else new) + after
    return word


@cache
def synonyms(file: str | None) -> dict[str, list[str]]:
    """Returns the synonyms of each word of a list, by the word in small letters; none without a file.

    Raises InputError if the file cannot be read, or has no synonyms.
    """
    known: dict[str, list[str]] = {}
    try:
        lines = Path(file).read_text(encoding="utf-8-sig").splitlines() if file else []
        for group in ([word.strip() for word in re.split(r"[,\t]", line) if word.strip()] for line in lines):
            for word in group:
                own = known.setdefault(word.lower(), [])
                own += [each for each in group if each.lower() != word.lower() and each not in own]
        if file and not any(known.values()):
            raise ValueError("no line has two words")
    except (OSError, ValueError) as error:
        expected = "expected a file in UTF-8 with synonyms on each line, separated by commas or tabs"
        raise InputError(f"task.augment.synonyms_file: received {file!r}, {expected}: {error}") from error
    return known


def listed_synonyms(options: Any) -> dict[str, list[str]]:
    """Returns the `synonyms` of a task's options; raises InputError as they do."""
    return synonyms(getattr(getattr(options, "augment", None), "synonyms_file", None))


def compact(
    features: Sequence[dict[str, Any]], tokenizer: PreTrainedTokenizerBase, options: Any, random: RowRandom
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Returns the model's inputs, and no tables."""
    return collate(features, tokenizer, options, random), {}


def decoded(row: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, options: Any, training: bool) -> None:
    """Returns None, because texts are not in files of their own."""


def pad(features: Sequence[dict[str, Any]], tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
    """Pads token columns on the right (see `padding_to`) and returns them as `[B, T]` int64 tensors.

    Rows of windows become `[B, W, T]`, with windows of zeros behind those of shorter texts.
    """
    import numpy as np
    import torch
    from torch.nn.utils.rnn import pad_sequence

    from toolkit.data.batching.budget import multiple_of, padded_length  # a recipe's import must not import numpy

    columns = [{name: row[name] for name in MODEL_INPUTS if name in row} for row in features]
    counts = [len(row["input_ids"]) for row in columns if isinstance(next(iter(row["input_ids"]), 0), Sequence)]
    if counts:
        columns = [dict(zip(row, window, strict=True)) for row in columns for window in zip(*row.values(), strict=True)]
    if "attention_mask" in tokenizer.model_input_names:
        columns = [{**row, "attention_mask": row.get("attention_mask", [1] * len(row["input_ids"]))} for row in columns]
    width = padded_length(max(len(row["input_ids"]) for row in columns), multiple_of(tokenizer))
    padded = {}
    for name in columns[0]:  # `tokenizer.pad` takes ten times as long
        filler = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}.get(name, 0)
        rows = [[*row[name], *[filler] * (width - len(row[name]))] for row in columns]
        padded[name] = torch.from_numpy(np.array(rows, dtype=np.int64))
    if not counts:
        return padded
    return {name: pad_sequence(value.split(counts), batch_first=True) for name, value in padded.items()}


def windows_of(inputs: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Returns the windows of rows `[B, W, T]`, `[R, T]` each, and which of `[B, W]` they are: those with tokens."""
    real = inputs["attention_mask"].any(-1)
    real[:, 0] = True  # of a placeholder row
    return {name: value[real] for name, value in inputs.items()}, real


def pooled(model: nn.Module, inputs: Mapping[str, torch.Tensor], pooling: str) -> ModelOutput:
    """Returns the outputs of a model for rows of windows, with logits `[B, N]` for each row.

    Args:
        model: a classifier; called once, with the windows of all rows `[R, T]`.
        inputs: `[B, W, T]` each; windows without a token are skipped.
        pooling: a name in `POOLINGS`.
    """
    import torch
    from transformers.modeling_outputs import SequenceClassifierOutput

    own, real = windows_of(inputs)
    rows = model(**own).logits.split(real.sum(1).tolist())
    pool = getattr(torch, POOLINGS[pooling])
    return SequenceClassifierOutput(logits=torch.stack([pool(windows, 0) for windows in rows]))


POOLINGS = {"mean": "mean", "max": "amax"}
"""Functions of torch, and of NumPy, that turn the logits of a row's windows `[W, N]` into those of the row."""


def shown(text: str) -> str:
    """Returns the text itself, which identifies it in messages and predictions."""
    return text


def thumbnail(text: str, options: Any) -> None:
    """Returns None, because a text is shown as it is."""


def encode_with_overflow(
    tokenizer: PreTrainedTokenizerBase, *texts: list[str], known: dict[str, Encoding] | None = None, **options: Any
) -> BatchEncoding:
    """Encodes texts, or pairs of texts, with offsets and with all tokens that do not fit into the first window.

    Args:
        tokenizer: a fast tokenizer.
        *texts: the texts, or the first and the second texts of pairs.
        known: encodings of texts of pairs by `encode_once`.
        **options: `truncation`, `max_length`, `stride` and others of the tokenizer's call.

    Returns:
        One entry per window; `overflow_to_sample_mapping` has the position of its text.

    Raises:
        InputError: if the installed `tokenizers` loses tokens.
    """
    from tokenizers.processors import TemplateProcessing

    if not keeps_all_windows():
        raise InputError(
            f"tokenizers {version('tokenizers')} loses all but the first windows of long texts; install another "
            f"version: pip install 'tokenizers!={version('tokenizers')}'"
        )
    # Other post-processors change the offsets of texts that were encoded alone. Without repetitions, the tokenizer's
    # own call is as quick on one core, and quicker on several.
    joins = isinstance(tokenizer.backend_tokenizer.post_processor, TemplateProcessing)
    repeated = len(texts) == 2 and len(set(texts[1])) < len(texts[1])
    if repeated and joins and options["truncation"] == "only_second":
        encoded = _joined(tokenizer, *(encode_once(tokenizer, each, known) for each in texts), **options)
    else:
        encoded = tokenizer(*texts, return_overflowing_tokens=True, return_offsets_mapping=True, **options)
    forget_truncation(tokenizer)
    return encoded


def encode_once(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], known: dict[str, Encoding] | None = None
) -> list[Encoding]:
    """Returns the encodings of texts without special tokens; adds to `known` those that are not there."""
    known = {} if known is None else known
    if new := [text for text in dict.fromkeys(texts) if text not in known]:
        alone = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False}
        known |= zip(new, tokenizer(new, add_special_tokens=False, **alone).encodings, strict=True)
    return [known[text] for text in texts]


def _joined(
    tokenizer: PreTrainedTokenizerBase, first: list[Encoding], second: list[Encoding], *, truncation: str,
    max_length: int, stride: int, return_attention_mask: bool | None = None,
) -> BatchEncoding:  # fmt: skip
    """Returns what the tokenizer's call does for pairs of encoded texts; `sequence_ids` are of the second ones only."""
    from transformers import BatchEncoding

    backend, direction = tokenizer.backend_tokenizer, tokenizer.truncation_side
    backend.enable_truncation(max_length, stride=stride, strategy=truncation, direction=direction)
    pairs = [backend.post_process(*pair) for pair in zip(first, second, strict=True)]
    places = [place for place, pair in enumerate(pairs) for _ in range(1 + len(pair.overflowing))]
    windows = [window for pair in pairs for window in (pair, *pair.overflowing)]
    columns = {"offset_mapping": [window.offsets for window in windows], "overflow_to_sample_mapping": places}
    asked = {name: name in tokenizer.model_input_names for name in MODEL_INPUTS}
    if return_attention_mask is not None:
        asked["attention_mask"] = return_attention_mask
    for name, own in zip(MODEL_INPUTS, ("ids", "attention_mask", "type_ids"), strict=True):
        if asked[name]:
            columns[name] = [getattr(window, own) for window in windows]
    for number, kinds in enumerate(columns.get("token_type_ids", ())):
        if number and places[number] == places[number - 1]:  # templates give types to the first windows only
            kinds[:] = [side or kind for side, kind in zip(windows[number].sequence_ids, kinds, strict=True)]
    return BatchEncoding(columns, windows)


@cache
def keeps_all_windows() -> bool:
    """Returns whether a text of four tokens has four windows of one; with tokenizers 0.23.1 and 0.23.2, it has one."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(1)
    return len(tokenizer.encode("a a a a").overflowing) == 3
