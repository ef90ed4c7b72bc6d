"""Settings that cannot be combined with a split model, a strategy or DeepSpeed."""

from __future__ import annotations

from collections.abc import Callable

from toolkit.config.problems import Rule, only_if
from toolkit.config.sections import Config, TrainConfig
from toolkit.config.train import ParallelConfig
from toolkit.optim.presets import PRESETS

_UNSPLIT = "remove the settings of parallel"
_SPLITS = (
    *("parallel.context", "parallel.expert", "parallel.fsdp", "parallel.pipeline", "parallel.tensor"),
    "parallel.zero_stage",
)


def _not_when_split(when: Callable[[Config], bool], key: str, why: str, instead: str) -> Rule:
    instead = f"{instead}, or {_UNSPLIT}"
    return Rule(lambda c: c.parallel.splits and when(c), (key, "parallel"), why, instead, with_=_SPLITS)


def _not_in(split: str, when: Callable[[Config], bool], key: str, why: str, instead: str) -> Rule:
    keys = (key, f"parallel.{split}")
    return Rule(lambda c: getattr(c.parallel, split) > 1 and when(c), keys, why, f"{instead}, or remove {keys[1]}")


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
    return config.train.accumulation if config.train.max_tokens_per_batch is None else None


PIPELINE_RULES = (
    only_if("parallel.schedule", ParallelConfig().schedule, "parallel.pipeline", lambda size: size > 1,
            "only a pipeline has a schedule", "set parallel.pipeline"),
    Rule(
        lambda c: (
            c.parallel.pipeline > 1
            and c.parallel.schedule == "zero_bubble"
            and (c.train.activation_checkpointing != "none" or c.train.activation_offload)
        ),
        ("parallel.schedule", "train.activation_checkpointing", "train.activation_offload"),
        "each layer's input would be kept from its backward pass until the gradient of its weights is computed",
        "set parallel.schedule to 1f1b, or remove train.activation_checkpointing and train.activation_offload",
        with_=("parallel.pipeline",),
    ),
    Rule(lambda c: (_accumulation(c) or c.parallel.pipeline) < c.parallel.pipeline,
         ("train.gradient_accumulation_steps", "parallel.pipeline"),
         "the micro-batches of a window pass through the stages one after another, so some stages would always wait",
         "set train.global_batch_size to at least parallel.pipeline rows for each data rank, and "
         "train.per_device_train_batch_size and train.gradient_accumulation_steps to null",
         with_=("train.max_tokens_per_batch",)),
    Rule(
        lambda c: (
            c.parallel.pipeline > 1
            and c.parallel.schedule == "interleaved_1f1b"
            and bool((_accumulation(c) or 0) % c.parallel.pipeline)
        ),
        ("train.gradient_accumulation_steps", "parallel.pipeline", "parallel.schedule"),
        "the interleaved schedule runs as many micro-batches as there are stages through one chunk at a time",
        "set train.gradient_accumulation_steps to a multiple of parallel.pipeline (with train.global_batch_size, "
        "through train.per_device_train_batch_size), or parallel.schedule to 1f1b",
        with_=("train.max_tokens_per_batch",),
    ),
    Rule(lambda c: c.parallel.pipeline > 1 and c.parallel.shards and c.parallel.schedule == "zero_bubble",
         ("parallel",),
         "shards exchange gradients in the backward pass, which computes none of matrices with this schedule",
         "set parallel.schedule to 1f1b"),
    Rule(lambda c: c.parallel.pipeline > 1 and c.parallel.offload, ("parallel",),
         "the first and the last stage add up gradients of tied embeddings where they compute, not in CPU memory",
         "remove parallel.offload"),
    Rule(lambda c: c.parallel.pipeline > 1 and c.model.peft.method == "prompt_tuning",
         ("parallel.pipeline", "model.peft.method"), "virtual tokens are added in front of the stages",
         "set model.peft.method to lora, or remove parallel.pipeline"),
)  # fmt: skip

CONTEXT_RULES = (
    Rule(lambda c: c.parallel.context > 1 and c.parallel.pipeline > 1, ("parallel.context", "parallel.pipeline"),
         "the stages of a pipeline call the layers of the model, and positions are split before the first one",
         "set parallel.tensor instead of parallel.pipeline, or remove parallel.context"),
    Rule(lambda c: c.parallel.context > 1 and c.model.peft.method == "prompt_tuning",
         ("parallel.context", "model.peft.method"), "virtual tokens would move the positions of the labels",
         "set model.peft.method to lora, or remove parallel.context"),
    Rule(lambda c: c.parallel.context > 1 and c.engine == "trainer"
         and c.trainer.args.get("neftune_noise_alpha") is not None,
         ("parallel.context", "trainer.args"), "the noise of neftune_noise_alpha depends on the length of a sequence, "
         "of which a process sees a part", "remove parallel.context, or neftune_noise_alpha from trainer.args",
         with_=("engine",)),
)  # fmt: skip

PARALLEL_RULES = (
    *PIPELINE_RULES,
    only_if("parallel.sequence", ParallelConfig().sequence, "parallel.tensor", lambda size: size > 1,
            "tokens are split between layers that are split", "set parallel.tensor"),
    Rule(lambda c: c.parallel.sequence and c.parallel.pipeline > 1, ("parallel.sequence", "parallel.pipeline"),
         "stages exchange complete hidden states", "remove parallel.sequence or parallel.pipeline"),
    Rule(lambda c: c.parallel.sequence and c.parallel.context > 1, ("parallel.sequence", "parallel.context"),
         "context splits the same tokens already", "remove parallel.sequence"),
    *CONTEXT_RULES,
    _sharded_only("reshard_after_forward"),
    _sharded_only("gradient_sync"),
    _sharded_only("offload"),
    Rule(lambda c: c.parallel.zero_stage == 3 and not c.parallel.reshard_after_forward,
         ("parallel.zero_stage", "parallel.reshard_after_forward"),
         "stage 3 frees gathered parameters after the forward pass",
         "set parallel.zero_stage to 2, or remove parallel.reshard_after_forward"),
    Rule(lambda c: c.parallel.zero_stage == 1 and c.parallel.shards, ("parallel",),
         "stage 1 is for replicas; sharded parameters have sharded optimizer state anyway",
         "remove parallel.zero_stage"),
    Rule(lambda c: c.parallel.zero_stage == 1 and c.parallel.splits and c.parallel.replicas == 1, ("parallel",),
         "a single replica has no others to share its optimizer's state with",
         "set parallel.replicas to null or to a larger number, or remove parallel.zero_stage"),
    Rule(lambda c: c.parallel.zero_stage == 1 and (c.train.strategy == "local_sgd" or c.train.auto_batch_size),
         ("parallel.zero_stage", "train.strategy", "train.auto_batch_size"),
         "each process updates only a part of the parameters",
         "set train.strategy to sync and remove train.auto_batch_size, or remove parallel.zero_stage"),
    Rule(lambda c: c.parallel.zero_stage == 1 and PRESETS[c.train.optim].averages,
         ("parallel.zero_stage", "train.optim"), "this optimizer evaluates an average that is part of its state",
         "set parallel.zero_stage to 3, or train.optim to another optimizer"),
    _not_when_split(lambda c: c.train.strategy == "local_sgd", "train.strategy",
             "local SGD needs a complete model on each process", "set train.strategy to sync"),
    _not_when_split(lambda c: c.train.auto_batch_size, "train.auto_batch_size",
             "processes that share a model cannot begin a window again on their own", "remove train.auto_batch_size"),
    _not_when_split(lambda c: c.train.mixed_precision == "fp8", "train.mixed_precision",
             "the casts of fp8 are not synchronised over the parts of a model",
             "set train.mixed_precision to bf16 or no"),
    _not_in("pipeline", lambda c: c.train.mixed_precision == "fp16", "train.mixed_precision",
            "the schedule has backward passes without the loss scale of fp16", "set train.mixed_precision to bf16"),
    _not_when_split(lambda c: PRESETS[c.train.optim].library == "bitsandbytes", "train.optim",
             "the states of bitsandbytes' optimizers cannot be split or merged",
             "set train.optim to another optimizer"),
    _not_when_split(lambda c: c.train.torch_compile, "train.torch_compile", "the model is compiled before it is split",
             "remove train.torch_compile"),
    _not_in("pipeline", lambda c: "segments" in c.train.activation_checkpointing, "train.activation_checkpointing",
            "the layers of a segment may be on several stages", "set train.activation_checkpointing to full"),
    _not_in("pipeline", lambda c: c.train.activation_compression != "none", "train.activation_compression",
            "the error of a row's gradient needs a schedule of its own", "remove train.activation_compression"),
    _not_in("tensor", lambda c: c.train.activation_compression == "int8", "train.activation_compression",
            "each process would round its part of a vector by a scale of its own",
            "set train.activation_compression to bf16"),
    _not_when_split(lambda c: c.train.ddp_comm_hook != "no", "train.ddp_comm_hook",
             "only replicas exchange complete gradients", "remove train.ddp_comm_hook"),
    _not_when_split(lambda c: c.train.snapshot_ensemble, "train.snapshot_ensemble", "snapshots are complete models",
             "remove train.snapshot_ensemble"),
    _not_when_split(lambda c: bool(c.model.peft.trainable_token_indices), "model.peft.trainable_token_indices",
             "rows of a weight that is in parts are not found", "remove model.peft.trainable_token_indices"),
    _not_when_split(lambda c: c.model.peft.method == "qlora", "model.peft.method", "weights of 4 bits cannot be split",
             "set model.peft.method to lora"),
    Rule(lambda c: max(c.parallel.tensor, c.parallel.expert) > 1 and PRESETS[c.train.optim].averages,
         ("parallel", "train.optim"),
         "this optimizer counts its steps for all parameters together, and split ones are updated separately",
         "set parallel.fsdp instead of parallel.tensor and parallel.expert, or train.optim to another optimizer",
         with_=("parallel.tensor", "parallel.expert")),
    Rule(lambda c: c.parallel.expert > 1
         and (max(c.parallel.context, c.parallel.tensor, c.parallel.pipeline) > 1 or c.parallel.zero_stage == 1),
         ("parallel",),
         "experts are exchanged between processes that read different rows, and no plan or stage has them",
         "remove the other settings, or set parallel.fsdp beside parallel.expert",
         with_=("parallel.context", "parallel.tensor", "parallel.pipeline", "parallel.expert", "parallel.zero_stage")),
    Rule(lambda c: c.parallel.expert > 1 and c.parallel.offload, ("parallel.expert", "parallel.offload"),
         "FSDP2 does not hold the experts, which would stay on the device", "remove parallel.offload"),
    Rule(lambda c: c.parallel.tensor > 1 and c.model.peft.method != "none", ("parallel.tensor", "model.peft.method"),
         "adapters change the layers that tensor parallelism splits",
         "set parallel.fsdp instead of parallel.tensor, or remove model.peft"),
)  # fmt: skip


OTHER_LAUNCHES = {
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism configuration",
    "ACCELERATE_USE_SAGEMAKER": "SageMaker",
}
"""Variables with which accelerate's launcher selects distributed training that no strategy here implements."""


def _is_local(config: Config) -> bool:
    return config.train.strategy == "local_sgd"


def _local_only(name: str) -> Rule:
    return only_if(
        f"train.{name}",
        getattr(TrainConfig(), name),
        "train.strategy",
        lambda strategy: strategy == "local_sgd",
        "only local_sgd has this setting",
        "set train.strategy to local_sgd",
    )


def _not_launched_as(variable: str, name: str) -> Rule:
    return Rule(
        lambda config: config.train.strategy in ("sync", "local_sgd"),
        ("train.strategy",),
        f"the launcher asks for {name}, which no strategy implements; training replicas of the model instead would "
        "need more memory, and could give other numbers",
        f"launch without {name}, for instance with accelerate_configs/ddp.yaml",
        launcher=variable,
    )


def _not_with_rollback(condition: Callable[[Config], bool], key: str, why: str, instead: str) -> Rule:
    return Rule(
        lambda c: c.train.non_finite == "rollback" and condition(c),
        ("train.non_finite", key),
        why,
        f"set train.non_finite to skip, or {instead}",
    )


_SETTINGS = ("steps", "warmup_steps", "average_moments", "outer_lr", "outer_momentum")

STRATEGY_RULES = (
    *(_local_only(f"local_sgd_{name}") for name in _SETTINGS),
    *(_not_launched_as(variable, name) for variable, name in OTHER_LAUNCHES.items()),
    only_if("train.power_sgd_rank", TrainConfig().power_sgd_rank, "train.ddp_comm_hook",
            lambda hook: hook == "power_sgd", "only PowerSGD has a rank", "set train.ddp_comm_hook to power_sgd"),
    Rule(lambda c: c.train.ddp_comm_hook != "no" and (_is_local(c) or c.train.auto_batch_size),
         ("train.ddp_comm_hook", "train.strategy", "train.auto_batch_size"),
         "gradients are not exchanged in the backward pass",
         "set train.ddp_comm_hook to no, or train.strategy to sync and train.auto_batch_size to false"),
    Rule(lambda c: c.train.ddp_comm_hook == "power_sgd" and c.train.mixed_precision == "fp16",
         ("train.ddp_comm_hook", "train.mixed_precision"),
         "the gradients kept for the next step would have the loss scale of this one, and may overflow",
         "set train.ddp_comm_hook to fp16, or train.mixed_precision to bf16 or no"),
    Rule(lambda c: c.train.ddp_comm_hook == "power_sgd" and c.train.non_finite != "stop",
         ("train.ddp_comm_hook", "train.non_finite"), "a gradient that is not finite would be kept for the next step",
         "set train.non_finite to stop, or train.ddp_comm_hook to fp16"),
    Rule(lambda c: c.train.ddp_comm_hook == "power_sgd" and bool(c.model.unfreeze),
         ("train.ddp_comm_hook", "model.unfreeze"),
         "the kept gradient of a frozen parameter would be applied later",
         "set train.ddp_comm_hook to fp16, or remove model.unfreeze"),
    Rule(
        lambda c: (
            _is_local(c)
            and c.train.local_sgd_outer_lr is None
            and c.train.local_sgd_outer_momentum != TrainConfig().local_sgd_outer_momentum
        ),
        ("train.local_sgd_outer_momentum", "train.local_sgd_outer_lr"),
        "there is no outer optimizer",
        "set train.local_sgd_outer_lr, for instance to 0.7, or remove train.local_sgd_outer_momentum",
        with_=("train.strategy",),
    ),
    Rule(lambda c: _is_local(c) and 0 < c.train.max_steps <= c.train.local_sgd_warmup_steps,
         ("train.local_sgd_warmup_steps", "train.max_steps"), "the run would end before processes train on their own",
         "set train.local_sgd_warmup_steps below train.max_steps, or train.strategy to sync",
         with_=("train.strategy",)),
    Rule(lambda c: _is_local(c) and c.train.mixed_precision == "fp16", ("train.strategy", "train.mixed_precision"),
         "each process would scale losses and skip steps on its own",
         "set train.mixed_precision to bf16 or no, or train.strategy to sync"),
    Rule(lambda c: _is_local(c) and c.train.auto_batch_size, ("train.strategy", "train.auto_batch_size"),
         "both decide how gradients are exchanged", "set train.strategy to sync, or remove train.auto_batch_size"),
    Rule(lambda c: _is_local(c) and c.train.ema_decay is not None, ("train.strategy", "train.ema_decay"),
         "each process would average different weights", "set train.strategy to sync, or remove train.ema_decay"),
    Rule(lambda c: _is_local(c) and PRESETS[c.train.optim].averages, ("train.strategy", "train.optim"),
         "the optimizer averages weights itself, and each process would average different ones",
         "set train.strategy to sync, or train.optim to another optimizer"),
    Rule(lambda c: _is_local(c) and c.train.local_sgd_average_moments and PRESETS[c.train.optim].eight_bit,
         ("train.local_sgd_average_moments", "train.optim"), "8-bit moments are codes, which cannot be averaged",
         "set train.local_sgd_average_moments to false, or train.optim to an optimizer with 32-bit moments",
         with_=("train.strategy",)),
    only_if("train.max_non_finite_steps", TrainConfig().max_non_finite_steps, "train.non_finite",
            lambda mode: mode != "stop", "the run stops at the first one", "set train.non_finite to skip or rollback"),
    _not_with_rollback(_is_local, "train.strategy",
                       "each process would skip other windows than the others",
                       "train.strategy to sync"),
    _not_with_rollback(lambda c: c.train.mixed_precision == "fp16", "train.mixed_precision",
                       "a skipped window would change the scale of the losses after it",
                       "train.mixed_precision to bf16 or no"),
    Rule(lambda c: c.train.non_finite != "stop" and c.parallel.backend == "deepspeed",
         ("train.non_finite", "parallel.backend"), "DeepSpeed keeps the gradient of a window until it has updated",
         "set train.non_finite to stop, or parallel.backend to torch"),
)  # fmt: skip


_TORCH = "set parallel.backend to torch"


def _not_with_deepspeed(
    when: Callable[[Config], bool], keys: tuple[str, ...], why: str, instead: str, with_: tuple[str, ...] = ()
) -> Rule:
    return Rule(lambda c: c.parallel.backend == "deepspeed" and when(c), keys, why, instead, with_=with_)


def _stage_one(key: str, when: Callable[[Config], bool], why: str, instead: str) -> Rule:
    """Returns a rule for stage 1; the other stages are split models, for which `parallel_rules` has such a rule."""
    keys = (key, "parallel.zero_stage", "parallel.backend")
    return _not_with_deepspeed(lambda c: c.parallel.zero_stage == 1 and when(c), keys, why, f"{instead}, or {_TORCH}")


def _compared(
    key: str, when: Callable[[Config], bool], instead: str, why: str = "it has not been compared under DeepSpeed"
) -> Rule:
    keys = (key, "parallel.backend")
    return _not_with_deepspeed(when, keys, why, f"{instead}, or {_TORCH}", ("parallel.zero_stage",))


DEEPSPEED_RULES = (
    _not_with_deepspeed(lambda c: c.checkpoint.async_save is True, ("checkpoint.async_save", "parallel.backend"),
                          "DeepSpeed makes complete copies for each checkpoint, for which training waits",
                          f"set checkpoint.async_save to auto or false, or {_TORCH}"),
    _not_with_deepspeed(lambda c: c.parallel.zero_stage is None, ("parallel.backend", "parallel.zero_stage"),
                          "DeepSpeed is used for ZeRO only",
                          "set parallel.zero_stage to 1, 2 or 3, or remove parallel.backend"),
    _not_with_deepspeed(lambda c: max(c.parallel.fsdp, c.parallel.context, c.parallel.tensor, c.parallel.pipeline,
                                        c.parallel.expert) > 1,
                          ("parallel",), "DeepSpeed's ZeRO splits over all processes",
                          f"remove the other sizes in parallel, or {_TORCH}"),
    _not_with_deepspeed(lambda c: c.parallel.replicas not in (None, 1) and c.parallel.zero_stage in (2, 3),
                          ("parallel",), "DeepSpeed's ZeRO splits over all processes, so there are no replicas",
                          f"remove parallel.replicas, or {_TORCH}"),
    _not_with_deepspeed(lambda c: c.parallel.gradient_sync != "micro_batch",
                          ("parallel.gradient_sync", "parallel.backend"),
                          "DeepSpeed's stage decides when gradients are exchanged",
                          f"remove parallel.gradient_sync, or {_TORCH}"),
    _not_with_deepspeed(lambda c: c.parallel.reshard_after_forward != ParallelConfig().reshard_after_forward,
                          ("parallel.reshard_after_forward", "parallel.backend"),
                          "DeepSpeed's stage decides when parameters are freed",
                          f"remove parallel.reshard_after_forward, or {_TORCH}"),
    _not_with_deepspeed(
        lambda c: not PRESETS[c.train.optim].elementwise and PRESETS[c.train.optim].library != "bitsandbytes",
        ("train.optim", "parallel.backend"),
        "this optimizer needs complete matrices, and DeepSpeed updates flat parts of many parameters",
        f"set train.optim to adamw_torch, or {_TORCH}",
    ),
    _not_with_deepspeed(
        lambda c: PRESETS[c.train.optim].averages and c.parallel.zero_stage != 1,
        ("train.optim", "parallel.backend"),
        "this optimizer evaluates an average of the weights that it updates, and DeepSpeed evaluates a copy of them",
        f"set train.optim to adamw_torch, or {_TORCH}",
        with_=("parallel.zero_stage",),
    ),
    _not_with_deepspeed(lambda c: c.train.optim == "adagrad", ("train.optim", "parallel.backend"),
                          "DeepSpeed replaces this optimizer by one without the groups for weight decay",
                          f"set train.optim to adamw_torch, or {_TORCH}"),
    _not_with_deepspeed(lambda c: c.train.ema_decay is not None, ("train.ema_decay", "parallel.backend"),
                          "DeepSpeed's parameters cannot be exchanged for their averages",
                          f"remove train.ema_decay, or {_TORCH}"),
    _not_with_deepspeed(lambda c: c.train.max_grad_value is not None, ("train.max_grad_value", "parallel.backend"),
                          "DeepSpeed keeps the gradient in parts of its own",
                          f"remove train.max_grad_value, or {_TORCH}"),
    _not_with_deepspeed(lambda c: bool(c.model.unfreeze), ("model.unfreeze", "parallel.backend"),
                          "DeepSpeed splits the parameters that are trained at the start",
                          f"remove model.unfreeze, or {_TORCH}"),
    _not_with_deepspeed(lambda c: c.train.activation_offload, ("train.activation_offload", "parallel.backend"),
                          "it has not been shown to work with parameters that DeepSpeed gathers and frees",
                          f"remove train.activation_offload, or {_TORCH}"),
    _stage_one("train.optim", lambda c: PRESETS[c.train.optim].library == "bitsandbytes",
               "bitsandbytes needs parameters in their shape, and DeepSpeed updates flat parts of many",
               "set train.optim to adamw_torch"),
    _compared("train.mixed_precision", lambda c: c.train.mixed_precision in ("fp16", "fp8"),
              "set train.mixed_precision to bf16 or no", "DeepSpeed would scale losses and cast in its own way"),
    _stage_one("train.torch_compile", lambda c: c.train.torch_compile,
               "the model is compiled before DeepSpeed changes it", "remove train.torch_compile"),
    _compared("train.activation_compression", lambda c: c.train.activation_compression != "none",
              "remove train.activation_compression"),
    _compared("train.activation_checkpointing",
              lambda c: "segments" in c.train.activation_checkpointing and c.parallel.zero_stage != 1,
              "set train.activation_checkpointing to full"),
    _compared("train.chunked_loss", lambda c: c.train.chunked_loss is True, "set train.chunked_loss to auto"),
    _stage_one("train.ddp_comm_hook", lambda c: c.train.ddp_comm_hook != "no", "DeepSpeed exchanges gradients itself",
               "remove train.ddp_comm_hook"),
    _stage_one("train.snapshot_ensemble", lambda c: c.train.snapshot_ensemble,
               "snapshots cannot be loaded into DeepSpeed's parameters", "remove train.snapshot_ensemble"),
    _stage_one("model.peft.method", lambda c: c.model.peft.method == "qlora", "DeepSpeed updates float32 parameters",
               "set model.peft.method to lora"),
)  # fmt: skip
