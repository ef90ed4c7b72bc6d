"""One table of settings that cannot go together: when, why, and what to do instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from toolkit.compat import efficiency
from toolkit.compat.rule import Rule
from toolkit.config.messages import show
from toolkit.config.sections import Config, TrackingConfig, TrainConfig, TrainerConfig

_TRUE = {"1", "on", "t", "true", "y", "yes"}
_OWN_KEYS = {
    "lr": "learning_rate",
    "learning_rate": "learning_rate",
    "weight_decay": "weight_decay",
    "betas": "adam_beta1 and train.adam_beta2",
    "eps": "adam_epsilon",
    "fused": "optim",
}


def _no_evaluation(config: Config) -> bool:
    data = config.data
    return data.validation_split == 0 and data.validation_file is None and data.dataset_name is None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.strip() != ""


def _adam_only(name: str) -> Rule:
    return Rule(
        lambda c: c.train.optim == "sgd" and getattr(c.train, name) != getattr(TrainConfig(), name),
        (f"train.{name}", "train.optim"),
        "sgd has no such setting",
        f"remove train.{name}",
    )


def _own_key(name: str, own: str) -> Rule:
    key = f"train.optim_args.{name}"
    return Rule(lambda c: name in c.train.optim_args, (key,), "this has a key of its own", f"set train.{own}")


def _hub_only(name: str) -> Rule:
    key = f"checkpoint.{name}"
    return Rule(
        lambda c: getattr(c.checkpoint, name) is not None and not c.checkpoint.push_to_hub,
        (key, "checkpoint.push_to_hub"),
        "nothing would be pushed there",
        f"set checkpoint.push_to_hub to true, or remove {key}",
    )


_EVALUATION = ("data.validation_split", "data.validation_file")
_NO_ROWS = "there are no validation rows to evaluate"
_GIVE_ROWS = "give data.validation_file, or a data.validation_split above 0"

RULES = (
    Rule(
        lambda c: bool(c.data.validation_split) and c.data.validation_file is not None,
        ("data.validation_split", "data.validation_file"),
        "the validation rows come either from a file of their own or out of the training rows",
        "remove one of them",
    ),
    Rule(
        lambda c: c.model.name_or_path is not None and c.model.from_config is not None,
        ("model.name_or_path", "model.from_config"),
        "a model is either loaded or built anew",
        "remove one of them",
    ),
    Rule(
        lambda c: c.model.name_or_path is None and c.model.from_config is None,
        ("model.name_or_path", "model.from_config"),
        "no model is named",
        "set model.name_or_path to a hub id or local folder, or give model.from_config",
    ),
    Rule(
        lambda c: c.model.from_config is not None and not _is_text(c.model.from_config.get("model_type")),
        ("model.from_config",),
        "it needs a model_type, as text",
        "add one, for instance model_type: bert",
    ),
    Rule(
        lambda c: c.model.from_config is not None and c.model.revision is not None,
        ("model.revision", "model.from_config"),
        "a model that is built anew has no revision",
        "remove model.revision",
    ),
    Rule(
        lambda c: c.model.from_config is not None and c.model.trust_remote_code,
        ("model.trust_remote_code", "model.from_config"),
        "a model that is built anew brings no code of its own",
        "remove model.trust_remote_code",
    ),
    Rule(
        lambda c: c.data.train_file is not None and c.data.dataset_name is not None,
        ("data.train_file", "data.dataset_name"),
        "both name training rows",
        "remove one of them",
    ),
    Rule(
        lambda c: c.data.train_file is None and c.data.dataset_name is None,
        ("data.train_file", "data.dataset_name"),
        "no training rows are named",
        "set data.train_file to a file, or data.dataset_name to a hub id",
    ),
    Rule(
        lambda c: c.data.dataset_config_name is not None and c.data.dataset_name is None,
        ("data.dataset_config_name", "data.dataset_name"),
        "only a hub data set has configurations",
        "remove data.dataset_config_name",
    ),
    Rule(
        lambda c: c.data.revision is not None and c.data.dataset_name is None,
        ("data.revision", "data.dataset_name"),
        "only a hub data set has revisions",
        "remove data.revision",
    ),
    Rule(
        lambda c: c.data.max_eval_samples is not None and _no_evaluation(c) and c.data.test_file is None,
        ("data.max_eval_samples", *_EVALUATION),
        _NO_ROWS,
        f"remove data.max_eval_samples, or {_GIVE_ROWS}",
    ),
    Rule(
        lambda c: c.checkpoint.load_best_model_at_end and _no_evaluation(c),
        ("checkpoint.load_best_model_at_end", *_EVALUATION),
        _NO_ROWS,
        _GIVE_ROWS,
    ),
    Rule(
        lambda c: c.checkpoint.load_best_model_at_end and c.eval.eval_steps is None,
        ("checkpoint.load_best_model_at_end", "eval.eval_steps"),
        "the only evaluation is the one of the last step, so there is no other to choose",
        "set eval.eval_steps, for instance to epoch",
    ),
    Rule(
        lambda c: c.eval.eval_steps is not None and _no_evaluation(c),
        ("eval.eval_steps", *_EVALUATION),
        _NO_ROWS,
        f"set eval.eval_steps to null, or {_GIVE_ROWS}",
    ),
    Rule(
        lambda c: c.eval.metric_for_best_model is not None and _no_evaluation(c),
        ("eval.metric_for_best_model", *_EVALUATION),
        _NO_ROWS,
        f"remove eval.metric_for_best_model, or {_GIVE_ROWS}",
    ),
    Rule(
        lambda c: c.train.early_stopping_patience is not None and c.eval.eval_steps is None,
        ("train.early_stopping_patience", "eval.eval_steps"),
        "the only evaluation is the one of the last step",
        "set eval.eval_steps, for instance to epoch",
    ),
    Rule(
        lambda c: c.train.early_stopping_threshold > 0 and c.train.early_stopping_patience is None,
        ("train.early_stopping_threshold", "train.early_stopping_patience"),
        "nothing would wait for a better metric",
        "set train.early_stopping_patience, or remove train.early_stopping_threshold",
    ),
    Rule(
        lambda c: c.train.max_steps == 0,
        ("train.max_steps",),
        "this would train nothing",
        "give a number of steps, or -1 to train for train.num_train_epochs",
    ),
    Rule(
        lambda c: 0 < c.train.max_steps < c.train.warmup_steps,
        ("train.warmup_steps", "train.max_steps"),
        "the run would end before the warm-up does",
        "warm up for fewer steps",
    ),
    Rule(
        lambda c: c.train.warmup_steps > 1 and c.train.warmup_steps % 1 != 0,
        ("train.warmup_steps",),
        "from 1 on it counts steps",
        "give a whole number, or a fraction of all steps below 1",
    ),
    Rule(
        lambda c: c.train.lr_scheduler_type == "constant" and c.train.warmup_steps > 0,
        ("train.lr_scheduler_type", "train.warmup_steps"),
        "constant has no warm-up",
        "set train.lr_scheduler_type to constant_with_warmup, or train.warmup_steps to 0",
    ),
    *(_adam_only(name) for name in ("adam_beta1", "adam_beta2", "adam_epsilon")),
    *(_own_key(name, own) for name, own in _OWN_KEYS.items()),
    *efficiency.RULES,
    *(_hub_only(name) for name in ("hub_model_id", "hub_private_repo", "hub_revision")),
    Rule(
        lambda c: c.engine == "loop" and c.trainer != TrainerConfig(),
        ("engine", "trainer"),
        "only the Trainer has callbacks and arguments of its own",
        "set engine to trainer, or remove the section trainer",
    ),
    Rule(
        lambda c: c.tracking.run_name is not None and not c.tracking.report_to,
        ("tracking.run_name", "tracking.report_to"),
        "no tracker would get the name",
        "set tracking.report_to, or remove tracking.run_name",
    ),
    Rule(
        lambda c: c.tracking.project != TrackingConfig().project and not c.tracking.report_to,
        ("tracking.project", "tracking.report_to"),
        "no tracker would get the name",
        "set tracking.report_to, or remove tracking.project",
    ),
    Rule(
        lambda c: max(Counter(c.tracking.report_to).values(), default=0) > 1,
        ("tracking.report_to",),
        "a tracker is named twice",
        "name each once",
    ),
)


def conflicts(config: Config, environ: Mapping[str, str], broken: frozenset[str] = frozenset()) -> list[str]:
    """Returns what cannot go together, one message each, dotted key first.

    Args:
        config: the settings; sections in `broken` may be None.
        environ: the launcher's environment.
        broken: sections and top-level keys that have problems of their own: nothing is said about them.
    """
    on_cpu = environ.get("ACCELERATE_USE_CPU", "").lower() in _TRUE
    return [
        f"{', '.join(f'{key} ({show(_value(config, key))})' for key in rule.keys)}: {rule.why}; {rule.instead}"
        for rule in RULES
        if broken.isdisjoint(key.split(".")[0] for key in rule.keys)
        if (on_cpu or not rule.on_cpu) and rule.when(config)
    ]


def _value(config: Config, key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return value
