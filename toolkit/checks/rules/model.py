"""Combinations of settings of `model` that are not supported."""

from __future__ import annotations

import re

from toolkit.config.problems import CHANGED, Rule, clash, only_if
from toolkit.config.sections import Config
from toolkit.optim.presets import PRESETS

_LOW_RANK = ("lora", "dora", "rslora", "qlora")
_ADAPTER_SETTINGS = {
    **dict.fromkeys(("r", "lora_alpha", "lora_dropout", "trainable_token_indices"), _LOW_RANK),
    "target_modules": (*_LOW_RANK, "ia3"),
    "init_lora_weights": ("lora", "rslora"),
    "num_virtual_tokens": ("prompt_tuning",),
}
"""Settings of adapters, and the methods that use them."""
_TOO_LATE = "the run would end before these parameters are trained"


def _last_moment(config: Config, unit: str) -> int:
    """Returns the largest n of the keys `<unit>_<n>` of `model.unfreeze`, 0 without one."""
    found = (re.fullmatch(f"{unit}_([1-9][0-9]*)", moment) for moment in config.model.unfreeze)
    return max((int(match[1]) for match in found if match), default=0)


RULES = (
    clash({"model.name_or_path": CHANGED, "model.from_config": CHANGED},
          "a model is either pretrained or trained from scratch", "remove one of them"),
    clash({"model.name_or_path": None, "model.from_config": None}, "no model is given",
          "set model.name_or_path to a Hub id or local folder, or set model.from_config"),
    clash({"model.from_config": lambda new: new is not None
           and not (isinstance(kind := new.get("model_type"), str) and kind.strip())},
          "it needs a model_type", "set model.from_config.model_type, for example to bert"),
    clash({"model.revision": CHANGED, "model.from_config": CHANGED}, "a model trained from scratch has no revision",
          "remove model.revision"),
    clash({"model.initializer": CHANGED, "model.name_or_path": CHANGED}, "a pretrained model has its weights",
          "remove model.initializer, or set model.from_config"),
    clash({"model.trust_remote_code": True, "model.from_config": CHANGED},
          "a model trained from scratch has no remote code", "remove model.trust_remote_code"),
    *(only_if(f"model.peft.{name}", "model.peft.method", methods.__contains__,
              f"only {', '.join(methods)} {'uses' if len(methods) == 1 else 'use'} this setting",
              f"set model.peft.method to {' or '.join(methods)}") for name, methods in _ADAPTER_SETTINGS.items()),
    clash({"model.freeze": bool, "model.peft.method": CHANGED},
          "adapters already freeze every parameter of the base model",
          "remove model.freeze, or set model.peft.method to none"),
    clash({"model.unfreeze": bool, "model.freeze": lambda patterns: not patterns}, "nothing is frozen",
          "set model.freeze, or remove model.unfreeze"),
    Rule(lambda c: not all(re.fullmatch("(epoch|step)_[1-9][0-9]*", moment) for moment in c.model.unfreeze),
         ("model.unfreeze",), "keys must be epoch_<n> or step_<n>, with n at least 1",
         "set keys such as epoch_1 or step_100"),
    Rule(lambda c: 0 < c.train.max_steps <= _last_moment(c, "step"), ("model.unfreeze", "train.max_steps"), _TOO_LATE,
         "set an earlier step in model.unfreeze, or more steps"),
    Rule(lambda c: c.train.max_steps <= 0 and c.train.num_train_epochs <= _last_moment(c, "epoch"),
         ("model.unfreeze", "train.num_train_epochs"), _TOO_LATE,
         "set an earlier epoch in model.unfreeze, or more epochs", with_=("train.max_steps",)),
    clash({"model.peft.method": "qlora", "model.from_config": CHANGED},
          "only pretrained weights can be quantized to 4 bits",
          "set model.peft.method to lora, or set model.name_or_path to a pretrained model"),
    clash({"model.peft.method": "qlora", "train.snapshot_ensemble": True},
          "bitsandbytes cannot reload the scales of saved 4-bit weights",
          "set train.snapshot_ensemble to false, or model.peft.method to lora"),
    clash({"model.unfreeze": bool, "train.optim": lambda optim: PRESETS[optim].averages},
          "the optimizer counts steps for all parameters together, so the first updates of those that come later would "
          "be far too large", "remove model.unfreeze, or set train.optim to another optimizer"),
)  # fmt: skip
