"""What cannot go together with a strategy; part of the table in `toolkit.checks.rules`."""

from __future__ import annotations

from toolkit.config.rule import Rule
from toolkit.config.sections import Config, TrainConfig
from toolkit.optim.presets import PRESETS

SHARDING = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism configuration",
}
"""What accelerate's launcher sets for what may share one model out among processes."""


def _is_local(config: Config) -> bool:
    return config.train.strategy == "local_sgd"


def _local_only(name: str) -> Rule:
    return Rule(
        lambda c: not _is_local(c) and getattr(c.train, name) != getattr(TrainConfig(), name),
        (f"train.{name}", "train.strategy"),
        "only local_sgd has this setting",
        f"set train.strategy to local_sgd, or remove train.{name}",
    )


def _whole_models_only(variable: str, name: str) -> Rule:
    return Rule(
        _is_local,
        ("train.strategy",),
        f"the launcher asks for {name}, which shares the model out, and local SGD averages whole models",
        f"set train.strategy to sync, or launch without {name}",
        launcher=variable,
    )


_SETTINGS = ("steps", "warmup_steps", "average_moments", "outer_lr", "outer_momentum")

RULES = (
    *(_local_only(f"local_sgd_{name}") for name in _SETTINGS),
    *(_whole_models_only(variable, name) for variable, name in SHARDING.items()),
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
        "warm up for fewer steps, or set train.strategy to sync",
    ),
    Rule(
        lambda c: _is_local(c) and c.train.mixed_precision == "fp16",
        ("train.strategy", "train.mixed_precision"),
        "each process would scale losses, and leave out steps, on its own",
        "use bf16 or no, or set train.strategy to sync",
    ),
    Rule(
        lambda c: _is_local(c) and c.train.auto_batch_size,
        ("train.strategy", "train.auto_batch_size"),
        "both decide how gradients are exchanged",
        "set train.strategy to sync, or find train.per_device_train_batch_size by hand",
    ),
    Rule(
        lambda c: _is_local(c) and c.train.ema_decay is not None,
        ("train.strategy", "train.ema_decay"),
        "each process would average other weights",
        "set train.strategy to sync, or remove train.ema_decay",
    ),
    Rule(
        lambda c: _is_local(c) and c.train.local_sgd_average_moments and PRESETS[c.train.optim].eight_bit,
        ("train.local_sgd_average_moments", "train.optim"),
        "moments of 8 bits are codes, which have no mean",
        "set train.local_sgd_average_moments to false, or use an optimizer with moments of 32 bits",
    ),
)
