"""The section `parallel`: how the processes of a launch share one model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from toolkit.config.fields import STRICT, Positive


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How processes share the model. The product of the sizes must be the number of processes.

    Processes that are not used to split the model are replicas of it. Results do not depend on these settings, except
    for rounding and the random numbers of dropout.
    """

    __pydantic_config__ = STRICT

    replicas: Positive | None = None
    """Number of copies of the model (data parallel). Null: as many as the processes allow."""
    fsdp: Positive = 1
    """Number of processes that split each copy's parameters, gradients and optimizer state, and gather a layer when it
    is needed (FSDP2). Each reads other rows. With `replicas` above 1: hybrid sharding (HSDP)."""
    tensor: Positive = 1
    """Number of processes that split the attention heads and the MLP of each layer (tensor parallel). They read the
    same rows. Language models also split embeddings, output head and logits by the vocabulary. Norms and other heads
    stay complete on each. An architecture needs a plan, and the number must divide its heads."""
    pipeline: Positive = 1
    """Number of processes that split the layers into stages (pipeline parallel). They read the same rows; the
    micro-batches of a window (`train.gradient_accumulation_steps`) pass through the stages one after another."""
    schedule: Literal["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"] = "1f1b"
    """Order of the passes in a pipeline. `gpipe`: all forward passes, then all backward passes; `1f1b`: backward passes
    as early as possible, which keeps fewer activations; `interleaved_1f1b`: 1F1B with two chunks of layers per process,
    which wait less and send more; `zero_bubble`: 1F1B that computes gradients of weights while it would wait (ZB-H1).
    Gradients do not depend on the schedule."""
    reshard_after_forward: bool = True
    """Frees gathered parameters between the forward and the backward pass, which gathers them again (`fsdp`)."""
    offload: bool = False
    """Keeps parameters, gradients and optimizer state in CPU memory while they are not needed on the GPU (`fsdp`). With
    `backend: deepspeed`, stages 1 and 2 keep only the optimizer's state there."""
    zero_stage: Literal[1, 2, 3] | None = None
    """ZeRO's names. 1: replicas that each keep a part of the optimizer's state. 2 and 3: FSDP over all processes, where
    2 keeps gathered parameters for a window."""
    backend: Literal["torch", "deepspeed"] = "torch"
    """The library that does `zero_stage`. `deepspeed` (extra `deepspeed`) splits over all processes, in float32."""

    @property
    def shards(self) -> bool:
        """Whether parameters are sharded."""
        return self.fsdp > 1 or self.zero_stage in (2, 3)

    @property
    def splits(self) -> bool:
        """Whether the model is split over processes."""
        return self.shards or self.tensor > 1 or self.pipeline > 1
