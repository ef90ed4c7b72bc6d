"""All checks of a run before it loads weights, and of its folder and steps; `toolkit validate` performs the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile

from toolkit.api.mesh import Mesh
from toolkit.api.run import Checkpoint, best_metric, target_metric
from toolkit.api.state import Milestones
from toolkit.api.task import Task, reads_files
from toolkit.base.console import shorten
from toolkit.base.errors import ConfigError, problems_of
from toolkit.base.files import kind_of, why
from toolkit.checkpoint.output_folder import in_use
from toolkit.checkpoint.resume import decide_resume
from toolkit.checks import machine, model, trainer
from toolkit.checks.check import KINDS, CannotCheck, Check, Findings, Kind, ask
from toolkit.checks.first_rows import first_row_problems
from toolkit.config.messages import Key, show
from toolkit.config.sections import Config
from toolkit.data.sources import find_hub
from toolkit.models.adapters import adapter_problems
from toolkit.models.parts import step_of
from toolkit.models.save import hub_problems
from toolkit.optim.optimizers import argument_problems, library_problems
from toolkit.optim.schedules import has_epochs, in_steps, schedule_problems, warmup_steps
from toolkit.tracking.tracker import tracker_problems


def folder_problems(cfg: Config) -> list[str]:
    """Returns why a run cannot start in `output_dir`, as full messages; leaves no files behind."""
    folder = Path(cfg.output_dir)
    absolute = folder.absolute()
    try:
        absolute.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:  # for instance a name that is too long
        return [f"output_dir: {shorten(cfg.output_dir)} cannot be opened: {error.strerror}; use another one"]
    existing = next(path for path in (absolute, *absolute.parents) if kind_of(path))
    if kind_of(existing) == "file":
        return [] if existing == absolute else [f"output_dir: received {cfg.output_dir!r}, but {existing} is a file"]
    problems = []
    try:
        with TemporaryFile(dir=existing):
            pass
    except OSError as error:
        problems.append(f"output_dir: cannot write into {existing}: {why(error, existing)}; use another one")
    if message := in_use(folder):
        problems.append(f"output_dir: {message}")
    resume = problems_of(lambda: decide_resume(folder, cfg.checkpoint.resume))
    return problems + [each if each.startswith("checkpoint.") else f"output_dir: {each}" for each in resume]


def _sampling_problems(cfg: Config, task: Task) -> list[str]:
    if cfg.train.train_sampling_strategy != "balanced" or task.class_column() is not None:
        return []
    return ["train.train_sampling_strategy: received 'balanced', but the rows of this task have no classes"]


def _ensemble_problems(cfg: Config, task: Task) -> list[str]:
    if not cfg.train.snapshot_ensemble or task.has("average"):
        return []
    return ["train.snapshot_ensemble: received true, but this task's predictions cannot be averaged"]


def _pipeline_problems(cfg: Config, task: Task) -> list[str]:
    if cfg.parallel.pipeline == 1 or not task.has("forward"):
        return []
    return [
        f"parallel.pipeline: received {cfg.parallel.pipeline}, but {type(task).__name__} has its own forward pass, and "
        "the stages of a pipeline call the layers of the model; use parallel.tensor or parallel.fsdp"
    ]


def _budget_problems(cfg: Config, task: Task) -> list[str]:
    if task.modality != "image":
        return []
    budgets = {
        "train.max_tokens_per_batch": (cfg.train.max_tokens_per_batch, "train.per_device_train_batch_size"),
        "eval.max_tokens_per_batch": (cfg.eval.max_tokens_per_batch, "eval.per_device_eval_batch_size"),
    }
    return [
        f"{key}: received {tokens}, but all images have the same size, so it would be a number of rows; set {rows}"
        for key, (tokens, rows) in budgets.items()
        if tokens is not None
    ]


def _shape_problems(cfg: Config, task: Task) -> list[str]:
    multiple = cfg.train.pad_to_multiple_of
    if multiple is None or task.modality in ("text", "seq2seq"):
        return []
    return [f"train.pad_to_multiple_of: received {multiple}, but only batches of text are padded so; remove it"]


def _media_problems(cfg: Config, task: Task) -> list[str]:
    if cfg.data.media_cache == "auto" or reads_files(task):
        return []
    what = "has no effect, because this task's inputs are not in files of their own; remove it"
    return [f"data.media_cache: received {show(cfg.data.media_cache)}, {what}"]


def _process_problems(cfg: Config, task: Task) -> list[str]:
    return model.process_problems(cfg, int(os.environ.get("WORLD_SIZE", "1")))


def _dataset_problems(cfg: Config, task: Task) -> list[str]:
    import datasets

    data = cfg.data
    if data.dataset_name is None:
        return []
    if not datasets.config.HF_HUB_OFFLINE and cfg.offline_dir is None:
        raise CannotCheck("checks do not download data")
    wanted = str(data.dataset_name), data.dataset_config_name, data.revision
    return problems_of(lambda: find_hub(*wanted, offline_dir=cfg.offline_dir))


def _size_problems(cfg: Config, task: Task) -> list[str]:
    if "WORLD_SIZE" not in os.environ:
        raise CannotCheck("no processes were launched")
    return size_problems(cfg, int(os.environ["WORLD_SIZE"]))


CHECKS = (
    Check("eval.metric_for_best_model", lambda cfg, task: problems_of(lambda: best_metric(cfg, task))),
    Check("train.target_metric", lambda cfg, task: problems_of(lambda: target_metric(cfg, task))),
    Check("train.train_sampling_strategy", _sampling_problems),
    Check("train.snapshot_ensemble", _ensemble_problems),
    Check("parallel.pipeline", _pipeline_problems),
    Check("the token budgets", _budget_problems),
    Check("data.media_cache", _media_problems),
    Check("train.pad_to_multiple_of", _shape_problems),
    Check("the optimizer's library", lambda cfg, task: library_problems(cfg.train), "libraries"),
    Check("DeepSpeed", lambda cfg, task: deepspeed_problems(cfg), "libraries"),
    Check("train.optim_args", lambda cfg, task: argument_problems(cfg.train)),
    Check("train.lr_scheduler_kwargs", lambda cfg, task: schedule_problems(cfg.train)),
    Check("tracking.report_to", lambda cfg, task: tracker_problems(cfg.tracking), "machine"),
    Check("trainer.args", lambda cfg, task: trainer.argument_problems(cfg)),
    Check("the libraries of trainer.args", lambda cfg, task: trainer.library_problems(cfg), "libraries"),
    Check("trainer.callbacks", lambda cfg, task: trainer.callback_problems(cfg), "libraries"),
    Check("checkpoint.push_to_hub", lambda cfg, task: hub_problems(cfg.checkpoint), "machine"),
    Check("the adapters' libraries", lambda cfg, task: adapter_problems(cfg.model), "libraries"),
    Check("train.mixed_precision", lambda cfg, task: machine.precision_problems(cfg), "machine"),
    Check("the sizes in parallel", _size_problems, "machine"),
    Check("train.tf32", lambda cfg, task: machine.tf32_problems(cfg), "machine"),
    Check("train.activation_offload", lambda cfg, task: machine.offload_problems(cfg), "machine"),
    Check("model.attn_implementation", lambda cfg, task: machine.attention_problems(cfg), "machine"),
    Check("train.torch_compile", lambda cfg, task: machine.compile_problems(cfg), "machine"),
    Check("the model's configuration", model.config_problems, "model"),
    Check("the model's weights", model.weight_problems, "model"),
    Check("whether the model fits the task", model.fit_problems, "model"),
    Check("whether several processes can train the model", _process_problems, "model"),
    Check("whether the model can be built", model.build_problems, "model"),
    Check("the patterns of model.freeze", model.freeze_problems, "model"),
    Check("whether model.peft fits the model", model.adapter_fit_problems, "model"),
    Check("parallel.tensor", model.tensor_problems, "model"),
    Check("parallel.pipeline", model.pipeline_problems, "model"),
    Check("trainer.args.neftune_noise_alpha", model.noise_problems, "model"),
    Check("train.activation_checkpointing", model.activation_problems, "model"),
    Check("train.unpadded", model.padding_problems, "model"),
    Check("learning rates of individual parameters", model.rate_problems, "model"),
    Check("the model's processor", model.processor_problems, "inputs"),
    Check("model.config_overrides", model.override_problems, "inputs"),
    Check("the dataset", _dataset_problems, "inputs"),
    Check("the first rows of the data files", lambda cfg, task: first_row_problems(cfg.data, task), "rows"),
    Check("output_dir", lambda cfg, task: folder_problems(cfg), "folder"),
)
"""All checks, in the order in which problems are listed."""

LEFT_OUT_ELSEWHERE: dict[Kind, str] = {
    "libraries": "libraries of optimizers, adapters and parallelism, and callbacks",
    "machine": "GPUs, compilers, trackers and logins",
    "inputs": "the data files and their rows",
    "folder": "output_dir",
}
"""Checks that need the machine that trains."""


def examine(
    cfg: Config,
    make_task: Callable[[Config], Task],
    faulty: Collection[Key] = (),
    elsewhere: bool = False,
    folder: bool = True,
    first_rows: bool = True,
) -> Findings:
    """Performs all checks of a run that are possible before weights are loaded.

    Args:
        cfg: the settings, with invalid ones replaced by their defaults.
        make_task: creates the recipe's task from settings.
        faulty: keys of the invalid settings.
        elsewhere: skips checks of this machine, because the training will run on another one.
        folder: whether the run will write into `output_dir`.
        first_rows: whether to check the first rows of the data files also if no other problem is found; not needed
            before all rows are read.

    Returns:
        The problems, and what could not be checked.
    """
    left_out: dict[Kind, str] = dict(LEFT_OUT_ELSEWHERE) if elsewhere else {}
    if elsewhere and cfg.model.from_config is None:
        left_out["model"] = f"the model {cfg.model.name_or_path!r}, its cache, and patterns of its parameters"
    kinds = [kind for kind in KINDS if kind not in left_out and (folder or kind != "folder")]
    found = ask(_of(*(kind for kind in kinds if kind != "rows")), cfg, make_task, faulty)
    if not elsewhere and (first_rows or found.problems or faulty):
        found += ask(_of("rows"), cfg, make_task, faulty)
    return found + Findings(unchecked=tuple(f"{what} (depends on the other machine)" for what in left_out.values()))


def refuse_wrong_run(cfg: Config, task: Task, folder: bool = True) -> None:
    """Refuses a run that cannot work, before it loads anything.

    Problems that a run finds itself while reading its inputs are checked only if there are others, to report them
    together.

    Args:
        cfg: resolved configuration.
        task: the recipe's task.
        folder: whether the run will write into `output_dir`.

    Raises:
        ConfigError: if there are problems; lists all of them.
    """
    found = ask(_of("settings", "libraries", "machine", "model"), cfg, lambda _: task)
    if found.problems:
        kinds: tuple[Kind, ...] = ("inputs", "folder", "rows") if folder else ("inputs", "rows")
        found += ask(_of(*kinds), cfg, lambda _: task)
    found.refuse()


def refuse_wrong_launch(cfg: Config, make_task: Callable[[Config], Task], num_processes: int) -> None:
    """Refuses a run that other processes will start, with all checks that they perform before they load weights.

    Args:
        cfg: resolved configuration of the run.
        make_task: creates the recipe's task from settings.
        num_processes: number of processes of the run.

    Raises:
        ConfigError: if there are problems; lists all of them.
    """
    found = examine(cfg, make_task, folder=False)
    if not found.problems:
        found += Findings((*size_problems(cfg, num_processes), *model.process_problems(cfg, num_processes)))
    found.refuse()


def refuse_wrong_settings(cfg: Config, task: Task, simulated: bool = False) -> None:
    """Refuses invalid settings in commands that only plan a run, possibly for another machine.

    Args:
        cfg: resolved configuration.
        task: the recipe's task.
        simulated: whether a step is simulated, which needs the libraries of optimizers and adapters.

    Raises:
        ConfigError: if the settings do not fit the task or the model; lists all problems.
    """
    checks = _of("settings", "model") + (_of("libraries") if simulated else [])
    ask(checks, cfg, lambda _: task).refuse()


def _of(*kinds: Kind) -> list[Check]:
    return [check for check in CHECKS if check.kind in kinds]


def refuse_wrong_steps(cfg: Config, milestones: Milestones, resume: Checkpoint | None) -> None:
    """Refuses settings that do not fit the number of steps, before the model is built.

    Args:
        cfg: resolved configuration.
        milestones: when the run ends.
        resume: the checkpoint to resume from, or None.

    Raises:
        ConfigError: if the run would end before its checkpoint, its warm-up or a moment of `model.unfreeze`; lists all
            problems.
    """
    total = milestones.total_steps
    problems = [
        f"model.unfreeze.{moment}: that is after step {step}, and this run ends with step {total}; name an earlier "
        "moment, or train longer"
        for moment in cfg.model.unfreeze
        if (step := step_of(moment, milestones.steps_per_epoch)) >= total
    ]
    if (
        has_epochs(cfg.train)
        and (warmup := warmup_steps(in_steps(cfg.train, milestones.steps_per_epoch), total)) > total
    ):
        problems.append(
            f"train.warmup_steps: {cfg.train.warmup_steps} are {warmup} steps, and this run ends with step {total}; "
            "set it to less, or train longer"
        )
    if resume is not None and resume.step > total:
        problems.append(
            f"train.max_steps, train.num_train_epochs: the checkpoint is already at step {resume.step}, and this run "
            f"would end at {total}; train longer, or set checkpoint.resume to none"
        )
    if problems:
        raise ConfigError(problems)


def size_problems(cfg: Config, processes: int) -> list[str]:
    """Returns why the sizes in `parallel` do not fit a number of processes."""
    return problems_of(lambda: Mesh.of(cfg.parallel, processes))


def deepspeed_problems(cfg: Config) -> list[str]:
    """Returns the problem, as a complete message, if DeepSpeed is configured and not installed."""
    if cfg.parallel.backend != "deepspeed" or find_spec("deepspeed") is not None:
        return []
    return [
        "parallel.backend: received 'deepspeed', but deepspeed is not installed (pip install "
        "'finetune-toolkit[deepspeed]'); torch needs no other library"
    ]
