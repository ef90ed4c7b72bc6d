"""What the Trainer's own settings may be."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from toolkit.base.errors import ConfigError
from toolkit.config.messages import did_you_mean, show
from toolkit.engine.trainer_arguments import trainer_callback

if TYPE_CHECKING:
    from toolkit.config.sections import Config


def check_engine(cfg: Config) -> None:
    """Checks what only the installed libraries can tell of an engine's own settings.

    Raises:
        ConfigError: with everything that is wrong with them.
    """
    if cfg.engine == "trainer" and (cfg.trainer.args or cfg.trainer.callbacks):
        check(cfg)


PASSED_ON = frozenset({
    "debug", "full_determinism", "liger_kernel_config", "log_level", "log_level_replica", "log_on_each_node",
    "neftune_noise_alpha", "skip_memory_metrics", "use_liger_kernel",
})  # fmt: skip
"""Fields of `TrainingArguments` that the Trainer acts on here. All others are about what the toolkit does itself, and
would be ignored."""


def check(cfg: Config) -> None:
    """Checks the `trainer` section against the installed version of transformers.

    Raises:
        ConfigError: with everything that is wrong with it.
    """
    problems = [problem for name, value in cfg.trainer.args.items() if (problem := _problem(cfg, name, value))]
    for name in cfg.trainer.callbacks:
        try:
            trainer_callback(name)
        except Exception as error:  # importing a person's module can end in anything
            problems.append(f"trainer.callbacks: cannot use {name!r}: {type(error).__name__}: {error}")
    if problems:
        raise ConfigError(problems)


def _problem(cfg: Config, name: str, value: Any) -> str | None:
    """What is wrong with one of the arguments, or None."""
    from typing import get_type_hints

    import transformers
    from pydantic import TypeAdapter, ValidationError

    key = f"trainer.args.{name}"
    known = [field.name for field in fields(transformers.TrainingArguments)]
    if name not in known:
        near = did_you_mean(name, sorted(PASSED_ON))
        return f"{key}: TrainingArguments of transformers {transformers.__version__} has no such field{near}"
    if name not in PASSED_ON:
        own = [s for s in ("train", "eval", "checkpoint", "tracking", "task") if hasattr(getattr(cfg, s), name)]
        instead = f"set {own[0]}.{name}" if own else f"what the Trainer is asked here: {', '.join(sorted(PASSED_ON))}"
        return f"{key}: the toolkit does this itself, under both engines; {instead}"
    try:
        TypeAdapter(get_type_hints(transformers.TrainingArguments)[name]).validate_python(value, strict=True)
    except ValidationError as error:
        return f"{key}: received {show(value)}; {error.errors()[0]['msg']}"
    return None
