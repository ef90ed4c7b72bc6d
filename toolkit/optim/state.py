"""An optimizer's state as named tensors plus JSON: nothing is unpickled, and positions do not matter.

`torch` keys a saved state by position in the parameter groups: with another order of groups, parameters would silently
get each other's moments. It also casts the state to the parameter's type when loading. Here everything is keyed by the
parameter's fully qualified name and restored bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from toolkit.base.errors import CheckpointError
from toolkit.base.shards import Box, fill_part, hull, local_bytes, own_parts

SEPARATOR = "::"
"""Separates a parameter's name from the keys of its state, which may be nested: `encoder.weight::exp_avg`."""

_NOT_SETTINGS = ("params", "param_names")
_CONFIGURED = ("weight_decay",)
"""Settings of groups that follow from the run's configuration alone, which a search may change in a checkpoint."""
_NUM_SHOWN = 10
Reader = Callable[[Mapping[str, Box]], Iterable[tuple[str, Box, Tensor]]]
"""Reads parts of saved tensors: for the box of each name, the name, a box, and the values that it has of this box."""
_PAGED = ("state1", "state2")
"""The states that bitsandbytes pages."""


def optimizer_state(optimizer: Any, model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Splits an optimizer's state into tensors and plain values; the unwrapped model names its parameters.

    Returns:
        Tensors by `<parameter>::<state>`, which may be split over processes. They share the optimizer's memory, so
        write them before the next step.
        Everything else as a JSON-serializable dict: the optimizer's class, the groups' settings, plain values of the
        state, and the shapes of all tensors.

    Raises:
        CheckpointError: if a parameter is not in the model, or a state is neither a tensor nor a plain value.
    """
    optimizer = unwrapped(optimizer)
    names = {parameter: name for name, parameter in _parameters(optimizer, model).items()}
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for parameter, state in optimizer.state.items():
        for key, value in _flat(names[parameter], state):
            if isinstance(value, Tensor):
                tensors[key] = value.detach()
            else:
                values[key] = _encoded(key, value)
    groups = [
        {
            "params": [names[parameter] for parameter in group["params"]],
            "settings": {k: _encoded(k, v) for k, v in group.items() if k not in _NOT_SETTINGS},
        }
        for group in optimizer.param_groups
    ]
    shapes = _shapes({name: parameter for parameter, name in names.items()}) | _shapes(tensors)
    return tensors, {"optimizer": type(optimizer).__name__, "groups": groups, "values": values, "shapes": shapes}


def load_streamed_state(
    optimizer: Any,
    model: nn.Module,
    saved: Mapping[str, Tensor],
    read: Reader,
    scalars: Mapping[str, Any],
    outline: nn.Module | None = None,
) -> None:
    """Restores a state from `optimizer_state` bit for bit, from parts of tensors that are read one at a time.

    Everything is checked before anything is changed. Groups are matched by their parameters, so their order, and the
    order in each of them, may differ. Shapes and types of the `saved` tensors are on the meta device; `read` reads the
    parts that this process holds. The `outline` is the complete model, if other processes train some of its parameters;
    their state is omitted.

    Raises:
        CheckpointError: if the class, names, groups or shapes differ.
    """
    optimizer = unwrapped(optimizer)
    parameters = _parameters(optimizer, model)
    names = {parameter: name for name, parameter in parameters.items()}
    elsewhere = set() if outline is None else _names(outline) - _names(model)
    saved = {key: value for key, value in saved.items() if _parameter(key) not in elsewhere}
    scalars = _without(scalars, elsewhere) if elsewhere else scalars
    settings = {frozenset(group["params"]): group["settings"] for group in scalars["groups"]}
    # A group all of whose parameters other processes train has no members here, and its settings have no effect.
    groups = [(group, frozenset(names[p] for p in group["params"])) for group in optimizer.param_groups]
    groups = [(group, members) for group, members in groups if members]
    _require_fit(optimizer, scalars, _shapes(parameters) | _shapes(saved), {members for _, members in groups})

    step_devices = {}
    for group, members in groups:
        saved_settings = settings[members].items()
        group.update({key: _decoded(value) for key, value in saved_settings if key not in _CONFIGURED})
        on_device = group.get("fused") or group.get("capturable")
        step_devices.update({name: parameters[name].device if on_device else "cpu" for name in members})
    optimizer.state.clear()
    for key, value in scalars["values"].items():
        state, last, _ = _place(optimizer, parameters, key)
        state[last] = _decoded(value)
    targets = {key: _target(optimizer, parameters, key, value, step_devices) for key, value in saved.items()}
    held = {key: own_parts(target) for key, target in targets.items()}
    for key, box, part in read({key: hull(parts) for key, parts in held.items()}):
        fill_part(targets[key], held[key], part, box)


def _target(
    optimizer: Any,
    parameters: Mapping[str, Tensor],
    key: str,
    value: Tensor,
    step_devices: Mapping[str, torch.device | str],
) -> Tensor:
    """Returns an empty tensor in the optimizer's state for a saved one."""
    state, last, name = _place(optimizer, parameters, key)
    if last in _PAGED and hasattr(optimizer, "get_state_buffer"):
        # Paged memory must be allocated by the optimizer.
        state[last] = optimizer.get_state_buffer(parameters[name], dtype=value.dtype)
    else:
        # torch reads step counts on the host, unless the kernel reads them; on the device each would cost a sync.
        is_step = last == "step" and value.dim() == 0
        state[last] = _empty(value, parameters[name], step_devices[name] if is_step else None)
    target: Tensor = state[last]
    return target


def _place(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor], key: str
) -> tuple[dict[str, Any], str, str]:
    """Returns the dictionary that holds a state, the state's key in it, and the parameter's name."""
    name, *path, last = key.split(SEPARATOR)
    state = optimizer.state[parameters[name]]
    for part in path:
        state = state.setdefault(part, {})
    return state, last, name


def state_bytes(optimizer: Any) -> int:
    """Returns the bytes of an optimizer's state on this process, without the shared code books of 8-bit optimizers."""
    leaves = (leaf for state in unwrapped(optimizer).state.values() for leaf in _flat("", state))
    return sum(
        local_bytes(value)
        for key, value in leaves
        if isinstance(value, Tensor) and not key.split(SEPARATOR)[-1].startswith("qmap")
    )


def unwrapped(optimizer: Any) -> torch.optim.Optimizer:
    """Returns the optimizer inside accelerate's `AcceleratedOptimizer`, or the optimizer itself."""
    inner: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
    return inner


def _parameters(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Returns the optimizer's parameters by their name in the model."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    members = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    strangers = [p for p in [*members, *optimizer.state] if not isinstance(p, Tensor) or p not in names]
    if strangers:
        raise CheckpointError(
            f"the optimizer {type(optimizer).__name__} has {len(strangers)} parameter(s) that are not in the model, so "
            "its state cannot be saved or loaded; build it from the parameters of this model"
        )
    return {names[parameter]: parameter for parameter in members}


def _flat(prefix: str, state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the leaves of nested dicts with their joined keys."""
    for key, value in state.items():
        joined = f"{prefix}{SEPARATOR}{key}"
        if isinstance(value, Mapping):
            yield from _flat(joined, value)
        else:
            yield joined, value


def _without(scalars: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Returns the plain values of a state without some parameters, and without the groups that this empties."""
    kept = {
        part: {key: value for key, value in scalars[part].items() if _parameter(key) not in names}
        for part in ("values", "shapes")
    }
    groups = [{**each, "params": [name for name in each["params"] if name not in names]} for each in scalars["groups"]]
    return {**scalars, **kept, "groups": [group for group in groups if group["params"]]}


def _names(model: nn.Module) -> set[str]:
    return {name for name, _ in model.named_parameters()}


def _parameter(key: str) -> str:
    """Returns the parameter's name in the key of a part of its state."""
    return key.split(SEPARATOR)[0]


def _encoded(name: str, value: Any) -> Any:
    """Returns a plain value in a form that JSON supports, with tuples marked."""
    if isinstance(value, tuple):
        return {"tuple": [_encoded(name, item) for item in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CheckpointError(
        f"the optimizer's {name} is a {type(value).__name__}, which a checkpoint cannot hold (only tensors, numbers, "
        "text and tuples of them); choose another optimizer or optim_args"
    )


def _decoded(value: Any) -> Any:
    """Undoes `_encoded`."""
    return tuple(_decoded(item) for item in value["tuple"]) if isinstance(value, dict) else value


def _empty(saved: Tensor, parameter: Tensor, device: torch.device | str | None) -> Tensor:
    """Returns an empty tensor for a saved one, split like its parameter if it has the parameter's shape."""
    # If the shapes agree, use the parameter's memory layout: with other strides, slower kernels would run.
    if saved.shape == parameter.shape and device is None:
        return torch.empty_like(parameter, dtype=saved.dtype, requires_grad=False)
    return torch.empty(saved.shape, dtype=saved.dtype, device=device or parameter.device)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in tensors.items()}


def _require_fit(
    optimizer: torch.optim.Optimizer,
    scalars: Mapping[str, Any],
    shapes: Mapping[str, list[int]],
    groups: set[frozenset[str]],
) -> None:
    """Raises CheckpointError unless the saved state fits this optimizer and model."""
    saved = scalars["shapes"]
    problems = []
    if scalars["optimizer"] != type(optimizer).__name__:
        problems.append(f"the saved optimizer is {scalars['optimizer']}, the current one {type(optimizer).__name__}")
    for name in sorted({*saved, *shapes}):
        if name not in shapes:
            problems.append(f"{name}: was saved, but does not exist now")
        elif name not in saved:
            problems.append(f"{name}: was not saved")
        elif saved[name] != shapes[name]:
            problems.append(f"{name}: was saved with shape {saved[name]}, now has shape {shapes[name]}")
    saved_groups = {frozenset(group["params"]) for group in scalars["groups"]}
    if not problems and groups != saved_groups:
        moved = sorted(frozenset().union(*(groups ^ saved_groups)))
        problems.append(f"parameters are grouped differently, among them {', '.join(moved[:_NUM_SHOWN])}")
    if problems:
        more = [f"and {len(problems) - _NUM_SHOWN} more"] if len(problems) > _NUM_SHOWN else []
        raise CheckpointError(
            "\n  - ".join(["the saved optimizer state does not fit this run:", *problems[:_NUM_SHOWN], *more])
            + "\nResume with the model and optimizer settings of the original run."
        )
