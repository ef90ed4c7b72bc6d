"""Stages, partitions and schedules of a pipeline, without processes."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageClassification, AutoModelForMaskedLM

from toolkit.distributed.pipeline.execution import Span
from toolkit.distributed.pipeline.partition import ARCHITECTURES, partition, parts_of, stage_problems
from toolkit.distributed.pipeline.schedules import CHUNKS, SCHEDULES, Action
from toolkit.distributed.pipeline.stage import Stage
from toolkit.distributed.pipeline.timeline import bubble, expected_bubble, most_kept, timeline

CPU = torch.device("cpu")
SIZES = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 24}
TEXT = {**SIZES, "vocab_size": 50, "max_position_embeddings": 32, "attn_implementation": "sdpa"}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    **dict.fromkeys(("bert", "roberta", "electra", "distilbert"), (AutoModelForMaskedLM, TEXT)),
    **{kind: (AutoModelForCausalLM, {**TEXT, "tie_word_embeddings": True}) for kind in ("gpt2", "llama")},
    **{kind: (AutoModelForCausalLM, {**TEXT, "num_key_value_heads": 1}) for kind in ("mistral", "qwen2")},
    "vit": (AutoModelForImageClassification, {**SIZES, "image_size": 8, "patch_size": 4, "num_labels": 3}),
}


def build(kind: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Returns a small model in float64 without dropout, and inputs with padding."""
    auto_class, fields = CASES[kind]
    torch.manual_seed(0)
    model = auto_class.from_config(AutoConfig.for_model(kind, **fields)).double().eval()
    if kind == "vit":
        return model, {"pixel_values": torch.randn(3, 3, 8, 8).double()}
    ids = torch.randint(5, 50, (3, 7))
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    return model, {"input_ids": ids, "attention_mask": mask}


def test_every_architecture_has_a_case():
    assert CASES.keys() == ARCHITECTURES


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("kind", sorted(CASES))
def test_stages_compute_what_the_model_computes(kind, chunks):
    model, inputs = build(kind)
    expected = model(**inputs).logits
    expected.square().sum().backward()
    ranges = partition(parts_of(model).costs(), 2 * chunks)
    stages = [Stage(copy.deepcopy(model), ranges, range(rank, 2 * chunks, 2), CPU) for rank in range(2)]
    for stage in stages:
        stage.model.zero_grad()

    outputs, received = [], []
    for number in range(2 * chunks):

        def receive(like: torch.Tensor) -> torch.Tensor:
            hidden = outputs[-1].detach()
            assert (hidden.shape, hidden.dtype) == (like.shape, like.dtype)
            received.append(hidden.requires_grad_())
            return hidden

        outputs.append(stages[number % 2].forward(number, inputs, receive))
    torch.testing.assert_close(outputs[-1].logits, expected, rtol=0, atol=1e-12)

    outputs[-1].logits.square().sum().backward()
    for output, hidden in zip(outputs[-2::-1], received[::-1], strict=True):
        output.backward(hidden.grad)
    gradients: dict[str, torch.Tensor] = {}
    for stage in stages:
        for name, parameter in stage.model.named_parameters():
            if parameter.grad is not None:
                gradients[name] = gradients.get(name, 0) + parameter.grad
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradients.pop(name), parameter.grad, rtol=0, atol=1e-10)
    assert gradients == {}


@pytest.mark.parametrize("kind", sorted(CASES))
def test_hidden_states_have_the_same_type_on_every_stage_in_mixed_precision(kind):
    model, inputs = build(kind)
    inputs = {name: value.float() if value.is_floating_point() else value for name, value in inputs.items()}
    ranges = partition(parts_of(model.float()).costs(), 2)
    stages = [Stage(copy.deepcopy(model), ranges, [rank], CPU) for rank in range(2)]
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        sent = stages[0].forward(0, inputs, lambda like: like)
        expected: list[torch.dtype] = []
        stages[1].forward(1, inputs, lambda like: expected.append(like.dtype) or sent)
    assert expected == [sent.dtype]


@pytest.mark.parametrize("kind", sorted(CASES))
def test_each_parameter_is_held_once_unless_it_is_tied(kind):
    model, _ = build(kind)
    ranges = partition(parts_of(model).costs(), 2)
    stages = [Stage(copy.deepcopy(model), ranges, [rank], CPU) for rank in range(2)]
    held = [dict(stage.model.named_parameters()) for stage in stages]
    assert held[0].keys() | held[1].keys() == dict(model.named_parameters()).keys()
    tied = {id(parameter) for parameter in stages[1].tied}
    assert {name for name, parameter in held[1].items() if id(parameter) in tied} == held[0].keys() & held[1].keys()
    assert len(tied) == (model.get_output_embeddings() is not None and model.config.tie_word_embeddings)
    for stage, own in zip(stages, held, strict=True):  # what others hold takes no memory
        tensors = [value for module in stage.model.modules() for value in vars(module).values()]
        left = sum(t.untyped_storage().nbytes() for t in tensors if isinstance(t, torch.Tensor))
        assert left <= 100 * 8
        assert sum(p.numel() for p in own.values()) < sum(p.numel() for p in model.parameters())


def test_stages_are_balanced():
    assert partition([1, 1, 1, 1], 2) == [range(2), range(2, 4)]
    assert partition([1, 1, 1, 10], 2) == [range(3), range(3, 4)]
    assert partition([5, 1, 1, 1, 1, 5], 3) == [range(1), range(1, 5), range(5, 6)]
    assert partition([9, 1, 1], 3) == [range(1), range(1, 2), range(2, 3)]


def test_other_models_are_refused_by_name():
    swin, bert = SimpleNamespace(model_type="swin"), SimpleNamespace(model_type="bert", num_hidden_layers=3)
    assert "the layers of swin" in stage_problems(swin, 2, 1)[0]
    assert "needs at least 4 (2 per process) layers, but the model has 3" in stage_problems(bert, 2, 2)[0]
    assert stage_problems(bert, 3, 1) == []


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("processes", [2, 3, 4])
@pytest.mark.parametrize("factor", [1, 2, 3])
def test_schedules_run_every_pass_without_waiting_for_each_other(name, processes, factor):
    chunks, window = CHUNKS.get(name, 1), processes * factor
    plans = [SCHEDULES[name](rank, processes, chunks, window) for rank in range(processes)]
    for plan in plans:
        assert sorted(map(repr, plan)) == sorted(
            repr(Action(kind, c, m)) for kind in ("forward", "backward") for c in range(chunks) for m in range(window)
        )
    last, sent, positions = processes * chunks - 1, set(), [0] * processes
    while True:  # each process runs until it must wait for what another one has not sent yet
        before = list(positions)
        for rank, plan in enumerate(plans):
            while positions[rank] < len(plan):
                action = plan[positions[rank]]
                stage = action.chunk * processes + rank
                forward = action.kind == "forward"
                needs = (action.kind, stage - 1 if forward else stage + 1, action.micro_batch)
                if stage != (0 if forward else last) and needs not in sent:
                    break
                if not forward:
                    assert ("forward", stage, action.micro_batch) in sent
                sent.add((action.kind, stage, action.micro_batch))
                positions[rank] += 1
        if positions == before:
            break
    assert positions == [len(plan) for plan in plans]


def test_schedules_differ_in_the_activations_that_they_keep():
    kept = {}
    for name in ("gpipe", "1f1b"):
        open_passes, most = 0, 0
        for action in SCHEDULES[name](0, 4, 1, 8):
            open_passes += 1 if action.kind == "forward" else -1
            most = max(most, open_passes)
        kept[name] = most
    assert kept == {"gpipe": 8, "1f1b": 4}


def spans_of(name: str, processes: int, window: int) -> list[Span]:
    """Returns the times of a schedule whose passes take one second each, two for a backward pass."""
    plans = [SCHEDULES[name](rank, processes, 1, window) for rank in range(processes)]
    ends: dict[tuple[str, int, int], float] = {}
    spans: list[Span] = []
    clocks, positions = [0.0] * processes, [0] * processes
    while len(spans) < 2 * processes * window:
        for rank, plan in enumerate(plans):
            while positions[rank] < len(plan):
                action = plan[positions[rank]]
                forward = action.kind == "forward"
                first = rank == (0 if forward else processes - 1)
                needs = (action.kind, rank - 1 if forward else rank + 1, action.micro_batch)
                if not first and needs not in ends:
                    break
                begin = clocks[rank] if first else max(clocks[rank], ends[needs])
                clocks[rank] = begin + (1 if forward else 2)
                ends[action.kind, rank, action.micro_batch] = clocks[rank]
                spans.append(Span(rank, action.kind, 0, action.micro_batch, begin, clocks[rank]))
                positions[rank] += 1
    return spans


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_the_share_of_waiting_is_that_of_the_papers(name):
    assert bubble(spans_of(name, 4, 8)) == pytest.approx(expected_bubble(4, 1, 8)) == 3 / 11


def test_a_timeline_shows_every_pass():
    spans = spans_of("1f1b", 2, 3)
    drawing = timeline(spans, "1F1B & more")
    assert sum("<rect" in part for part in drawing.parts) == len(spans) == 12
    assert "1F1B &amp; more" in drawing.svg()
    assert "waiting 25%" in drawing.svg()
    assert [most_kept(spans, process) for process in range(2)] == [2, 1]
