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
from toolkit.footprint.simulate import KEPT, Footprint
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
    kept = _experts(f, mesh) / f.parameters
    own = (replica - kept + (mesh.fsdp - 1) * f.single_rows / f.parameters) / mesh.fsdp + kept
    state = own
    if parallel.zero_stage == 1:  # each matrix has one owner
        state = min(own, max(own / mesh.replicas, f.largest / f.parameters / mesh.tensor))
    # Unless gradients of shards are exchanged in each micro-batch, they are complete until the window's end.
    accumulated = replica if window > 1 and not _synced(cfg) else own
    held = (0.0, 0.0) if parallel.offload else (own, state)
    moments = _moments(f, cfg, mesh, 0.0 if parallel.offload and window == 1 else accumulated, replica)
    chunks = _chunks(parallel.schedule, mesh)
    peak = round(max(_peak(f, mesh, *held, *moment) for moment in moments)) + _copies(f, cfg, mesh, replica)
    states = f.buffers + held[0] * f.parameters + held[1] * (f.optimizer_state + f.copies)
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
    taken["expert"] = sent["expert"] / (MACHINE.inside if mesh.expert <= MACHINE.devices else MACHINE.outside)
    moved = own * (2 * window * f.parameters + window * f.gradients) if cfg.parallel.offload else 0.0
    return max(computing, taken.pop("fsdp")) + sum(taken.values()) + moved / MACHINE.to_cpu


def _gathers_16_bits(cfg: Config, mesh: Mesh) -> bool:
    """Returns whether shards are gathered in 16 bits, so that no other copies of weights are made."""
    return mesh.fsdp > 1 and cfg.train.mixed_precision == "bf16"


def _of_layers(cfg: Config, mesh: Mesh) -> bool:
    """Returns whether the shards of a layer are gathered for its use."""
    return mesh.fsdp > 1 and cfg.parallel.zero_stage != 2 and cfg.parallel.reshard_after_forward


def _chunks(schedule: str, mesh: Mesh) -> int:
    return CHUNKS.get(schedule, 1) if mesh.pipeline > 1 else 1


def _experts(f: Footprint, mesh: Mesh) -> float:
    """Returns the bytes of the experts that a process has alone, beside weights that are sharded or copied."""
    return f.experts / mesh.expert if mesh.expert > 1 else 0.0


def _vocabulary(f: Footprint, mesh: Mesh) -> int:
    """Returns the number of processes over which the vocabulary is split."""
    split = f.vocabulary_rows and divides(f.vocabulary_rows, mesh.tensor, mesh.fsdp)
    return mesh.tensor if split else 1


def _stages(f: Footprint, mesh: Mesh, schedule: str) -> list[float]:
    """Returns the bytes of the weights of each stage, of which tensor ranks hold a part; shards count as gathered."""
    spared, of_vocabulary = 1 - 1 / mesh.tensor, 1 - 1 / _vocabulary(f, mesh)
    if mesh.pipeline == 1:
        held = f.parameters - spared * f.tensor_parameters - of_vocabulary * f.vocabulary_parameters
        return [held + _experts(f, mesh) - f.experts * (mesh.expert > 1)]
    in_layers = 1 - spared * f.tensor_parameters / sum(f.stage_layers)
    ranges = _partition(tuple(f.stage_costs), mesh.pipeline * _chunks(schedule, mesh))
    stages = [
        in_layers * sum(f.stage_layers[layer] for stage in ranges[rank :: mesh.pipeline] for layer in stage)
        for rank in range(mesh.pipeline)
    ]
    stages[0] += f.stage_front - of_vocabulary * f.vocabulary_front
    stages[-1] += f.stage_back - of_vocabulary * f.vocabulary_back
    return stages


_partition = cache(partition)


@cache
def _under_way(schedule: str, rank: int, processes: int, chunks: int, window: int, left: float) -> list[float]:
    """Returns the most micro-batches that a stage keeps before its first gradients, and then; each chunk's count apart.

    `left` is the share of activations kept for gradients of weights, if they are computed later.
    """
    actions = SCHEDULES[schedule](rank, processes, chunks, window)
    late = actions[-1].kind == "weights"
    freed = {"forward": -1.0, "backward": 1 - left if late else 1.0, "weights": left}
    count, most, has_gradients = 0.0, [0.0, 0.0], False
    for action in actions:
        count -= freed[action.kind]
        has_gradients |= action.kind == actions[-1].kind
        most[has_gradients] = max(most[has_gradients], count)
    return most


def _moments(
    f: Footprint, cfg: Config, mesh: Mesh, gradients: float, replica: float
) -> list[tuple[dict[str, float], float]]:
    """Returns the moments of a step at which a process may hold the most, given its shares of gradients and weights.

    Each has the shares of a single device's memory by kind, and the bytes of further micro-batches.
    """
    schedule, recomputed = cfg.parallel.schedule, cfg.train.activation_checkpointing != "none"
    # Tensor parallelism does not split what passes from layer to layer, and norms: half of what it sums, as counted.
    passing = f.crossing if cfg.parallel.sequence or recomputed else max(f.crossing, f.tensor_summed / 2)
    complete = min(1.0, passing / max(1, f.activations))
    kept = (complete + (1 - complete) / mesh.tensor) / mesh.context
    if _of_layers(cfg, mesh) and mesh.tensor == mesh.pipeline == 1 <= f.layers and not recomputed:
        kept *= 1 - 1 / f.layers  # the most is held when a layer's gradients are sent, its activations freed
    # Gradients of weights that are computed later need no copies.
    copied = 0.0 if _gathers_16_bits(cfg, mesh) or schedule == "zero_bubble" else replica
    shares = {"logits": 1 / (_vocabulary(f, mesh) * mesh.context), "weight_copies": copied, "gradients": gradients}
    if mesh.pipeline == 1:
        return [(shares | {"activations": kept}, 0.0)]
    chunks, window, found = _chunks(schedule, mesh), num_micro_batches(cfg.train, f.rows), []
    for rank in (0, mesh.pipeline - 1):
        own = {kind: share / chunks for kind, share in shares.items()} | {"activations": kept / mesh.pipeline / chunks}
        if rank == 0:
            own["logits"] = 0.0
            own["weight_copies"] *= 1 - f.stage_front / _vocabulary(f, mesh) / f.parameters / replica
        # Each micro-batch has its own copies, unless those of a recomputation are freed.
        one = sum(own[kind] * getattr(f, kind) for kind in KEPT[: 2 if recomputed else 3])
        counts = _under_way(schedule, rank, mesh.pipeline, chunks, window, f.linear / max(1, f.activations))
        found += [(own | {"gradients": of_all * gradients}, (count - 1) * one) for of_all, count in enumerate(counts)]
    return found


HELD = ("parameters", "buffers", "optimizer")
"""Kinds of memory that are held between two steps."""


def _peak(f: Footprint, mesh: Mesh, parameters: float, state: float, held: dict[str, float], others: float) -> float:
    """Returns the peak in bytes of a process that holds only these shares of a single device's memory.

    `parameters` is the share of weights that it holds between two steps, `held` and `others` are of `_moments`. Without
    all gradients, the peak may move to another phase.
    """
    states = f.states - (1 - parameters) * f.parameters - (1 - state) * (f.optimizer_state + f.copies)
    complete = min(1.0, f.tensor_summed / 2 / max(1, f.layers * f.working)) if f.recomputed else 1.0
    shares = held | {"working": (complete + (1 - complete) / mesh.tensor) / mesh.context}
    # Of shards, a weight's gradient is in `_copies`, and so is all other working memory if nothing is recomputed.
    spare = 0.0 if mesh.fsdp == 1 else f.largest if f.recomputed else math.inf
    phases = [
        sum(shares.get(kind, 1.0) * size for kind, size in phase.items() if kind not in HELD)
        - shares["working"] * min(spare, phase.get("working", 0))
        for phase in f.phases
    ]
    turning = sum(held[kind] * getattr(f, kind) for kind in KEPT)
    stepping = f.step_peak - f.states - (1 - held["gradients"]) * f.gradients
    waiting = f.batch - max((phase.get("batch", 0) for phase in f.phases), default=0)
    return states + max(0.0, stepping, others + max(*(each + waiting for each in phases), turning + f.batch))


def _copies(f: Footprint, cfg: Config, mesh: Mesh, replica: float) -> int:
    """Returns the bytes that a strategy needs in addition, given the share of the weights when they are gathered."""
    train = cfg.train
    if mesh.fsdp > 1:
        width, times = (0.5, 2.5) if _gathers_16_bits(cfg, mesh) else (1.0, 4.0)
        times -= not _synced(cfg) and num_micro_batches(train, f.rows) > 1  # nothing is sent until the window's end
        if not _of_layers(cfg, mesh):
            return round(replica * f.parameters * width)
        # Of a layer, or of all that is in none: gathered, flat and in parts, one ahead of its use; its gradient, and
        # what is sent of it. Of the other one, a gathered copy.
        parts = sorted((f.layer_parameters, f.parameters - f.in_layers))
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
    keeps = not _of_layers(cfg, mesh)
    # Collectives of shards have the same size on every process, so what has a single row is padded.
    padded = 1 + (mesh.fsdp - 1) * f.single_rows / f.parameters
    times = 1.0 if keeps else 2.0 * window
    times, exchanges = times / 2 if _gathers_16_bits(cfg, mesh) else times, window if _synced(cfg) else 1
    again = 0 if keeps else gathered_again(train.activation_checkpointing, f.layers) * f.layer_parameters / f.parameters
    alone = _experts(f, mesh)
    of_experts = alone * f.gradients / f.parameters
    gathered = away * (times * (weights - alone) * (1 + again / 2) + exchanges * (gradients - of_experts)) * padded
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
    gradients = (gradients - of_experts) / mesh.fsdp
    # Each layer's keys and values are gathered twice, and once more if it is recomputed; their gradients are scattered.
    seen = (3 + repeated) * f.keys_values * window / (2 if train.mixed_precision == "bf16" else 1)
    shared = share_sent(mesh.context) * (seen + 2 * gradients)
    # Tokens are sent to experts and back, and so are gradients.
    routed = share_sent(mesh.expert) * (4 + 2 * repeated) * f.routed * window
    return {
        "replicas": all_reduced * gradients * (1.5 if parallel.zero_stage == 1 else 1.0)  # and updates by their owners
        + 2 * share_sent(mesh.replicas * mesh.fsdp // mesh.expert) * of_experts,
        "fsdp": gathered,
        "expert": routed,
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
