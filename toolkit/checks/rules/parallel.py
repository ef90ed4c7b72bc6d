"""Settings that cannot be combined with a split model; part of the table in `toolkit.checks.rules`."""

from __future__ import annotations

from collections.abc import Callable

from toolkit.config.problems import Rule, only_if
from toolkit.config.sections import Config
from toolkit.config.train import ParallelConfig
from toolkit.optim.presets import PRESETS

_UNSPLIT = "remove the settings of parallel"


def _refused(when: Callable[[Config], bool], key: str, why: str, instead: str) -> Rule:
    return Rule(lambda c: c.parallel.splits and when(c), (key, "parallel"), why, f"{instead}, or {_UNSPLIT}")


def _sharded_only(name: str) -> Rule:
    return only_if(
        f"parallel.{name}",
        getattr(ParallelConfig(), name),
        "parallel",
        lambda parallel: parallel.shards or parallel.backend == "deepspeed",
        "only sharded parameters have this setting",
        "set parallel.fsdp",
    )


def _accumulation(config: Config) -> int | None:
    """Returns the micro-batches of a window, or None if the token budget decides on their number."""
    return (config.train.gradient_accumulation_steps or 1) if config.train.max_tokens_per_batch is None else None


PIPELINE_RULES = (
    only_if(
        "parallel.schedule",
        ParallelConfig().schedule,
        "parallel.pipeline",
        lambda size: size > 1,
        "only a pipeline has a schedule",
        "set parallel.pipeline",
    ),
    Rule(
        lambda c: (
            c.parallel.pipeline > 1
            and c.parallel.schedule == "zero_bubble"
            and (c.train.activation_checkpointing != "none" or c.train.activation_offload)
        ),
        ("parallel.schedule", "train.activation_checkpointing", "train.activation_offload"),
        "each layer's input would be kept from its backward pass until the gradient of its weights is computed",
        "set parallel.schedule to 1f1b, or remove train.activation_checkpointing and train.activation_offload",
    ),
    Rule(
        lambda c: (_accumulation(c) or c.parallel.pipeline) < c.parallel.pipeline,
        ("train.gradient_accumulation_steps", "parallel.pipeline"),
        "the micro-batches of a window pass through the stages one after another, so some stages would always wait",
        "set train.gradient_accumulation_steps to at least parallel.pipeline, and lower "
        "train.per_device_train_batch_size to keep the window",
    ),
    Rule(
        lambda c: (
            c.parallel.pipeline > 1
            and c.parallel.schedule == "interleaved_1f1b"
            and bool((_accumulation(c) or 0) % c.parallel.pipeline)
        ),
        ("train.gradient_accumulation_steps", "parallel.pipeline", "parallel.schedule"),
        "the interleaved schedule runs as many micro-batches as there are stages through one chunk at a time",
        "set train.gradient_accumulation_steps to a multiple of parallel.pipeline, or parallel.schedule to 1f1b",
    ),
    Rule(
        lambda c: c.parallel.pipeline > 1 and c.parallel.shards,
        ("parallel",),
        "each micro-batch would gather the parameters of its stage again",
        "set parallel.tensor instead of parallel.fsdp, or remove parallel.pipeline",
    ),
    Rule(
        lambda c: c.parallel.pipeline > 1 and c.model.peft.method == "prompt_tuning",
        ("parallel.pipeline", "model.peft.method"),
        "virtual tokens are added in front of the stages",
        "set model.peft.method to lora, or remove parallel.pipeline",
    ),
)

PARALLEL_RULES = (
    *PIPELINE_RULES,
    _sharded_only("reshard_after_forward"),
    _sharded_only("offload"),
    Rule(
        lambda c: c.parallel.zero_stage == 3 and not c.parallel.reshard_after_forward,
        ("parallel.zero_stage", "parallel.reshard_after_forward"),
        "stage 3 frees gathered parameters after the forward pass",
        "set parallel.zero_stage to 2, or remove parallel.reshard_after_forward",
    ),
    Rule(
        lambda c: c.parallel.zero_stage == 1 and c.parallel.splits,
        ("parallel",),
        "stage 1 is for replicas; sharded parameters have sharded optimizer state anyway",
        "remove parallel.zero_stage",
    ),
    Rule(
        lambda c: c.parallel.zero_stage == 1 and (c.train.strategy == "local_sgd" or c.train.auto_batch_size),
        ("parallel.zero_stage", "train.strategy", "train.auto_batch_size"),
        "each process updates only a part of the parameters",
        "set train.strategy to sync and remove train.auto_batch_size, or remove parallel.zero_stage",
    ),
    Rule(
        lambda c: c.parallel.zero_stage == 1 and PRESETS[c.train.optim].averages,
        ("parallel.zero_stage", "train.optim"),
        "this optimizer evaluates an average that is part of its state",
        "set parallel.zero_stage to 3, or train.optim to another optimizer",
    ),
    _refused(
        lambda c: c.train.strategy == "local_sgd",
        "train.strategy",
        "local SGD needs a complete model on each process",
        "set train.strategy to sync",
    ),
    _refused(
        lambda c: c.train.auto_batch_size,
        "train.auto_batch_size",
        "processes that share a model cannot begin a window again on their own",
        "remove train.auto_batch_size",
    ),
    _refused(
        lambda c: c.train.mixed_precision in ("fp16", "fp8"),
        "train.mixed_precision",
        "the loss scale of fp16 and the casts of fp8 are not synchronised over the parts of a model",
        "set train.mixed_precision to bf16 or no",
    ),
    _refused(
        lambda c: PRESETS[c.train.optim].library == "bitsandbytes",
        "train.optim",
        "the states of bitsandbytes' optimizers cannot be split or merged",
        "set train.optim to another optimizer",
    ),
    _refused(
        lambda c: c.train.torch_compile,
        "train.torch_compile",
        "the model is compiled before it is split",
        "remove train.torch_compile",
    ),
    _refused(
        lambda c: c.train.activation_checkpointing.startswith("segments"),
        "train.activation_checkpointing",
        "a segment has several layers, and each layer's parameters are gathered, split or placed by themselves",
        "set train.activation_checkpointing to full or selective",
    ),
    _refused(
        lambda c: c.train.activation_compression != "none",
        "train.activation_compression",
        "gathered parameters would be compressed, too",
        "remove train.activation_compression",
    ),
    _refused(
        lambda c: c.train.ddp_comm_hook != "no",
        "train.ddp_comm_hook",
        "only replicas exchange complete gradients",
        "remove train.ddp_comm_hook",
    ),
    _refused(
        lambda c: c.train.snapshot_ensemble,
        "train.snapshot_ensemble",
        "snapshots are complete models",
        "remove train.snapshot_ensemble",
    ),
    _refused(
        lambda c: c.model.peft.method == "qlora",
        "model.peft.method",
        "weights of 4 bits cannot be split",
        "set model.peft.method to lora",
    ),
    Rule(
        lambda c: c.parallel.tensor > 1 and PRESETS[c.train.optim].averages,
        ("parallel.tensor", "train.optim"),
        "this optimizer counts its steps for all parameters together, and split ones are updated separately",
        "set parallel.fsdp instead of parallel.tensor, or train.optim to another optimizer",
    ),
    Rule(
        lambda c: c.parallel.tensor > 1 and c.model.peft.method != "none",
        ("parallel.tensor", "model.peft.method"),
        "adapters change the layers that tensor parallelism splits",
        "set parallel.fsdp instead of parallel.tensor, or remove model.peft",
    ),
)
