"""Small models in local folders, such as a user has downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
from newcomers import reviews, sentence_pairs
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}


def save_text_model(folder: Path) -> None:
    """Saves an encoder with its tokenizer."""
    texts = [row["Review Text"] for row in reviews()] + ["field maize sown May watered litres day water grows ?"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=400, special_tokens=special))
    made = transformers.BertTokenizer(tokenizer.get_vocab())
    made.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(made), max_position_embeddings=128, **SIZES)
    transformers.BertForMaskedLM(config).save_pretrained(folder)


def save_image_model(folder: Path) -> None:
    """Saves a vision transformer with its image processor."""
    size = {"height": 32, "width": 32}
    transformers.ViTImageProcessorPil(size=size).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.ViTConfig(image_size=32, patch_size=16, **SIZES)
    transformers.ViTForImageClassification(config).save_pretrained(folder)


def save_audio_model(folder: Path) -> None:
    """Saves a speech encoder with its feature extractor."""
    transformers.Wav2Vec2FeatureExtractor().save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.Wav2Vec2Config(
        conv_dim=(8, 8), conv_kernel=(10, 8), conv_stride=(5, 8), num_feat_extract_layers=2, vocab_size=8,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, mask_time_length=2, **SIZES,
    )  # fmt: skip
    transformers.Wav2Vec2ForSequenceClassification(config).save_pretrained(folder)


def save_translation_model(folder: Path) -> None:
    """Saves an encoder-decoder with its tokenizer."""
    made = _plain_tokenizer([side for pair in sentence_pairs() for side in pair])
    made.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=len(made), d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2,
        decoder_start_token_id=made.pad_token_id, pad_token_id=made.pad_token_id, eos_token_id=made.eos_token_id,
    )  # fmt: skip
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)


def save_language_model(folder: Path) -> None:
    """Saves a causal language model with its tokenizer."""
    made = _plain_tokenizer([row["Review Text"] for row in reviews()])
    made.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=len(made), max_position_embeddings=1024, **SIZES)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def save_chat_model(folder: Path) -> None:
    """Saves a causal language model whose tokenizer has a chat template with tools."""
    save_language_model(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = (
        "{% if tools %}{{ tools | tojson }} {% endif %}{% for turn in messages %}{{ turn.role }} : {{ turn.content }} "
        "{% if turn.tool_calls %}{{ turn.tool_calls | tojson }} {% endif %}{{ eos_token }} {% endfor %}"
        "{% if add_generation_prompt %}assistant : {% endif %}"
    )
    tokenizer.save_pretrained(folder)


def _plain_tokenizer(texts: Sequence[str]) -> transformers.PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=300, special_tokens=["<pad>", "</s>", "<unk>"]))
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


SAVE = {
    "text": save_text_model,
    "image": save_image_model,
    "audio": save_audio_model,
    "translation": save_translation_model,
    "language": save_language_model,
    "chat": save_chat_model,
}
"""Functions that save each kind of model into a folder."""
