"""Finished runs, opened again to predict or to score: `toolkit.load`, `toolkit predict`, `toolkit evaluate`."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from toolkit import modalities
from toolkit.api.mesh import Mesh
from toolkit.api.supports import state_of
from toolkit.api.task import EvalData, Predictions, Processor, Task
from toolkit.base.console import quiet_libraries, say
from toolkit.base.errors import ConfigError, InputError
from toolkit.base.run_folder import RunFolder
from toolkit.config.sections import Config
from toolkit.data.given import given_table
from toolkit.data.prepare import tokenise
from toolkit.data.rows import apply_policy, load_table, write_bad_rows
from toolkit.distributed.collectives import on_main
from toolkit.distributed.launch import build_accelerator
from toolkit.distributed.mesh import mesh_of
from toolkit.distributed.process_state import float32_precision, own_process_state, random_state_kept
from toolkit.engine.evaluation import evaluate, predict
from toolkit.models.adapter_checks import adapter_problems
from toolkit.models.adapters import base_of, load_adapters
from toolkit.models.load import build_model, load_model_config
from toolkit.recipe import load_settings, load_task_type

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class TrainedRun:
    """A finished run: its settings, its task with what it learned, its processor and model, on today's processes."""

    cfg: Config
    task: Task
    accelerator: Accelerator
    mesh: Mesh
    processor: Processor
    model: PreTrainedModel

    def predict(self, rows: Any) -> list[dict[str, Any]]:
        """Predicts rows; they need no labels.

        Args:
            rows: a list of dictionaries, a `datasets.Dataset` or a pandas data frame, with the columns of the run's
                own files. Under a launcher every process is given the same rows.

        Returns:
            The records that `toolkit predict` writes, in row order, on every process.

        Raises:
            DataError: if any row cannot be used (rows are numbered from 1), or a column is missing.
        """
        with quiet_libraries(), random_state_kept():
            data = self._given(rows, labelled=False)
            predictions = self.predictions(data)
            return on_main(self.accelerator, lambda: list(self.task.decode(predictions, data)))

    def evaluate(self, rows: Any) -> dict[str, float]:
        """Scores the model on labelled rows; arguments and errors are those of `predict`.

        Returns:
            `eval_loss` and the task's metrics, named as in a run, on every process.
        """
        with quiet_libraries(), random_state_kept():
            return self.scores(self._given(rows, labelled=True))

    def predictions(self, data: EvalData) -> Predictions:
        """Returns predictions in row order on the main process, nothing elsewhere."""
        with float32_precision(self.cfg.train.tf32):
            return predict(self, self.model, data, "predict")[0]

    def scores(self, data: EvalData) -> dict[str, float]:
        """Returns the metrics of labelled rows, on every process."""
        with float32_precision(self.cfg.train.tf32):
            metrics = evaluate(self, self.model, data, "evaluate").metrics
        return {f"eval_{name}": value for name, value in metrics.items()}

    def _given(self, rows: Any, labelled: bool) -> EvalData:
        table = given_table(rows, self.task, self.cfg.data.columns, labelled).rows
        return EvalData(table, tokenise(table, self.task, self.processor, labelled=labelled), self.processor)


def load(
    run_folder: str | Path,
    recipe: str | Path | type[Task] | None = None,
    per_device_eval_batch_size: int | None = None,
    trust_remote_code: bool = False,
) -> TrainedRun:
    """Opens a finished run, to predict or to score rows with its model.

    Nothing is printed, and settings of the libraries are put back. Under a launcher every process calls it.

    Args:
        run_folder: the run's `output_dir`.
        recipe: the recipe's file, if it was moved since the run, or its task.
        per_device_eval_batch_size: rows of a batch; None takes as many as the run.
        trust_remote_code: whether Python code that lies beside the model may run.

    Raises:
        InputError: if the folder is not a finished run, its recipe is not found, or its model cannot be loaded.
    """
    if per_device_eval_batch_size is not None and per_device_eval_batch_size < 1:
        raise InputError(f"per_device_eval_batch_size: received {per_device_eval_batch_size}, must be at least 1")
    folder = Path(run_folder).expanduser()
    cfg, task = read_settings(folder, recipe)
    size = per_device_eval_batch_size or cfg.eval.per_device_eval_batch_size
    cfg = replace(
        _usable_here(cfg),
        eval=replace(cfg.eval, per_device_eval_batch_size=size),
        tracking=replace(cfg.tracking, report_to=[]),
    )
    cfg = replace(cfg, model=replace(cfg.model, trust_remote_code=trust_remote_code))
    with own_process_state(), quiet_libraries():
        return open_run(folder, cfg, task, build_accelerator(cfg))


def _usable_here(cfg: Config) -> Config:
    """Leaves out what only the machine of the training may have: precisions and attention kernels of its GPU."""
    precision = cfg.train.mixed_precision
    if precision != "fp8" and torch.cuda.is_available():
        return cfg
    return replace(
        cfg,
        model=replace(cfg.model, attn_implementation=None),
        train=replace(cfg.train, mixed_precision=precision if precision == "bf16" else "no", tf32=None),
    )


def read_settings(folder: Path, recipe: str | Path | type[Task] | None) -> tuple[Config, Task]:
    """Reads a run's resolved settings and rebuilds its task.

    Args:
        folder: the run's output folder.
        recipe: the recipe file, where it is no longer at the place that the run noted, or its task.

    Raises:
        InputError: if the folder is not a finished run, or its recipe is not found.
    """
    files = RunFolder(folder)
    missing = [path.name for path in (files.config, files.facts, files.model) if not path.exists()]
    if missing:
        raise InputError(f"{folder}: not a finished run, it has no {', '.join(missing)} (tried {folder.absolute()})")
    try:
        facts: dict[str, Any] = json.loads(files.facts.read_text(encoding="utf-8"))
        path, state = recipe or facts["recipe"], facts["task_state"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder}: run.json is damaged ({type(error).__name__}: {error})") from error
    task_type = path if isinstance(path, type) else _trusted_task(folder, Path(path), named=recipe is not None)
    # The run's own data need not be there any more, and its launcher's settings are not today's.
    cfg = load_settings(task_type, files.config, [], environ={}, check_files=False)
    task = task_type(cfg.config)
    state_of(task).update(state)
    return cfg.config, task


def _trusted_task(folder: Path, recipe: Path, named: bool) -> type[Task]:
    """Loads the recipe of a run; one that came with the run's folder only if the user named it.

    Raises:
        InputError: if it is not there, or not named.
    """
    how = "with --recipe recipes/<task>.py (in Python: load(..., recipe=...))"
    if not recipe.is_file():
        raise InputError(f"{folder}: there is no file {recipe}, the run's recipe; name it {how}")
    if not named and recipe.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{folder}: its recipe {recipe} lies in its own folder; if you trust it, name it {how}")
    return load_task_type(recipe)


def open_run(folder: Path, cfg: Config, task: Task, accelerator: Accelerator) -> TrainedRun:
    """Loads a finished run's processor and model, the latter onto the device."""
    saved = RunFolder(folder).model
    model = replace(cfg.model, name_or_path=str(saved), from_config=None, revision=None, config_overrides={})
    processor = modalities.load(task.modality).load_processor(str(saved), model, task.options)
    config = load_model_config(model)
    if cfg.model.peft.method == "none":
        network = build_model(model, config, task.auto_model(config), cfg.seed)
    else:
        if problems := adapter_problems(model):
            raise ConfigError(problems)
        base = replace(model, name_or_path=base_of(saved, str(folder)), revision=cfg.model.revision)
        network = load_adapters(build_model(base, config, task.auto_model(config), cfg.seed), saved)
    prepared = accelerator.prepare_model(network, evaluation_mode=True)
    return TrainedRun(cfg, task, accelerator, mesh_of(accelerator), processor, prepared)


def read_rows(run: TrainedRun, file: str, labelled: bool, report: Path) -> EvalData:
    """Reads, checks and tokenises another file with the columns of the run's own.

    Args:
        run: the finished run.
        file: the file.
        labelled: whether it must have labels.
        report: where skipped rows are written.

    Raises:
        DataError: for files or rows that cannot be used.
    """
    accelerator = run.accelerator
    with accelerator.local_main_process_first():
        tables = {"input": load_table(file, run.task, run.cfg.data.columns, labelled)}
    bad = apply_policy(tables, run.cfg.data.bad_rows)
    if accelerator.is_main_process and any(bad.values()):
        write_bad_rows(tables, report)
        say(f"{bad['input']} rows cannot be used and are left out; {report} lists them")
    rows = tables["input"].rows
    with accelerator.local_main_process_first():
        features = tokenise(rows, run.task, run.processor, labelled=labelled)
    return EvalData(rows, features, run.processor)
