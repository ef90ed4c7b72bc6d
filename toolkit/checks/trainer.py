"""Checks the settings of the section `trainer`."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from toolkit.config.messages import did_you_mean, show
from toolkit.engine.trainer_arguments import trainer_callback

if TYPE_CHECKING:
    from toolkit.config.sections import Config


PASSED_ON = frozenset({
    "debug", "full_determinism", "liger_kernel_config", "log_level", "log_level_replica", "log_on_each_node",
    "neftune_noise_alpha", "skip_memory_metrics", "use_liger_kernel",
})  # fmt: skip
"""Fields of `TrainingArguments` that have an effect. All others concern what the toolkit does itself, and would be
ignored."""


def argument_problems(cfg: Config) -> list[str]:
    """Returns what is wrong with `trainer.args` under the installed transformers, as full messages."""
    if cfg.engine != "trainer":
        return []
    return [problem for name, value in cfg.trainer.args.items() if (problem := _problem(cfg, name, value))]


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
    from typing import get_type_hints

    import transformers
    from pydantic import TypeAdapter, ValidationError

    key = f"trainer.args.{name}"
    known = [field.name for field in fields(transformers.TrainingArguments)]
    if name not in known:
        near = did_you_mean(name, sorted(PASSED_ON))
        return f"{key}: TrainingArguments of transformers {transformers.__version__} has no such field{near}"
    if name not in PASSED_ON:
        own = [s for s in ("train", "eval", "checkpoint", "tracking", "task") if _is_field(getattr(cfg, s), name)]
        instead = f"set {own[0]}.{name}" if own else f"supported fields: {', '.join(sorted(PASSED_ON))}"
        return f"{key}: the toolkit does this itself, under both engines; {instead}"
    try:
        TypeAdapter(get_type_hints(transformers.TrainingArguments)[name]).validate_python(value, strict=True)
    except ValidationError as error:
        return f"{key}: received {show(value)}; {error.errors()[0]['msg']}"
    return None


def _is_field(section: Any, name: str) -> bool:
    return any(field.name == name for field in fields(section))
