"""Random numbers of dropout under tensor parallelism.

The processes of a tensor group have the same seed, since everything outside split layers must be the same on all of
them: with other masks, their residual streams would differ. Between the first and the last layer of a split attention
or MLP, each process has other heads or hidden units, and draws their masks with its own random numbers. So every mask
is independent, as on one process.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from toolkit.distributed.tensor.plans import COLUMNS, FUSED_COLUMNS, ROWS

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


class OwnDropout:
    """Gives each process of a tensor group its own random numbers inside split layers, while training.

    The seed is drawn from the common random numbers. These are then the same on all processes again, and activation
    checkpointing, which restores them, repeats the masks. Without dropout nothing is drawn.

    Args:
        config: the model's configuration.
        mesh: the processes, in one dimension.
    """

    def __init__(self, config: PreTrainedConfig, mesh: DeviceMesh) -> None:
        rates = [value for name, value in config.to_dict().items() if "dropout" in name or "pdrop" in name]
        self.needed = any(isinstance(rate, float) and rate > 0 for rate in rates)
        self.rank, self.device = mesh.get_local_rank(), mesh.device_type
        self.common: AbstractContextManager[None] | None = None

    def follow(self, module: nn.Module, style: str) -> None:
        """Watches a split layer if its outputs, or its inputs, differ between processes."""
        if self.needed and style in (COLUMNS, FUSED_COLUMNS):
            module.register_forward_pre_hook(self._begin)
        elif self.needed and style == ROWS:
            module.register_forward_pre_hook(self._end)

    def _begin(self, module: nn.Module, inputs: Any) -> None:
        if module.training and self.common is None:
            seed = int(torch.randint(2**62, ()))
            devices = [] if self.device == "cpu" else [torch.accelerator.current_device_index()]
            self.common = torch.random.fork_rng(devices, device_type=self.device)
            self.common.__enter__()
            torch.manual_seed(seed + self.rank)

    def _end(self, module: nn.Module, inputs: Any) -> None:
        if self.common is not None:
            self.common.__exit__(None, None, None)
            self.common = None
