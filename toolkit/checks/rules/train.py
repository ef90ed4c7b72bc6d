"""Combinations of settings of `train` that are not supported."""

from __future__ import annotations

from toolkit.config.problems import CHANGED, clash, only_if, several

_NO_GPU, _CPU = "the launcher selects the CPU", "ACCELERATE_USE_CPU"


def _flash(attention: str | None) -> bool:
    return (attention or "").startswith("flash_attention")


RULES = (
    clash({"train.mixed_precision": "fp16"}, f"fp16 needs a GPU, and {_NO_GPU}",
          "set train.mixed_precision to bf16 or no", launcher=_CPU),
    clash({"train.mixed_precision": "fp8"}, f"fp8 needs a GPU that supports it, and {_NO_GPU}",
          "set train.mixed_precision to bf16 or no", launcher=_CPU),
    clash({"train.tf32": True}, f"TensorFloat32 is a format of NVIDIA GPUs, and {_NO_GPU}", "remove train.tf32",
          launcher=_CPU),
    clash({"train.activation_offload": True}, f"activations are already in CPU memory, because {_NO_GPU}",
          "remove train.activation_offload; to save memory, set train.activation_checkpointing, or smaller "
          "micro-batches with more accumulation", launcher=_CPU),
    clash({"train.activation_compression": CHANGED, "train.activation_offload": True},
          "an activation is stored in one way", "remove one of them"),
    clash({"train.activation_checkpointing": lambda setting: setting.startswith(("se", "nested")),
           "train.torch_compile": True},
          "compiled passes decide by themselves what they recompute",
          "set train.activation_checkpointing to full, or remove train.torch_compile"),
    clash({"train.activation_compression": CHANGED, "train.torch_compile": True},
          "compiled passes decide by themselves what they store", "remove one of them"),
    clash({"model.attn_implementation": lambda name: _flash(name) or name == "flex_attention"},
          f"it can be trained only on a GPU, and {_NO_GPU}", "set model.attn_implementation to sdpa or eager",
          launcher=_CPU),
    clash({"model.attn_implementation": _flash, "train.mixed_precision": (None, "no")},
          "flash attention does not support float32",
          "set train.mixed_precision to bf16 or fp16, or model.attn_implementation to sdpa"),
    *(only_if(f"train.{name}", "train.torch_compile", bool, "it has no effect without compilation",
              "set train.torch_compile to true") for name in ("torch_compile_backend", "torch_compile_mode")),
    clash({"train.torch_compile_mode": CHANGED,
           "train.torch_compile_backend": lambda backend: backend not in (None, "inductor")},
          "only inductor supports modes", "remove train.torch_compile_mode"),
    clash({"train.fast_dropout": True, "train.torch_compile": True}, "compiled passes have PyTorch's own dropout",
          "set train.fast_dropout to auto"),
    clash({"train.chunked_loss": True, "train.torch_compile": True}, "compiled passes compute all logits",
          "set train.chunked_loss to auto"),
    clash({"train.chunked_loss": True, "train.ddp_find_unused_parameters": True},
          "unused parameters are looked for from the logits, which are not there", "remove one of them"),
    clash({"train.chunked_loss": True, "parallel.pipeline": several}, "the last stage passes all logits to the loss",
          "set train.chunked_loss to auto"),
    clash({"train.pad_to_multiple_of": CHANGED, "train.max_tokens_per_batch": CHANGED},
          "a budget makes micro-batches of many numbers of rows", "remove one of them"),
    *(only_if(f"train.{name}", "train.dataloader_num_workers", bool, "batches are loaded in the training process",
              "set train.dataloader_num_workers above 0")
      for name in ("dataloader_persistent_workers", "dataloader_prefetch_factor")),
    clash({"train.auto_batch_size": True, "train.per_device_train_batch_size": 1},
          "a micro-batch of one row cannot be split", "remove train.auto_batch_size",
          {"train.max_tokens_per_batch": None}),
)  # fmt: skip
"""Part of `toolkit.checks.rules.RULES`."""
