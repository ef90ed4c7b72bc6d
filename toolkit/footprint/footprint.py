"""What training takes of a device's memory, in parts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Footprint:
    """Memory of one process's training steps, in bytes, and what they compute.

    Args:
        parameters: all weights; tied ones once.
        buffers: what else the model holds.
        gradients: of all weights that are trained.
        optimizer_state: of the optimizer (`toolkit.optim.state.state_bytes`).
        copies: further copies of the weights: averages, anchors of local SGD.
        weight_copies: weights in the type of mixed precision, once the forward pass is done.
        activations: what the forward pass keeps for the backward pass.
        logits: the model's answer and what the loss makes of it.
        batch: the micro-batches of a window, or one of them where they wait elsewhere.
        working: what the moment of the peak holds besides, such as the gradients of activations, or what was computed
            anew.
        gradients_at_peak: gradients of weights that are there in the moment of the peak.
        peak: the most at any moment of a step. Less than the sum of the parts: gradients grow while activations go.
        step_peak: the most while the optimizer does its step.
        trained: number of weights that are trained.
        total: number of weights.
        flops: floating-point operations of forward and backward pass of one micro-batch.
        recomputed: part of `flops` that is done a second time.
        rows: rows of that micro-batch.
        layers: number of repeated layers, 0 if there are none that are known.
        layer_parameters: bytes of the largest of them, or of all weights.
        boundary: bytes of what one layer hands to the next, 0 if not known; of the one that hands on the most.
        crossing: bytes of what all of them hand on.
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

    @property
    def states(self) -> int:
        """What is there in every moment between two steps."""
        return self.parameters + self.buffers + self.optimizer_state + self.copies

    @property
    def passing(self) -> int:
        """What the peak holds besides."""
        return max(0, self.peak - self.states)
