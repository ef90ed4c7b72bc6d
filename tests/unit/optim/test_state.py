"""The optimizer's state is restored bit for bit, by parameter name."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from toolkit.base.errors import CheckpointError
from toolkit.base.shards import Box
from toolkit.config.sections import TrainConfig
from toolkit.optim.optimizers import build_optimizer, parameter_groups
from toolkit.optim.presets import PRESETS
from toolkit.optim.state import load_streamed_state, optimizer_state

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in PRESETS},
    "adamw_torch-foreach": ("adamw_torch", {"foreach": True}),
    "adamw_torch_fused-amsgrad": ("adamw_torch_fused", {"amsgrad": True}),
    "sgd-momentum": ("sgd", {"momentum": 0.9, "nesterov": True}),
    "sgdw-momentum": ("sgdw", {"momentum": 0.9}),
    "rmsprop-centered": ("rmsprop", {"momentum": 0.9, "centered": True}),
}
"""Every optimizer, some with arguments that give them more state."""


def make_model(width: int = 5, dtype: torch.dtype = torch.float32, inputs: int = 3) -> nn.Sequential:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, 2))
    model.register_parameter("frozen", nn.Parameter(torch.ones(2), requires_grad=False))
    model.register_parameter("never_used", nn.Parameter(torch.ones(2)))
    return model.to(dtype)


def groups_of(model: nn.Module, reverse: bool = False) -> list[dict[str, Any]]:
    """Returns two groups, with and without decay; `reverse` reverses their order and the order inside them."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
    ]
    return [{**group, "params": group["params"][::-1]} for group in groups[::-1]] if reverse else groups


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        weight = next(p for p in model.parameters() if p.ndim == 2)
        inputs = torch.randn(4, weight.shape[1], generator=generator, dtype=weight.dtype)
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        optimizer.step()


def load_optimizer_state(optimizer: Any, model: nn.Module, tensors: dict[str, Tensor], scalars: dict[str, Any]) -> None:
    """Restores a state whose tensors are whole and in memory."""
    complete = [(name, Box.of(tensor.shape), tensor) for name, tensor in tensors.items()]
    empty = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
    load_streamed_state(optimizer, model, empty, lambda _: complete, scalars)


def through_json(saved: tuple[dict[str, Tensor], dict[str, Any]]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors, scalars = saved
    return {name: tensor.clone() for name, tensor in tensors.items()}, json.loads(json.dumps(scalars))


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    for (name, expected), actual in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(expected, actual), name


def build(case: str, model: nn.Module, reverse: bool = False) -> Any:
    """Builds the optimizer of a case; `reverse` reverses the order of its groups and of their parameters."""
    name, arguments = CASES[case]
    settings = TrainConfig(optim=name, learning_rate=0.01, weight_decay=0.1, optim_args=arguments)

    def groups(*given: Any) -> list[dict[str, Any]]:
        found = parameter_groups(*given)
        return [{**group, "params": group["params"][::-1]} for group in found[::-1]] if reverse else found

    with patch("toolkit.optim.optimizers.parameter_groups", groups):
        optimizer: Any = build_optimizer(model, settings)
    if PRESETS[name].averages:
        optimizer.train()
    return optimizer


@pytest.mark.fast(40)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resumed_training_is_bit_identical(case: str, reverse: bool, dtype: torch.dtype) -> None:
    eight_bit = PRESETS[CASES[case][0]].eight_bit
    size: dict[str, Any] = {"width": 128, "inputs": 64} if eight_bit else {}  # smaller states would keep 32 bits
    straight = make_model(dtype=dtype, **size)
    optimizer = build(case, straight)
    train(straight, optimizer, range(3))
    weights = {key: value.clone() for key, value in straight.state_dict().items()}
    saved = through_json(optimizer_state(optimizer, straight))
    assert eight_bit == (torch.uint8 in {tensor.dtype for tensor in saved[0].values()})
    train(straight, optimizer, range(3, 7))

    resumed = make_model(dtype=dtype, **size)
    resumed.load_state_dict(weights)
    other = build(case, resumed, reverse)
    load_optimizer_state(other, resumed, *saved)
    train(resumed, other, range(3, 7))

    assert_same_weights(straight, resumed)
    expected, actual = optimizer_state(optimizer, straight), optimizer_state(other, resumed)
    assert expected[0].keys() == actual[0].keys()
    assert all(torch.equal(tensor, actual[0][key]) for key, tensor in expected[0].items())
    assert {key: tensor.dtype for key, tensor in expected[0].items()} == {k: t.dtype for k, t in actual[0].items()}


def test_state_is_keyed_by_names_and_keeps_dtypes() -> None:
    model = make_model(dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(groups_of(model))
    train(model, optimizer, range(1))
    optimizer.state[model[0].weight]["exp_avg"] = torch.full((5, 3), 1 / 3, dtype=torch.float32)
    saved = through_json(optimizer_state(optimizer, model))
    assert set(saved[0]) == {
        f"{n}.{p}::{s}" for n in (0, 2) for p in ("weight", "bias") for s in ("step", "exp_avg", "exp_avg_sq")
    }
    assert saved[0]["0.weight::step"].dtype == torch.float32
    assert saved[0]["0.weight::step"].dim() == 0

    other = torch.optim.AdamW(groups_of(model))
    load_optimizer_state(other, model, *saved)
    assert torch.equal(other.state[model[0].weight]["exp_avg"], torch.full((5, 3), 1 / 3, dtype=torch.float32))


def test_group_settings_come_back_with_their_types() -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(groups_of(model), lr=0.1, betas=(0.8, 0.9))
    optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["initial_lr"] = 0.1 + 0.2, 0.1
    saved = through_json(optimizer_state(optimizer, model))
    other = torch.optim.AdamW(groups_of(model, reverse=True), lr=0.5)
    load_optimizer_state(other, model, *saved)
    decayed = other.param_groups[1]
    assert (decayed["lr"], decayed["initial_lr"], decayed["weight_decay"]) == (0.1 + 0.2, 0.1, 0.1)
    assert decayed["betas"] == (0.8, 0.9)
    assert decayed["foreach"] is None
    assert [id(p) for p in decayed["params"]] == [id(model[2].weight), id(model[0].weight)]


def test_optimizer_built_with_names_keeps_its_own_order() -> None:
    model = make_model()
    saved = through_json(optimizer_state(torch.optim.SGD(list(model.named_parameters())), model))
    other = torch.optim.SGD(list(model.named_parameters())[::-1])
    names = list(other.param_groups[0]["param_names"])
    load_optimizer_state(other, model, *saved)
    assert other.param_groups[0]["param_names"] == names


def test_plain_sgd_has_no_tensors() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(groups_of(model), lr=0.1)
    train(model, optimizer, range(2))
    tensors, scalars = optimizer_state(optimizer, model)
    assert tensors == {}
    assert scalars["values"] == {}


def test_nested_shared_and_plain_states() -> None:
    model = make_model()
    book = torch.arange(4, dtype=torch.uint8)
    optimizer = torch.optim.SGD(groups_of(model), momentum=0.9)
    plain = {"count": 3, "scale": 0.1 + 0.2, "limit": float("inf"), "on": True, "none": None, "range": (1, 2)}
    for layer in (model[0], model[2]):
        wide = torch.ones(5, 6)[:, ::2]
        optimizer.state[layer.weight] = {"quantized": {"map": {"book": book}}, "wide": wide, **plain}
    saved = optimizer_state(optimizer, model)

    other = torch.optim.SGD(groups_of(model, reverse=True), momentum=0.9)
    load_optimizer_state(other, model, *through_json(saved))
    state = other.state[model[2].weight]
    assert torch.equal(state["quantized"]["map"]["book"], book)
    assert state["quantized"]["map"]["book"].dtype == torch.uint8
    assert {key: state[key] for key in plain} == plain
    assert state["on"] is True
    assert isinstance(state["count"], int)


def test_a_state_keeps_the_memory_layout_of_its_parameter() -> None:
    model = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    model(torch.ones(1, 2, 4, 4)).sum().backward()
    optimizer.step()
    saved = through_json(optimizer_state(optimizer, model))
    other = torch.optim.SGD(model.parameters(), momentum=0.9)
    load_optimizer_state(other, model, *saved)
    restored = other.state[model.weight]["momentum_buffer"]
    assert restored.stride() == model.weight.stride()
    assert torch.equal(restored, optimizer.state[model.weight]["momentum_buffer"])


def test_accelerates_wrapper_is_looked_through() -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    model = make_model()
    try:
        wrapped = Accelerator(cpu=True).prepare(torch.optim.AdamW(groups_of(model)))
        train(model, wrapped, range(2))
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)  # it is one for the whole process
    saved = through_json(optimizer_state(wrapped, model))
    assert saved[1]["optimizer"] == "AdamW"
    load_optimizer_state(wrapped, model, *saved)
    assert torch.equal(wrapped.optimizer.state[model[0].weight]["exp_avg"], saved[0]["0.weight::exp_avg"])


def test_loaded_tensors_do_not_share_memory_with_the_file() -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(groups_of(model))
    train(model, optimizer, range(1))
    tensors, scalars = through_json(optimizer_state(optimizer, model))
    load_optimizer_state(optimizer, model, tensors, scalars)
    before = tensors["0.weight::exp_avg"].clone()
    train(model, optimizer, range(1, 2))
    assert torch.equal(tensors["0.weight::exp_avg"], before)


def saved_adamw() -> tuple[dict[str, Tensor], dict[str, Any]]:
    model = make_model()
    optimizer = torch.optim.AdamW(groups_of(model))
    train(model, optimizer, range(1))
    return through_json(optimizer_state(optimizer, model))


def test_rejects_another_shape() -> None:
    model = make_model(width=6)
    optimizer = torch.optim.AdamW(groups_of(model))
    with pytest.raises(CheckpointError, match=r"0\.weight: was saved with shape \[5, 3\], now has shape \[6, 3\]"):
        load_optimizer_state(optimizer, model, *saved_adamw())
    assert not optimizer.state


def test_rejects_a_tensor_of_another_shape_or_missing() -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(groups_of(model))
    tensors, scalars = saved_adamw()
    tensors["0.weight::exp_avg"] = torch.zeros(2)
    del tensors["2.bias::exp_avg_sq"]
    with pytest.raises(CheckpointError) as caught:
        load_optimizer_state(optimizer, model, tensors, scalars)
    assert "0.weight::exp_avg: was saved with shape [5, 3], now has shape [2]" in str(caught.value)
    assert "2.bias::exp_avg_sq: was saved, but does not exist now" in str(caught.value)


def test_rejects_other_names() -> None:
    model = nn.ModuleDict({"encoder": nn.Linear(3, 5)})
    with pytest.raises(CheckpointError) as caught:
        load_optimizer_state(torch.optim.AdamW(model.parameters()), model, *saved_adamw())
    assert "0.weight: was saved, but does not exist now" in str(caught.value)
    assert "encoder.weight: was not saved" in str(caught.value)


def test_rejects_another_optimizer_and_another_grouping() -> None:
    model = make_model()
    with pytest.raises(CheckpointError, match="the saved optimizer is AdamW, the current one SGD"):
        load_optimizer_state(torch.optim.SGD(groups_of(model)), model, *saved_adamw())
    one_group = [p for p in model.parameters() if p.requires_grad]
    with pytest.raises(CheckpointError, match=r"grouped differently, among them 0\.bias"):
        load_optimizer_state(torch.optim.AdamW(one_group), model, *saved_adamw())


def test_rejects_what_it_cannot_name_or_hold() -> None:
    model = make_model()
    stranger = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    with pytest.raises(CheckpointError, match=r"has 1 parameter\(s\) that are not in the model"):
        optimizer_state(stranger, model)
    optimizer = torch.optim.SGD(groups_of(model))
    optimizer.state[model[0].weight]["history"] = [torch.ones(1)]
    with pytest.raises(CheckpointError, match=r"0\.weight::history is a list"):
        optimizer_state(optimizer, model)
