"""Settings that follow from the launch, or that `accelerate launch` passes to its processes and must agree with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from toolkit.config.keys import _hints
from toolkit.config.messages import Key, choices, show
from toolkit.config.sections import Config, TrainConfig
from toolkit.config.source import Settings, Source
from toolkit.config.train import ParallelConfig

LAUNCHER: dict[str, tuple[str, str, Any]] = {
    "mixed_precision": ("ACCELERATE_MIXED_PRECISION", "no", "no"),
    "gradient_accumulation_steps": ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "auto", 1),
}
"""Field of `train`: the launcher's variable, the variable's value if the user did not set it, and our default.
`accelerate launch` always sets the precision, by default to `no`."""

USE_FSDP = "ACCELERATE_USE_FSDP"
"""Whether the launcher asks for FSDP; the toolkit shards the model itself, so accelerate must not see it."""
FSDP: dict[str, tuple[str, bool]] = {
    "reshard_after_forward": ("FSDP_RESHARD_AFTER_FORWARD", True),
    "offload": ("FSDP_OFFLOAD_PARAMS", False),
}
"""Field of `parallel`: the launcher's variable, and the default of both."""
NOT_TRANSLATED: dict[str, tuple[frozenset[str], str]] = {
    "FSDP_VERSION": (frozenset({"2"}), "set fsdp_version to 2"),
    "FSDP_AUTO_WRAP_POLICY": (
        frozenset({"TRANSFORMER_BASED_WRAP", "NO_WRAP"}),
        "remove fsdp_auto_wrap_policy: each layer of the model is sharded",
    ),
    "FSDP_TRANSFORMER_CLS_TO_WRAP": (frozenset(), "remove fsdp_transformer_layer_cls_to_wrap: layers are found"),
    "FSDP_ACTIVATION_CHECKPOINTING": (
        frozenset({"false"}),
        "remove fsdp_activation_checkpointing and set train.activation_checkpointing to full",
    ),
    "FSDP_IGNORED_MODULES": (frozenset(), "remove fsdp_ignored_modules: every parameter is sharded"),
}
"""Other variables of the launcher: values that change nothing, and what to do about any other."""
USE_DEEPSPEED = "ACCELERATE_USE_DEEPSPEED"
"""Whether the launcher asks for DeepSpeed; the toolkit drives its engine itself, so accelerate must not see it."""
ZERO_STAGE, GRADIENT_CLIPPING = "ACCELERATE_DEEPSPEED_ZERO_STAGE", "ACCELERATE_GRADIENT_CLIPPING"
OFFLOAD_OPTIMIZER, OFFLOAD_PARAMETERS = (
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
)
NOT_TRANSLATED_DEEPSPEED: dict[str, tuple[frozenset[str], str]] = {
    "ACCELERATE_DEEPSPEED_CONFIG_FILE": (
        frozenset(),
        "remove deepspeed_config_file: its settings are those of the YAML",
    ),
    OFFLOAD_OPTIMIZER: (frozenset({"cpu"}), "set offload_optimizer_device to none or cpu"),
    OFFLOAD_PARAMETERS: (frozenset({"cpu"}), "set offload_param_device to none or cpu"),
    "ACCELERATE_DEEPSPEED_ZERO3_INIT": (
        frozenset({"false"}),
        "set zero3_init_flag to false: only the main process builds the complete model anyway",
    ),
    "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES": (frozenset(), "remove deepspeed_moe_layer_cls_names"),
}
"""The same for DeepSpeed. The final model is always complete, whatever `zero3_save_16bit_model` says."""
_TRUE = {"1", "true", "yes", "on", "t", "y"}


def ask_launcher(settings: Settings, environ: Mapping[str, str]) -> None:
    """Fills in values that the file leaves to the launcher; reports values that both set differently."""
    for field, (variable, silent, default) in LAUNCHER.items():
        key = ("train", field)
        text, own = environ.get(variable, "").strip().lower(), settings.get(key)
        asked = int(text) if text.isdecimal() else text
        allowed = choices(_hints(TrainConfig)[field])
        if asked in ("", silent):
            if own is None:
                settings.set(key, default, settings.default)
        elif own is None or (allowed and asked not in allowed):
            settings.set(key, asked, Source("launcher", f"launcher {variable}={text}"))
        elif asked != own:
            settings.report(
                key,
                f"received {show(own)}, but the launcher says {show(asked)} ({variable}); set "
                f"train.{field} to null, which means the launcher's value, or start "
                f"`accelerate launch` with --{field} {own}",
            )
    if environ.get(USE_FSDP, "").lower() in _TRUE:
        _translate_fsdp(settings, environ)
    if environ.get(USE_DEEPSPEED, "").lower() in _TRUE:
        _translate_deepspeed(settings, environ)


def divide_window(config: Config, settings: Settings, environ: Mapping[str, str]) -> Config:
    """Returns the settings with the micro-batches of this launch's processes; reports those that do not agree."""
    train, parallel = config.train, config.parallel
    rows, steps = train.global_batch_size, train.gradient_accumulation_steps
    if rows is None:
        return replace(config, train=replace(train, per_device_train_batch_size=train.micro_batch))
    processes = int(environ.get("WORLD_SIZE", "1"))
    divided, ranks = with_processes(config, processes), data_ranks(parallel, processes)
    batch, found = divided.train.micro_batch, divided.train.accumulation
    if rows < ranks:
        settings.report(
            ("train", "global_batch_size"),
            f"received {rows}, but {ranks} processes train on rows of their own; raise it, or start fewer processes",
        )
    key = ("train", "gradient_accumulation_steps")
    if steps not in (None, found) and settings.source(key).origin != "default":
        settings.report(
            key,
            f"received {steps}, but the {rows} rows of a step (train.global_batch_size) take {found} with {ranks} x "
            f"{batch} rows at once (data ranks x train.per_device_train_batch_size); set it to null",
        )
    return divided


def data_ranks(parallel: ParallelConfig, processes: int) -> int:
    """Returns the number of processes, or groups of them, that read different rows."""
    return max(1, processes // (parallel.context * parallel.tensor * parallel.pipeline))


def with_processes(config: Config, processes: int) -> Config:
    """Returns settings whose `train.global_batch_size`, if any, is divided over a number of processes."""
    train, parallel = config.train, config.parallel
    if train.global_batch_size is None:
        return config
    part = -(-train.global_batch_size // data_ranks(parallel, processes))
    share = -(-part // parallel.pipeline)
    if -(-part // share) < parallel.pipeline:  # 9 rows are 3 micro-batches of 3 rows, but a pipeline has 4 stages
        share = max(1, part // parallel.pipeline)
    batch = min(train.per_device_train_batch_size or share, part)
    steps = -(-part // batch)
    return replace(config, train=replace(train, per_device_train_batch_size=batch, gradient_accumulation_steps=steps))


def _translate_fsdp(settings: Settings, environ: Mapping[str, str]) -> None:
    """Translates a launcher file with `distributed_type: FSDP` into the section `parallel`."""
    given = settings.get(("parallel",))
    parallel = given if isinstance(given, dict) else {}
    key = ("parallel", "fsdp")
    for name in [name for name in ("fsdp", "zero_stage") if parallel.get(name) == 1]:
        text = f"received 1, but the launcher asks for FSDP ({USE_FSDP}); remove one of the two"
        settings.report(("parallel", name), text)
    if parallel.get("fsdp") is None and parallel.get("zero_stage") is None:
        sizes = map(parallel.get, ("replicas", "context", "tensor"))
        others = [size for size in sizes if isinstance(size, int) and size > 0]
        processes = int(environ.get("WORLD_SIZE", "1")) // prod(others)
        settings.set(key, max(1, processes), Source("launcher", f"launcher {USE_FSDP}=true"))
    for field, (variable, default) in FSDP.items():
        _agree(settings, ("parallel", field), environ.get(variable, str(default)).lower() in _TRUE, variable, default)
    _reject_others(settings, key, environ, NOT_TRANSLATED)


def _translate_deepspeed(settings: Settings, environ: Mapping[str, str]) -> None:
    """Translates a launcher file with `distributed_type: DEEPSPEED` into the section `parallel`."""
    stage, clipping = environ.get(ZERO_STAGE, "2"), environ.get(GRADIENT_CLIPPING, "none")
    optimizer, parameters = (environ.get(name, "none") for name in (OFFLOAD_OPTIMIZER, OFFLOAD_PARAMETERS))
    if parameters != (optimizer if stage == "3" else "none"):
        settings.report(
            ("parallel", "offload"),
            f"the launcher says offload_optimizer_device {optimizer} and offload_param_device {parameters} with stage "
            f"{stage}; in stage 3 both move to the CPU or none, in stages 1 and 2 only the optimizer can",
        )
    _agree(settings, ("parallel", "backend"), "deepspeed", USE_DEEPSPEED, "torch")
    _agree(settings, ("parallel", "zero_stage"), int(stage), ZERO_STAGE, None)
    _agree(settings, ("parallel", "offload"), optimizer == "cpu", OFFLOAD_OPTIMIZER, False)
    if clipping != "none":
        _agree(settings, ("train", "max_grad_norm"), float(clipping), GRADIENT_CLIPPING, None)
    _reject_others(settings, ("parallel", "backend"), environ, NOT_TRANSLATED_DEEPSPEED)


def _agree(settings: Settings, key: Key, asked: Any, variable: str, default: Any) -> None:
    """Fills in what the launcher asks for, or reports that the file says something else."""
    own = settings.get(key)
    if own is None and asked != default:
        settings.set(key, asked, Source("launcher", f"launcher {variable} ({show(asked)})"))
    elif own is not None and asked != own:
        settings.report(
            key, f"received {show(own)}, but the launcher says {show(asked)} ({variable}); set both to the same"
        )


def _reject_others(
    settings: Settings, key: Key, environ: Mapping[str, str], others: Mapping[str, tuple[frozenset[str], str]]
) -> None:
    """Reports variables of the launcher that ask for what the toolkit does not do."""
    for variable, (harmless, remedy) in others.items():
        text = environ.get(variable, "")
        if text and text not in harmless and text.lower() != "none":
            settings.report(key, f"the launcher says {variable}={text}, which the toolkit does not use; {remedy}")
