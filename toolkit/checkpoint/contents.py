"""The contents of a checkpoint: model, optimizer, state, tensors of callbacks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from toolkit.api.mesh import Mesh
from toolkit.api.run import Checkpoint
from toolkit.base.errors import CheckpointError
from toolkit.base.files import rust_errors_as_os_errors, temporary_name
from toolkit.base.run_folder import CheckpointFolder
from toolkit.base.shards import fill_part, hull, local, own_parts
from toolkit.checkpoint.planning import Group
from toolkit.checkpoint.tensors import ONE_PROCESS, has_tensors, verified_tensors
from toolkit.optim.state import load_streamed_state

_SCALARS = "state"
"""Key of the optimizer's non-tensor values in the header of its file."""
MODEL, OPTIMIZER = "model", "optimizer"
"""Names of their tensors in a checkpoint."""
TEXT = ".weight.quant_state.bitsandbytes__"  # of 4-bit weights; among it the offset of their scales


def model_group(tensors: Mapping[str, Tensor]) -> Group:
    """Returns the tensors of `state_dict(keep_vars=True)` to save; of those that share memory (tied weights), one."""
    kept: dict[str, Tensor] = {}
    memory = _Memory()
    for name, tensor in tensors.items():
        if not memory.holds(tensor):
            memory.add(tensor)
            kept[name] = tensor
    parameters = {name for name, tensor in kept.items() if isinstance(tensor, nn.Parameter)}
    return Group(MODEL, kept, {"format": "pt"}, first_only=kept.keys() - parameters, steady=parameters)


def optimizer_group(tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]) -> Group:
    """Returns an optimizer's state to save: the tensors and scalars of `toolkit.optim.state.optimizer_state`."""
    return Group(OPTIMIZER, tensors, {_SCALARS: json.dumps(scalars, sort_keys=True)}, steady=tensors.keys())


def state_file(state: Mapping[str, Any]) -> dict[str, bytes]:
    """Returns the file of JSON-able values with string keys; floats, NaN and infinities are restored exactly."""
    return {CheckpointFolder(Path()).state.name: json.dumps(state).encode()}


def processor_files(processor: Any, folder: Path) -> dict[str, bytes]:
    """Returns the files of a processor, by their paths in a checkpoint; they are first saved into `folder`."""
    place = CheckpointFolder(temporary_name(folder / "processor")).processor
    try:
        place.mkdir(parents=True)
        with rust_errors_as_os_errors():
            processor.save_pretrained(str(place))
        files = [path for path in place.rglob("*") if path.is_file()]
        return {path.relative_to(place.parent).as_posix(): path.read_bytes() for path in files}
    finally:
        shutil.rmtree(place.parent, ignore_errors=True)


def load_model_into(
    checkpoint: Checkpoint, model: nn.Module, mesh: Mesh = ONE_PROCESS, outline: nn.Module | None = None
) -> None:
    """Copies the weights of a checkpoint into the unwrapped model, which may be split over processes, in place.

    The processes of `mesh` load at the same time; `outline` is the complete model if others hold some of its weights.
    Raises CheckpointError if names or shapes do not match, and changes nothing; DamagedCheckpoint if a file is damaged:
    the model must not be used then.
    """
    own = model.state_dict(keep_vars=True)
    with verified_tensors(checkpoint, MODEL, mesh) as saved:
        names = _own_names(saved.entries, own, outline)
        here = {own_name: saved.entries[name] for name, own_name in names.items() if own_name is not None}
        packed = {name: torch.empty(here[name].shape, dtype=torch.uint8) for name in here if TEXT in name}
        own |= packed
        if problems := _misfits(own, here):
            raise CheckpointError(
                "\n    ".join([f"the weights in {checkpoint.path} do not match this model:", *problems])
                + "\nResume with the model settings that the run was started with."
            )
        held = {name: own_parts(own[own_name]) for name, own_name in names.items() if own_name is not None}
        for name, box, part in saved.read({name: hull(parts) for name, parts in held.items()}):
            fill_part(own[str(names[name])], held[name], part, box)
    for name, text in packed.items():
        from bitsandbytes.utils import unpack_tensor_to_dict

        weight: Any = model.get_submodule(name.partition(TEXT)[0]).weight
        weight.quant_state.offset.fill_(unpack_tensor_to_dict(text)["nested_offset"])


def load_optimizer_into(
    checkpoint: Checkpoint, optimizer: Any, model: nn.Module, mesh: Mesh = ONE_PROCESS, outline: nn.Module | None = None
) -> None:
    """Restores the optimizer's state exactly; `model` is the unwrapped model, which names its parameters.

    Other arguments and errors as for `load_model_into`.
    """
    with verified_tensors(checkpoint, OPTIMIZER, mesh) as saved:
        scalars = json.loads(saved.metadata[_SCALARS])
        load_streamed_state(optimizer, model, saved.entries, saved.read, scalars, outline)


def load_tensors(checkpoint: Checkpoint, name: str, mesh: Mesh = ONE_PROCESS) -> Mapping[str, Tensor]:
    """Returns a callback's verified tensors by name, on the CPU, each read when accessed; empty if none are saved.

    Raises DamagedCheckpoint if a file is damaged.
    """
    if not has_tensors(checkpoint, name):
        return {}
    with verified_tensors(checkpoint, name, mesh) as saved:
        return saved


def _own_names(saved: Iterable[str], own: Collection[str], outline: nn.Module | None) -> dict[str, str | None]:
    """Returns the own name of each saved tensor, which may be another of tied weights; None if others hold it."""
    complete = {} if outline is None else outline.state_dict(keep_vars=True)
    held = {id(complete[name]): name for name in own} if complete else {}
    return {name: name if name in own or name not in complete else held.get(id(complete[name])) for name in saved}


def _misfits(own: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> list[str]:
    """Returns messages about missing and unexpected tensors and different shapes; tied weights are saved once."""
    memory, shared = _Memory(), []
    fitting = [name for name in saved if name in own]
    for name in fitting:
        if memory.has(own[name]):
            shared.append(name)
        memory.add(own[name])
    unexpected = [*(name for name in saved if name not in own), *shared]
    return [
        *(f"missing: {name}" for name in own if name not in saved and not memory.holds(own[name])),
        *(f"unexpected: {name}" for name in unexpected),
        *(
            f"size mismatch for {name}: was saved with shape {[*saved[name].shape]}, now it is {[*own[name].shape]}"
            for name in fitting
            if saved[name].shape != own[name].shape
        ),
    ]


class _Memory:
    """The memory of tensors, or of the parts of them that this process holds."""

    def __init__(self) -> None:
        self._spans: dict[Any, list[tuple[int, int]]] = {}

    def add(self, tensor: Tensor) -> None:
        """Adds a tensor."""
        storage, span = self._place(tensor)
        self._spans.setdefault(storage, []).append(span)

    def has(self, tensor: Tensor) -> bool:
        """Returns whether a tensor with the same memory was added."""
        storage, span = self._place(tensor)
        return span in self._spans.get(storage, ())

    def holds(self, tensor: Tensor) -> bool:
        """Returns whether the memory of a tensor lies inside that of one that was added."""
        storage, (begin, end) = self._place(tensor)
        return any(first <= begin and end <= last for first, last in self._spans.get(storage, ()))

    @staticmethod
    def _place(tensor: Tensor) -> tuple[Any, tuple[int, int]]:
        """Returns a tensor's storage, and its first and last address; without memory, it only shares with itself."""
        own = local(tensor)
        if not own.nbytes:
            return f"object {id(tensor)}", (0, 0)
        return own.untyped_storage().data_ptr(), (own.data_ptr(), own.data_ptr() + own.nbytes)
