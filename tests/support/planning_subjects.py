"""Tiny models of many types, each with a micro-batch, for simulations of training steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from toolkit.config.sections import (
    CheckpointConfig,
    Config,
    DataConfig,
    EvalConfig,
    ModelConfig,
    ParallelConfig,
    TrackingConfig,
    TrainConfig,
    TrainerConfig,
)
from toolkit.footprint.simulate import Subject

ROWS = 4
TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 400}
BART = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "vocab_size": 400,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "pad_token_id": 0,
        "decoder_start_token_id": 0}  # fmt: skip
SPEECH = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
          "conv_dim": [16] * 7, "feat_extract_norm": "layer", "num_conv_pos_embeddings": 16,
          "num_conv_pos_embedding_groups": 2}  # fmt: skip
PICTURE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
           "image_size": 32, "patch_size": 8}  # fmt: skip
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("AutoModelForSequenceClassification", TEXT),
    "roberta": ("AutoModelForSequenceClassification", TEXT),
    "distilbert": ("AutoModelForQuestionAnswering",
                   {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "vocab_size": 400}),
    "t5": ("AutoModelForSeq2SeqLM",
           {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": 400}),
    "bart": ("AutoModelForSeq2SeqLM", BART),
    "marian": ("AutoModelForSeq2SeqLM", BART),
    "gpt2": ("AutoModelForCausalLM",
             {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 400, "bos_token_id": 0, "eos_token_id": 0}),
    "llama": ("AutoModelForCausalLM", {**TEXT, "num_key_value_heads": 1}),
    "vit": ("AutoModelForImageClassification", PICTURE),
    "convnext": ("AutoModelForImageClassification", {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}),
    "wav2vec2": ("AutoModelForAudioClassification", SPEECH),
    "audio-spectrogram-transformer": ("AutoModelForAudioClassification",
                                      {**TEXT, "max_length": 100, "num_mel_bins": 32}),
}  # fmt: skip
"""By model type: the auto class, and fields of the configuration."""


def inputs(kind: str, rows: int = ROWS, length: int = 32) -> dict[str, torch.Tensor]:
    """Returns the inputs of a model; if rows have a length, the last row is shorter than the others."""
    if kind in ("vit", "convnext"):
        return {"pixel_values": torch.zeros(rows, 3, 32, 32)}
    if kind == "audio-spectrogram-transformer":
        return {"input_values": torch.zeros(rows, 100, 32)}
    if kind == "wav2vec2":
        mask = torch.ones(rows, 8000, dtype=torch.int64)
        mask[-1, 6000:] = 0
        return {"input_values": torch.zeros(rows, 8000), "attention_mask": mask}
    mask = torch.ones(rows, length, dtype=torch.int64)
    mask[-1, length // 2 :] = 0
    ids = torch.ones(rows, length, dtype=torch.int64)
    decoder = {"decoder_input_ids": ids[:, : length // 2]} if kind in ("t5", "bart", "marian") else {}
    return {"input_ids": ids, "attention_mask": mask, **decoder}


def settings(**train: Any) -> Config:
    """Returns a configuration with the given settings in the section `train`, and otherwise defaults."""
    return Config(
        output_dir="unused", task=None, model=ModelConfig(from_config={"model_type": "unused"}), data=DataConfig(),
        train=TrainConfig(**train), parallel=ParallelConfig(),
        eval=EvalConfig(), checkpoint=CheckpointConfig(), tracking=TrackingConfig(),
        trainer=TrainerConfig(),
    )  # fmt: skip


def subject(kind: str, sizes: dict[str, Any] | None = None, rows: int = ROWS, length: int = 32, fused: bool = False,
            **train: Any) -> Subject:  # fmt: skip
    """Returns a training step of a model type with `sizes`, or those in `KINDS`, and settings of `train`."""
    from transformers import AutoConfig

    auto_model, own = KINDS[kind]
    task: Any = SimpleNamespace(
        auto_model=lambda config: auto_model, unread=(), has=lambda name: False,
        forward=lambda model, batch: model(**batch["inputs"]),
        loss_sum=lambda outputs, batch: next(
            value for name, value in outputs.items() if name.endswith("logits")
        ).float().logsumexp(-1).sum(),
    )  # fmt: skip
    batch = {"inputs": inputs(kind, rows, length), "row_ids": torch.arange(rows)}
    config = AutoConfig.for_model(kind, **(own if sizes is None else sizes))
    cfg = settings(per_device_train_batch_size=rows, **train)
    return Subject(cfg, task, config, batch, torch.device("cpu"), fused)
