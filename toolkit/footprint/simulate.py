"""Simulates a training step of a run on fake tensors, with the run's own model, loss and optimizer."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_map_only
from transformers.integrations import moe

from toolkit.api.batch import Batch, logits_at_labels
from toolkit.api.task import Task
from toolkit.base.errors import ToolkitError
from toolkit.base.package import replaced
from toolkit.config.sections import Config, TrainConfig
from toolkit.data.batching.budget import num_micro_batches
from toolkit.distributed import context
from toolkit.footprint.cuts import Cuts
from toolkit.footprint.ledger import Ledger, UnknownValue, as_fake, movable_fakes, without_memory
from toolkit.models import chunked
from toolkit.models.activations import spare_activations
from toolkit.models.adapters import add_adapters
from toolkit.models.fast_dropout import FastDropout, is_chosen, use_fast_dropout
from toolkit.models.load import build_model
from toolkit.models.parts import freeze, freeze_modules, head_at_labels
from toolkit.models.unpadded.families import LAYERDROP, choose
from toolkit.models.unpadded.layers import ALWAYS, install
from toolkit.optim.optimizers import build_optimizer
from toolkit.optim.presets import PRESETS
from toolkit.optim.state import state_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class Footprint:
    """Memory in bytes and floating-point operations of one process's training step."""

    parameters: int  # all weights; tied weights count once
    buffers: int  # the model's buffers
    gradients: int  # gradients of all trained weights
    optimizer_state: int  # state of the optimizer (`toolkit.optim.state.state_bytes`)
    copies: int  # further copies of the weights: averages, anchors of local SGD
    weight_copies: int  # weights in the mixed-precision type after the forward pass
    activations: int  # tensors saved by the forward pass for the backward pass
    logits: int  # outputs of the model and the loss
    batch: int  # the micro-batches of a window; on a GPU only one, since the others wait in the CPU's memory
    working: int  # other memory at the peak, such as gradients of activations or recomputed activations
    peak: int  # largest memory in a step; below the sum of the parts, because gradients follow freed activations
    step_peak: int  # largest memory during the optimizer's step
    trained: int  # number of trained weights
    total: int  # number of weights
    flops: int  # floating-point operations of forward and backward pass of one micro-batch
    recomputed: int  # part of `flops` that is recomputed
    rows: int  # rows of the micro-batch
    layers: int  # number of repeated layers, 0 if unknown
    layer_parameters: int  # bytes of the largest layer, or of all weights without layers
    boundary: int  # bytes of the largest output of a layer, 0 if unknown
    crossing: int  # bytes of the outputs of all layers
    in_layers: int = 0  # bytes of the weights of all layers
    linear: int = 0  # bytes of the inputs and outputs of linear layers
    experts: int = 0  # bytes of the weights of experts
    routed: int = 0  # bytes of the tokens that experts receive, each as often as it has experts
    keys_values: int = 0  # bytes of the keys and values of all layers, 0 if unknown
    # bytes by kind at the peak of each half of the two passes, until the middle layer's backward pass and after it, and
    # where all but gradients need the most
    phases: Sequence[Mapping[str, int]] = ()
    largest: int = 0  # bytes of the largest weight, whose state ZeRO-1 does not divide
    single_rows: int = 0  # bytes of the weights that have one row, and so cannot be sharded
    tensor_parameters: int = 0  # bytes of the weights that tensor parallelism splits, 0 if it has no plan for the model
    tensor_summed: int = 0  # bytes of the outputs and gradients that its processes sum in a micro-batch
    vocabulary_front: int = 0  # bytes of the embeddings that are split by the vocabulary, 0 if there are none
    vocabulary_back: int = 0  # bytes of the output head that is split likewise; tied weights count in both
    vocabulary_parameters: int = 0  # bytes of both, tied weights counted once
    vocabulary_summed: int = 0  # bytes of the outputs, gradients and losses that are then summed in a micro-batch
    vocabulary_rows: Sequence[int] = ()  # number of tokens of each
    stage_layers: Sequence[int] = ()  # bytes of the weights of each layer, if a pipeline can separate the layers
    stage_costs: Sequence[int] = ()  # multiplications of a token in each layer (`partition.Parts.costs`)
    stage_front: int = 0  # bytes of the weights that the first stage needs besides its layers
    stage_back: int = 0  # bytes of the weights that the last stage needs besides its layers; tied weights count in both

    @property
    def states(self) -> int:
        """Bytes that are allocated between two steps."""
        return self.parameters + self.buffers + self.optimizer_state + self.copies

    @property
    def passing(self) -> int:
        """Bytes at the peak beyond `states`."""
        return max(0, self.peak - self.states)


SHARE = 0.2
"""Lists of modules with less than this share of the weights of the largest list are not the model's layers."""


class Layers:
    """Records the repeated layers: weights of the largest, its largest output, and all outputs, in bytes."""

    def __init__(self, model: nn.Module) -> None:
        lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) > 0]
        inner = {id(part) for parts in lists for part in parts.modules() if part is not parts}
        outer = {id(parts): _bytes(parts) for parts in lists if id(parts) not in inner}
        # The convolutions in front of speech and vision models are a list as well, but one with few weights.
        largest = max(outer.values(), default=0)
        self.modules = [layer for parts in lists if outer.get(id(parts), -1) >= SHARE * largest for layer in parts]
        self.parameters, self.boundary, self.crossing = max(map(_bytes, self.modules), default=0), 0, 0
        self.sizes = [[_bytes(layer), _bytes(layer, trained=True)] for layer in self.modules]
        middle = self.modules[len(self.modules) // 2 :][:1]
        self.trained_in_the_middle = [p for layer in middle for p in layer.parameters() if p.requires_grad]
        self._seen: set[int] = set()
        for layer in self.modules:
            layer.register_forward_hook(self._record)

    def _record(self, module: nn.Module, arguments: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        if isinstance(first, Tensor) and id(module) not in self._seen:  # skips recomputations
            self._seen.add(id(module))
            self.boundary = max(self.boundary, first.numel() * first.element_size())
            self.crossing += first.numel() * first.element_size()


def _bytes(module: nn.Module, trained: bool = False) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad or not trained)


class OffloadedActivations(saved_tensors_hooks):
    """Drops saved tensors and allocates them again in the backward pass, like `toolkit.models.activations`."""

    def __init__(self, model: nn.Module) -> None:
        resident = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

        def pack(tensor: Tensor) -> Any:
            stays = tensor.untyped_storage()._cdata in resident
            return tensor if stays else (tensor.shape, tensor.dtype, tensor.device)

        def unpack(packed: Any) -> Tensor:
            return packed if isinstance(packed, Tensor) else torch.empty(packed[0], dtype=packed[1], device=packed[2])

        super().__init__(pack, unpack)


def fused_attention() -> AbstractContextManager[None]:
    """Runs `scaled_dot_product_attention` without dropout, since the CPU's fused kernel does not support it."""
    attend = nn.functional.scaled_dot_product_attention

    def fused(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
              is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Tensor:  # fmt: skip
        return attend(query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)

    return replaced(nn.functional, "scaled_dot_product_attention", fused)


def _grouped_mm(rows: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """Multiplies the rows of all experts with the matrix of the first, since kernels have no fake in every type."""
    with torch.autocast(rows.device.type, enabled=False):
        return rows.to(weight.dtype) @ weight[0]


DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
"""Autocast types by mixed precision; fp8 multiplies in 8 bits, but keeps activations in bf16."""

KEPT = ("activations", "logits", "weight_copies")
"""Kinds of memory that the forward pass keeps for the backward pass."""


@dataclass(frozen=True)
class Subject:
    """The training step to simulate."""

    cfg: Config  # resolved configuration
    task: Task  # the recipe's task, which knows its labels
    config: PreTrainedConfig  # the model's complete configuration
    batch: Batch  # a real micro-batch; only its shapes and the values of its masks matter
    device: torch.device  # the device of the run; kernels differ between devices
    fused_attention: bool = False  # whether attention is one kernel that does not store its weights, as on a GPU
    longest: int = 1  # tokens of the longest row, which a token budget divides by

    @property
    def rows(self) -> int:
        """Rows of the micro-batch."""
        return len(self.batch["row_ids"])

    @property
    def window(self) -> int:
        """Micro-batches of a step."""
        return num_micro_batches(self.cfg.train, self.rows)


DEEP, FEW = 12, (2, 4)
"""Models with more layers than `DEEP` are simulated with a few of them."""


def simulate(subject: Subject) -> Footprint:
    """Simulates one training step without allocating memory, and returns the memory it would need.

    Of a window with several micro-batches the last one is simulated, when the gradients of the others exist. A deep
    model of equal layers is simulated with few layers: what a step needs is linear in their number. Raises InputError
    if the step cannot be simulated, for instance because the model reads values of its tensors.
    """
    depth = _depth(subject)
    if depth is not None:
        few, more = (_counts(replace(subject, config=_shallow(subject.config, depth, size))) for size in FEW)
        if [*few["sizes"], *more["sizes"]] == more["sizes"][:1] * sum(FEW):
            return _footprint(_extended(few, more, depth))
    return _footprint(_counts(subject))


def _depth(subject: Subject) -> int | None:
    """Returns the number of layers of a deep model whose layers are used alike, as far as its settings say."""
    config, model = subject.config, subject.cfg.model
    depth = getattr(config, "num_hidden_layers", None)
    if not isinstance(depth, int) or depth <= DEEP or getattr(config, "is_encoder_decoder", False):
        return None
    each = [value for value in vars(config).values() if isinstance(value, list) and len(value) == depth]
    named = model.unfreeze or (isinstance(model.freeze, list) and model.freeze) or model.peft.target_modules != "auto"
    recomputed = subject.cfg.train.activation_checkpointing
    alike = recomputed in ("none", "full", "selective") and all(value == value[:1] * depth for value in each)
    return depth if alike and not named else None


def _shallow(config: PreTrainedConfig, depth: int, size: int) -> PreTrainedConfig:
    config = copy.deepcopy(config)
    for name, value in vars(config).items():
        if isinstance(value, list) and len(value) == depth:
            setattr(config, name, value[:size])
    config.num_hidden_layers = size
    return config


def _extended(few: Any, more: Any, depth: int) -> Any:
    """Returns what `depth` layers need, from what the numbers of layers `FEW` do."""
    if isinstance(few, Mapping):
        return {key: _extended(few.get(key, 0), more.get(key, 0), depth) for key in {**few, **more}}
    if isinstance(few, list) and len(few) == len(more):
        return [_extended(*pair, depth) for pair in zip(few, more, strict=True)]
    if isinstance(few, list):  # a number for each layer
        return [more[0], *more[1:2] * (depth - 2), more[-1]]
    return more + (more - few) * (depth - FEW[1]) // (FEW[1] - FEW[0])


def _counts(subject: Subject) -> dict[str, Any]:
    """Simulates a step; returns what is linear in the number of layers, with the peak of each phase by kind."""
    window = subject.window
    attention = fused_attention() if subject.fused_attention else nullcontext()
    # Torch's log of operations that fake tensors do not support is not needed: the raised error names them.
    quiet = replaced(logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True)
    with quiet, without_memory() as ledger, attention, replaced(moe, "_grouped_mm", _grouped_mm):
        try:
            model, batch = _model(subject, ledger), _batch(subject, ledger)
            held = ledger.alive["batch"]
            if window > 1:
                _allocate_gradients(model, ledger)
            layers, cuts = Layers(model), Cuts(model)
            for parameter in islice(layers.trained_in_the_middle, 1):
                parameter.register_post_accumulate_grad_hook(lambda _: ledger.end_phase())
            passed = _pass(subject, model, batch, ledger)
            ledger.end_phase()
            ledger.phases.append(ledger.most_others)
            train, preset = subject.cfg.train, PRESETS[subject.cfg.train.optim]
            optim: Any = preset.unpaged or train.optim  # paging needs a GPU
            state, lasting, step_peak = _update(model, replace(train, optim=optim), ledger)
        except ToolkitError:
            raise
        except Exception as error:  # model code can fail on fake tensors in any way
            raise UnknownValue(f"{type(error).__name__}: {str(error).splitlines()[0]}") from error
        parameters = list(_trained(model))
        gradients = sum(p.numel() * p.element_size() for p in parameters)
        copies = gradients * (subject.cfg.train.ema_decay is not None)
        # A GPU holds one micro-batch at a time; the others wait in the CPU's memory.
        waiting = held * (window - 1) if subject.device.type == "cpu" and not subject.fused_attention else 0
        # An optimizer that updates all weights together, as on a GPU, needs temporary memory of their size.
        step_peak += copies + waiting + (gradients if subject.fused_attention and preset.foreach else 0)
        return {
            "sizes": layers.sizes, "phases": [dict(phase) for phase in ledger.phases],
            "lasting": lasting + copies + waiting, "gradients": gradients, "optimizer_state": state,
            "copies": copies, **passed, "batch": held + waiting,
            "step_peak": step_peak, "trained": sum(p.numel() for p in parameters),
            "total": sum(p.numel() for p in model.parameters()), "rows": subject.rows, "layers": len(layers.modules),
            "layer_parameters": layers.parameters, "boundary": layers.boundary, "crossing": layers.crossing,
            "in_layers": sum(size for size, _ in layers.sizes),
            "keys_values": round(2 * layers.crossing * _share_of_heads(subject.config)), **cuts.figures,
        }  # fmt: skip


def _share_of_heads(config: PreTrainedConfig) -> float:
    """Returns the number of heads of keys and values per head of queries, 0 if unknown."""
    heads = getattr(config, "num_attention_heads", None)
    return (getattr(config, "num_key_value_heads", None) or heads) / heads if isinstance(heads, int) else 0.0


def _footprint(counts: dict[str, Any]) -> Footprint:
    lasting = counts.pop("lasting")
    del counts["sizes"]
    at_peak: Counter[str] = Counter(max(counts["phases"], key=lambda phase: sum(phase.values())))
    counts["layer_parameters"] = counts["layer_parameters"] or at_peak["parameters"]
    return Footprint(
        **counts, parameters=at_peak["parameters"], buffers=at_peak["buffers"],
        working=max(0, at_peak["working"] + sum(at_peak[kind] - counts[kind] for kind in KEPT)),
        peak=max(at_peak.total() + lasting, counts["step_peak"]),
    )  # fmt: skip


def _model(subject: Subject, ledger: Ledger) -> PreTrainedModel:
    """Builds the model like the run does, with adapters, frozen weights and activation checkpointing."""
    cfg, config = subject.cfg, copy.deepcopy(subject.config)
    if str(config._attn_implementation).startswith((ALWAYS, context.NAME)):  # of the run's model
        config._attn_implementation = "sdpa"
    for name in LAYERDROP:  # simulates the maximum, in which no layer is skipped
        if getattr(config, name, None):
            setattr(config, name, 0.0)
    if cfg.model.peft.method == "qlora":
        raise UnknownValue("4-bit weights, which are created from real ones")
    if cfg.model.trust_remote_code and getattr(config, "auto_map", None):
        raise UnknownValue("remote code")
    auto_model = subject.task.auto_model(config)
    # Flash attention needs a GPU; the default, SDPA, is one kernel with the same memory.
    flash = (cfg.model.attn_implementation or "").startswith("flash")
    attention = None if flash else cfg.model.attn_implementation
    with ledger.naming("buffers", guess=True), torch.device(subject.device):
        new = replace(
            cfg.model,
            name_or_path=None,
            from_config={"model_type": config.model_type},
            attn_implementation=attention,
            initializer="default",
        )
        model = build_model(new, config, auto_model, cfg.seed)
        if not subject.fused_attention and choose(cfg, config, subject.device) is True:
            install(model, multiple=cfg.train.pad_to_multiple_of)
        if cfg.model.peft.method != "none":
            with movable_fakes():
                model = add_adapters(model, cfg.model.peft, auto_model, cfg.seed)
        freeze_modules(model, subject.task.unread)
        freeze(model, cfg.model)
        head_at_labels(model)
        if chunked.is_chosen(cfg, config):
            chunked.chunk_head(model)
        chosen = is_chosen(cfg.train, subject.device) and not subject.fused_attention
        fast_dropout = chosen and use_fast_dropout(model)
        resident = replace(cfg.train, activation_offload=False)
        spare_activations(model, resident, lambda: (nullcontext(), _recomputing(ledger, fast_dropout)))
    ledger.name(model.parameters(), "parameters")
    ledger.name((b for b in model.buffers()), "buffers")
    for parameter in _trained(model):
        parameter.register_post_accumulate_grad_hook(lambda p: ledger.name([p.grad], "gradients") and None)
    model.train()
    ledger.reset_peak()
    return model


@contextmanager
def _recomputing(ledger: Ledger, fast_dropout: bool) -> Iterator[None]:
    with ledger.recomputing(), FastDropout() if fast_dropout else nullcontext():
        yield


def _batch(subject: Subject, ledger: Ledger) -> Batch:
    """Returns the micro-batch as fake tensors on the run's device."""

    def move(tensor: Tensor) -> Tensor:
        made = as_fake(tensor, ledger.fake).to(subject.device)
        ledger.register(made, "batch")
        return made

    moved: Batch = tree_map_only(Tensor, move, subject.batch)
    return moved


def _tensors(batch: Any) -> Iterator[Tensor]:
    values = batch.values() if isinstance(batch, Mapping) else [batch]
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Mapping):
            yield from _tensors(value)


def _trained(model: nn.Module) -> Iterator[nn.Parameter]:
    return (parameter for parameter in model.parameters() if parameter.requires_grad)


def _allocate_gradients(model: nn.Module, ledger: Ledger) -> None:
    """Allocates the gradients that earlier micro-batches of the window accumulate."""
    with ledger.naming("gradients"):
        for parameter in _trained(model):
            parameter.grad = torch.empty_like(parameter)


def _pass(subject: Subject, model: nn.Module, batch: Batch, ledger: Ledger) -> dict[str, Any]:
    """Runs both passes like `toolkit.distributed.window`; returns the bytes kept in between by kind, and operations."""
    from accelerate.utils import convert_outputs_to_fp32

    dtype = DTYPES.get(subject.cfg.train.mixed_precision or "no")
    if dtype is not None:
        model.forward = convert_outputs_to_fp32(model.forward)
    precision = torch.autocast(subject.device.type, dtype) if dtype is not None else nullcontext()
    offload = OffloadedActivations(model) if subject.cfg.train.activation_offload else nullcontext()
    loss_sum: Callable[[Any, Batch], Tensor] = subject.task.loss_sum
    if subject.task.has("window_loss") and subject.window > 1:
        loss_sum = _first_pass(subject, model, batch, ledger, precision)
    with offload:
        with precision, logits_at_labels(batch):
            outputs = subject.task.forward(model, batch)
        ledger.name(_tensors(outputs), "logits")
        ledger.name_rest("activations")
        with ledger.naming("logits"):
            loss = loss_sum(outputs, batch)
    del outputs
    kept = {kind: ledger.alive[kind] for kind in KEPT}
    (loss * 1.0).backward()
    del loss
    return kept | {"flops": ledger.flops, "recomputed": ledger.recomputed}


def _first_pass(
    subject: Subject, model: nn.Module, batch: Batch, ledger: Ledger, precision: AbstractContextManager[Any]
) -> Callable[[Any, Batch], Tensor]:
    """Runs the pass that finds the gradient of a whole window's outputs; returns the loss of the second pass."""
    with torch.no_grad(), precision, ledger.recomputing():
        outputs = subject.task.forward(model, batch)
    with ledger.naming("logits"):
        found = torch.cat([outputs] * subject.window).requires_grad_()
        labels = torch.cat([batch["labels"]] * subject.window)
        (gradient,) = torch.autograd.grad(subject.task.window_loss(found, labels), found)
    return lambda outputs, batch: (outputs * gradient[: len(outputs)]).sum()


def _update(model: nn.Module, train: TrainConfig, ledger: Ledger) -> tuple[int, int, int]:
    """Runs two optimizer steps, as the first creates the state; returns its bytes, all it keeps, and the peak."""
    with ledger.naming("optimizer", guess=True):
        optimizer = build_optimizer(model, train)
        start = getattr(optimizer, "train", None)
        if start is not None:  # required by schedule-free optimizers
            start()
        optimizer.step()
        lasting = ledger.alive["optimizer"]
        ledger.reset_peak()
        optimizer.step()
    return state_bytes(optimizer), lasting, ledger.peak
