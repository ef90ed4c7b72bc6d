"""Writes and loads the contents of a checkpoint: model, optimizer, state, tensors of callbacks.

Any rank may call the writers while the transaction (`toolkit.checkpoint.store.new_checkpoint`) is open.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import save_file
from torch import Tensor, nn

from toolkit.api.run import Checkpoint
from toolkit.base.errors import CheckpointError
from toolkit.base.run_folder import CheckpointFolder
from toolkit.base.shards import fill, local
from toolkit.checkpoint.tensors import verified_tensors
from toolkit.optim.state import load_streamed_state

_SCALARS = "state"
"""Key of the optimizer's non-tensor values in the header of its file."""
_UNLIMITED = 2**63 - 1
"""Size of a file, in bytes."""


def write_model(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes parameters and buffers.

    Args:
        folder: the checkpoint's folder.
        tensors: complete tensors by name; those that share memory (tied weights) are written once.
    """
    file = CheckpointFolder(folder).model
    save_torch_state_dict(
        dict(tensors), file.parent, filename_pattern=file.stem + "{suffix}.safetensors", max_shard_size=_UNLIMITED
    )


def write_optimizer(folder: Path, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]) -> None:
    """Writes an optimizer's state, as returned by `toolkit.optim.state.optimizer_state`.

    Args:
        folder: the checkpoint's folder.
        tensors: complete tensors by name.
        scalars: the other values.
    """
    save_file(dict(tensors), CheckpointFolder(folder).optimizer, metadata={_SCALARS: json.dumps(scalars)})


def write_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Writes JSON-able values with string keys; floats, NaN and infinities are restored exactly."""
    CheckpointFolder(folder).state.write_text(json.dumps(state), encoding="utf-8")


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes named tensors of any shape, for example those of a callback."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def load_model_into(checkpoint: Checkpoint, model: nn.Module, outline: nn.Module | None = None) -> None:
    """Copies the weights of a checkpoint into the unwrapped model, in place.

    Args:
        checkpoint: the checkpoint.
        model: the unwrapped model.
        outline: the complete model, if other processes hold some of its weights; those are read and left out.

    Raises:
        CheckpointError: if names or shapes do not match the model's; lists them and changes nothing.
        DamagedCheckpoint: if the file is damaged; the model must not be used then.
    """
    path = CheckpointFolder(checkpoint.path).model
    own = model.state_dict()
    with verified_tensors(checkpoint, path) as saved:
        names = _own_names(saved.shapes, own, outline)
        shapes = {own_name: saved.shapes[name] for name, own_name in names.items() if own_name is not None}
        if problems := _misfits(own, shapes):
            raise CheckpointError(
                "\n    ".join([f"the weights in {path} do not match this model:", *problems])
                + "\nResume with the model settings that the run was started with."
            )
        for name, tensor in saved:
            own_name = names[name]
            if own_name is not None:
                fill(own[own_name], tensor)


def load_optimizer_into(
    checkpoint: Checkpoint, optimizer: Any, model: nn.Module, outline: nn.Module | None = None
) -> None:
    """Restores the optimizer's state exactly.

    Args:
        checkpoint: the checkpoint.
        optimizer: a `torch.optim.Optimizer`, or accelerate's wrapper of one.
        model: the unwrapped model, which names the optimizer's parameters.
        outline: the complete model, if other processes train some of its parameters; their state is left out.

    Raises:
        CheckpointError: if the state does not match this optimizer; says why and changes nothing.
        DamagedCheckpoint: if the file is damaged; the optimizer must not be used then.
    """
    with verified_tensors(checkpoint, CheckpointFolder(checkpoint.path).optimizer) as saved:
        scalars = json.loads(saved.metadata[_SCALARS])
        load_streamed_state(optimizer, model, saved, saved.shapes, scalars, outline)


def load_tensors(checkpoint: Checkpoint, path: Path) -> dict[str, Tensor]:
    """Reads a file that `write_tensors` wrote into a checkpoint.

    Returns:
        Tensors by name, on the CPU; empty if the file does not exist.

    Raises:
        DamagedCheckpoint: if the file is damaged.
    """
    if not path.exists():
        return {}
    with verified_tensors(checkpoint, path) as saved:
        return dict(saved)


def _own_names(saved: Iterable[str], own: Collection[str], outline: nn.Module | None) -> dict[str, str | None]:
    """Returns the name in this process's model of each saved tensor; None if other processes hold it.

    Tied weights are saved under one of their names, which may be that of a module that another process holds.
    """
    complete = {} if outline is None else outline.state_dict(keep_vars=True)
    held = {id(complete[name]): name for name in own} if complete else {}
    return {name: name if name in own or name not in complete else held.get(id(complete[name])) for name in saved}


def _misfits(own: Mapping[str, Tensor], saved: Mapping[str, list[int]]) -> list[str]:
    """Returns messages about missing and unexpected tensors and different shapes.

    Only one of several weights that share memory is saved.
    """
    fitting = [name for name in saved if name in own]
    spans = {_span(own[name]): name for name in reversed(fitting)}
    shared = [name for name in fitting if local(own[name]).nbytes and spans[_span(own[name])] != name]
    unexpected = [*(name for name in saved if name not in own), *shared]
    missing = [name for name in own if name not in saved and not _inside(own[name], spans)]
    return [
        *(f"missing: {name}" for name in missing),
        *(f"unexpected: {name}" for name in unexpected),
        *(
            f"size mismatch for {name}: was saved with shape {saved[name]}, now it is {list(own[name].shape)}"
            for name in fitting
            if saved[name] != list(own[name].shape)
        ),
    ]


def _span(tensor: Tensor) -> tuple[torch.device, int, int]:
    """Returns the device of a tensor and its first and last address."""
    own = local(tensor)
    return own.device, own.data_ptr(), own.data_ptr() + own.nbytes


def _inside(tensor: Tensor, spans: Iterable[tuple[torch.device, int, int]]) -> bool:
    """Returns whether a tensor's memory lies inside one of the spans."""
    device, begin, end = _span(tensor)
    return begin < end and any(device == other and first <= begin and end <= last for other, first, last in spans)
