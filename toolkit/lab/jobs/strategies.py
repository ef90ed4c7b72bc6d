"""The parallel strategies that `plan` estimates and `compare` measures: their settings, and when to use them."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod

from toolkit.base.errors import ConfigError
from toolkit.config.keys import to_yaml
from toolkit.config.sections import Config
from toolkit.config.train import ParallelConfig

BATCH, ACCUMULATION = "train.per_device_train_batch_size", "train.gradient_accumulation_steps"


@dataclass(frozen=True)
class Technique:
    """A strategy for a number of processes."""

    name: str  # its common name
    processes: int  # number of processes, which may be more than there are
    settings: Mapping[str, str]  # its settings by dotted keys, as on the command line
    complexity: str  # how hard it is to use
    when: str  # when to use it
    refused: str = ""  # why the toolkit does not support it; empty if it does

    @property
    def stages(self) -> int:
        """Number of stages of its pipeline."""
        return int(self.settings.get("parallel.pipeline", 1))

    @property
    def data_ranks(self) -> int:
        """Number of processes, or groups of them, that read different rows."""
        inside = (int(self.settings.get(f"parallel.{name}", 1)) for name in ("context", "tensor"))
        return self.processes // (self.stages * prod(inside))


def techniques(processes: int) -> list[Technique]:
    """Returns the strategies for a number of processes, at least 2, or for the least number that they need."""
    n = str(processes)
    four, eight = max(4, processes + processes % 2), max(8, processes + -processes % 4)
    hybrid = {"parallel.replicas": "2", "parallel.fsdp": str(four // 2)}
    cube = {"parallel.replicas": str(eight // 4), "parallel.tensor": "2", "parallel.pipeline": "2"}
    return [
        Technique("DDP", processes, {}, "low", "it fits one device: the usual choice"),
        Technique("local SGD", processes, {"train.strategy": "local_sgd"}, "low; another algorithm",
                  "the network is slow"),
        Technique("ZeRO-1", processes, {"parallel.zero_stage": "1"}, "low", "the optimizer's state does not fit"),
        Technique("ZeRO-2", processes, {"parallel.zero_stage": "2"}, "medium",
                  "state and gradients do not fit, but a copy of the weights does"),
        Technique("FSDP2 (ZeRO-3)", processes, {"parallel.fsdp": n}, "medium",
                  "the weights do not fit; needs a fast network"),
        Technique("HSDP", four, hybrid, "medium", "machines are linked slowly, and their own devices fast"),
        Technique("tensor", processes, {"parallel.tensor": n}, "high; per architecture",
                  "one layer does not fit; needs the fastest links"),
        Technique("pipeline, GPipe", processes, {"parallel.pipeline": n, "parallel.schedule": "gpipe"},
                  "high; needs accumulation", "to see what 1F1B saves"),
        Technique("pipeline, 1F1B", processes, {"parallel.pipeline": n}, "high; needs accumulation",
                  "the layers do not fit; the network is slow"),
        Technique("3D", eight, cube, "highest", "very large models on many machines"),
    ]  # fmt: skip


def by_deepspeed(processes: int) -> list[Technique]:
    """Returns the stages of ZeRO by DeepSpeed, if it is installed."""
    if importlib.util.find_spec("deepspeed") is None:
        return []
    settings = {stage: {"parallel.backend": "deepspeed", "parallel.zero_stage": stage} for stage in "123"}
    when = "as the same stage above, and you know DeepSpeed"
    return [Technique(f"ZeRO-{stage}, DeepSpeed", processes, each, "medium; another library", when)
            for stage, each in settings.items()]  # fmt: skip


def of_long_inputs(processes: int) -> Technique:
    """Returns context parallelism, which splits activations, and no weights."""
    when = "the activations of long texts do not fit"
    return Technique("context", processes, {"parallel.context": str(processes)}, "medium; per architecture", when)


OFFLOADED = "FSDP2, offload"
DATA_PARALLEL = Technique(
    "nn.DataParallel", 1, {}, "low", "never: DDP does the same faster",
    refused="is not supported: one process drives all GPUs with threads, copies the model to them in every step and "
    "gathers all outputs on one. PyTorch recommends DistributedDataParallel, the row DDP",
)  # fmt: skip
"""PyTorch's first strategy."""


def offloaded(processes: int) -> Technique:
    """Returns FSDP2 with weights, gradients and state in the CPU's memory, which helps on GPUs only."""
    settings = {"parallel.fsdp": str(processes), "parallel.offload": "true"}
    return Technique(OFFLOADED, processes, settings, "medium; slow", "nothing else fits the GPUs")


def window_settings(cfg: Config, technique: Technique, rows: int) -> dict[str, str]:
    """Returns the settings with which a step has `rows` rows over all processes, and a pipeline enough micro-batches.

    The largest possible micro-batch up to the configured one is chosen. Raises ConfigError if the rows cannot be
    divided.
    """
    train = cfg.train
    if train.global_batch_size is not None:
        batch = min(train.micro_batch, -(-rows // (technique.data_ranks * technique.stages)))
        return {} if batch == train.micro_batch else {BATCH: str(batch)}
    configured = {BATCH: train.micro_batch, ACCUMULATION: train.accumulation}
    for batch in range(train.micro_batch, 0, -1):
        accumulation, rest = divmod(rows, technique.data_ranks * batch)
        if not rest and accumulation >= technique.stages:
            found = {BATCH: batch, ACCUMULATION: accumulation}
            return {key: str(value) for key, value in found.items() if value != configured[key]}
    raise ConfigError([
        f"{BATCH}: the {rows} rows of a step cannot be divided over {technique.data_ranks} processes with different "
        f"rows and {technique.stages} stages; set it or {ACCUMULATION} to other values"
    ])  # fmt: skip


def plain_settings(cfg: Config) -> dict[str, str]:
    """Returns the settings that undo a configured strategy."""
    plain = ParallelConfig()
    found = {
        f"parallel.{field.name}": to_yaml(getattr(plain, field.name))
        for field in fields(plain)
        if getattr(cfg.parallel, field.name) != getattr(plain, field.name)
    }
    return found | ({"train.strategy": "sync"} if cfg.train.strategy != "sync" else {})
