"""What a run hands to `transformers.Trainer`: arguments and callbacks, both checked before anything is loaded."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

from toolkit.config.messages import did_you_mean, show
from toolkit.config.sections import Config, TrainerConfig
from toolkit.errors import ConfigError

if TYPE_CHECKING:
    from transformers import TrainerCallback, TrainingArguments

    from toolkit.engine.run import Plan, Run

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
            _callback(name)
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


def training_arguments(run: Run, plan: Plan) -> TrainingArguments:
    """Returns the Trainer's arguments: what callbacks want to read of the run, and the YAML's own.

    Raises:
        ConfigError: if the Trainer refuses them.
    """
    from transformers import TrainingArguments

    from toolkit.engine.run import best_metric

    cfg, train = run.cfg, run.cfg.train
    metric, greater = best_metric(cfg, run.task)
    evaluates = plan.eval_every is not None and "validation" in run.data.evals
    precision = run.accelerator.mixed_precision
    try:
        return TrainingArguments(
            output_dir=str(run.output_dir),
            seed=cfg.seed,
            use_cpu=run.accelerator.device.type == "cpu",
            bf16=precision == "bf16",
            fp16=precision == "fp16",
            per_device_train_batch_size=train.per_device_train_batch_size,
            per_device_eval_batch_size=cfg.eval.per_device_eval_batch_size,
            gradient_accumulation_steps=train.gradient_accumulation_steps or 1,
            max_steps=plan.total_steps,
            learning_rate=train.learning_rate,
            weight_decay=train.weight_decay,
            max_grad_norm=train.max_grad_norm,
            logging_steps=plan.log_every,
            eval_strategy="steps" if evaluates else "no",
            eval_steps=plan.eval_every if evaluates else None,
            metric_for_best_model=metric,
            greater_is_better=greater,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_nan_inf_filter=False,
            use_cache=getattr(run.model.config, "use_cache", False),
            accelerator_config={"use_configured_state": True},
            **cfg.trainer.args,
        )
    except (ValueError, TypeError, ImportError) as error:
        raise ConfigError([f"trainer.args: transformers refuses {show(cfg.trainer.args)}: {error}"]) from error


def callbacks(trainer: TrainerConfig) -> dict[str, TrainerCallback]:
    """Returns the callbacks that the YAML names, by their names, in its order."""
    return {name: _callback(name) for name in trainer.callbacks}


def _callback(name: str) -> TrainerCallback:
    """Imports `package.module.Name`: a callback class, anything else that returns a callback, or a callback.

    Raises:
        TypeError: if it is none of these.
    """
    from transformers import TrainerCallback

    module, _, attribute = name.rpartition(".")
    if not module:
        raise TypeError("expected package.module.Name")
    found = getattr(import_module(module), attribute)
    made = found if isinstance(found, TrainerCallback) else found()
    if not isinstance(made, TrainerCallback):
        raise TypeError(f"it makes a {type(made).__name__}, not a TrainerCallback")
    return made
