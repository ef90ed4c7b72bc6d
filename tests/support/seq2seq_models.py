"""Small encoder-decoders and their tokenizers."""

from __future__ import annotations

import transformers

VOCAB = {token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "▁", "a", "b", "▁a", "▁b"])}


def nllb():
    return transformers.NllbTokenizer(vocab=VOCAB, merges=[("▁", "a"), ("▁", "b")])


def small(model_type, vocab_size=60, **ids):
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_layers": 1, "decoder_layers": 1,
             "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}  # fmt: skip
    sizes = {"d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2} if model_type == "t5" else heads
    return transformers.AutoConfig.for_model(model_type, d_model=16, vocab_size=vocab_size, **sizes, **ids)
