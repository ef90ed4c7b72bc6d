"""Estimates what a process holds and sends if a model is trained by several, from its footprint on one device.

Sources: all-reduces, which send twice the share of `share_sent` (Patarasuk and Yuan 2009); local SGD (Stich 2018, arXiv
1805.09767); ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054), whose third stage is FSDP (Zhao et al. 2023, arXiv
2304.11277); tensor parallelism (Shoeybi et al. 2019, arXiv 1909.08053); pipelines (Huang et al. 2018, arXiv 1811.06965)
in the order 1F1B (Narayanan et al. 2020, arXiv 2006.09503).
"""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.api.mesh import Mesh, mesh_of
from toolkit.config.sections import Config
from toolkit.data.batching.budget import num_micro_batches
from toolkit.distributed.exchange import share_sent
from toolkit.distributed.pipeline.partition import partition
from toolkit.distributed.pipeline.schedules import CHUNKS, SCHEDULES
from toolkit.distributed.tensor.vocabulary import divides
from toolkit.footprint.simulate import Footprint


@dataclass(frozen=True)
class Estimate:
    """What a strategy costs.

    Args:
        parameters: bytes of weights and buffers of the process that holds the most.
        gradients: bytes of its gradients after a window; before, they may be complete.
        optimizer_state: bytes of its optimizer's state.
        peak: bytes of its tensors at the peak of a step.
        states: bytes that it holds between two steps.
        sent: bytes that a process sends per step, on average over processes.
        speed: rows per second relative to one device, if communication took no time.
    """

    parameters: int
    gradients: int
    optimizer_state: int
    peak: int
    states: int
    sent: int
    speed: float

    @property
    def passing(self) -> int:
        """Bytes at the peak beyond `states`."""
        return max(0, self.peak - self.states)


def estimated(f: Footprint, cfg: Config, processes: int) -> Estimate:
    """Estimates what a configuration costs each of several processes.

    Args:
        f: memory of a step with its micro-batch on a single device.
        cfg: a configuration that can be trained by these processes.
        processes: number of processes.
    """
    mesh, parallel, window = mesh_of(cfg.parallel, processes), cfg.parallel, num_micro_batches(cfg.train, f.rows)
    replica = max(_stages(f, mesh, parallel.schedule)) / f.parameters  # share of the weights, gathered if they are
    own = (replica + (mesh.fsdp - 1) * f.single_rows / f.parameters) / mesh.fsdp
    state = max(1 / processes, f.largest / f.parameters) if parallel.zero_stage == 1 else own
    # Gradients are exchanged once per window; until then, sharded models accumulate complete ones.
    accumulated = replica if window > 1 else own
    spared = f.activations - _activations(f, mesh, parallel.schedule, window)
    held = (0.0, accumulated if window > 1 else 0.0, 0.0) if parallel.offload else (own, accumulated, state)
    chunks = _chunks(parallel.schedule, mesh)
    return Estimate(
        parameters=round(own * f.parameters) + f.buffers,
        gradients=round(own * f.gradients),
        optimizer_state=round(state * f.optimizer_state),
        peak=_peak(f, replica, *held, spared, f.logits / _vocabulary(f, mesh)) + _copies(f, cfg, mesh, replica),
        states=round(f.buffers + held[0] * f.parameters + held[2] * (f.optimizer_state + f.copies)),
        sent=round(_sent(f, cfg, mesh)),
        speed=processes * window * chunks / (window * chunks + mesh.pipeline - 1),
    )


def _chunks(schedule: str, mesh: Mesh) -> int:
    return CHUNKS.get(schedule, 1) if mesh.pipeline > 1 else 1


def _vocabulary(f: Footprint, mesh: Mesh) -> int:
    """Returns the number of processes over which the vocabulary is split."""
    split = f.vocabulary_rows and divides(f.vocabulary_rows, mesh.tensor, mesh.fsdp)
    return mesh.tensor if split else 1


def _stages(f: Footprint, mesh: Mesh, schedule: str) -> list[float]:
    """Returns the bytes of the weights of each stage, of which tensor ranks hold a part; shards count as gathered."""
    spared, of_vocabulary = 1 - 1 / mesh.tensor, 1 - 1 / _vocabulary(f, mesh)
    if mesh.pipeline == 1:
        return [f.parameters - spared * f.tensor_parameters - of_vocabulary * f.vocabulary_parameters]
    in_layers = 1 - spared * f.tensor_parameters / sum(f.stage_layers)
    ranges = partition(f.stage_costs, mesh.pipeline * _chunks(schedule, mesh))
    held = [
        in_layers * sum(f.stage_layers[layer] for stage in ranges[rank :: mesh.pipeline] for layer in stage)
        for rank in range(mesh.pipeline)
    ]
    held[0] += f.stage_front - of_vocabulary * f.vocabulary_front
    held[-1] += f.stage_back - of_vocabulary * f.vocabulary_back
    return held


def _activations(f: Footprint, mesh: Mesh, schedule: str, window: int) -> float:
    """Returns the bytes of the activations that the first stage keeps, where the most micro-batches are under way."""
    # Tensor parallelism does not split what passes from layer to layer.
    complete = min(f.crossing, f.activations)
    kept = complete + (f.activations - complete) / mesh.tensor
    if mesh.pipeline == 1:
        return kept
    chunks, under_way, most = _chunks(schedule, mesh), 0, 0
    actions = SCHEDULES[schedule](0, mesh.pipeline, chunks, window)
    frees = actions[-1].kind  # backward passes, or those for weights, if they are separate
    for action in actions:
        under_way += (action.kind == "forward") - (action.kind == frees)
        most = max(most, under_way)
    return kept * most / (mesh.pipeline * chunks)


def _peak(
    f: Footprint, replica: float, parameters: float, gradients: float, state: float, spared: float, logits: float
) -> int:
    """Returns the peak in bytes of a process that holds only parts of a single device's memory.

    Without all gradients, the peak may move to the beginning of the backward pass.

    Args:
        f: memory of a step on a single device.
        replica: share of the weights that the process computes with, and so of their mixed-precision copies.
        parameters: share of the weights that it holds between two steps.
        gradients: share of the gradients that it holds at the peak.
        state: share of the optimizer's state and copies of weights that it holds.
        spared: bytes of activations that it does not hold.
        logits: bytes of the logits that it holds.
    """
    states = f.states - (1 - parameters) * f.parameters - (1 - state) * (f.optimizer_state + f.copies)
    copies = (1 - replica) * f.weight_copies
    late = f.gradients_at_peak > f.gradients / 2  # weight copies are freed as gradients are created
    passing = f.passing - (1 - gradients) * f.gradients_at_peak - spared - (0 if late else copies)
    turning = f.activations + logits + f.batch + f.weight_copies - copies - spared
    stepping = f.step_peak - f.states - (1 - gradients) * f.gradients
    return round(states + max(0.0, passing, turning, stepping))


def _copies(f: Footprint, cfg: Config, mesh: Mesh, replica: float) -> int:
    """Returns the bytes that a strategy needs in addition, given the share of the weights when they are gathered."""
    parallel, train = cfg.parallel, cfg.train
    if mesh.fsdp > 1:
        keeps = parallel.zero_stage == 2 or not parallel.reshard_after_forward
        return round(replica * (f.parameters if keeps else min(f.parameters, 2 * f.layer_parameters)))
    if mesh.is_split or mesh.size == 1:
        return 0
    if train.strategy == "local_sgd":
        return 2 * f.gradients if train.local_sgd_outer_lr is not None else 0
    return f.gradients  # the buckets of DistributedDataParallel


def _sent(f: Footprint, cfg: Config, mesh: Mesh) -> float:
    """Returns the bytes that a process sends per step, on average over processes."""
    parallel, train, window = cfg.parallel, cfg.train, num_micro_batches(cfg.train, f.rows)
    away, all_reduced = share_sent(mesh.fsdp), 2 * share_sent(mesh.replicas)
    if not mesh.is_split:
        if train.strategy == "local_sgd":
            moments = f.optimizer_state if train.local_sgd_average_moments else 0
            return all_reduced * (f.gradients + moments) / train.local_sgd_steps
        updated = f.gradients if parallel.zero_stage == 1 else 0  # each owner sends its weights to all
        return all_reduced * (f.gradients + (f.buffers + updated) / 2)
    stages = _stages(f, mesh, parallel.schedule)
    weights = sum(stages) / mesh.pipeline
    gradients = weights * f.gradients / f.parameters
    keeps = parallel.zero_stage == 2 or not parallel.reshard_after_forward
    # Collectives of shards have the same size on every process, so what has a single row is padded.
    padded = 1 + (mesh.fsdp - 1) * f.single_rows / f.parameters
    gathered = away * ((1 if keeps else 2 * window) * weights + gradients) * padded
    sums = f.tensor_summed + (f.vocabulary_summed if _vocabulary(f, mesh) > 1 else 0)
    summed = 2 * share_sent(mesh.tensor) * sums * window / mesh.pipeline
    passed = 0.0
    if mesh.pipeline > 1:
        tied = (f.stage_front + sum(f.stage_layers) + f.stage_back - f.parameters) / _vocabulary(f, mesh)
        borders = mesh.pipeline * _chunks(parallel.schedule, mesh) - 1
        passed = 2 * (borders * f.boundary * window + tied) / mesh.pipeline
    return gathered + all_reduced * gradients / mesh.fsdp + summed + passed
