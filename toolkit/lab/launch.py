"""How a command of the lab starts the processes of its runs, and how many rows their steps have."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.api.mesh import mesh_of
from toolkit.api.task import Task
from toolkit.base.errors import InputError
from toolkit.config.launcher import LAUNCHER
from toolkit.config.sections import Config
from toolkit.config.source import read_file
from toolkit.recipe import launcher_file, load_settings


@dataclass(frozen=True)
class Launch:
    """How the processes of a run are started.

    Args:
        file: configuration of `accelerate launch`, or None.
        processes: number of processes.
        environ: the environment variables that this file sets and that a run's settings depend on.
    """

    file: Path | None
    processes: int
    environ: Mapping[str, str]

    @staticmethod
    def of(file: str | None, processes: int | None) -> Launch:
        """Reads a launcher's file, given by its path or name; without one, this machine starts `processes` processes.

        Raises:
            InputError: if there is no such file, it cannot be read, is for several machines, or sets no number of
                processes.
        """
        if file is None:
            return Launch(None, processes or 1, {})
        found = launcher_file(file)
        values = read_file(found).values
        if "rdzv_backend" in values or values.get("num_machines", 1) != 1:
            raise InputError(f"--launch: {file} is for several machines, but this command starts its runs on one")
        count = processes or values.get("num_processes") or (1 if values.get("distributed_type") == "NO" else None)
        if count is None:
            raise InputError(f"--launch: {file} does not set num_processes; set --processes N")
        environ = {variable: str(values[name]) for name, (variable, *_) in LAUNCHER.items() if name in values}
        return Launch(found, int(count), environ)

    def check(self, needed: int) -> None:
        """Checks that there are at least `needed` processes and, on a machine with GPUs, one GPU for each process.

        Raises:
            InputError: if there are fewer.
        """
        import torch

        if self.processes < needed:
            raise InputError(f"{needed} processes are needed, received {self.processes}; set --processes {needed}")
        if self.file is None and 0 < torch.cuda.device_count() < self.processes:
            raise InputError(
                f"{self.processes} processes need as many GPUs, and this machine has {torch.cuda.device_count()}; set "
                "--launch cpu_2proc to use the CPU"
            )

    def load(self, task_type: type[Task], file: str, overrides: Sequence[str]) -> Config:
        """Returns the configuration that a run has if it is started in this way.

        Raises:
            ConfigError: if a setting is invalid.
        """
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
        return load_settings(task_type, file, overrides, environ={**environ, **self.environ}).config


def step_rows(cfg: Config, processes: int) -> int:
    """Returns the number of training rows per step, over all processes."""
    batch, accumulation = batch_and_accumulation(cfg)
    return batch * accumulation * mesh_of(cfg.parallel, processes).data_size


def batch_and_accumulation(cfg: Config) -> tuple[int, int]:
    """Returns the rows of a micro-batch, and the micro-batches of a step on each process."""
    return cfg.train.per_device_train_batch_size, cfg.train.gradient_accumulation_steps or 1
