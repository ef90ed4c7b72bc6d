"""Optimizers: their settings, their parameter groups, and the memory of their states."""

from __future__ import annotations

import importlib.util
import re
import typing
import warnings

import pytest
import torch
import transformers
from runs import SMALL, assert_same_weights, lines, train
from tolerances import FLOAT64
from torch import nn

from toolkit.base.errors import ConfigError
from toolkit.config.sections import TrainConfig
from toolkit.optim.optimizers import (
    argument_problems,
    build_optimizer,
    depths,
    in_head,
    library_problems,
    parameter_groups,
)
from toolkit.optim.presets import PRESETS
from toolkit.optim.shapes import SHAPES
from toolkit.optim.state import state_bytes


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2, bias=False))


def bert(name: str = "SequenceClassification", layers: int = 2) -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=8, num_hidden_layers=layers, num_attention_heads=1, intermediate_size=8
    )
    return getattr(transformers, f"BertFor{name}")(config)


def square(width: int = 384) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(width, width, bias=False)


def step(network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    generator = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
    optimizer.step()


def ready(name: str, network: nn.Module) -> torch.optim.Optimizer:
    """Returns an optimizer of that name that is ready to step."""
    optimizer = build_optimizer(network, TrainConfig(optim=name, learning_rate=0.1))
    if PRESETS[name].averages:
        optimizer.train()
    return optimizer


def names_by(network: nn.Module, groups: list[dict], key: str) -> dict[float, set[str]]:
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    found: dict[float, set[str]] = {}
    for group in groups:
        found.setdefault(group[key], set()).update(names[id(p)] for p in group["params"])
    return found


def test_the_yamls_choices_are_what_there_is():
    hints = typing.get_type_hints(TrainConfig)
    assert list(typing.get_args(hints["optim"])) == list(PRESETS)
    assert set(typing.get_args(hints["lr_scheduler_type"])) == set(SHAPES)


def test_biases_and_norms_do_not_decay_and_frozen_parameters_are_left_out():
    network = model()
    network[3].weight.requires_grad = False
    groups = parameter_groups(network, TrainConfig(weight_decay=0.1), 1.0)
    assert names_by(network, groups, "weight_decay") == {
        0.1: {"0.weight", "1.weight"},
        0.0: {"1.bias", "2.weight", "2.bias"},
    }


class LayerNorm2d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.offset = nn.Parameter(torch.ones(3, 1, 1)), nn.Parameter(torch.ones(3, 1, 1))


def test_norms_do_not_decay_whatever_their_shape():
    network = nn.ModuleDict({"norm": LayerNorm2d(), "conv": nn.Conv2d(3, 3, 1)})
    network.register_parameter("patch_bias", nn.Parameter(torch.ones(2, 2)))
    decays = names_by(network, parameter_groups(network, TrainConfig(weight_decay=0.1), 1.0), "weight_decay")
    assert decays == {0.1: {"conv.weight"}, 0.0: {"norm.weight", "norm.offset", "conv.bias", "patch_bias"}}


def test_a_layer_learns_slower_the_deeper_it_lies():
    network = bert()
    rates = names_by(network, parameter_groups(network, TrainConfig(layerwise_lr_decay=0.5), 8.0), "lr")
    assert set(rates) == {8.0, 4.0, 2.0, 1.0}
    assert rates[8.0] == {"classifier.weight", "classifier.bias"} == in_head(network)
    assert rates[4.0] == {n for n, _ in network.named_parameters() if ".layer.1." in n or "pooler" in n}
    assert rates[2.0] == {n for n, _ in network.named_parameters() if ".layer.0." in n}
    assert rates[1.0] == {n for n, _ in network.named_parameters() if "embeddings" in n}


def test_decoders_lie_over_encoders():
    config = transformers.T5Config(vocab_size=50, d_model=8, d_kv=4, d_ff=8, num_layers=2, num_heads=2)
    network = transformers.T5ForConditionalGeneration(config)
    depth, num_layers = depths(network)
    assert num_layers == 4
    assert depth["shared.weight"] == 0
    assert depth["encoder.block.1.layer.1.layer_norm.weight"] == depth["encoder.final_layer_norm.weight"] == 2
    assert depth["decoder.block.1.layer.2.layer_norm.weight"] == 4


def test_the_head_has_a_rate_of_its_own_and_the_first_group_is_the_one_that_is_logged():
    network = bert()
    groups = parameter_groups(network, TrainConfig(head_learning_rate=0.3, weight_decay=0.1), 0.1)
    assert names_by(network, groups, "lr")[0.3] == {"classifier.weight", "classifier.bias"}
    assert [group["lr"] for group in groups] == [0.1, 0.1, 0.3, 0.3]


@pytest.mark.parametrize(
    ("settings", "network"), [({"head_learning_rate": 1.0}, model), ({"layerwise_lr_decay": 0.5}, square)]
)
def test_rates_of_what_a_model_does_not_have_are_rejected(settings, network):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        build_optimizer(network(), TrainConfig(**settings))


@pytest.mark.parametrize("name", PRESETS)
def test_every_optimizer_moves_every_parameter(name):
    network = model()
    before = [parameter.clone() for parameter in network.parameters()]
    step(network, ready(name, network))
    assert all(not torch.equal(old, new) for old, new in zip(before, network.parameters(), strict=True))


@pytest.mark.parametrize("name", PRESETS)
def test_bytes_of_state_are_those_of_the_preset(name):
    network = square()
    optimizer = ready(name, network)
    step(network, optimizer)
    assert state_bytes(optimizer) / network.weight.numel() == pytest.approx(PRESETS[name].state_bytes, rel=0.01)


@pytest.mark.parametrize("name", PRESETS)
def test_an_elementwise_optimizer_updates_a_part_like_the_whole(name):
    """Parts have unequal sizes, so that blocks of 8-bit moments would start at different elements."""
    network = square(96)
    rows = 49
    parts = nn.ParameterList(nn.Parameter(part.clone()) for part in network.weight.detach().split([rows, 96 - rows]))
    optimizers = ready(name, network), ready(name, parts)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        network.weight.grad = torch.randn(96, 96, generator=generator).pow(5)  # small beside large: 8 bits lose some
        for part, gradient in zip(parts, network.weight.grad.split([rows, 96 - rows]), strict=True):
            part.grad = gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    difference = (network.weight - torch.cat(list(parts))).abs().max().item()
    assert (difference < 1e-6) == PRESETS[name].elementwise, difference


def test_bytes_of_state_are_reported(tmp_path):
    run = ("model.from_config.num_hidden_layers=1", *SMALL, "data.max_train_samples=8", "train.max_steps=1")
    result = train("reviews", tmp_path / "run", *run, sizes=())
    assert (tmp_path / "run" / "report.md").read_text().count("optimizer_state_bytes_per_parameter | 8") == 1
    assert result.memory.optimizer_state > 0


def test_eight_bits_leave_embeddings_and_small_tensors_alone_and_forget_former_runs():
    from bitsandbytes.optim import GlobalOptimManager

    for _ in range(2):
        network = nn.Sequential(nn.Embedding(64, 64), nn.Linear(64, 64))
        optimizer = build_optimizer(network, TrainConfig(optim="adamw_bnb_8bit"))
        step(network, optimizer)
        dtypes = {name: optimizer.state[p]["state1"].dtype for name, p in network.named_parameters()}
        assert dtypes == {"0.weight": torch.float32, "1.weight": torch.uint8, "1.bias": torch.float32}
        assert len(optimizer.mng.pid2config) == 1
    manager = GlobalOptimManager.get_instance()
    assert (manager.pid2config, manager.module_weight_config_triple) == ({}, [])


def test_muon_takes_hidden_matrices_and_nothing_else():
    network = bert()
    optimizer = build_optimizer(network, TrainConfig(optim="muon", weight_decay=0.1))
    muons = names_by(network, optimizer.param_groups, "matrices")[True]
    assert muons == {
        n
        for n, p in network.named_parameters()
        if p.ndim == 2 and "embeddings" not in n and not n.startswith("classifier")
    }
    alone = square()
    reference, ours = square(), build_optimizer(alone, TrainConfig(optim="muon", learning_rate=0.1, weight_decay=0.1))
    torchs = torch.optim.Muon(reference.parameters(), lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        step(alone, ours)
        step(reference, torchs)
    assert torch.equal(alone.weight, reference.weight)
    with pytest.raises(ConfigError, match="no hidden matrix"):
        build_optimizer(nn.LayerNorm(3), TrainConfig(optim="muon"))


def test_sgdw_decays_beside_the_momentum():
    network, reference = square(8), square(8)
    train_config = TrainConfig(optim="sgdw", learning_rate=0.1, weight_decay=0.5, optim_args={"momentum": 0.9})
    optimizer = build_optimizer(network, train_config)
    plain = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        step(network, optimizer)
        with torch.no_grad():
            reference.weight.mul_(1 - 0.1 * 0.5)
        step(reference, plain)
    assert torch.equal(network.weight, reference.weight)
    assert optimizer.param_groups[0]["weight_decay"] == 0.5


def test_adadelta_is_zeilers_formula():
    network, weight = square(8).double(), square(8).double().weight.detach()
    train_config = TrainConfig(optim="adadelta", learning_rate=0.7, optim_args={"rho": 0.8, "eps": 1e-3})
    optimizer = build_optimizer(network, train_config)
    squares, updates = torch.zeros_like(weight), torch.zeros_like(weight)
    for _ in range(4):
        step(network, optimizer)
        gradient = network.weight.grad
        squares = 0.8 * squares + 0.2 * gradient**2
        change = (updates + 1e-3).sqrt() / (squares + 1e-3).sqrt() * gradient
        updates = 0.8 * updates + 0.2 * change**2
        weight = weight - 0.7 * change
    assert (network.weight - weight).abs().max() < FLOAT64


def test_lars_is_the_papers_formula():
    network = nn.Linear(8, 4).double()
    weight, bias = (p.detach().clone() for p in network.parameters())
    momenta = [torch.zeros_like(weight), torch.zeros_like(bias)]
    train_config = TrainConfig(optim="lars", learning_rate=2.0, weight_decay=0.1, optim_args={"momentum": 0.8})
    optimizer = build_optimizer(network, train_config)
    for _ in range(4):
        step(network, optimizer)
        gradient, other = network.weight.grad, network.bias.grad
        rate = 1e-3 * weight.norm() / (gradient.norm() + 0.1 * weight.norm() + 1e-8)
        momenta = [0.8 * momenta[0] + 2.0 * rate * (gradient + 0.1 * weight), 0.8 * momenta[1] + 2.0 * other]
        weight, bias = weight - momenta[0], bias - momenta[1]  # vectors have no ratio, and no decay
    assert (network.weight - weight).abs().max() < FLOAT64
    assert (network.bias - bias).abs().max() < FLOAT64
    with pytest.raises(ConfigError, match=r"lars rejects .*momentum: received 1\.5, must be at least 0 and below 1"):
        build_optimizer(square(), TrainConfig(optim="lars", optim_args={"momentum": 1.5}))


def test_lars_leaves_weights_and_gradients_of_zero_to_sgd():
    network = square(4)
    nn.init.zeros_(network.weight)
    step(network, build_optimizer(network, TrainConfig(optim="lars", learning_rate=0.5)))
    assert torch.equal(network.weight, -0.5 * network.weight.grad)


def test_lamb_scales_adams_direction_by_the_ratio_of_norms():
    network, reference = square(), square()
    optimizer = build_optimizer(network, TrainConfig(optim="lamb_bnb_8bit", learning_rate=0.1, weight_decay=0.01))
    moments = [torch.zeros_like(reference.weight) for _ in range(2)]
    for count in range(1, 4):
        step(network, optimizer)
        gradient, weight = network.weight.grad, reference.weight.detach()
        moments[0].lerp_(gradient, 0.1)
        moments[1].lerp_(gradient.square(), 0.001)
        corrected = [moments[0] / (1 - 0.9**count), moments[1] / (1 - 0.999**count)]
        direction = corrected[0] / (corrected[1].sqrt() + 1e-8) + 0.01 * weight
        ratio = weight.norm().clamp(max=10) / direction.norm()
        with torch.no_grad():
            reference.weight.sub_(0.1 * ratio * direction)
    moved = (network.weight - square().weight).norm()
    assert (network.weight - reference.weight).norm() < 0.05 * moved  # states of 8 bits


def test_adafactor_relative_logs_the_rate_that_it_takes(tmp_path):
    run = (*SMALL, "data.max_train_samples=24", "train.per_device_train_batch_size=4", "train.max_steps=3",
           "train.gradient_accumulation_steps=1", "train.optim=adafactor_relative", "train.warmup_steps=0",
           "train.lr_scheduler_type=constant", "train.learning_rate=5.0e-5")  # fmt: skip
    train("reviews", tmp_path / "run", *run)
    train("reviews", tmp_path / "rising", *run, "train.optim_args.warmup_init=true")
    assert [line["learning_rate"] for line in lines(tmp_path / "run", "loss")] == [0.01] * 3
    rising = [line["learning_rate"] for line in lines(tmp_path / "rising", "loss")]
    assert rising == pytest.approx([1e-6, 2e-6, 3e-6])


@pytest.mark.slow
def test_schedule_free_trains_the_same_however_often_it_is_evaluated_and_keeps_the_best_average(
    tmp_path, monkeypatch, capsys
):
    run = (*SMALL, "data.max_train_samples=24", "data.max_eval_samples=8", "train.per_device_train_batch_size=4",
           "train.gradient_accumulation_steps=1", "train.max_steps=6", "train.optim=schedule_free_adamw",
           "train.lr_scheduler_type=constant", "train.warmup_steps=0", "train.learning_rate=0.1",
           "checkpoint.save_steps=1", "eval.metric_for_best_model=loss")  # fmt: skip
    train("reviews", tmp_path / "seldom", *run, "eval.eval_steps=null")
    often = train("reviews", tmp_path / "often", *run, "eval.eval_steps=1")
    assert_same_weights(tmp_path / "seldom", tmp_path / "often")
    assert often.best_step not in (None, 6)
    best = train("reviews", tmp_path / "best", *run, "eval.eval_steps=1", "checkpoint.load_best_model_at_end=true")
    evaluated = {line["step"]: line["eval_loss"] for line in lines(tmp_path / "best", "eval_loss")}
    assert best.evaluations["validation"].metrics["loss"] == evaluated[best.best_step]
    # If the optimizer's state of the best step is damaged, all of the last step is kept.
    monkeypatch.setattr("toolkit.checkpoint.manifest.HASHED_BYTES", 0)
    file = tmp_path / "best/checkpoints" / f"step-{best.best_step}" / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    train("reviews", tmp_path / "best", *run, "eval.eval_steps=1", "checkpoint.load_best_model_at_end=true",
          "checkpoint.resume=auto")  # fmt: skip
    assert "keeping the model of the last step" in capsys.readouterr().out
    assert_same_weights(tmp_path / "often", tmp_path / "best")


@pytest.mark.parametrize(("optim", "library"), [("lion_8bit", "bitsandbytes"), ("schedule_free_adamw", "schedulefree")])
def test_what_is_not_installed_is_rejected_with_its_extra(optim, library, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (problem,) = library_problems(TrainConfig(optim=optim))
    assert re.search(rf"{library} is not installed .*finetune-toolkit\[optimizers\]", problem)


def test_what_cannot_be_paged_is_said(capsys):
    network = square()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(network, build_optimizer(network, TrainConfig(optim="paged_adamw_8bit")))
    assert "does not page on a CPU" in capsys.readouterr().out


def test_settings_reach_the_optimizer():
    train = TrainConfig(
        optim="adamw_torch", learning_rate=0.3, adam_beta1=0.8, adam_epsilon=1e-6, optim_args={"amsgrad": True}
    )
    group = build_optimizer(model(), train).param_groups[0]
    assert (group["lr"], group["betas"], group["eps"], group["amsgrad"]) == (0.3, (0.8, 0.999), 1e-6, True)
    sgd = build_optimizer(model(), TrainConfig(optim="sgd", optim_args={"momentum": 0.9, "nesterov": True}))
    assert (sgd.param_groups[0]["momentum"], sgd.param_groups[0]["nesterov"]) == (0.9, True)


def test_wrong_arguments_of_an_optimizer_are_named():
    (problem,) = argument_problems(TrainConfig(optim="sgd", optim_args={"momentun": 0.9}))
    assert re.match(r"train\.optim_args\.momentun: unknown argument of sgd; known: .*momentum", problem)
    with pytest.raises(ConfigError, match="sgd rejects"):
        build_optimizer(model(), TrainConfig(optim="sgd", optim_args={"nesterov": True}))
    (problem,) = argument_problems(TrainConfig(optim="adamw_bnb_8bit", optim_args={"is_paged": True}))
    assert "is_paged: unknown argument of adamw_bnb_8bit" in problem
    (problem,) = argument_problems(TrainConfig(optim="adafactor", optim_args={"relative_step": True}))
    assert "relative_step: unknown argument of adafactor" in problem
