"""Finished runs, opened again to predict or to score."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import modalities
from toolkit.api.mesh import Mesh
from toolkit.api.supports import state_of
from toolkit.api.task import EvalData, Processor, Task
from toolkit.base.console import say
from toolkit.base.errors import InputError
from toolkit.config.sections import Config
from toolkit.data.prepare import tokenise
from toolkit.data.rows import apply_policy, load_table, write_bad_rows
from toolkit.distributed.mesh import mesh_of
from toolkit.models.adapter_checks import check_adapters
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


def read_settings(folder: Path, recipe: str | None) -> tuple[Config, Task]:
    """Reads a run's resolved settings and rebuilds its task.

    Args:
        folder: the run's output folder.
        recipe: the recipe file, where it is no longer at the place that the run noted.

    Raises:
        InputError: if the folder is not a finished run, or its recipe is not found.
    """
    missing = [name for name in ("config.yaml", "run.json", "model") if not (folder / name).exists()]
    if missing:
        raise InputError(f"{folder}: not a finished run, it has no {', '.join(missing)} (tried {folder.absolute()})")
    try:
        facts: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        path, state = recipe or facts["recipe"], facts["task_state"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder}: run.json is damaged ({type(error).__name__}: {error})") from error
    if not Path(path).is_file():
        raise InputError(f"{folder}: its recipe {path} is not there any more; name it with --recipe recipes/<task>.py")
    if recipe is None and Path(path).resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{folder}: its recipe lies in its own folder; if you trust it, name it with --recipe {path}")
    task_type = load_task_type(path)
    # The run's own data need not be there any more, and its launcher's settings are not today's.
    cfg = load_settings(task_type, folder / "config.yaml", [], environ={}, check_files=False)
    task = task_type(cfg.config)
    state_of(task).update(state)
    return cfg.config, task


def open_run(folder: Path, cfg: Config, task: Task, accelerator: Accelerator) -> TrainedRun:
    """Loads a finished run's processor and model, the latter onto the device."""
    saved = folder / "model"
    model = replace(cfg.model, name_or_path=str(saved), from_config=None, revision=None, config_overrides={})
    processor = modalities.load(task.modality).load_processor(str(saved), model, task.options)
    config = load_model_config(model)
    if cfg.model.peft.method == "none":
        network = build_model(model, config, task.auto_model(config), cfg.seed)
    else:
        check_adapters(model)
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
