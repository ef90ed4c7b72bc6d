"""Simulated memory of training steps equals the memory of real ones."""

from __future__ import annotations

import gc
import math
from dataclasses import replace

import pytest
import torch
from planning_subjects import KINDS, subject
from runs import ROOT, TINY
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from toolkit.base.errors import InputError
from toolkit.engine import fit
from toolkit.footprint.ledger import as_fake, without_memory
from toolkit.footprint.predict import predicted
from toolkit.footprint.simulate import simulate
from toolkit.optim.optimizers import build_optimizer
from toolkit.optim.presets import PRESETS
from toolkit.optim.state import state_bytes
from toolkit.recipe import load_settings, load_task_type
from toolkit.run import prepared_run

MOVE = nn.Module.to


def test_the_ledger_knows_what_is_alive_and_what_was_the_most() -> None:
    with without_memory() as ledger:
        one = torch.empty(1000)
        other = one * 2
        assert (ledger.total, ledger.peak) == (8000, 8000)
        view = other[:10].view(2, 5)
        del other
        assert ledger.total == 8000  # the view keeps it
        del view
        assert (ledger.total, ledger.peak) == (4000, 8000)
        torch.empty(6, 7) @ torch.empty(7, 8)
        assert ledger.flops == 2 * 6 * 7 * 8


def test_random_numbers_stay_as_they_were() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    simulate(subject("wav2vec2"))
    assert torch.equal(torch.rand(3), expected)


def test_a_model_may_look_at_masks_but_not_at_what_it_computes() -> None:
    values = torch.tensor([[1, 1, 0], [1, 0, 0]])
    with without_memory() as ledger:
        mask = as_fake(values, ledger.fake)
        assert not mask.bool().all()
        assert mask.sum(-1).tolist() == [2, 1]
        assert torch.empty(2, 3)[mask.bool()].shape == (3,)
        with pytest.raises(InputError, match=r"train\.max_steps=3"):
            bool(torch.empty(3).sum() > 0)


@pytest.mark.fast(3)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_is_planned(kind: str) -> None:
    kept = simulate(subject(kind))
    assert kept.peak >= kept.states + kept.activations
    assert (kept.parameters, kept.gradients) == (4 * kept.total, 4 * kept.trained)
    assert kept.flops > 0
    assert kept.recomputed == 0
    if kind != "convnext":  # transformers checkpoints nothing there
        anew = simulate(subject(kind, activation_checkpointing="full"))
        assert anew.activations < 0.7 * kept.activations
        assert anew.flops - anew.recomputed == kept.flops
        assert anew.recomputed > 0


@pytest.mark.fast(4)
@pytest.mark.parametrize("optim", PRESETS)
def test_optimizer_state_is_that_of_a_real_one(optim: str) -> None:
    from transformers import AutoConfig, AutoModelForSequenceClassification

    sizes = KINDS["bert"][1] | {"hidden_size": 64, "intermediate_size": 128}  # some tensors of over 4096 elements
    planned = subject("bert", sizes, optim=optim)
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model("bert", **sizes))
    optimizer = build_optimizer(model, planned.cfg.train)
    if hasattr(optimizer, "train"):
        optimizer.train()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert simulate(planned).optimizer_state == state_bytes(optimizer)


def test_precision_accumulation_and_averages_show() -> None:
    plain = simulate(subject("bert"))
    half = simulate(subject("bert", mixed_precision="bf16"))
    assert half.activations < plain.activations
    linears = sum(
        module.weight.numel() + module.bias.numel() for module in tiny_bert().modules() if isinstance(module, nn.Linear)
    )
    assert 0.9 * 2 * linears < half.weight_copies <= 2 * linears
    # Gradients of the micro-batches before are there while activations are.
    several = simulate(subject("bert", gradient_accumulation_steps=4))
    first, other = (min(phase.get("gradients", 0) for phase in each.phases) for each in (several, plain))
    assert first == several.gradients > other, "those of earlier micro-batches are there from the start"
    assert several.batch == 4 * plain.batch
    averaged = simulate(subject("bert", ema_decay=0.9))
    assert averaged.peak == plain.peak + plain.parameters


def tiny_bert() -> nn.Module:
    from transformers import AutoConfig, AutoModelForSequenceClassification

    return AutoModelForSequenceClassification.from_config(AutoConfig.for_model("bert", **KINDS["bert"][1]))


def test_fused_attention_keeps_no_matrix_of_weights() -> None:
    length = 256
    eager = simulate(subject("llama", length=length, fused=True))
    dropped = KINDS["llama"][1] | {"attention_dropout": 0.1}
    matrix = 3 * 2 * length * length * 4  # rows (the fourth is short), heads, positions, bytes
    on_cpu, on_gpu = (simulate(subject("llama", dropped, length=length, fused=fused)) for fused in (False, True))
    assert on_cpu.activations - on_gpu.activations > matrix
    assert on_gpu.activations == eager.activations


BERT_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
LLAMA_7B = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008,
            "vocab_size": 32000}  # fmt: skip


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("kind", "sizes", "weights"),
    [("bert", BERT_LARGE, 335_143_938), pytest.param("llama", LLAMA_7B, 6_738_415_616, marks=pytest.mark.slow)],
)
def test_published_arithmetic_holds(kind: str, sizes: dict, weights: int) -> None:
    """16 bytes a weight for Adam in float32, 18 with the copies of mixed precision (arXiv 1910.02054, section 3.1)."""
    found = simulate(subject(kind, sizes, rows=1, length=64, fused=True, mixed_precision="bf16"))
    assert found.total == weights
    lasting = found.parameters + found.gradients + found.optimizer_state
    assert math.isclose(lasting / weights, 16, rel_tol=1e-4)
    # Embeddings are looked up, not multiplied, so they have no copy.
    assert 17.7 < (lasting + found.weight_copies) / weights < 18


def test_parts_are_those_of_a_real_run(tmp_path) -> None:
    task_type, recipe = load_task_type(ROOT / "recipes/reviews.py"), ROOT / "recipes/reviews.py"
    settings = [*TINY, "train.max_steps=2", "data.max_train_samples=24", "data.max_eval_samples=8",
                "eval.eval_steps=null", f"output_dir={tmp_path}"]  # fmt: skip
    file = ROOT / "recipes/configs/reviews/smoke.yaml"
    cfg = load_settings(task_type, file, settings).config
    with prepared_run(cfg, task_type(cfg), recipe) as run:
        memory = fit(run).memory
        found = predicted(run)
        assert predicted(run) is found
        masks = replace(cfg, train=replace(cfg.train, fast_dropout=False))
        assert predicted(replace(run, cfg=masks)) is not found
    assert found.parameters + found.buffers == memory.parameters
    assert (found.gradients, found.optimizer_state) == (memory.gradients, memory.optimizer_state)
    assert found.rows == 8


def test_what_decides_by_numbers_is_rejected() -> None:
    planned = subject("bert")
    planned.task.loss_sum = lambda outputs, batch: outputs.logits.sum() if outputs.logits.sum() > 0 else 1 / 0
    with pytest.raises(InputError, match="without real values"):
        simulate(planned)
    model = replace(planned.cfg.model, peft=replace(planned.cfg.model.peft, method="qlora"))
    quantized = replace(planned, cfg=replace(planned.cfg, model=model))
    with pytest.raises(InputError, match="4-bit weights"):
        simulate(quantized)


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("kind", "method"),
    [("bert", "lora"), ("bert", "dora"), ("bert", "ia3"), ("bert", "prompt_tuning"), ("t5", "lora"), ("vit", "lora")],
)
def test_adapters_are_planned_and_leave_no_trace(kind: str, method: str) -> None:
    whole = subject(kind, rows=2)
    model = replace(whole.cfg.model, peft=replace(whole.cfg.model.peft, method=method))
    few = simulate(replace(whole, cfg=replace(whole.cfg, model=model)))
    gc.collect()  # copies of tensors without memory that torch made itself did not survive this
    assert 0 < few.trained < few.total / 2
    assert few.gradients == 4 * few.trained
    assert few.optimizer_state < simulate(whole).optimizer_state / 2
    assert nn.Module.to is MOVE
    assert "__deepcopy__" not in vars(FakeTensor)


def test_a_gpus_optimizer_and_batches_are_planned_as_there() -> None:
    here = subject("bert", optim="adamw_torch", gradient_accumulation_steps=4)
    there = replace(here, fused_attention=True)
    assert simulate(there).step_peak > simulate(here).step_peak  # roots of all second moments at once
    assert 4 * simulate(there).batch == simulate(here).batch
    paged, plain = (simulate(subject("bert", optim=optim)) for optim in ("paged_adamw_8bit", "adamw_bnb_8bit"))
    assert paged == plain
