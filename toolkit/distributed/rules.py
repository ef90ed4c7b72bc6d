"""Settings that cannot be combined with a strategy; part of the table in `toolkit.checks.rules`."""

from __future__ import annotations

from collections.abc import Callable

from toolkit.config.problems import Rule, only_if
from toolkit.config.sections import Config, TrainConfig
from toolkit.optim.presets import PRESETS

REFUSED_LAUNCHES = {
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


def _refused_launch(variable: str, name: str) -> Rule:
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
    *(_refused_launch(variable, name) for variable, name in REFUSED_LAUNCHES.items()),
    only_if(
        "train.power_sgd_rank",
        TrainConfig().power_sgd_rank,
        "train.ddp_comm_hook",
        lambda hook: hook == "power_sgd",
        "only PowerSGD has a rank",
        "set train.ddp_comm_hook to power_sgd",
    ),
    Rule(
        lambda c: c.train.ddp_comm_hook != "no" and (_is_local(c) or c.train.auto_batch_size),
        ("train.ddp_comm_hook", "train.strategy", "train.auto_batch_size"),
        "gradients are not exchanged in the backward pass",
        "set train.ddp_comm_hook to no, or train.strategy to sync and train.auto_batch_size to false",
    ),
    Rule(
        lambda c: c.train.ddp_comm_hook == "power_sgd" and c.train.mixed_precision == "fp16",
        ("train.ddp_comm_hook", "train.mixed_precision"),
        "what is kept for the next step would have the loss scale of this one, and gradients may overflow",
        "set train.ddp_comm_hook to fp16, or train.mixed_precision to bf16 or no",
    ),
    Rule(
        lambda c: c.train.ddp_comm_hook == "power_sgd" and c.train.non_finite != "stop",
        ("train.ddp_comm_hook", "train.non_finite"),
        "a gradient that is not finite would be kept for the next step",
        "set train.non_finite to stop, or train.ddp_comm_hook to fp16",
    ),
    Rule(
        lambda c: c.train.ddp_comm_hook == "power_sgd" and bool(c.model.unfreeze),
        ("train.ddp_comm_hook", "model.unfreeze"),
        "what is kept of a frozen parameter's gradient would be applied later",
        "set train.ddp_comm_hook to fp16, or remove model.unfreeze",
    ),
    Rule(
        lambda c: (
            _is_local(c)
            and c.train.local_sgd_outer_lr is None
            and c.train.local_sgd_outer_momentum != TrainConfig().local_sgd_outer_momentum
        ),
        ("train.local_sgd_outer_momentum", "train.local_sgd_outer_lr"),
        "there is no outer optimizer",
        "set train.local_sgd_outer_lr, for instance to 0.7, or remove train.local_sgd_outer_momentum",
    ),
    Rule(
        lambda c: _is_local(c) and 0 < c.train.max_steps <= c.train.local_sgd_warmup_steps,
        ("train.local_sgd_warmup_steps", "train.max_steps"),
        "the run would end before processes train on their own",
        "set train.local_sgd_warmup_steps below train.max_steps, or train.strategy to sync",
    ),
    Rule(
        lambda c: _is_local(c) and c.train.mixed_precision == "fp16",
        ("train.strategy", "train.mixed_precision"),
        "each process would scale losses and skip steps on its own",
        "set train.mixed_precision to bf16 or no, or train.strategy to sync",
    ),
    Rule(
        lambda c: _is_local(c) and c.train.auto_batch_size,
        ("train.strategy", "train.auto_batch_size"),
        "both decide how gradients are exchanged",
        "set train.strategy to sync, or remove train.auto_batch_size",
    ),
    Rule(
        lambda c: _is_local(c) and c.train.ema_decay is not None,
        ("train.strategy", "train.ema_decay"),
        "each process would average different weights",
        "set train.strategy to sync, or remove train.ema_decay",
    ),
    Rule(
        lambda c: _is_local(c) and PRESETS[c.train.optim].averages,
        ("train.strategy", "train.optim"),
        "the optimizer averages weights itself, and each process would average different ones",
        "set train.strategy to sync, or train.optim to another optimizer",
    ),
    Rule(
        lambda c: _is_local(c) and c.train.local_sgd_average_moments and PRESETS[c.train.optim].eight_bit,
        ("train.local_sgd_average_moments", "train.optim"),
        "8-bit moments are codes, which cannot be averaged",
        "set train.local_sgd_average_moments to false, or train.optim to an optimizer with 32-bit moments",
    ),
    only_if(
        "train.max_non_finite_steps",
        TrainConfig().max_non_finite_steps,
        "train.non_finite",
        lambda mode: mode != "stop",
        "the run stops at the first one",
        "set train.non_finite to skip or rollback",
    ),
    _not_with_rollback(
        _is_local,
        "train.strategy",
        "each process leaves out updates of its own, whose windows the others have trained on",
        "train.strategy to sync",
    ),
    _not_with_rollback(
        lambda c: c.train.mixed_precision == "fp16",
        "train.mixed_precision",
        "a window that is left out would change the scale of the losses after it",
        "train.mixed_precision to bf16 or no",
    ),
    Rule(
        lambda c: c.train.non_finite != "stop" and c.parallel.backend == "deepspeed",
        ("train.non_finite", "parallel.backend"),
        "DeepSpeed keeps the gradient of a window until it has updated",
        "set train.non_finite to stop, or parallel.backend to torch",
    ),
)
