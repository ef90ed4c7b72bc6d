"""Converts checkpoints into models or another format, and merges adapters."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from toolkit import modalities
from toolkit.api.run import Checkpoint
from toolkit.api.task import Task
from toolkit.base.errors import InputError, RunError
from toolkit.base.files import disk_problem, read_json
from toolkit.base.run_folder import CheckpointFolder, RunFolder
from toolkit.checkpoint.contents import load_model_into, load_optimizer_into, load_tensors
from toolkit.checkpoint.manifest import FileEntry, read_manifest, tensor_names
from toolkit.checkpoint.store import new_checkpoint
from toolkit.checkpoint.tensors import verified_tensors
from toolkit.checkpoint.writing import copy_tensors
from toolkit.config.paths import source_of_finished
from toolkit.config.sections import Config
from toolkit.deploy.trained import read_settings
from toolkit.models.adapters import add_adapters, base_of, combine, merged
from toolkit.models.load import build_model, load_model_config, with_generation
from toolkit.models.origin import origin, require_same_model
from toolkit.models.parts import freeze, freeze_modules
from toolkit.models.save import write_further, write_model
from toolkit.optim.optimizers import build_optimizer
from toolkit.optim.presets import PRESETS
from toolkit.prepare.processor import configure_model
from toolkit.report.facts import require_intact_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from toolkit.deploy.trained import TrainedRun


def convert_to_model(
    checkpoint: Checkpoint, output: Path, recipe: str | None = None, trust_remote_code: bool = False
) -> None:
    """Writes the model of a checkpoint as a run writes `model/` at its end, with averaged weights if it uses them.

    `output` is an empty folder, `recipe` the recipe's file if it was moved. Raises InputError if the run, its recipe or
    its base model is not found, or the checkpoint does not fit them; RunError if the folder cannot be written.
    """
    run = checkpoint.path.absolute().parents[1]
    cfg, task = read_settings(run, recipe, finished=False)
    cfg = replace(cfg, model=replace(cfg.model, trust_remote_code=trust_remote_code))
    modality, source = modalities.load(task.modality), CheckpointFolder(checkpoint.path).processor
    processor = modality.load_processor(str(source), cfg.model, task.options)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as temporary:
            base = Path(temporary) / "base"
            model = _built(cfg, task, processor, base, run)
            load_model_into(checkpoint, model)
            _use_averages(checkpoint, model, cfg)
            write_model(model, processor, cfg.model, task, Path(temporary) / "model", base, output)
            (Path(temporary) / "model").rename(output)
    except OSError as error:
        raise RunError(f"cannot write {output.absolute()}: {disk_problem(error, output.parent) or error}") from error


def _built(cfg: Config, task: Task, processor: Any, base: Path, run: Path) -> Any:
    """Builds the model as the run did; a new base model of adapters is saved in the folder `base`."""
    source = source_of_finished(cfg.model, cfg.offline_dir)
    if cfg.model.peft.method != "none":
        require_same_model(source, run)
    config = load_model_config(source)
    configure_model(config, task, processor, new=cfg.model.from_config is not None)
    auto_model = task.auto_model(config)
    model = build_model(source, config, auto_model, cfg.seed, task.pretrained_options(config, processor))
    model = with_generation(model, task.generation_fields(model, processor))
    freeze_modules(model, task.unread)
    if cfg.model.peft.method == "none":
        return model
    if cfg.model.from_config is not None:
        model.save_pretrained(base)
    return add_adapters(model, cfg.model.peft, auto_model, cfg.seed)


@torch.no_grad()
def _use_averages(checkpoint: Checkpoint, model: Any, cfg: Config) -> None:
    """Replaces parameters by their averages, if the run's result are averages."""
    parameters = dict(model.named_parameters())
    for name, average in load_tensors(checkpoint, "ema").items():
        parameters[name].copy_(average)
    if PRESETS[cfg.train.optim].averages:
        freeze(model, cfg.model)
        optimizer: Any = build_optimizer(model, cfg.train)
        load_optimizer_into(checkpoint, optimizer, model)
        optimizer.eval()


def convert_format(checkpoint: Checkpoint, output: Path, form: str) -> Path:
    """Writes a checkpoint in another format (`full`, `sharded`) under the same name, and returns its folder.

    One tensor is in memory at a time. Raises DamagedCheckpoint if the checkpoint is damaged; RunError if the new one
    cannot be written.
    """
    old, written = CheckpointFolder(checkpoint.path), dict[str, FileEntry]()
    with new_checkpoint(output, checkpoint.step, written) as folder:
        new = CheckpointFolder(folder)
        shutil.copyfile(old.state, new.state)
        if old.processor.is_dir():
            shutil.copytree(old.processor, new.processor, copy_function=shutil.copyfile)
        for name in tensor_names(read_manifest(checkpoint.path).files):
            with verified_tensors(checkpoint, name) as saved:
                written |= copy_tensors(folder, name, saved, sharded=form == "sharded")
    return output / f"step-{checkpoint.step}"


def require_mergeable(cfg: Config) -> None:
    """Raises an InputError with the reason if a run's adapters are not part of its weights."""
    reasons = {
        "none": "it trained the full model, which is in its folder model/",
        "prompt_tuning": "virtual tokens are inputs, not weights; load its folder model/ with peft",
    }
    if why := reasons.get(cfg.model.peft.method):
        raise InputError(f"this run (model.peft.method={cfg.model.peft.method}) has nothing to merge: {why}.")


def add_runs(run: TrainedRun, folder: Path, others: Sequence[Path], how: Mapping[str, Any]) -> None:
    """Adds the adapters of other runs to those of a run in a folder; `how` are arguments of `combine`.

    Raises InputError if one has no updates of lora, or another base model, task or labels.
    """
    shared = dict[Path, dict[str, Any]]()
    for each in (folder, *others):
        cfg, task = read_settings(each, type(run.task))
        require_intact_model(each)
        if cfg.model.peft.method not in ("lora", "rslora") or cfg.model.peft.trainable_token_indices:
            raise InputError(f"--with: {each} (model.peft.method={cfg.model.peft.method}) has not only updates of lora")
        name = base_of(RunFolder(each).model, str(each))
        base = origin(replace(cfg.model, name_or_path=name)) or name
        recipe = Path(read_json(RunFolder(each).facts)["recipe"]).stem
        shared[each] = {"base model": base, "task": recipe, "labels": task.state}
        if names := [key for key, value in shared[folder].items() if shared[each][key] != value]:
            raise InputError(f"--with: {each} has not the {' and '.join(names)} of {folder}")
    combine(run.bare_model, [RunFolder(each).model for each in others], **how)


def write_merged(run: TrainedRun, folder: Path) -> PreTrainedModel:
    """Merges the adapters of a run in place, writes the model and its processor, and returns the model."""
    model = merged(run.bare_model)
    model.save_pretrained(folder)
    write_further(run.task, model, folder)
    run.processor.save_pretrained(folder)
    return model


def reloaded(run: TrainedRun, folder: Path) -> PreTrainedModel:
    """Loads a model of a run in float32 with transformers alone, as users will."""
    import transformers

    auto_class = getattr(transformers, run.task.auto_model(run.bare_model.config))
    remote = run.cfg.model.trust_remote_code
    model = auto_class.from_pretrained(folder, trust_remote_code=remote, dtype=torch.float32)
    return model.to(run.accelerator.device).eval()
