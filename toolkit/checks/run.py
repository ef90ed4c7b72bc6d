"""All checks of a run before it loads weights, and of its steps; `toolkit validate` performs the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile

from toolkit.api.mesh import Mesh
from toolkit.api.run import Checkpoint
from toolkit.api.state import Milestones
from toolkit.api.task import Task
from toolkit.base.console import shorten
from toolkit.base.errors import ConfigError, problems_of
from toolkit.base.files import kind_of, why
from toolkit.checkpoint.lock import in_use
from toolkit.checkpoint.resume import decide_resume
from toolkit.checks import machine, model, trainer
from toolkit.checks.check import Case, Findings, Told, ask
from toolkit.checks.first_rows import first_row_problems
from toolkit.checks.settings import SETTINGS, WITH_TASK
from toolkit.config.problems import CannotCheck, Check, Stage
from toolkit.config.sections import Config
from toolkit.data.sources import find_hub
from toolkit.engine.callbacks import own_callback_problems
from toolkit.engine.own_metrics import load_metric
from toolkit.models.adapters import adapter_problems
from toolkit.models.parts import step_of
from toolkit.models.save import hub_problems
from toolkit.optim.optimizers import argument_problems, library_problems
from toolkit.optim.schedules import has_epochs, in_steps, warmup_steps
from toolkit.tracking.tracker import tracker_problems


def deepspeed_problems(cfg: Config) -> list[str]:
    """Returns the problem if DeepSpeed is configured and not installed."""
    if cfg.parallel.backend != "deepspeed" or find_spec("deepspeed") is not None:
        return []
    return [
        "parallel.backend: received 'deepspeed', but deepspeed is not installed (pip install "
        "'finetune-toolkit[deepspeed]'); torch needs no other library"
    ]


def _dataset_problems(case: Case) -> list[str]:
    import datasets

    cfg, data = case.cfg, case.cfg.data
    if data.dataset_name is None:
        return []
    if not datasets.config.HF_HUB_OFFLINE and cfg.offline_dir is None:
        raise CannotCheck("checks do not download data")
    wanted = str(data.dataset_name), data.dataset_config_name, data.revision
    return problems_of(lambda: find_hub(*wanted, offline_dir=cfg.offline_dir))


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


def own_metric_problems(case: Case) -> Iterator[str]:
    """Yields why entries of `eval.metrics` cannot be used."""
    if case.cfg.eval.metrics and not case.task.reference:
        yield f"eval.metrics: {type(case.task).__name__} has no answers that could be scored; remove it"
    for name in case.cfg.eval.metrics if case.task.reference else ():
        yield from problems_of(partial(load_metric, name))


def _size_problems(case: Case) -> list[str]:
    if (number := case.processes) is None:
        raise CannotCheck("no processes were launched")
    return problems_of(lambda: Mesh.of(case.cfg.parallel, number))


_MODEL = ("model.name_or_path", "model.from_config", "model.config_overrides", "model.revision",
          "model.trust_remote_code", "offline_dir")  # fmt: skip
_BUILT = (*_MODEL, "model.attn_implementation", "task")
"""What the model's configuration depends on, and the model without weights."""

CHECKS = (
    *SETTINGS,
    *WITH_TASK,
    Check("arguments", "train.optim_args", ("train.optim_args", "train.optim"),
          lambda case: argument_problems(case.cfg.train)),
    Check("arguments", "trainer.args", ("engine", "trainer.args"), lambda case: trainer.argument_problems(case.cfg)),
    Check("libraries", "the optimizer's library", ("train.optim",), lambda case: library_problems(case.cfg.train)),
    Check("libraries", "DeepSpeed", ("parallel.backend",), lambda case: deepspeed_problems(case.cfg)),
    Check("libraries", "the libraries of trainer.args", ("engine", "trainer.args"),
          lambda case: trainer.library_problems(case.cfg)),
    Check("libraries", "trainer.callbacks", ("engine", "trainer.callbacks"),
          lambda case: trainer.callback_problems(case.cfg)),
    Check("libraries", "callbacks", ("callbacks",), lambda case: own_callback_problems(case.cfg)),
    Check("libraries", "eval.metrics", ("eval.metrics", "task"), own_metric_problems),
    Check("libraries", "the adapters' libraries", ("model.peft.method",),
          lambda case: adapter_problems(case.cfg.model)),
    Check("machine", "the launcher's file", (),
          lambda case: (f"--config_file: {each}" for each in machine.launcher_problems())),
    Check("machine", "tracking.report_to", ("tracking.report_to",), lambda case: tracker_problems(case.cfg.tracking)),
    Check("machine", "checkpoint.push_to_hub", ("checkpoint.push_to_hub",),
          lambda case: hub_problems(case.cfg.checkpoint)),
    Check("machine", "train.mixed_precision", ("train.mixed_precision",),
          lambda case: machine.precision_problems(case.cfg)),
    Check("machine", "train.tf32", ("train.tf32",), lambda case: machine.tf32_problems(case.cfg)),
    Check("machine", "train.activation_offload", ("train.activation_offload",),
          lambda case: machine.offload_problems(case.cfg)),
    Check("machine", "model.attn_implementation", ("model.attn_implementation",),
          lambda case: machine.attention_problems(case.cfg)),
    Check("machine", "train.torch_compile", ("train.torch_compile", "train.torch_compile_backend"),
          lambda case: machine.compile_problems(case.cfg)),
    Check("model", "the model's configuration", _MODEL, model.config_problems),
    Check("model", "the model's weights", _MODEL, model.weight_problems),
    Check("model", "whether the model fits the task", (*_MODEL, "model.peft", "task"), model.fit_problems),
    Check("model", "whether the model can be built", _BUILT, model.build_problems),
    Check("model", "the patterns of model.freeze", (*_BUILT, "model.freeze", "model.unfreeze"), model.freeze_problems),
    Check("model", "whether model.peft fits the model", (*_BUILT, "model.peft", "seed"), model.adapter_fit_problems),
    Check("model", "parallel.tensor", (*_BUILT, "parallel.tensor", "parallel.sequence"), model.tensor_problems),
    Check("model", "parallel.context", (*_BUILT, "parallel.context"), model.context_problems),
    Check("model", "parallel.pipeline", (*_MODEL, "parallel.pipeline", "parallel.schedule"), model.pipeline_problems),
    Check("model", "parallel.expert", (*_BUILT, "parallel.expert"), model.expert_problems),
    Check("model", "the loss of a mixture's routers", (*_MODEL, "train.torch_compile", "model.peft", "task"),
          model.router_problems),
    Check("model", "trainer.args.neftune_noise_alpha", (*_BUILT, "engine", "trainer.args"), model.noise_problems),
    Check("model", "train.activation_checkpointing",
          (*_BUILT, "train.activation_checkpointing", "train.activation_compression", "train.activation_offload"),
          model.activation_problems),
    Check("model", "train.unpadded",
          (*_BUILT, "model.peft", "train.unpadded", "train.pad_to_multiple_of", "train.torch_compile"),
          model.padding_problems),
    Check("model", "learning rates of individual parameters",
          (*_BUILT, "train.learning_rate", "train.layerwise_lr_decay", "train.head_learning_rate"),
          model.rate_problems),
    Check("inputs", "the model's processor", (*_MODEL, "task"), model.processor_problems),
    Check("inputs", "model.config_overrides", (*_MODEL, "model.peft", "task"), model.override_problems),
    Check("inputs", "the dataset",
          ("offline_dir", "data.dataset_name", "data.dataset_config_name", "data.revision"), _dataset_problems),
    Check("rows", "the first rows of the data files", ("data", "eval.slices", "task"),
          lambda case: first_row_problems(case.cfg.data, case.task, case.cfg.eval.slices)),
    Check("rows", "whether the first rows fit the limits", (*_MODEL, "data", "task"), model.lost_row_problems),
    Check("folder", "output_dir", ("output_dir", "checkpoint.resume"), lambda case: folder_problems(case.cfg)),
    Check("processes", "the sizes in parallel", ("parallel",), _size_problems),
    Check("processes", "whether several processes can train the model",
          (*_MODEL, "train.ddp_find_unused_parameters"), model.process_problems),
)  # fmt: skip
"""All checks, by stage in the order in which problems are listed."""

LEFT_OUT_ELSEWHERE: dict[Stage, str] = {
    "libraries": "libraries of optimizers, adapters and parallelism, and callbacks",
    "machine": "GPUs, compilers, trackers and logins",
    "inputs": "the data files and their rows",
    "folder": "output_dir",
}
"""Stages that need the machine that trains, and what they are about."""


def examine(
    case: Case, elsewhere: bool = False, folder: bool = True, first_rows: bool = True, told: Told | None = None
) -> Findings:
    """Performs all checks of a run but those of `SETTINGS`; `told` prints the problems of each stage once it was asked.

    A training `elsewhere` skips checks of this machine; `folder` is false if the run will not write into `output_dir`.
    The first rows of the data files are checked also without `first_rows` if there is another problem.
    """
    left_out: dict[Stage, str] = dict(LEFT_OUT_ELSEWHERE) if elsewhere else {}
    if elsewhere and case.cfg.model.from_config is None:
        left_out["model"] = f"the model {case.cfg.model.name_or_path!r}, its cache, and patterns of its parameters"
    wanted: list[Stage] = ["task", "arguments", "libraries", "machine", "model", "inputs"]
    wanted += ["folder"] if folder else []
    wanted += [] if elsewhere else ["processes"]
    found = ask(CHECKS, case, [stage for stage in wanted if stage not in left_out], told)
    if not elsewhere and (first_rows or found.problems):
        found += ask(CHECKS, case, ["rows"], told)
    return found + Findings(unchecked=tuple(f"{what} (depends on the other machine)" for what in left_out.values()))


def check_run(cfg: Config, task: Task) -> None:
    """Raises ConfigError with all problems of a run that cannot work, before it loads anything.

    Problems that a run finds itself while reading its inputs are checked only if there are others.
    """
    case = Case(cfg, lambda _: task)
    found = ask(CHECKS, case, ["task", "arguments", "libraries", "machine", "model", "processes"])
    if found.problems:
        found += ask(CHECKS, case, ["inputs", "folder", "rows"])
    found.raise_problems()


def check_launch(cfg: Config, make_task: Callable[[Config], Task], num_processes: int) -> None:
    """Raises ConfigError with all problems of a run that other processes will start, before they load weights."""
    examine(Case(cfg, make_task, processes=num_processes), folder=False).raise_problems()


def check_settings(cfg: Config, task: Task, simulated: bool = False) -> Case:
    """Raises ConfigError if settings of a run that is only planned do not fit the task or the model.

    A step that is `simulated` needs the libraries of optimizers and adapters. Returns what was checked.
    """
    stages: list[Stage] = ["task", "arguments", "model"]
    stages += ["libraries"] if simulated else []
    case = Case(cfg, lambda _: task)
    ask(CHECKS, case, stages).raise_problems()
    return case


def check_steps(cfg: Config, milestones: Milestones, resume: Checkpoint | None) -> None:
    """Raises ConfigError if settings do not fit the number of steps, before the model is built.

    A run must not end before the checkpoint that it resumes, its warm-up or a moment of `model.unfreeze`.
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
