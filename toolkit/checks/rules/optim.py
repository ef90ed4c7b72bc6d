"""Combinations of optimizers and schedules that are not supported."""

from __future__ import annotations

from collections.abc import Callable

from toolkit.config.problems import CHANGED, Rule, clash
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


def _has_momentum(train: TrainConfig) -> bool:
    preset = PRESETS[train.optim]
    return preset.has_momentum or "adam_beta1" in preset.takes


def _of(property_: str) -> Callable[[str], bool]:
    """Returns whether an optimizer's preset has a property."""
    return lambda optim: bool(getattr(PRESETS[optim], property_))


def _adam_only(name: str) -> Rule:
    having = ", ".join(optim for optim, preset in PRESETS.items() if name in preset.takes)
    return clash({f"train.{name}": CHANGED, "train.optim": lambda optim: name not in PRESETS[optim].takes},
                 f"only these optimizers use it: {having}", f"remove train.{name}")  # fmt: skip


def _own_key(name: str, own: str, where: Callable[[Preset], bool]) -> Rule:
    return Rule(lambda c: name in c.train.optim_args and where(PRESETS[c.train.optim]), (f"train.optim_args.{name}",),
                "this argument has a dedicated setting", f"set train.{own}", with_=("train.optim",))  # fmt: skip


_OWN_RATE, _CYCLED = "this optimizer computes its own learning rate", "train.lr_scheduler_kwargs.cycle_momentum"

RULES = (
    *map(_adam_only, sorted(ADAM)),
    *(_own_key(name, own, where) for name, (own, where) in _OWN_KEYS.items()),
    *(clash({f"train.{name}": CHANGED, "train.optim": _of("relative_step")}, _OWN_RATE,
            f"remove train.{name}, or set train.optim to adafactor")
      for name in ("learning_rate", "layerwise_lr_decay", "head_learning_rate")),
    clash({"train.lr_scheduler_type": lambda kind: kind != "constant", "train.optim": _of("relative_step")}, _OWN_RATE,
          "set train.lr_scheduler_type to constant, or train.optim to adafactor"),
    clash({"train.lr_scheduler_type": lambda kind: kind not in ("constant", "constant_with_warmup"),
           "train.optim": _of("averages")},
          "this optimizer averages weights instead of following a schedule",
          "set train.lr_scheduler_type to constant or constant_with_warmup"),
    clash({"train.ema_decay": CHANGED, "train.optim": _of("averages")}, "this optimizer averages the weights itself",
          "remove train.ema_decay"),
    *(clash({"train.weight_decay": lambda decay: decay > 0, "train.optim": name}, f"{name} has no weight decay",
            f"set train.optim to {preset.with_decay}, or train.weight_decay to 0")
      for name, preset in PRESETS.items() if preset.with_decay),
    clash({"train.lr_scheduler_type": "constant", "train.warmup_steps": lambda steps: steps != 0},
          "constant has no warm-up",
          "set train.lr_scheduler_type to constant_with_warmup, or train.warmup_steps to 0"),
    clash({"train.lr_scheduler_type": ("cyclic", "one_cycle", "range_test"),
           "train.warmup_steps": lambda steps: steps != 0},
          "this schedule has its own warm-up",
          "set train.warmup_steps to 0, and the warm-up in train.lr_scheduler_kwargs (step_size_up, pct_start)"),
    Rule(lambda c: is_cycled(c.train) and not _has_momentum(c.train), (_CYCLED, "train.optim"),
         "this optimizer has no momentum to cycle", f"set train.optim to adamw_torch or sgd, or remove {_CYCLED}"),
    Rule(lambda c: is_cycled(c.train) and c.train.adam_beta1 != TrainConfig().adam_beta1,
         (_CYCLED, "train.adam_beta1"), "the cycle sets the first beta",
         "remove train.adam_beta1, and set train.lr_scheduler_kwargs.base_momentum and max_momentum"),
    Rule(lambda c: is_cycled(c.train) and "momentum" in c.train.optim_args,
         (_CYCLED, "train.optim_args.momentum"), "the cycle sets the momentum",
         "remove train.optim_args.momentum, and set train.lr_scheduler_kwargs.base_momentum and max_momentum"),
    clash({"train.lr_scheduler_type": "reduce_lr_on_plateau", "eval.eval_steps": None},
          "the model is evaluated only after the last step", "set eval.eval_steps, for instance to epoch"),
    clash({"train.snapshot_ensemble": True, "train.lr_scheduler_type": lambda kind: kind != "cosine_with_restarts"},
          "snapshots are saved at the end of each cycle, and this schedule has no cycles",
          "set train.lr_scheduler_type to cosine_with_restarts, with train.lr_scheduler_kwargs.num_cycles"),
    clash({"train.snapshot_ensemble": True, "data.validation_split": 0, "data.validation_file": None},
          "there are no validation rows to evaluate",
          "remove train.snapshot_ensemble, or set data.validation_file, or data.validation_split above 0",
          {"data.dataset_name": None}),
)  # fmt: skip
