"""Small models of several architectures for tests of adapters."""

from __future__ import annotations

FEW = ("data.max_train_samples=24", "data.max_eval_samples=9", "train.per_device_train_batch_size=4",
       "train.num_train_epochs=1", "train.learning_rate=1.0e-2", "checkpoint.save_steps=null")  # fmt: skip


SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


SPEECH = {"conv_dim": [8], "conv_stride": [5], "conv_kernel": [10], "num_feat_extract_layers": 1,
          "num_conv_pos_embedding_groups": 2, **SIZES}  # fmt: skip


LLAMA = {**SIZES, "vocab_size": 30, "num_key_value_heads": 2, "pad_token_id": 0}


ARCHITECTURES = {
    "vit": ("ImageClassification", {"image_size": 8, "patch_size": 4, **SIZES}, ["classifier"], 6),
    "wav2vec2": ("AudioClassification", SPEECH, ["projector", "classifier"], 6),
    "whisper": ("AudioClassification", {"d_model": 8, "encoder_layers": 1, "encoder_attention_heads": 2,
                                        "encoder_ffn_dim": 8}, ["projector", "classifier"], 6),
    "distilbert": ("SequenceClassification", {"dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 8, "vocab_size": 9},
                   ["pre_classifier", "classifier"], 6),
    "llama": ("SequenceClassification", LLAMA, ["score"], 7),
    "gpt2": ("CausalLM", {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 9}, [], 4),
    "bart": ("Seq2SeqLM", {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
                           "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8,
                           "vocab_size": 9}, [], 16),
}  # fmt: skip
"""By model type: auto class, sizes, modules of the head, and number of linear layers of attention and MLP."""
