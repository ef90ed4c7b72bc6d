"""Estimates what a process holds and sends if a model is trained by several, from its footprint on one device.

Sources: all-reduces, which send twice the share of `share_sent` (Patarasuk and Yuan 2009); local SGD (Stich 2018, arXiv
1805.09767); ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054), whose third stage is FSDP (Zhao et al. 2023, arXiv
2304.11277); tensor parallelism (Shoeybi et al. 2019, arXiv 1909.08053); pipelines (Huang et al. 2018, arXiv 1811.06965)
in the order 1F1B (Narayanan et al. 2020, arXiv 2006.09503). Times are those of the machines `MACHINE`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from toolkit.api.mesh import Mesh
from toolkit.config.sections import Config
from toolkit.data.batching.budget import num_micro_batches
from toolkit.distributed.exchange import share_sent
from toolkit.distributed.pipeline.partition import partition
from toolkit.distributed.pipeline.schedules import CHUNKS, SCHEDULES
from toolkit.distributed.tensor.vocabulary import divides
from toolkit.footprint.simulate import Footprint
from toolkit.models.segments import gathered_again


@dataclass(frozen=True)
class Machine:
    """Devices and links that times are estimated for."""

    name: str
    devices: int  # number of devices in a machine
    flops: float  # operations per second of a device with 16-bit matrices
    flops_of_tf32: float  # the same with TensorFloat32
    flops_of_float32: float  # the same in float32
    reached: float  # share of them that training reaches
    inside: float  # bytes per second that a device sends to others of its machine
    outside: float  # bytes per second that a device sends to another machine
    to_cpu: float  # bytes per second between a device and the CPU's memory


MACHINE = Machine("DGX A100", 8, 312e12, 156e12, 19.5e12, 0.5, 300e9, 25e9, 32e9)
"""Sources: NVIDIA's data sheets of the A100 80 GB SXM (operations; half of NVLink's 600 GB/s and of PCIe's 64 GB/s,
which count both directions) and of the DGX A100 (eight 200 Gbit/s links); training GPT-3 reached 52 % of the operations
(Narayanan et al. 2021, arXiv 2104.04473)."""


@dataclass(frozen=True)
class Estimate:
    """What a strategy costs."""

    parameters: int  # bytes of weights and buffers of the process that holds the most
    gradients: int  # bytes of its gradients after a window; before, they may be complete
    optimizer_state: int  # bytes of its optimizer's state
    peak: int  # bytes of its tensors at the peak of a step
    states: int  # bytes that it holds between two steps
    sent: int  # bytes that a process sends per step, on average over processes
    speed: float  # rows per second relative to one device, if communication took no time
    waiting: float  # share of a step in which a stage of a pipeline waits
    seconds: float  # time of a step on `MACHINE`

    @property
    def passing(self) -> int:
        """Bytes at the peak beyond `states`."""
        return max(0, self.peak - self.states)


def estimated(f: Footprint, cfg: Config, processes: int) -> Estimate:
    """Estimates the costs of a configuration for each of several processes, from its footprint on a single device."""
    mesh, parallel, window = Mesh.of(cfg.parallel, processes), cfg.parallel, num_micro_batches(cfg.train, f.rows)
    replica = max(_stages(f, mesh, parallel.schedule)) / f.parameters  # share of the weights, gathered if they are
    own = (replica + (mesh.fsdp - 1) * f.single_rows / f.parameters) / mesh.fsdp
    state = own
    if parallel.zero_stage == 1:  # each matrix has one owner
        state = min(own, max(own / mesh.replicas, f.largest / f.parameters / mesh.tensor))
    # Unless gradients of shards are exchanged in each micro-batch, they are complete until the window's end.
    accumulated = replica if window > 1 and not _synced(cfg) else own
    spared = f.activations - _activations(f, mesh, parallel.schedule, window)
    held = (0.0, accumulated if window > 1 else 0.0, 0.0) if parallel.offload else (own, accumulated, state)
    chunks = _chunks(parallel.schedule, mesh)
    copied = 0.0 if _gathers_16_bits(cfg, mesh) else replica
    peak = _peak(f, mesh, copied, *held, spared) + _copies(f, cfg, mesh, replica)
    states = f.buffers + held[0] * f.parameters + held[2] * (f.optimizer_state + f.copies)
    if mesh.is_split and (mesh.context > 1 or mesh.replicas > 1 == mesh.fsdp):
        peak = max(peak, round(states + 2 * own * f.gradients))  # gradients, and the copy in which they are averaged
    waiting = (mesh.pipeline - 1) / (window * chunks + mesh.pipeline - 1)
    sent = _sent(f, cfg, mesh)
    return Estimate(
        parameters=round(own * f.parameters) + f.buffers, gradients=round(own * f.gradients),
        optimizer_state=round(state * f.optimizer_state), peak=peak, states=round(states),
        sent=round(sum(sent.values())), speed=processes * (1 - waiting), waiting=waiting,
        seconds=_seconds(f, cfg, mesh, sent, waiting, own),
    )  # fmt: skip


def _seconds(f: Footprint, cfg: Config, mesh: Mesh, sent: dict[str, float], waiting: float, own: float) -> float:
    """Returns the time of a step on `MACHINE`.

    Shards are gathered during computation (Zhao et al. 2023); what tensor parallelism sums, stages pass on and replicas
    average is waited for. Neighbours of the innermost dimensions share a machine.
    """
    window, train = num_micro_batches(cfg.train, f.rows), cfg.train
    rate = MACHINE.flops_of_tf32 if train.tf32 else MACHINE.flops_of_float32
    if train.mixed_precision not in (None, "no"):
        rate = MACHINE.flops
    computing = f.flops * window / (mesh.context * mesh.tensor * mesh.pipeline * rate * MACHINE.reached) / (1 - waiting)
    inner, taken = 1, {}
    for name in ("tensor", "context", "fsdp", "replicas", "pipeline"):
        inner *= mesh.sizes[name]
        taken[name] = sent[name] / (MACHINE.inside if inner <= MACHINE.devices else MACHINE.outside)
    moved = own * (2 * window * f.parameters + window * f.gradients) if cfg.parallel.offload else 0.0
    return max(computing, taken.pop("fsdp")) + sum(taken.values()) + moved / MACHINE.to_cpu


def _gathers_16_bits(cfg: Config, mesh: Mesh) -> bool:
    """Returns whether shards are gathered in 16 bits, so that no other copies of weights are made."""
    return mesh.fsdp > 1 and cfg.train.mixed_precision == "bf16"


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
    ranges = _partition(tuple(f.stage_costs), mesh.pipeline * _chunks(schedule, mesh))
    held = [
        in_layers * sum(f.stage_layers[layer] for stage in ranges[rank :: mesh.pipeline] for layer in stage)
        for rank in range(mesh.pipeline)
    ]
    held[0] += f.stage_front - of_vocabulary * f.vocabulary_front
    held[-1] += f.stage_back - of_vocabulary * f.vocabulary_back
    return held


_partition = cache(partition)


@cache
def _under_way(schedule: str, processes: int, chunks: int, window: int) -> int:
    """Returns the most micro-batches whose activations the first stage keeps, those of each chunk counted apart."""
    count, most = 0, 0
    actions = SCHEDULES[schedule](0, processes, chunks, window)
    frees = actions[-1].kind  # backward passes, or those for weights, if they are separate
    for action in actions:
        count += (action.kind == "forward") - (action.kind == frees)
        most = max(most, count)
    return most


def _activations(f: Footprint, mesh: Mesh, schedule: str, window: int) -> float:
    """Returns the bytes of the activations that the first stage keeps, where the most micro-batches are under way."""
    # Tensor parallelism does not split what passes from layer to layer.
    complete = min(f.crossing, f.activations)
    kept = complete + (f.activations - complete) / mesh.tensor
    if mesh.pipeline == 1:
        return kept / mesh.context
    chunks = _chunks(schedule, mesh)
    return kept * _under_way(schedule, mesh.pipeline, chunks, window) / (mesh.pipeline * chunks)


HELD = ("parameters", "buffers", "optimizer")
"""Kinds of memory that are held between two steps."""


def _peak(
    f: Footprint, mesh: Mesh, replica: float, parameters: float, gradients: float, state: float, spared: float
) -> int:
    """Returns the peak in bytes of a process that holds only these shares of a single device's memory.

    `replica` is the share of weights that it copies, `parameters` that it holds between two steps; `spared` are bytes
    of activations that it does not hold. Without all gradients, the peak may move to another phase.
    """
    states = f.states - (1 - parameters) * f.parameters - (1 - state) * (f.optimizer_state + f.copies)
    kept = 1 - spared / f.activations if f.activations else 1.0
    vocabulary = _vocabulary(f, mesh) * mesh.context
    shares = {"gradients": gradients, "weight_copies": replica, "activations": kept, "logits": 1 / vocabulary}
    shares["working"] = 1 / (mesh.context * (mesh.tensor if f.recomputed else 1))
    # Of shards, a weight's gradient is in `_copies`, and so is all other working memory if nothing is recomputed.
    spare = 0.0 if mesh.fsdp == 1 else f.largest if f.recomputed else math.inf
    held = [
        sum(shares.get(kind, 1.0) * size for kind, size in phase.items() if kind not in HELD)
        - shares["working"] * min(spare, phase.get("working", 0))
        for phase in f.phases
    ]
    turning = kept * f.activations + f.logits / vocabulary + replica * f.weight_copies
    stepping = f.step_peak - f.states - (1 - gradients) * f.gradients
    waiting = f.batch - max((phase.get("batch", 0) for phase in f.phases), default=0)
    return round(states + max(0.0, *(each + waiting for each in held), turning + f.batch, stepping))


def _copies(f: Footprint, cfg: Config, mesh: Mesh, replica: float) -> int:
    """Returns the bytes that a strategy needs in addition, given the share of the weights when they are gathered."""
    parallel, train = cfg.parallel, cfg.train
    if mesh.fsdp > 1:
        width, times = (0.5, 2.5) if _gathers_16_bits(cfg, mesh) else (1.0, 4.0)
        if parallel.zero_stage == 2 or not parallel.reshard_after_forward:
            return round(replica * f.parameters * width)
        # Of a layer, or of all that is in none: gathered, flat and in parts, one ahead of its use; its gradient, and
        # what is sent of it. Of the other one, a gathered copy.
        parts = sorted((f.layer_parameters, f.parameters - f.layers * f.layer_parameters))
        held = (times + 1 / mesh.fsdp) * parts[1] + width * parts[0]
        return round(min(replica * f.parameters, min(1.0, replica * mesh.pipeline) * held))
    if mesh.is_split or mesh.size == 1:
        return 0
    if train.strategy == "local_sgd":
        return 2 * f.gradients if train.local_sgd_outer_lr is not None else 0
    return f.gradients  # the buckets of DistributedDataParallel


def _synced(cfg: Config) -> bool:
    return cfg.parallel.gradient_sync == "micro_batch"


def _sent(f: Footprint, cfg: Config, mesh: Mesh) -> dict[str, float]:
    """Returns the bytes that a process sends per step for each dimension of the mesh, on average over processes."""
    parallel, train, window = cfg.parallel, cfg.train, num_micro_batches(cfg.train, f.rows)
    away, all_reduced = share_sent(mesh.fsdp), 2 * share_sent(mesh.replicas)
    if not mesh.is_split:
        if train.strategy == "local_sgd":
            moments = f.optimizer_state if train.local_sgd_average_moments else 0
            averaged = (f.gradients + moments) / train.local_sgd_steps
        else:
            updated = f.gradients if parallel.zero_stage == 1 else 0  # each owner sends its weights to all
            averaged = f.gradients + (f.buffers + updated) / 2
        return dict.fromkeys(mesh.sizes, 0.0) | {"replicas": all_reduced * averaged}
    stages = _stages(f, mesh, parallel.schedule)
    weights = sum(stages) / mesh.pipeline
    gradients = weights * f.gradients / f.parameters
    keeps = parallel.zero_stage == 2 or not parallel.reshard_after_forward
    # Collectives of shards have the same size on every process, so what has a single row is padded.
    padded = 1 + (mesh.fsdp - 1) * f.single_rows / f.parameters
    times = 1.0 if keeps else 2.0 * window
    times, exchanges = times / 2 if _gathers_16_bits(cfg, mesh) else times, window if _synced(cfg) else 1
    again = 0 if keeps else gathered_again(train.activation_checkpointing, f.layers) * f.layer_parameters / f.parameters
    gathered = away * (times * weights * (1 + again / 2) + exchanges * gradients) * padded
    # Of tokens that are split, a layer gathers and scatters the hidden state twice each, and their gradients.
    repeated = 3 * f.recomputed / max(1, f.flops - f.recomputed)  # forward passes
    if train.activation_checkpointing == "selective":  # all but products, which are most operations
        repeated = 1.0
    sums = (4 + 1.5 * repeated) * f.crossing if parallel.sequence else f.tensor_summed
    sums += f.vocabulary_summed if _vocabulary(f, mesh) > 1 else 0
    summed = 2 * share_sent(mesh.tensor) * sums * window / (mesh.context * mesh.pipeline)
    passed = 0.0
    if mesh.pipeline > 1:
        tied = (f.stage_front + sum(f.stage_layers) + f.stage_back - f.parameters) / _vocabulary(f, mesh)
        borders = mesh.pipeline * _chunks(parallel.schedule, mesh) - 1
        passed = 2 * (borders * f.boundary * window + tied) / mesh.pipeline
    gradients /= mesh.fsdp
    # Each layer's keys and values are gathered twice, and once more if it is recomputed; their gradients are scattered.
    seen = (3 + repeated) * f.keys_values * window / (2 if train.mixed_precision == "bf16" else 1)
    shared = share_sent(mesh.context) * (seen + 2 * gradients)
    return {
        "replicas": all_reduced * gradients,
        "fsdp": gathered,
        "context": shared,
        "tensor": summed,
        "pipeline": passed,
    }


@dataclass(frozen=True)
class Scaling:
    """Speed-up of n processes over one, from measured step time and bandwidth."""

    processes: int  # number of processes n
    amdahl: float  # speed-up with the same rows per step, split over the processes (Amdahl 1967)
    # speed-up with n times the rows per step, over one process that trains all of them (Gustafson 1988)
    gustafson: float


def scaling(seconds: float, serial: float, sent: int, bandwidth: float, processes: int) -> list[Scaling]:
    """Returns speed-ups of synchronous data parallelism for 1, 2, 4 and so on, and `processes`.

    `seconds` are those of a step of one process, of which the part `serial` does not shrink; `sent` are bytes of
    gradients, `bandwidth` bytes per second that one process sends in an all-reduce.
    """
    found = []
    for n in sorted({*(2**power for power in range(processes.bit_length())), processes}):
        exchange = 2 * (n - 1) / n * sent / bandwidth
        found.append(Scaling(
            n,
            amdahl=seconds / (serial + (seconds - serial) / n + exchange),
            gustafson=(serial + n * (seconds - serial)) / (seconds + exchange),
        ))  # fmt: skip
    return found
