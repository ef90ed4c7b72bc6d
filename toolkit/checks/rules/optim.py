"""Combinations of optimizers and schedules that are not supported."""

from __future__ import annotations

from collections.abc import Callable

from toolkit.config.problems import Rule
from toolkit.config.sections import TrainConfig
from toolkit.optim.presets import ADAM, PRESETS, Preset
from toolkit.optim.schedules import is_cycled

_ALWAYS: Callable[[Preset], bool] = lambda preset: True  # noqa: E731 - like the others in the table below
_OWN_KEYS: dict[str, tuple[str, Callable[[Preset], bool]]] = {
    "lr": ("learning_rate", _ALWAYS),
    "learning_rate": ("learning_rate", _ALWAYS),
    "weight_decay": ("weight_decay", _ALWAYS),
    "betas": ("adam_beta1 and train.adam_beta2", lambda preset: "adam_beta1" in preset.takes),
    "eps": ("adam_epsilon", lambda preset: "adam_epsilon" in preset.takes),
    "fused": ("optim", lambda preset: "fused" in {*preset.fixed, *preset.hidden}),
    "warmup_steps": ("warmup_steps", lambda preset: preset.averages),
}
"""Names in `train.optim_args` that have a dedicated setting: its name, and the presets with that setting."""


def _own_key(name: str, own: str, where: Callable[[Preset], bool]) -> Rule:
    return Rule(
        lambda c: name in c.train.optim_args and where(PRESETS[c.train.optim]),
        (f"train.optim_args.{name}",),
        "this argument has a dedicated setting",
        f"set train.{own}",
        with_=("train.optim",),
    )


def _changed(train: TrainConfig, name: str) -> bool:
    return bool(getattr(train, name) != getattr(TrainConfig(), name))


def _has_momentum(train: TrainConfig) -> bool:
    preset = PRESETS[train.optim]
    return preset.has_momentum or "adam_beta1" in preset.takes


def _adam_only(name: str) -> Rule:
    having = ", ".join(optim for optim, preset in PRESETS.items() if name in preset.takes)
    return Rule(
        lambda c: name not in PRESETS[c.train.optim].takes and _changed(c.train, name),
        (f"train.{name}", "train.optim"),
        f"only these optimizers use it: {having}",
        f"remove train.{name}",
    )


def _not_relative(name: str, instead: str) -> Rule:
    return Rule(
        lambda c: PRESETS[c.train.optim].relative_step and _changed(c.train, name),
        (f"train.{name}", "train.optim"),
        "this optimizer computes its own learning rate",
        f"{instead}, or set train.optim to adafactor",
    )


def _no_decay(name: str, instead: str) -> Rule:
    return Rule(
        lambda c: c.train.optim == name and c.train.weight_decay > 0,
        ("train.weight_decay", "train.optim"),
        f"{name} has no weight decay",
        f"set train.optim to {instead}, or train.weight_decay to 0",
    )


RULES = (
    *(_adam_only(name) for name in sorted(ADAM)),
    *(_own_key(name, own, where) for name, (own, where) in _OWN_KEYS.items()),
    *(
        _not_relative(name, f"remove train.{name}")
        for name in ("learning_rate", "layerwise_lr_decay", "head_learning_rate")
    ),
    Rule(lambda c: PRESETS[c.train.optim].relative_step and c.train.lr_scheduler_type != "constant",
         ("train.lr_scheduler_type", "train.optim"), "this optimizer computes its own learning rate",
         "set train.lr_scheduler_type to constant, or train.optim to adafactor"),
    Rule(
        lambda c: (
            PRESETS[c.train.optim].averages and c.train.lr_scheduler_type not in ("constant", "constant_with_warmup")
        ),
        ("train.lr_scheduler_type", "train.optim"),
        "this optimizer averages weights instead of following a schedule",
        "set train.lr_scheduler_type to constant or constant_with_warmup",
    ),
    Rule(lambda c: PRESETS[c.train.optim].averages and c.train.ema_decay is not None,
         ("train.ema_decay", "train.optim"), "this optimizer averages the weights itself", "remove train.ema_decay"),
    *(_no_decay(name, preset.with_decay) for name, preset in PRESETS.items() if preset.with_decay),
    Rule(lambda c: c.train.lr_scheduler_type == "constant" and c.train.warmup_steps != 0,
         ("train.lr_scheduler_type", "train.warmup_steps"), "constant has no warm-up",
         "set train.lr_scheduler_type to constant_with_warmup, or train.warmup_steps to 0"),
    Rule(lambda c: c.train.lr_scheduler_type in ("cyclic", "one_cycle", "range_test") and c.train.warmup_steps != 0,
         ("train.lr_scheduler_type", "train.warmup_steps"), "this schedule has its own warm-up",
         "set train.warmup_steps to 0, and the warm-up in train.lr_scheduler_kwargs (step_size_up, pct_start)"),
    Rule(lambda c: is_cycled(c.train) and not _has_momentum(c.train),
         ("train.lr_scheduler_kwargs.cycle_momentum", "train.optim"), "this optimizer has no momentum to cycle",
         "set train.optim to adamw_torch or sgd, or remove train.lr_scheduler_kwargs.cycle_momentum"),
    Rule(lambda c: is_cycled(c.train) and _changed(c.train, "adam_beta1"),
         ("train.lr_scheduler_kwargs.cycle_momentum", "train.adam_beta1"), "the cycle sets the first beta",
         "remove train.adam_beta1, and set train.lr_scheduler_kwargs.base_momentum and max_momentum"),
    Rule(lambda c: is_cycled(c.train) and "momentum" in c.train.optim_args,
         ("train.lr_scheduler_kwargs.cycle_momentum", "train.optim_args.momentum"), "the cycle sets the momentum",
         "remove train.optim_args.momentum, and set train.lr_scheduler_kwargs.base_momentum and max_momentum"),
    Rule(lambda c: c.train.lr_scheduler_type == "reduce_lr_on_plateau" and c.eval.eval_steps is None,
         ("train.lr_scheduler_type", "eval.eval_steps"), "the model is evaluated only after the last step",
         "set eval.eval_steps, for instance to epoch"),
    Rule(lambda c: c.train.snapshot_ensemble and c.train.lr_scheduler_type != "cosine_with_restarts",
         ("train.snapshot_ensemble", "train.lr_scheduler_type"),
         "snapshots are saved at the end of each cycle, and this schedule has no cycles",
         "set train.lr_scheduler_type to cosine_with_restarts, with train.lr_scheduler_kwargs.num_cycles"),
    Rule(
        lambda c: (
            c.train.snapshot_ensemble
            and c.data.validation_split == 0
            and c.data.validation_file is None
            and c.data.dataset_name is None
        ),
        ("train.snapshot_ensemble", "data.validation_split", "data.validation_file"),
        "there are no validation rows to evaluate",
        "remove train.snapshot_ensemble, or set data.validation_file, or data.validation_split above 0",
        with_=("data.dataset_name",),
    ),
)  # fmt: skip
