"""Checks the settings of the section `trainer`."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, get_type_hints

from toolkit.config.messages import did_you_mean, join, show
from toolkit.config.sections import Config
from toolkit.engine.trainer_arguments import trainer_callback

PASSED_ON = frozenset({
    "debug", "full_determinism", "liger_kernel_config", "log_level", "log_level_replica", "log_on_each_node",
    "neftune_noise_alpha", "skip_memory_metrics", "use_liger_kernel",
})  # fmt: skip
"""Fields of `TrainingArguments` that have an effect. All others concern what the toolkit does itself, and would be
ignored."""
DEBUG = ("underflow_overflow",)
"""Values of `debug` that have an effect; `tpu_metrics_debug` belongs to the Trainer's own evaluation."""


def argument_problems(cfg: Config) -> list[str]:
    """Returns what is wrong with `trainer.args` under the installed transformers, as full messages."""
    if cfg.engine != "trainer":
        return []
    args = cfg.trainer.args
    problems = [problem for name, value in args.items() if (problem := _problem(cfg, name, value))]
    if args.get("liger_kernel_config") is not None and not args.get("use_liger_kernel"):
        problems.append(
            "trainer.args.liger_kernel_config: it has no effect without the kernels; set trainer.args.use_liger_kernel "
            "to true, or remove it"
        )
    return problems


def library_problems(cfg: Config) -> list[str]:
    """Returns which of `trainer.args` need a library that is not installed, as full messages."""
    if cfg.engine != "trainer" or cfg.trainer.args.get("use_liger_kernel") is not True:
        return []
    from transformers.utils import is_liger_kernel_available

    if is_liger_kernel_available():
        return []
    return ["trainer.args.use_liger_kernel: needs liger-kernel, which is not installed; pip install liger-kernel"]


def callback_problems(cfg: Config) -> list[str]:
    """Returns which of `trainer.callbacks` cannot be imported here, as full messages."""
    problems = []
    for name in cfg.trainer.callbacks if cfg.engine == "trainer" else ():
        try:
            trainer_callback(name)
        except Exception as error:  # importing a user's module can raise anything
            problems.append(f"trainer.callbacks: cannot use {name!r}: {type(error).__name__}: {error}")
    return problems


def _problem(cfg: Config, name: str, value: Any) -> str | None:
    """Returns a message about an invalid argument, or None."""
    import transformers
    from pydantic import TypeAdapter, ValidationError

    key = f"trainer.args.{name}"
    known = {field.name: field for field in fields(transformers.TrainingArguments)}
    if name not in known:
        near = did_you_mean(name, sorted(PASSED_ON))
        return f"{key}: TrainingArguments of transformers {transformers.__version__} has no such field{near}"
    if name not in PASSED_ON:
        own = [s for s in ("train", "eval", "checkpoint", "tracking", "task") if name in vars(getattr(cfg, s))]
        instead = f"set {own[0]}.{name}" if own else f"supported fields: {', '.join(sorted(PASSED_ON))}"
        return f"{key}: the toolkit does this itself, under both engines; {instead}"
    try:
        TypeAdapter(get_type_hints(transformers.TrainingArguments)[name]).validate_python(value, strict=True)
    except ValidationError as error:
        return f"{key}: received {show(value)}; {error.errors()[0]['msg']}"
    # Everything else that the Trainer rejects, but only once the model is built.
    words, choices = [value], known[name].metadata.get("choices")
    if name == "debug":
        words, choices = value.split() if isinstance(value, str) else value, DEBUG
    if choices and not set(words) <= set(choices):
        return f"{key}: received {show(value)}, must be {join(list(choices))}"
    if name == "neftune_noise_alpha" and value is not None and not 0 <= value < math.inf:
        return f"{key}: received {show(value)}, must be at least 0 and finite"
    return None
