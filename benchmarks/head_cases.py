"""The models of the head scan: tiny, randomly initialised, and without dropout or other randomness in training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from head_rows import PROBLEMS, SIDE, VOCABULARY, Problem
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

IDS = {"vocab_size": len(VOCABULARY), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ENCODER = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 40,
}  # fmt: skip
TEXT = ENCODER | IDS
SEQ2SEQ = IDS | {
    "decoder_start_token_id": 2, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 40,
    "forced_eos_token_id": None,
}  # fmt: skip
PICTURE = {name: size for name, size in ENCODER.items() if name != "max_position_embeddings"} | {
    "image_size": SIDE,
    "patch_size": 4,
}
STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1]}
SPEECH = {name: size for name, size in ENCODER.items() if name != "max_position_embeddings"} | {
    "feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_dim": [8, 8], "conv_kernel": [10, 3],
    "conv_stride": [5, 2], "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 8, "mask_time_prob": 0.0, "mask_feature_prob": 0.0,
}  # fmt: skip
GROUP = SPEECH | {"feat_extract_norm": "group", "do_stable_layer_norm": False}
MODERN = TEXT | {"cls_token_id": 1, "sep_token_id": 2}
DISTIL = IDS | {"dim": 16, "hidden_dim": 32, "n_layers": 1, "n_heads": 2, "max_position_embeddings": 40}

AUTO_MODELS = {
    "text classification": "AutoModelForSequenceClassification",
    "regression": "AutoModelForSequenceClassification",
    "multi-label": "AutoModelForSequenceClassification",
    "token classification": "AutoModelForTokenClassification",
    "question answering": "AutoModelForQuestionAnswering",
    "translation": "AutoModelForSeq2SeqLM",
    "causal LM": "AutoModelForCausalLM",
    "masked LM": "AutoModelForMaskedLM",
    "image classification": "AutoModelForImageClassification",
    "audio classification": "AutoModelForAudioClassification",
}


@dataclass(frozen=True)
class Case:
    """A model and its head.

    Args:
        model: its name in the table.
        head: name of the head, a key of `AUTO_MODELS`.
        model_type: its name in transformers.
        sizes: fields of its configuration.
        rows: key of `PROBLEMS` for its rows, or None if it is the name of the head.
    """

    model: str
    head: str
    model_type: str
    sizes: dict[str, Any]
    rows: str | None = None

    @property
    def problem(self) -> Problem:
        """The kind of problem that its rows belong to."""
        return PROBLEMS[self.rows or self.head]

    def build(self, task: Any) -> PreTrainedModel:
        """Returns a new model in float64 and training mode, with the same weights in every call."""
        config = AutoConfig.for_model(self.model_type, **self.sizes)
        make_deterministic(config)
        task.configure(config)
        torch.manual_seed(0)
        return getattr(transformers, AUTO_MODELS[self.head]).from_config(config).double().train()


def make_deterministic(config: PreTrainedConfig) -> None:
    """Sets dropout, layer drop and stochastic depth to 0, and a larger scale of initial weights.

    With the usual scale of 0.02, a model this small returns nearly the same logits for all inputs.
    """
    for name, value in config.to_dict().items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
        if name in ("initializer_range", "init_std"):
            setattr(config, name, 0.3)


def _cases() -> list[Case]:
    encoders = {
        "BERT": ("bert", TEXT),
        "DistilBERT": ("distilbert", DISTIL),
        "RoBERTa": ("roberta", TEXT),
        "DeBERTa-v2": ("deberta-v2", TEXT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
        "ModernBERT": ("modernbert", MODERN),
        "ELECTRA": ("electra", TEXT | {"embedding_size": 8}),
        "ALBERT": ("albert", TEXT | {"embedding_size": 8, "num_hidden_layers": 2}),
        "XLM-R": ("xlm-roberta", TEXT),
    }
    texts = ("text classification", "token classification", "question answering")
    more = {"BERT": ("regression", "multi-label", "masked LM"), "DeBERTa-v2": ("regression", "multi-label")}
    found = [Case(name, head, *model) for name, model in encoders.items() for head in (*texts, *more.get(name, ()))]
    decoders = {
        "GPT-2": ("gpt2", IDS | {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 40}),
        "Llama": ("llama", TEXT | {"num_key_value_heads": 2}),
    }
    found += [Case(name, head, *model) for name, model in decoders.items() for head in ("causal LM", texts[0])]
    t5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "feed_forward_proj": "gated-gelu"}
    translators = {
        "T5": ("t5", IDS | t5 | {"decoder_start_token_id": 0}),
        "BART": ("bart", SEQ2SEQ),
        "Marian": ("marian", SEQ2SEQ | {"decoder_vocab_size": len(VOCABULARY)}),
        "mBART": ("mbart", SEQ2SEQ),
        "NLLB, M2M100": ("m2m_100", SEQ2SEQ),
        "Pegasus": ("pegasus", SEQ2SEQ),
    }
    found += [Case(name, "translation", *model) for name, model in translators.items()]
    found += [Case(name, texts[0], *translators[name]) for name in ("T5", "BART")]
    swin = {"image_size": SIDE, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2]}
    vision = {
        "ViT": ("vit", PICTURE),
        "Swin": ("swin", swin | {"window_size": 2}),
        "DINOv2": ("dinov2", PICTURE),
        "BEiT": ("beit", PICTURE),
        "ConvNeXt": ("convnext", STAGES | {"num_stages": 2, "patch_size": 2, "image_size": SIDE}),
        "ResNet": ("resnet", STAGES | {"embedding_size": 8}),
    }
    found += [Case(name, "image classification", *model) for name, model in vision.items()]
    return found + _audio_cases()


def _audio_cases() -> list[Case]:
    ast = PICTURE | {"max_length": SIDE, "num_mel_bins": SIDE, "time_stride": 4, "frequency_stride": 4}
    whisper = SEQ2SEQ | {"num_mel_bins": SIDE, "max_source_positions": SIDE // 2, "max_target_positions": 40}
    del ast["image_size"], whisper["max_position_embeddings"], whisper["forced_eos_token_id"]
    models = [
        ("Wav2Vec2", "wav2vec2", SPEECH, None),
        ("HuBERT", "hubert", SPEECH, None),
        ("WavLM", "wavlm", SPEECH, None),
        ("AST", "audio-spectrogram-transformer", ast, "audio (AST)"),
        ("Whisper", "whisper", whisper, "audio (Whisper)"),
        ("Wav2Vec2 group", "wav2vec2", GROUP, None),
        ("HuBERT group", "hubert", GROUP, None),
    ]
    return [Case(name, "audio classification", *model) for name, *model in models]


CASES = _cases()
