"""Opens finished runs to predict or evaluate: `toolkit.load`, `toolkit predict`, `toolkit evaluate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import torch

from toolkit import modalities
from toolkit.api.batch import EvalData, Omission, Predictions, Processor
from toolkit.api.mesh import Mesh
from toolkit.api.run import Evaluation
from toolkit.api.task import Task
from toolkit.base.console import quiet_libraries, say
from toolkit.base.errors import ConfigError, InputError
from toolkit.base.files import expanded, file_sha256, kind_of, read_json
from toolkit.base.run_folder import RunFolder
from toolkit.base.trust import require_trusted
from toolkit.config.messages import join
from toolkit.config.paths import DATA_FILES, files_of, source_of_finished
from toolkit.config.sections import Config, DataConfig
from toolkit.config.train import ParallelConfig
from toolkit.data.readers.raw import Reading
from toolkit.data.table import given_table
from toolkit.data.tokenise import evaluated, lost_rows, omissions, tokenise, with_prompts
from toolkit.distributed.collectives import on_main
from toolkit.distributed.launch import build_accelerator, float32_precision, own_process_state, random_state_kept
from toolkit.engine.evaluation import evaluate, predict
from toolkit.engine.initial import compared_with
from toolkit.models.adapters import adapter_problems, base_of, load_adapters
from toolkit.models.chunked import chunk_head, is_chosen
from toolkit.models.load import build_model, load_model_config, with_generation
from toolkit.models.origin import require_same_model
from toolkit.models.parts import head_at_labels
from toolkit.models.unpadded.families import PACKED, choose
from toolkit.models.unpadded.layers import install
from toolkit.recipe import load_settings, load_task_type, recipe_names
from toolkit.report.facts import require_intact_model

if TYPE_CHECKING:
    import datasets
    from accelerate import Accelerator
    from torch import nn
    from transformers import PreTrainedModel


READING = ("columns", *(field.name for field in fields(Reading) if field.name in vars(DataConfig())))
"""Settings of the section `data` that may be different for other files."""
POLICY = ("bad_rows", "max_bad_rows")
"""Further ones, which have an effect where rows that cannot be used may be skipped."""


def require_usable(overrides: Sequence[str], known: Sequence[str], decoding: Sequence[str]) -> None:
    """Raises a ConfigError for overrides of anything but settings of `data` in `known` and of `task` in `decoding`."""
    keys = [override.partition("=")[0] for override in overrides]
    usable = [("data", name) for name in known] + [("task", name) for name in decoding]
    names = join([".".join(key) for key in usable], "and")
    others = (
        f"a finished run is used as it was trained; only {names} can be changed: how rows are read, and answers made"
    )
    policy = "no rows are skipped here: predict writes why a row has no prediction (or rejects it: --bad-rows error)"
    why = {f"data.{name}": policy for name in POLICY}
    if wrong := [key for key in keys if tuple(key.split(".")[:2]) not in usable]:
        raise ConfigError([f"{key}: {why.get(key, others)}" for key in wrong])


def decoded_with(overrides: Sequence[str]) -> list[str]:
    """Returns the overrides that change how answers are made."""
    return [override for override in overrides if override.startswith("task.")]


@dataclass(frozen=True, repr=False)  # a notebook would show all settings and layers
class TrainedRun:
    """A finished run, ready to predict or evaluate: its settings, task, processor and model."""

    cfg: Config
    task: Task
    accelerator: Accelerator
    mesh: Mesh
    processor: Processor
    model: PreTrainedModel

    def predict(self, rows: Any) -> list[dict[str, Any]]:
        """Predicts rows. Labels are not needed.

        Args:
            rows: a list of dictionaries, a `datasets.Dataset` or a pandas data frame with the columns of the run's
                files. Under a launcher, every process must pass the same rows.

        Returns:
            A record per row, in row order, on every process, with the entries of a line of `predictions.jsonl`.

        Raises:
            DataError: if a row cannot be used (rows are numbered from 1) or a column is missing.
        """
        with quiet_libraries(), random_state_kept():
            data = self._given(rows, labelled=False)
            predictions = self.predictions(data)
            return on_main(self.accelerator, lambda: list(self.task.decode(predictions, data)))

    def evaluate(self, rows: Any) -> dict[str, float]:
        """Evaluates the model on labelled rows.

        Args:
            rows: as for `predict`.

        Returns:
            `eval_loss` and the task's metrics, named as in a run, on every process.

        Raises:
            DataError: as for `predict`.
        """
        with quiet_libraries(), random_state_kept():
            metrics = self.evaluation(self._given(rows, labelled=True)).metrics
        return {f"eval_{name}": value for name, value in metrics.items()}

    @property
    def bare_model(self) -> PreTrainedModel:
        """The model without the wrappers of accelerate."""
        model: PreTrainedModel = self.accelerator.unwrap_model(self.model)
        return model

    def predictions(self, data: EvalData, inner: bool = False) -> Predictions:
        """Returns predictions in row order on the main process; empty on others. With `inner`, another bar is shown."""
        with float32_precision(self.cfg.train.tf32):
            return predict(self, self.model, data, "predict", (lambda: None) if inner else None)[0]

    def alone(self, place: int) -> TrainedRun:
        """Returns this run in this process alone, with the random numbers of rows from a place on."""
        task, device = copy(self.task), self.accelerator.device
        task.cfg = replace(self.cfg, seed=self.cfg.seed + place)
        accelerator: Any = SimpleNamespace(device=device, num_processes=1, process_index=0, is_main_process=True)
        return replace(self, task=task, accelerator=accelerator, mesh=Mesh())

    def evaluation(self, data: EvalData) -> Evaluation:
        """Returns the metrics of labelled rows on every process, and the predictions on the main process."""
        with float32_precision(self.cfg.train.tf32):
            if self.task.initial:
                with self._before_training() as model:
                    data = compared_with(self, data, model)
            return evaluate(self, self.model, data, "evaluate")

    @contextmanager
    def _before_training(self) -> Iterator[nn.Module]:
        """Yields the model as it was before training; raises InputError if it cannot be loaded."""
        if self.cfg.model.peft.method != "none":
            adapted: Any = self.bare_model
            with adapted.disable_adapter():
                yield self.model
            return
        source, config = source_of_finished(self.cfg.model, self.cfg.offline_dir), self.bare_model.config
        further = {**self.task.pretrained_options(config, self.processor)}
        with random_state_kept():
            network = build_model(source, config, self.task.auto_model(config), self.cfg.seed, further)
        with own_process_state():
            network = build_accelerator(self.cfg).prepare_model(network, evaluation_mode=True)
        yield network

    def preprocessed(self, rows: datasets.Dataset, labelled: bool, num_skipped: int = 0) -> EvalData:
        """Returns checked rows with their features."""
        features = tokenise(rows, self.task, self.processor, labelled=labelled)
        lost = lost_rows(rows, features, self.task, self.cfg.data) if labelled else None
        if lost is not None:
            say(f"{lost}.")
            num_skipped += lost.count
        data = evaluated(rows, features, self.task, self.processor, num_skipped=num_skipped)
        return with_prompts(data, self.task, self.cfg) if labelled else data

    def omissions(self, name: str, data: EvalData) -> list[Omission]:
        """Returns what of checked rows is not in their features, or not as it is; `name` is that of the rows."""
        return omissions({name: data.rows}, {name: data.features}, self.task, self.processor, self.cfg.data)

    def _given(self, rows: Any, labelled: bool) -> EvalData:
        table = given_table(rows, self.task, self.cfg.data.columns, labelled, Reading.of(self.cfg.data))
        return self.preprocessed(table.rows, labelled)


def load(
    run_folder: str | Path,
    recipe: str | Path | type[Task] | None = None,
    per_device_eval_batch_size: int | None = None,
    trust_remote_code: bool = False,
    overrides: Sequence[str] = (),
) -> TrainedRun:
    """Opens a finished run to predict or evaluate with its model.

    Nothing is printed, and library settings are restored. Under a launcher, every process must call this function.

    Args:
        run_folder: the run's `output_dir`.
        recipe: the recipe's file if it was moved after the run, or its task.
        per_device_eval_batch_size: rows per batch on each device; None uses the run's value.
        trust_remote_code: whether Python code in the model's folder may run.
        overrides: `data.key=value` strings that change how rows are read, see `READING`, and `task.key=value` strings
            that change how answers are made, see `Task.decoding`.

    Returns:
        The run, with its model on this process's device.

    Raises:
        ConfigError: if an override is invalid, or does not concern reading.
        InputError: if an argument is invalid, the folder is not a finished run, the recipe is not found, or the model
            cannot be loaded.
    """
    return open_finished(run_folder, recipe, per_device_eval_batch_size, trust_remote_code, overrides, READING)


def open_finished(
    run_folder: str | Path,
    recipe: str | Path | type[Task] | None,
    per_device_eval_batch_size: int | None,
    trust_remote_code: bool,
    overrides: Sequence[str],
    known: Sequence[str],
    calibrated: bool = True,
    mixed_precision: Literal["no", "bf16"] | None = None,
) -> TrainedRun:
    """Opens a finished run as `load` does; `known` and `calibrated` are those of `read_settings`.

    `mixed_precision` replaces `train.mixed_precision`; None leaves it.
    """
    if per_device_eval_batch_size is not None and per_device_eval_batch_size < 1:
        raise InputError(f"per_device_eval_batch_size: received {per_device_eval_batch_size}, must be at least 1")
    folder = expanded(run_folder)
    cfg, task = read_settings(folder, recipe, overrides=overrides, known=known, calibrated=calibrated)
    if changed := decoded_with(overrides):
        say(f"answers are made with {', '.join(changed)}, other than in the run's evaluation")
    size, cfg = per_device_eval_batch_size or cfg.eval.per_device_eval_batch_size, _usable_here(cfg)
    cfg = replace(
        cfg, eval=replace(cfg.eval, per_device_eval_batch_size=size), tracking=replace(cfg.tracking, report_to=[]),
        model=replace(cfg.model, trust_remote_code=trust_remote_code),
        train=replace(cfg.train, mixed_precision=mixed_precision or cfg.train.mixed_precision),
    )  # fmt: skip
    with own_process_state(), quiet_libraries():
        return open_run(folder, cfg, task, build_accelerator(cfg))


def _usable_here(cfg: Config) -> Config:
    """Removes settings that need the processes of the training or its GPU: precision and attention kernels."""
    cfg = replace(cfg, parallel=ParallelConfig())
    precision = cfg.train.mixed_precision
    if precision != "fp8" and torch.cuda.is_available():
        return cfg
    return replace(
        cfg,
        model=replace(cfg.model, attn_implementation=None),
        train=replace(cfg.train, mixed_precision=precision if precision == "bf16" else "no", tf32=None),
    )


def read_settings(
    folder: Path,
    recipe: str | Path | type[Task] | None,
    finished: bool = True,
    overrides: Sequence[str] = (),
    known: Sequence[str] = READING,
    calibrated: bool = True,
) -> tuple[Config, Task]:
    """Reads a run's resolved settings and rebuilds its task.

    Args:
        folder: the run's output folder.
        recipe: the recipe file if it was moved after the run, or its task.
        finished: whether the run must have a model.
        overrides: `data.key=value` strings that change how rows are read.
        known: settings of the section `data` that may be changed.
        calibrated: whether the task decides as `decision.json` says, if the run has one.

    Raises:
        ConfigError: if an override is invalid, or does not concern reading.
        InputError: if the folder is not a finished run or its recipe is not found.
    """
    files = RunFolder(folder)
    needed = (files.config, files.facts, *([files.model] if finished else []))
    if missing := [path.name for path in needed if not path.exists()]:
        kind = "a finished run" if finished else "a run"
        raise InputError(f"{folder}: not {kind}, missing {', '.join(missing)} (tried {folder.absolute()})")
    try:
        facts: dict[str, Any] = read_json(files.facts)
        path, state = recipe or Path(facts["recipe"]), dict(facts["task_state"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder}: run.json is damaged ({type(error).__name__}: {error})") from error
    task_type = path if isinstance(path, type) else _trusted_task(folder, Path(path), named=recipe is not None)
    # The run's data may have been removed, and its launcher settings do not apply here.
    cfg = load_settings(task_type, files.config, overrides, environ={}, check_files=False)
    require_usable(overrides, known, task_type.decoding)
    settings = replace(cfg.config, data=_as_trained(cfg.config.data, facts.get("working_directory") or ""))
    task = task_type(settings)
    task.state.update(state)
    expected = facts.get("files", {}).get(files.decision.name)
    if calibrated and (expected or files.decision.exists()):
        if not files.decision.is_file() or file_sha256(files.decision) != expected:
            raise InputError(f"{files.decision}: not as `toolkit calibrate` wrote it; calibrate the run again")
        task.state["decision"] = decision = read_json(files.decision)
        task.answer_columns = (*task.answer_columns, *decision["columns"])
    return settings, task


def _as_trained(data: DataConfig, folder: str) -> DataConfig:
    """Returns the settings with the paths of data files that are still where the run in `folder` had them."""
    found: dict[str, Any] = {}
    for name in DATA_FILES:
        files = [str(Path(folder, expanded(file))) for file in data.files(name)]
        if files and all(kind_of(Path(each)) for file in files for each in files_of(file)):
            found[name] = files if isinstance(getattr(data, name), list) else files[0]
    return replace(data, **found)


def _trusted_task(folder: Path, recipe: Path, named: bool) -> type[Task]:
    """Loads the recipe of a run; one that `toolkit.base.trust` does not know only if the user named it."""
    how = "with --recipe NAME_OR_FILE (in Python: load(..., recipe=...))"
    if named:
        return load_task_type(recipe)
    if not recipe.is_file():
        if recipe.parent.name == "recipes" and recipe.stem in recipe_names():
            say(f"the run's recipe {recipe} is not on this machine; the toolkit's {recipe.stem} is used")
            return load_task_type(recipe.stem)
        raise InputError(f"{folder}: the run's recipe {recipe} does not exist; name it {how}")
    require_trusted(recipe, folder, how)
    return load_task_type(recipe)


def open_run(folder: Path, cfg: Config, task: Task, accelerator: Accelerator) -> TrainedRun:
    """Loads a run's processor and model, after verifying their checksums; raises ConfigError if settings do not fit."""
    saved = RunFolder(folder).model
    on_main(accelerator, require_intact_model, folder)
    model = replace(cfg.model, name_or_path=str(saved), from_config=None, revision=None, config_overrides={})
    processor = modalities.load(task.modality).load_processor(str(saved), model, task.options)
    config = load_model_config(model)
    source, adapted, further = model, cfg.model.peft.method != "none", dict[str, Any]()
    if adapted:
        if problems := adapter_problems(model):
            raise ConfigError(problems)
        base = replace(model, name_or_path=base_of(saved, str(folder)), revision=cfg.model.revision)
        source = source_of_finished(base, cfg.offline_dir)
        on_main(accelerator, require_same_model, source, folder)
        further = {**task.pretrained_options(config, processor)}
    asked = type(task)(replace(cfg, model=source, offline_dir=None))  # settings may be other than in training
    problems = modalities.load(task.modality).check_model(config, task.options) + asked.processor_problems(processor)
    if problems:
        raise ConfigError(problems)
    network = build_model(source, config, task.auto_model(config), cfg.seed, further)
    network = with_generation(network, task.generation_fields(network, processor))
    if adapted:
        network = load_adapters(network, saved)
    if unpadded := choose(cfg, config, accelerator.device):
        always, multiple = cfg.train.max_tokens_per_batch is not None, cfg.train.pad_to_multiple_of
        install(network, always=always, packed=unpadded == PACKED, multiple=multiple)
    head_at_labels(network)
    if is_chosen(cfg, config):
        chunk_head(network)
    prepared = accelerator.prepare_model(network, evaluation_mode=True)
    mesh = Mesh(replicas=accelerator.num_processes, rank=accelerator.process_index)
    return TrainedRun(cfg, task, accelerator, mesh, processor, prepared)
