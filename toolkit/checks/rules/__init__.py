"""All unsupported combinations of settings; rows of sources, evaluation, checkpoints and tracking are here."""

from __future__ import annotations

from collections import Counter

from toolkit.checks.rules import data, model, optim, parallel, train
from toolkit.config.problems import Rule, only_if
from toolkit.config.sections import Config, TrackingConfig, TrainerConfig
from toolkit.models.unpadded import families


def _no_evaluation(config: Config) -> bool:
    data = config.data
    return data.validation_split == 0 and data.validation_file is None and data.dataset_name is None


def _hub_only(name: str) -> Rule:
    return only_if(
        f"checkpoint.{name}",
        None,
        "checkpoint.push_to_hub",
        bool,
        "it has no effect unless push_to_hub is true",
        "set checkpoint.push_to_hub to true",
    )


def _trackers_only(name: str) -> Rule:
    return only_if(
        f"tracking.{name}",
        getattr(TrackingConfig(), name),
        "tracking.report_to",
        bool,
        "it has no effect without a tracker",
        "set tracking.report_to",
    )


_EVALUATION = ("data.validation_split", "data.validation_file")
_NO_ROWS = "there are no validation rows to evaluate"
_GIVE_ROWS = "set data.validation_file, or data.validation_split above 0"

RULES = (
    Rule(lambda c: bool(c.data.validation_split) and c.data.validation_file is not None,
         ("data.validation_split", "data.validation_file"),
         "validation rows come either from a separate file or from the training rows", "remove one of them"),
    *data.RULES,
    *model.RULES,
    *families.RULES,
    Rule(lambda c: c.data.train_file is not None and c.data.dataset_name is not None,
         ("data.train_file", "data.dataset_name"), "both name training rows", "remove one of them"),
    Rule(lambda c: c.data.train_file in (None, []) and c.data.dataset_name is None,
         ("data.train_file", "data.dataset_name"), "no training rows are given",
         "set data.train_file to a file, or data.dataset_name to a Hub id"),
    Rule(lambda c: c.data.dataset_config_name is not None and c.data.dataset_name is None,
         ("data.dataset_config_name", "data.dataset_name"), "only a Hub dataset has configurations",
         "remove data.dataset_config_name"),
    Rule(lambda c: c.data.revision is not None and c.data.dataset_name is None, ("data.revision", "data.dataset_name"),
         "only a Hub dataset has revisions", "remove data.revision"),
    Rule(
        lambda c: (
            c.data.max_eval_samples is not None
            and _no_evaluation(c)
            and c.data.test_file is None
            and not c.data.test_split
        ),
        ("data.max_eval_samples", *_EVALUATION),
        _NO_ROWS,
        f"remove data.max_eval_samples, or {_GIVE_ROWS}",
        with_=("data.dataset_name", "data.test_file", "data.test_split"),
    ),
    Rule(lambda c: bool(c.eval.slices) and _no_evaluation(c) and c.data.test_file is None and not c.data.test_split,
         ("eval.slices", *_EVALUATION), _NO_ROWS, f"remove eval.slices, or {_GIVE_ROWS}",
         with_=("data.dataset_name", "data.test_file", "data.test_split")),
    Rule(lambda c: c.checkpoint.load_best_model_at_end and _no_evaluation(c),
         ("checkpoint.load_best_model_at_end", *_EVALUATION), _NO_ROWS, _GIVE_ROWS, with_=("data.dataset_name",)),
    Rule(lambda c: c.checkpoint.load_best_model_at_end and c.eval.eval_steps is None,
         ("checkpoint.load_best_model_at_end", "eval.eval_steps"),
         "only the last step is evaluated, so there is no other step to choose",
         "set eval.eval_steps, for instance to epoch"),
    Rule(lambda c: c.eval.eval_steps is not None and _no_evaluation(c), ("eval.eval_steps", *_EVALUATION), _NO_ROWS,
         f"set eval.eval_steps to null, or {_GIVE_ROWS}", with_=("data.dataset_name",)),
    Rule(lambda c: c.eval.eval_on_start and _no_evaluation(c), ("eval.eval_on_start", *_EVALUATION), _NO_ROWS,
         f"remove eval.eval_on_start, or {_GIVE_ROWS}", with_=("data.dataset_name",)),
    Rule(lambda c: c.eval.metric_for_best_model is not None and _no_evaluation(c),
         ("eval.metric_for_best_model", *_EVALUATION), _NO_ROWS, f"remove eval.metric_for_best_model, or {_GIVE_ROWS}",
         with_=("data.dataset_name",)),
    Rule(lambda c: c.train.early_stopping_patience is not None and c.eval.eval_steps is None,
         ("train.early_stopping_patience", "eval.eval_steps"), "the only evaluation is the one of the last step",
         "set eval.eval_steps, for instance to epoch"),
    Rule(lambda c: c.train.refit and (_no_evaluation(c) or c.data.join_validation),
         ("train.refit", *_EVALUATION, "data.join_validation"), "there are no validation rows to add to the others",
         "remove train.refit", with_=("data.dataset_name",)),
    Rule(lambda c: c.train.refit and (c.train.snapshot_ensemble or c.train.lr_scheduler_type == "reduce_lr_on_plateau"),
         ("train.refit", "train.snapshot_ensemble", "train.lr_scheduler_type"),
         "the second run has no validation rows for an ensemble or such a schedule", "remove one of them"),
    Rule(lambda c: bool(c.train.target_metric) and (c.eval.eval_steps is None or _no_evaluation(c)),
         ("train.target_metric", "eval.eval_steps", *_EVALUATION), "the metric is not computed during training",
         "set eval.eval_steps, for instance to epoch, and keep validation rows", with_=("data.dataset_name",)),
    only_if("train.early_stopping_threshold", 0.0, "train.early_stopping_patience", bool,
            "it has no effect without early stopping", "set train.early_stopping_patience"),
    Rule(lambda c: c.train.max_steps == 0, ("train.max_steps",), "no step would be trained",
         "set train.max_steps to a number of steps, or to -1 to train for train.num_train_epochs"),
    Rule(lambda c: not isinstance(c.train.warmup_steps, str) and 0 < c.train.max_steps < c.train.warmup_steps,
         ("train.warmup_steps", "train.max_steps"), "the run would end before the warm-up",
         "set train.warmup_steps to at most train.max_steps"),
    Rule(
        lambda c: (
            not isinstance(c.train.warmup_steps, str) and c.train.warmup_steps > 1 and c.train.warmup_steps % 1 != 0
        ),
        ("train.warmup_steps",),
        "values from 1 are numbers of steps",
        "set train.warmup_steps to a whole number, or to a fraction of all steps below 1",
    ),
    *optim.RULES,
    *train.RULES,
    *(_hub_only(name) for name in ("hub_model_id", "hub_private_repo", "hub_revision")),
    Rule(lambda c: c.engine == "loop" and c.trainer != TrainerConfig(), ("engine", "trainer"),
         "only transformers.Trainer has these settings", "set engine to trainer, or remove the section trainer"),
    _trackers_only("run_name"),
    _trackers_only("project"),
    only_if("tracking.grid_intensity", None, "tracking.system_interval", lambda interval: interval is not None,
            "emissions are computed from the energy, which is not measured",
            "set tracking.system_interval, for instance to 2"),
    Rule(lambda c: c.tracking.histogram_steps is not None and not set(c.tracking.report_to) - {"mlflow"},
         ("tracking.histogram_steps", "tracking.report_to"), "only TensorBoard, W&B and Trackio show histograms",
         "set tracking.report_to to a list with tensorboard, wandb or trackio, or remove tracking.histogram_steps"),
    Rule(lambda c: c.tracking.histogram_steps is not None and c.parallel.backend == "deepspeed",
         ("tracking.histogram_steps", "parallel.backend"),
         "DeepSpeed keeps the gradient in buffers of its own, which have no names",
         "set parallel.backend to torch, or remove tracking.histogram_steps"),
    Rule(lambda c: max(Counter(c.tracking.report_to).values(), default=0) > 1, ("tracking.report_to",),
         "a tracker is listed twice", "remove the duplicate"),
    *parallel.STRATEGY_RULES,
    *parallel.PARALLEL_RULES,
    *parallel.DEEPSPEED_RULES,
)  # fmt: skip
