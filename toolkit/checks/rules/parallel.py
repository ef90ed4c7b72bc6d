"""Settings that cannot be combined with a split model, a strategy or DeepSpeed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toolkit.config.problems import CHANGED, Rule, clash, only_if, several
from toolkit.config.sections import Config
from toolkit.optim.presets import PRESETS

_SPLITS = (
    *("parallel.context", "parallel.expert", "parallel.fsdp", "parallel.pipeline", "parallel.tensor"),
    "parallel.zero_stage",
)


def _split(key: str, meant: Any, why: str, instead: str = "") -> Rule:
    """Returns a rule for models that are split; like those below, it suggests removing the setting by default."""
    instead = f"{instead or f'remove {key}'}, or remove the settings of parallel"
    return replace(clash({key: meant, "parallel": lambda parallel: parallel.splits}, why, instead), with_=_SPLITS)


def _not_in(split: str, key: str, meant: Any, why: str, instead: str = "") -> Rule:
    instead = f"{instead or f'remove {key}'}, or remove parallel.{split}"
    return clash({key: meant, f"parallel.{split}": several}, why, instead)


def _averages(optim: str) -> bool:
    return PRESETS[optim].averages


def _of_bitsandbytes(optim: str) -> bool:
    return PRESETS[optim].library == "bitsandbytes"


def _accumulation(config: Config) -> int | None:
    """Returns the micro-batches of a window, or None if the token budget decides on their number."""
    return config.train.accumulation if config.train.max_tokens_per_batch is None else None


PIPELINE_RULES = (
    only_if("parallel.schedule", "parallel.pipeline", several, "only a pipeline has a schedule",
            "set parallel.pipeline"),
    Rule(lambda c: c.parallel.pipeline > 1 and c.parallel.schedule == "zero_bubble"
         and (c.train.activation_checkpointing != "none" or c.train.activation_offload),
         ("parallel.schedule", "train.activation_checkpointing", "train.activation_offload"),
         "each layer's input would be kept from its backward pass until the gradient of its weights is computed",
         "set parallel.schedule to 1f1b, or remove train.activation_checkpointing and train.activation_offload",
         with_=("parallel.pipeline",)),
    Rule(lambda c: (_accumulation(c) or c.parallel.pipeline) < c.parallel.pipeline,
         ("train.gradient_accumulation_steps", "parallel.pipeline"),
         "the micro-batches of a window pass through the stages one after another, so some stages would always wait",
         "set train.global_batch_size to at least parallel.pipeline rows for each data rank, and "
         "train.per_device_train_batch_size and train.gradient_accumulation_steps to null",
         with_=("train.max_tokens_per_batch",)),
    Rule(lambda c: c.parallel.pipeline > 1 and c.parallel.schedule == "interleaved_1f1b"
         and bool((_accumulation(c) or 0) % c.parallel.pipeline),
         ("train.gradient_accumulation_steps", "parallel.pipeline", "parallel.schedule"),
         "the interleaved schedule runs as many micro-batches as there are stages through one chunk at a time",
         "set train.gradient_accumulation_steps to a multiple of parallel.pipeline (with train.global_batch_size, "
         "through train.per_device_train_batch_size), or parallel.schedule to 1f1b",
         with_=("train.max_tokens_per_batch",)),
    Rule(lambda c: c.parallel.pipeline > 1 and c.parallel.shards and c.parallel.schedule == "zero_bubble",
         ("parallel",),
         "shards exchange gradients in the backward pass, which computes none of matrices with this schedule",
         "set parallel.schedule to 1f1b"),
    Rule(lambda c: c.parallel.pipeline > 1 and c.parallel.offload, ("parallel",),
         "the first and the last stage add up gradients of tied embeddings where they compute, not in CPU memory",
         "remove parallel.offload"),
    clash({"parallel.pipeline": several, "model.peft.method": "prompt_tuning"},
          "virtual tokens are added in front of the stages",
          "set model.peft.method to lora, or remove parallel.pipeline"),
    _not_in("pipeline", "train.mixed_precision", "fp16",
            "the schedule has backward passes without the loss scale of fp16", "set train.mixed_precision to bf16"),
    _not_in("pipeline", "train.activation_checkpointing", lambda setting: "segments" in setting,
            "the layers of a segment may be on several stages", "set train.activation_checkpointing to full"),
    _not_in("pipeline", "tracking.graph", True, "each process has the operations of its stage only"),
    _not_in("pipeline", "train.activation_compression", CHANGED,
            "the error of a row's gradient needs a schedule of its own"),
)  # fmt: skip

CONTEXT_RULES = (
    clash({"parallel.context": several, "parallel.pipeline": several},
          "the stages of a pipeline call the layers of the model, and positions are split before the first one",
          "set parallel.tensor instead of parallel.pipeline, or remove parallel.context"),
    clash({"parallel.context": several, "model.peft.method": "prompt_tuning"},
          "virtual tokens would move the positions of the labels",
          "set model.peft.method to lora, or remove parallel.context"),
    clash({"parallel.context": several, "trainer.args": lambda args: args.get("neftune_noise_alpha") is not None},
          "the noise of neftune_noise_alpha depends on the length of a sequence, of which a process sees a part",
          "remove parallel.context, or neftune_noise_alpha from trainer.args", {"engine": "trainer"}),
)  # fmt: skip

PARALLEL_RULES = (
    *PIPELINE_RULES,
    only_if("parallel.sequence", "parallel.tensor", several, "tokens are split between layers that are split",
            "set parallel.tensor"),
    clash({"parallel.sequence": True, "parallel.pipeline": several}, "stages exchange complete hidden states",
          "remove parallel.sequence or parallel.pipeline"),
    clash({"parallel.sequence": True, "parallel.context": several}, "context splits the same tokens already",
          "remove parallel.sequence"),
    *CONTEXT_RULES,
    *(only_if(f"parallel.{name}", "parallel", lambda parallel: parallel.shards or parallel.backend == "deepspeed",
              "only sharded parameters have this setting", "set parallel.fsdp")
      for name in ("reshard_after_forward", "gradient_sync", "offload")),
    clash({"parallel.zero_stage": 3, "parallel.reshard_after_forward": False},
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
    clash({"parallel.zero_stage": 1, "train.optim": _averages},
          "this optimizer evaluates an average that is part of its state",
          "set parallel.zero_stage to 3, or train.optim to another optimizer"),
    _split("train.strategy", "local_sgd", "local SGD needs a complete model on each process",
           "set train.strategy to sync"),
    _split("train.auto_batch_size", True, "processes that share a model cannot begin a window again on their own"),
    _split("train.mixed_precision", "fp8", "the casts of fp8 are not synchronised over the parts of a model",
           "set train.mixed_precision to bf16 or no"),
    _split("train.optim", _of_bitsandbytes, "the states of bitsandbytes' optimizers cannot be split or merged",
           "set train.optim to another optimizer"),
    _split("train.torch_compile", True, "the model is compiled before it is split"),
    _not_in("tensor", "train.activation_compression", "int8",
            "each process would round its part of a vector by a scale of its own",
            "set train.activation_compression to bf16"),
    _split("train.ddp_comm_hook", CHANGED, "only replicas exchange complete gradients"),
    _split("train.snapshot_ensemble", True, "snapshots are complete models"),
    _split("model.peft.trainable_token_indices", bool, "rows of a weight that is in parts are not found"),
    _split("model.peft.method", "qlora", "weights of 4 bits cannot be split", "set model.peft.method to lora"),
    Rule(lambda c: max(c.parallel.tensor, c.parallel.expert) > 1 and PRESETS[c.train.optim].averages,
         ("parallel", "train.optim"),
         "this optimizer counts its steps for all parameters together, and split ones are updated separately",
         "set parallel.fsdp instead of parallel.tensor and parallel.expert, or train.optim to another optimizer",
         with_=("parallel.tensor", "parallel.expert")),
    Rule(lambda c: c.parallel.expert > 1 and max(c.parallel.context, c.parallel.tensor, c.parallel.pipeline) > 1,
         ("parallel",),
         "experts are exchanged between processes that read different rows, and no plan or stage has them",
         "remove the other sizes, or set parallel.fsdp beside parallel.expert",
         with_=("parallel.context", "parallel.tensor", "parallel.pipeline", "parallel.expert")),
    clash({"parallel.expert": several, "parallel.zero_stage": 1},
          "replicas would share the updates of experts, of which each holds others", "remove parallel.zero_stage"),
    clash({"parallel.expert": several, "parallel.offload": True},
          "FSDP2 does not hold the experts, which would stay on the device", "remove parallel.offload"),
    clash({"parallel.tensor": several, "model.peft.method": CHANGED},
          "adapters change the layers that tensor parallelism splits",
          "set parallel.fsdp instead of parallel.tensor, or remove model.peft"),
)  # fmt: skip


OTHER_LAUNCHES = {
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism configuration",
    "ACCELERATE_USE_SAGEMAKER": "SageMaker",
}
"""Variables with which accelerate's launcher selects distributed training that no strategy here implements."""


def _power_sgd(key: str, meant: Any, why: str, instead: str) -> Rule:
    return clash({"train.ddp_comm_hook": "power_sgd", key: meant}, why, instead)


def _rollback(key: str, meant: Any, why: str, instead: str) -> Rule:
    return clash({"train.non_finite": "rollback", key: meant}, why, f"set train.non_finite to skip, or {key} {instead}")


_LOCAL = {"train.strategy": "local_sgd"}

STRATEGY_RULES = (
    *(only_if(f"train.local_sgd_{name}", "train.strategy", lambda strategy: strategy == "local_sgd",
              "only local_sgd has this setting", "set train.strategy to local_sgd")
      for name in ("steps", "warmup_steps", "average_moments", "outer_lr", "outer_momentum")),
    *(clash({"train.strategy": ("sync", "local_sgd")},
            f"the launcher asks for {name}, which no strategy implements; training replicas of the model instead would "
            "need more memory, and could give other numbers",
            f"launch without {name}, for instance with accelerate_configs/ddp.yaml", launcher=variable)
      for variable, name in OTHER_LAUNCHES.items()),
    only_if("train.power_sgd_rank", "train.ddp_comm_hook", lambda hook: hook == "power_sgd",
            "only PowerSGD has a rank", "set train.ddp_comm_hook to power_sgd"),
    Rule(lambda c: c.train.ddp_comm_hook != "no" and (c.train.strategy == "local_sgd" or c.train.auto_batch_size),
         ("train.ddp_comm_hook", "train.strategy", "train.auto_batch_size"),
         "gradients are not exchanged in the backward pass",
         "set train.ddp_comm_hook to no, or train.strategy to sync and train.auto_batch_size to false"),
    _power_sgd("train.mixed_precision", "fp16",
               "the gradients kept for the next step would have the loss scale of this one, and may overflow",
               "set train.ddp_comm_hook to fp16, or train.mixed_precision to bf16 or no"),
    _power_sgd("train.non_finite", CHANGED, "a gradient that is not finite would be kept for the next step",
               "set train.non_finite to stop, or train.ddp_comm_hook to fp16"),
    _power_sgd("model.unfreeze", bool, "the kept gradient of a frozen parameter would be applied later",
               "set train.ddp_comm_hook to fp16, or remove model.unfreeze"),
    clash({"train.local_sgd_outer_momentum": CHANGED, "train.local_sgd_outer_lr": None}, "there is no outer optimizer",
          "set train.local_sgd_outer_lr, for instance to 0.7, or remove train.local_sgd_outer_momentum", _LOCAL),
    Rule(lambda c: c.train.strategy == "local_sgd" and 0 < c.train.max_steps <= c.train.local_sgd_warmup_steps,
         ("train.local_sgd_warmup_steps", "train.max_steps"), "the run would end before processes train on their own",
         "set train.local_sgd_warmup_steps below train.max_steps, or train.strategy to sync",
         with_=("train.strategy",)),
    clash({**_LOCAL, "train.mixed_precision": "fp16"}, "each process would scale losses and skip steps on its own",
          "set train.mixed_precision to bf16 or no, or train.strategy to sync"),
    clash({**_LOCAL, "train.auto_batch_size": True}, "both decide how gradients are exchanged",
          "set train.strategy to sync, or remove train.auto_batch_size"),
    clash({**_LOCAL, "train.ema_decay": CHANGED}, "each process would average different weights",
          "set train.strategy to sync, or remove train.ema_decay"),
    clash({**_LOCAL, "train.optim": _averages},
          "the optimizer averages weights itself, and each process would average different ones",
          "set train.strategy to sync, or train.optim to another optimizer"),
    clash({"train.local_sgd_average_moments": True, "train.optim": lambda optim: PRESETS[optim].eight_bit},
          "8-bit moments are codes, which cannot be averaged",
          "set train.local_sgd_average_moments to false, or train.optim to an optimizer with 32-bit moments", _LOCAL),
    only_if("train.max_non_finite_steps", "train.non_finite", lambda mode: mode != "stop",
            "the run stops at the first one", "set train.non_finite to skip or rollback"),
    _rollback("train.strategy", "local_sgd", "each process would skip other windows than the others", "to sync"),
    _rollback("train.mixed_precision", "fp16", "a skipped window would change the scale of the losses after it",
              "to bf16 or no"),
    clash({"train.non_finite": CHANGED, "parallel.backend": "deepspeed"},
          "DeepSpeed keeps the gradient of a window until it has updated",
          "set train.non_finite to stop, or parallel.backend to torch"),
)  # fmt: skip


_TORCH = "set parallel.backend to torch"
_DEEPSPEED, _NOT_STAGE_ONE = {"parallel.backend": "deepspeed"}, {"parallel.zero_stage": (None, 2, 3)}
_NOT_COMPARED = "it has not been compared under DeepSpeed"


def _deepspeed(key: str, meant: Any, why: str, instead: str = "", besides: Mapping[str, Any] | None = None) -> Rule:
    return clash({key: meant, **_DEEPSPEED}, why, f"{instead or f'remove {key}'}, or {_TORCH}", besides)


def _stage_one(key: str, meant: Any, why: str, instead: str = "") -> Rule:
    """Returns a rule for stage 1; the other stages are split models, for which there is such a rule above."""
    instead = f"{instead or f'remove {key}'}, or {_TORCH}"
    return clash({key: meant, "parallel.zero_stage": 1, **_DEEPSPEED}, why, instead)


DEEPSPEED_RULES = (
    _deepspeed("checkpoint.async_save", True,
               "DeepSpeed makes complete copies for each checkpoint, for which training waits",
               "set checkpoint.async_save to auto or false"),
    clash({**_DEEPSPEED, "parallel.zero_stage": None}, "DeepSpeed is used for ZeRO only",
          "set parallel.zero_stage to 1, 2 or 3, or remove parallel.backend"),
    Rule(lambda c: c.parallel.backend == "deepspeed" and max(c.parallel.fsdp, c.parallel.context, c.parallel.tensor,
                                                             c.parallel.pipeline, c.parallel.expert) > 1,
         ("parallel",), "DeepSpeed's ZeRO splits over all processes",
         f"remove the other sizes in parallel, or {_TORCH}"),
    Rule(lambda c: c.parallel.backend == "deepspeed" and c.parallel.replicas not in (None, 1)
         and c.parallel.zero_stage in (2, 3),
         ("parallel",), "DeepSpeed's ZeRO splits over all processes, so there are no replicas",
         f"remove parallel.replicas, or {_TORCH}"),
    _deepspeed("parallel.gradient_sync", CHANGED, "DeepSpeed's stage decides when gradients are exchanged"),
    _deepspeed("parallel.reshard_after_forward", CHANGED, "DeepSpeed's stage decides when parameters are freed"),
    _deepspeed("train.optim", lambda optim: not PRESETS[optim].elementwise and not _of_bitsandbytes(optim),
               "this optimizer needs complete matrices, and DeepSpeed updates flat parts of many parameters",
               "set train.optim to adamw_torch"),
    _deepspeed("train.optim", _averages, "this optimizer evaluates an average of the weights that it updates, and "
               "DeepSpeed evaluates a copy of them",
               "set train.optim to adamw_torch", _NOT_STAGE_ONE),
    _deepspeed("train.optim", "adagrad", "DeepSpeed replaces this optimizer by one without the groups for weight decay",
               "set train.optim to adamw_torch"),
    _deepspeed("train.ema_decay", CHANGED, "DeepSpeed's parameters cannot be exchanged for their averages"),
    _deepspeed("train.max_grad_value", CHANGED, "DeepSpeed keeps the gradient in parts of its own"),
    _deepspeed("model.unfreeze", bool, "DeepSpeed splits the parameters that are trained at the start"),
    _deepspeed("train.activation_offload", True,
               "it has not been shown to work with parameters that DeepSpeed gathers and frees"),
    _stage_one("train.optim", _of_bitsandbytes,
               "bitsandbytes needs parameters in their shape, and DeepSpeed updates flat parts of many",
               "set train.optim to adamw_torch"),
    _deepspeed("train.mixed_precision", ("fp16", "fp8"), "DeepSpeed would scale losses and cast in its own way",
               "set train.mixed_precision to bf16 or no"),
    _stage_one("train.torch_compile", True, "the model is compiled before DeepSpeed changes it"),
    _deepspeed("train.activation_compression", CHANGED, _NOT_COMPARED),
    _deepspeed("train.activation_checkpointing", lambda setting: "segments" in setting, _NOT_COMPARED,
               "set train.activation_checkpointing to full", _NOT_STAGE_ONE),
    _deepspeed("train.chunked_loss", True, _NOT_COMPARED, "set train.chunked_loss to auto"),
    _stage_one("train.ddp_comm_hook", CHANGED, "DeepSpeed exchanges gradients itself"),
    _stage_one("train.snapshot_ensemble", True, "snapshots cannot be loaded into DeepSpeed's parameters"),
    _stage_one("model.peft.method", "qlora", "DeepSpeed updates float32 parameters", "set model.peft.method to lora"),
)  # fmt: skip
