"""The strategies, by which the processes of a run share its training."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from toolkit.api.mesh import Mesh
from toolkit.api.strategy import Strategy
from toolkit.base.console import warn
from toolkit.base.package import import_object
from toolkit.config.sections import Config

if TYPE_CHECKING:
    from accelerate import Accelerator

STRATEGIES = {
    "sync": "toolkit.distributed.strategies.ddp.DataParallel",
    "local_sgd": "toolkit.distributed.strategies.local_sgd.LocalSGD",
    "zero_one": "toolkit.distributed.strategies.ddp.ZeroOne",
    "sharded": "toolkit.distributed.strategies.sharded.Sharded",
    "pipeline": "toolkit.distributed.strategies.pipeline.Pipeline",
    "deepspeed": "toolkit.distributed.strategies.deepspeed.DeepSpeed",
    "auto_batch_size": "toolkit.distributed.strategies.auto_batch_size.AutoBatchSize",
}
"""The strategies of `train.strategy`, and the synchronous ones for split models and `train.auto_batch_size`."""


def strategy_type(cfg: Config, environ: Mapping[str, str] = os.environ) -> type[Strategy]:
    """Returns the class of the run's strategy; a single process always trains as with `sync`."""
    processes = int(environ.get("WORLD_SIZE", "1"))
    mesh = Mesh.of(cfg.parallel, processes)
    if cfg.parallel.backend == "deepspeed" and processes > 1:
        name = "deepspeed"
    elif mesh.pipeline > 1:
        name = "pipeline"
    elif mesh.is_split:
        name = "sharded"
    elif cfg.train.auto_batch_size:
        name = "auto_batch_size"
    elif cfg.parallel.zero_stage == 1 and processes > 1:
        name = "zero_one"
    else:
        name = cfg.train.strategy if processes > 1 else "sync"
    kind: type[Strategy] = import_object(STRATEGIES[name])
    return kind


def build_strategy(cfg: Config, accelerator: Accelerator, mesh: Mesh) -> Strategy:
    """Builds the run's strategy."""
    kind = strategy_type(cfg)
    if kind.name != cfg.train.strategy and not cfg.train.auto_batch_size:
        warn(f"train.strategy {cfg.train.strategy} needs several processes; this one trains as with sync.")
    if cfg.train.ddp_comm_hook != "no" and mesh.size == 1:
        warn(f"train.ddp_comm_hook {cfg.train.ddp_comm_hook} needs several processes; this one sends no gradients.")
    if cfg.parallel.zero_stage == 1 and cfg.parallel.splits and mesh.replicas == 1:
        warn("parallel.zero_stage 1 needs several replicas; this one keeps its optimizer's state to itself.")
    if cfg.parallel.backend == "deepspeed" and mesh.size == 1:
        warn("parallel.backend deepspeed needs several processes; this one trains as with torch.")
    return kind(accelerator, mesh, cfg)
