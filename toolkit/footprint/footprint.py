"""Memory of a training step by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Footprint:
    """Memory in bytes and floating-point operations of one process's training step.

    Args:
        parameters: all weights; tied weights count once.
        buffers: the model's buffers.
        gradients: gradients of all trained weights.
        optimizer_state: state of the optimizer (`toolkit.optim.state.state_bytes`).
        copies: further copies of the weights: averages, anchors of local SGD.
        weight_copies: weights in the mixed-precision type after the forward pass.
        activations: tensors saved by the forward pass for the backward pass.
        logits: outputs of the model and the loss.
        batch: the micro-batches of a window; on a GPU only one, since the others wait in the CPU's memory.
        working: other memory at the peak, such as gradients of activations or recomputed activations.
        gradients_at_peak: gradients of weights that exist at the peak.
        peak: largest memory during a step; less than the sum of the parts, because activations are freed while
            gradients are created.
        step_peak: largest memory during the optimizer's step.
        trained: number of trained weights.
        total: number of weights.
        flops: floating-point operations of forward and backward pass of one micro-batch.
        recomputed: part of `flops` that is recomputed.
        rows: rows of the micro-batch.
        layers: number of repeated layers, 0 if unknown.
        layer_parameters: bytes of the largest layer, or of all weights without layers.
        boundary: bytes of the largest output of a layer, 0 if unknown.
        crossing: bytes of the outputs of all layers.
        largest: bytes of the largest weight, whose state ZeRO-1 does not divide.
        single_rows: bytes of the weights that have one row, and so cannot be sharded.
        tensor_parameters: bytes of the weights that tensor parallelism splits, 0 if it has no plan for the model.
        tensor_summed: bytes of the outputs and gradients that its processes sum in a micro-batch.
        vocabulary_front: bytes of the embeddings that tensor parallelism splits by the vocabulary, 0 if there are none.
        vocabulary_back: bytes of the output head that it splits likewise; tied weights count in both.
        vocabulary_parameters: bytes of both, tied weights counted once.
        vocabulary_summed: bytes of the outputs, gradients and losses that are then summed in a micro-batch.
        vocabulary_rows: number of tokens of each.
        stage_layers: bytes of the weights of each layer, if a pipeline can separate the layers.
        stage_costs: multiplications of a token in each layer (`toolkit.distributed.pipeline.partition.Parts.costs`).
        stage_front: bytes of the weights that the first stage needs besides its layers.
        stage_back: bytes of the weights that the last stage needs besides its layers; tied weights count in both.
    """

    parameters: int
    buffers: int
    gradients: int
    optimizer_state: int
    copies: int
    weight_copies: int
    activations: int
    logits: int
    batch: int
    working: int
    gradients_at_peak: int
    peak: int
    step_peak: int
    trained: int
    total: int
    flops: int
    recomputed: int
    rows: int
    layers: int
    layer_parameters: int
    boundary: int
    crossing: int
    largest: int = 0
    single_rows: int = 0
    tensor_parameters: int = 0
    tensor_summed: int = 0
    vocabulary_front: int = 0
    vocabulary_back: int = 0
    vocabulary_parameters: int = 0
    vocabulary_summed: int = 0
    vocabulary_rows: Sequence[int] = ()
    stage_layers: Sequence[int] = ()
    stage_costs: Sequence[int] = ()
    stage_front: int = 0
    stage_back: int = 0

    @property
    def states(self) -> int:
        """Bytes that are allocated between two steps."""
        return self.parameters + self.buffers + self.optimizer_state + self.copies

    @property
    def passing(self) -> int:
        """Bytes at the peak beyond `states`."""
        return max(0, self.peak - self.states)
