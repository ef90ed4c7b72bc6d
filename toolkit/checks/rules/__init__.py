"""All unsupported combinations of settings; rows of sources, evaluation, checkpoints and tracking are here."""

from __future__ import annotations

from collections import Counter

from toolkit.checks.rules import data, model, optim, parallel, train
from toolkit.config.problems import CHANGED, Rule, clash, only_if
from toolkit.config.sections import Config, TrainerConfig
from toolkit.models.unpadded import families


def _no_evaluation(config: Config) -> bool:
    data = config.data
    return data.validation_split == 0 and data.validation_file is None and data.dataset_name is None


_EVALUATION = ("data.validation_split", "data.validation_file")
_NONE, _NO_HUB = {"data.validation_split": 0, "data.validation_file": None}, {"data.dataset_name": None}
_NO_TEST = {"data.test_file": None, "data.test_split": 0}
_NO_ROWS = "there are no validation rows to evaluate"
_GIVE_ROWS = "set data.validation_file, or data.validation_split above 0"

RULES = (
    clash({"data.validation_split": bool, "data.validation_file": CHANGED},
          "validation rows come either from a separate file or from the training rows", "remove one of them"),
    *data.RULES,
    *model.RULES,
    *families.RULES,
    clash({"data.train_file": CHANGED, "data.dataset_name": CHANGED}, "both name training rows", "remove one of them"),
    Rule(lambda c: c.data.train_file in (None, []) and c.data.dataset_name is None,
         ("data.train_file", "data.dataset_name"), "no training rows are given",
         "set data.train_file to a file, or data.dataset_name to a Hub id"),
    clash({"data.dataset_config_name": CHANGED, **_NO_HUB}, "only a Hub dataset has configurations",
          "remove data.dataset_config_name"),
    clash({"data.revision": CHANGED, **_NO_HUB}, "only a Hub dataset has revisions", "remove data.revision"),
    clash({"data.max_eval_samples": CHANGED, **_NONE}, _NO_ROWS, f"remove data.max_eval_samples, or {_GIVE_ROWS}",
          _NO_HUB | _NO_TEST),
    clash({"eval.slices": bool, **_NONE}, _NO_ROWS, f"remove eval.slices, or {_GIVE_ROWS}", _NO_HUB | _NO_TEST),
    clash({"checkpoint.load_best_model_at_end": True, **_NONE}, _NO_ROWS, _GIVE_ROWS, _NO_HUB),
    clash({"checkpoint.load_best_model_at_end": True, "eval.eval_steps": None},
          "only the last step is evaluated, so there is no other step to choose",
          "set eval.eval_steps, for instance to epoch"),
    clash({"eval.eval_steps": CHANGED, **_NONE}, _NO_ROWS, f"set eval.eval_steps to null, or {_GIVE_ROWS}", _NO_HUB),
    clash({"eval.eval_on_start": True, **_NONE}, _NO_ROWS, f"remove eval.eval_on_start, or {_GIVE_ROWS}", _NO_HUB),
    clash({"eval.metric_for_best_model": CHANGED, **_NONE}, _NO_ROWS,
          f"remove eval.metric_for_best_model, or {_GIVE_ROWS}", _NO_HUB),
    clash({"train.early_stopping_patience": CHANGED, "eval.eval_steps": None},
          "the only evaluation is the one of the last step", "set eval.eval_steps, for instance to epoch"),
    Rule(lambda c: c.train.refit and (_no_evaluation(c) or c.data.join_validation),
         ("train.refit", *_EVALUATION, "data.join_validation"), "there are no validation rows to add to the others",
         "remove train.refit", with_=("data.dataset_name",)),
    Rule(lambda c: c.train.refit and (c.train.snapshot_ensemble or c.train.lr_scheduler_type == "reduce_lr_on_plateau"),
         ("train.refit", "train.snapshot_ensemble", "train.lr_scheduler_type"),
         "the second run has no validation rows for an ensemble or such a schedule", "remove one of them"),
    Rule(lambda c: bool(c.train.target_metric) and (c.eval.eval_steps is None or _no_evaluation(c)),
         ("train.target_metric", "eval.eval_steps", *_EVALUATION), "the metric is not computed during training",
         "set eval.eval_steps, for instance to epoch, and keep validation rows", with_=("data.dataset_name",)),
    only_if("train.early_stopping_threshold", "train.early_stopping_patience", bool,
            "it has no effect without early stopping", "set train.early_stopping_patience"),
    clash({"train.max_steps": 0}, "no step would be trained",
          "set train.max_steps to a number of steps, or to -1 to train for train.num_train_epochs"),
    Rule(lambda c: not isinstance(c.train.warmup_steps, str) and 0 < c.train.max_steps < c.train.warmup_steps,
         ("train.warmup_steps", "train.max_steps"), "the run would end before the warm-up",
         "set train.warmup_steps to at most train.max_steps"),
    clash({"train.warmup_steps": lambda steps: not isinstance(steps, str) and steps > 1 and steps % 1 != 0},
          "values from 1 are numbers of steps",
          "set train.warmup_steps to a whole number, or to a fraction of all steps below 1"),
    *optim.RULES,
    *train.RULES,
    *(only_if(f"checkpoint.{name}", "checkpoint.push_to_hub", bool, "it has no effect unless push_to_hub is true",
              "set checkpoint.push_to_hub to true") for name in ("hub_model_id", "hub_private_repo", "hub_revision")),
    Rule(lambda c: c.engine == "loop" and c.trainer != TrainerConfig(), ("engine", "trainer"),
         "only transformers.Trainer has these settings", "set engine to trainer, or remove the section trainer"),
    *(only_if(f"tracking.{name}", "tracking.report_to", bool, "it has no effect without a tracker",
              "set tracking.report_to") for name in ("run_name", "project")),
    only_if("tracking.grid_intensity", "tracking.system_interval", lambda interval: interval is not None,
            "emissions are computed from the energy, which is not measured",
            "set tracking.system_interval, for instance to 2"),
    clash({"tracking.histogram_steps": CHANGED, "tracking.report_to": lambda names: not {*names} - {"mlflow"}},
          "only TensorBoard, W&B and Trackio show histograms",
          "set tracking.report_to to a list with tensorboard, wandb or trackio, or remove tracking.histogram_steps"),
    only_if("tracking.graph", "tracking.report_to", lambda names: "tensorboard" in names,
            "only TensorBoard shows graphs", "set tracking.report_to to a list with tensorboard"),
    clash({"tracking.graph": True, "train.torch_compile": True},
          "compiled code is not made of the model's operations", "remove train.torch_compile, or tracking.graph"),
    clash({"tracking.histogram_steps": CHANGED, "parallel.backend": "deepspeed"},
          "DeepSpeed keeps the gradient in buffers of its own, which have no names",
          "set parallel.backend to torch, or remove tracking.histogram_steps"),
    Rule(lambda c: max(Counter(c.tracking.report_to).values(), default=0) > 1, ("tracking.report_to",),
         "a tracker is listed twice", "remove the duplicate"),
    *parallel.STRATEGY_RULES,
    *parallel.PARALLEL_RULES,
    *parallel.DEEPSPEED_RULES,
)  # fmt: skip
