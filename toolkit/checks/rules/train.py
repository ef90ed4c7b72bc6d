"""Combinations of settings of `train` that are not supported."""

from __future__ import annotations

from toolkit.config.problems import Rule, only_if
from toolkit.config.sections import Config

_NO_GPU = "the launcher selects the CPU"


def _flash(config: Config) -> bool:
    return (config.model.attn_implementation or "").startswith("flash_attention")


def _compile_only(name: str) -> Rule:
    return only_if(
        f"train.{name}",
        None,
        "train.torch_compile",
        bool,
        "it has no effect without compilation",
        "set train.torch_compile to true",
    )


def _workers_only(name: str, unset: object) -> Rule:
    return only_if(
        f"train.{name}",
        unset,
        "train.dataloader_num_workers",
        bool,
        "batches are loaded in the training process",
        "set train.dataloader_num_workers above 0",
    )


RULES = (
    Rule(lambda c: c.train.mixed_precision == "fp16", ("train.mixed_precision",), f"fp16 needs a GPU, and {_NO_GPU}",
         "set train.mixed_precision to bf16 or no", launcher="ACCELERATE_USE_CPU"),
    Rule(lambda c: c.train.mixed_precision == "fp8", ("train.mixed_precision",),
         f"fp8 needs a GPU that supports it, and {_NO_GPU}", "set train.mixed_precision to bf16 or no",
         launcher="ACCELERATE_USE_CPU"),
    Rule(lambda c: c.train.tf32 is True, ("train.tf32",), f"TensorFloat32 is a format of NVIDIA GPUs, and {_NO_GPU}",
         "remove train.tf32", launcher="ACCELERATE_USE_CPU"),
    Rule(
        lambda c: c.train.activation_offload,
        ("train.activation_offload",),
        f"activations are already in CPU memory, because {_NO_GPU}",
        "remove train.activation_offload; to save memory, set train.activation_checkpointing, or smaller micro-batches "
        "with more accumulation",
        launcher="ACCELERATE_USE_CPU",
    ),
    Rule(lambda c: c.train.activation_compression != "none" and c.train.activation_offload,
         ("train.activation_compression", "train.activation_offload"), "an activation is stored in one way",
         "remove one of them"),
    Rule(lambda c: c.train.torch_compile and c.train.activation_checkpointing.startswith("se"),
         ("train.activation_checkpointing", "train.torch_compile"),
         "compiled passes decide by themselves what they recompute",
         "set train.activation_checkpointing to full, or remove train.torch_compile"),
    Rule(lambda c: c.train.torch_compile and c.train.activation_compression != "none",
         ("train.activation_compression", "train.torch_compile"),
         "compiled passes decide by themselves what they store", "remove one of them"),
    Rule(lambda c: _flash(c) or c.model.attn_implementation == "flex_attention", ("model.attn_implementation",),
         f"it can be trained only on a GPU, and {_NO_GPU}", "set model.attn_implementation to sdpa or eager",
         launcher="ACCELERATE_USE_CPU"),
    Rule(lambda c: _flash(c) and c.train.mixed_precision in (None, "no"),
         ("model.attn_implementation", "train.mixed_precision"), "flash attention does not support float32",
         "set train.mixed_precision to bf16 or fp16, or model.attn_implementation to sdpa"),
    _compile_only("torch_compile_backend"),
    _compile_only("torch_compile_mode"),
    Rule(lambda c: c.train.torch_compile_mode is not None and c.train.torch_compile_backend not in (None, "inductor"),
         ("train.torch_compile_mode", "train.torch_compile_backend"), "only inductor supports modes",
         "remove train.torch_compile_mode"),
    Rule(lambda c: c.train.fast_dropout is True and c.train.torch_compile,
         ("train.fast_dropout", "train.torch_compile"), "compiled passes have PyTorch's own dropout",
         "set train.fast_dropout to auto"),
    Rule(lambda c: c.train.chunked_loss is True and c.train.torch_compile,
         ("train.chunked_loss", "train.torch_compile"), "compiled passes compute all logits",
         "set train.chunked_loss to auto"),
    Rule(lambda c: c.train.chunked_loss is True and c.train.ddp_find_unused_parameters,
         ("train.chunked_loss", "train.ddp_find_unused_parameters"),
         "unused parameters are looked for from the logits, which are not there", "remove one of them"),
    Rule(lambda c: c.train.chunked_loss is True and (c.parallel.splits_weights or c.parallel.backend == "deepspeed"),
         ("train.chunked_loss", "parallel"), "the head of a model that is split over processes has a loss of its own",
         "set train.chunked_loss to auto"),
    Rule(lambda c: c.train.pad_to_multiple_of is not None and c.train.max_tokens_per_batch is not None,
         ("train.pad_to_multiple_of", "train.max_tokens_per_batch"),
         "a budget makes micro-batches of many numbers of rows", "remove one of them"),
    _workers_only("dataloader_persistent_workers", False),
    _workers_only("dataloader_prefetch_factor", None),
    Rule(
        lambda c: (
            c.train.auto_batch_size
            and c.train.per_device_train_batch_size == 1
            and c.train.max_tokens_per_batch is None
        ),
        ("train.auto_batch_size", "train.per_device_train_batch_size"),
        "a micro-batch of one row cannot be split",
        "remove train.auto_batch_size",
        with_=("train.max_tokens_per_batch",),
    ),
)  # fmt: skip
"""Part of `toolkit.checks.rules.RULES`."""
