"""Stages, partitions and schedules of a pipeline, without processes."""

from __future__ import annotations

import contextlib
import copy
import math
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from pipeline_timeline import bubble, expected_bubble, most_kept, timeline
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageClassification, AutoModelForMaskedLM
from transformers.pytorch_utils import Conv1D

from toolkit.distributed.pipeline.execution import Span
from toolkit.distributed.pipeline.partition import ARCHITECTURES, partition, parts_of, stage_problems
from toolkit.distributed.pipeline.schedules import CHUNKS, SCHEDULES
from toolkit.distributed.pipeline.stage import Stage, WeightGradients

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


@pytest.mark.fast(6)
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


def test_other_models_are_rejected_by_name():
    swin, bert = AutoConfig.for_model("swin"), AutoConfig.for_model("bert", num_hidden_layers=3)
    for kind in ("t5", "bart", "whisper"):
        assert f"{kind} has two stacks" in stage_problems(AutoConfig.for_model(kind), 2, 1)[0]
    assert "the layers of swin" in stage_problems(swin, 2, 1)[0]
    assert "needs at least 4 (2 per process) layers, but the model has 3" in stage_problems(bert, 2, 2)[0]
    assert stage_problems(bert, 3, 1) == []


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
@pytest.mark.parametrize("kind", [*sorted(CASES), "lora"])
def test_gradients_of_weights_that_are_computed_later_are_the_same_bits(kind):
    model, inputs = build("bert" if kind == "lora" else kind)
    if kind == "lora":
        model = get_peft_model(model, LoraConfig(target_modules=["query", "value"], init_lora_weights=False))
    elif (head := model.get_output_embeddings()) is not None:  # no stage uses the matrix in both places
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
    assert_same_gradients_later(model, inputs, contextlib.nullcontext())


def test_gradients_of_weights_that_are_computed_later_are_the_same_bits_in_mixed_precision():
    model, inputs = build("qwen2")
    assert_same_gradients_later(model.float(), inputs, torch.autocast("cpu", torch.bfloat16))


def assert_same_gradients_later(model: torch.nn.Module, inputs: dict[str, torch.Tensor], precision: Any) -> None:
    """Asserts that backward passes leave matrices of layers out, and that all gradients are the same in the end."""
    split, factors = copy.deepcopy(model), (1, -3)
    weights = WeightGradients(split)
    for factor in factors:  # two micro-batches
        for each in (model, split):
            with precision:
                loss = (each(**inputs).logits * factor).square().sum()
            loss.backward()
        weights.keep(0, factor)
    matrices = {id(m.weight) for m in split.modules() if isinstance(m, torch.nn.Linear | Conv1D)}
    assert all(parameter.grad is None for parameter in split.parameters() if id(parameter) in matrices)
    for factor in factors:
        weights.compute(0, factor)
    for (name, own), expected in zip(split.named_parameters(), model.parameters(), strict=True):
        assert (own.grad is None) == (expected.grad is None), name
        assert own.grad is None or torch.equal(own.grad, expected.grad), name


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("processes", [2, 3, 4])
@pytest.mark.parametrize("more", range(5))
def test_schedules_run_every_pass_without_waiting_for_each_other(name, processes, more):
    chunks = CHUNKS.get(name, 1)
    window = processes * (more + 1) if chunks > 1 else processes + more
    kinds = {action.kind for action in SCHEDULES[name](0, processes, chunks, window)}
    assert kinds == {"forward", "backward", *(["weights"] if name == "zero_bubble" else [])}
    passes = sorted((kind, 0, c, m) for kind in kinds for c in range(chunks) for m in range(window))
    spans = spans_of(name, processes, window)
    for rank in range(processes):
        own = [span for span in spans if span.process == rank]
        assert sorted((span.kind, 0, span.chunk, span.micro_batch) for span in own) == passes
        for micro_batch in range(window):
            ends = {(span.kind, span.chunk): span.end for span in own if span.micro_batch == micro_batch}
            for chunk in range(chunks):
                assert ends["forward", chunk] < ends["backward", chunk] < ends.get(("weights", chunk), math.inf)


def test_schedules_differ_in_the_activations_that_they_keep():
    kept = {name: [most_kept(spans_of(name, 4, 8), process) for process in range(4)] for name in SCHEDULES}
    assert kept["gpipe"] == [8, 8, 8, 8]
    assert kept["1f1b"] == [4, 3, 2, 1]
    assert kept["zero_bubble"] == [4, 4, 4, 4]


def spans_of(name: str, processes: int, window: int) -> list[Span]:
    """Returns the times of a schedule if passes take one second each, and two for a backward pass with weights.

    Each process runs its passes in order, and waits for what another one has not sent yet.
    """
    chunks = CHUNKS.get(name, 1)
    plans = [SCHEDULES[name](rank, processes, chunks, window) for rank in range(processes)]
    backward = 1 if name == "zero_bubble" else 2
    last = processes * chunks - 1
    ends: dict[tuple[str, int, int], float] = {}
    spans: list[Span] = []
    clocks, positions = [0.0] * processes, [0] * processes
    while len(spans) < sum(map(len, plans)):
        before = list(positions)
        for rank, plan in enumerate(plans):
            while positions[rank] < len(plan):
                action = plan[positions[rank]]
                stage, kind = action.chunk * processes + rank, action.kind
                source = stage + {"forward": -1, "backward": 1, "weights": 0}[kind]
                begin = clocks[rank]
                if kind != "weights" and 0 <= source <= last:
                    if (kind, source, action.micro_batch) not in ends:
                        break
                    begin = max(begin, ends[kind, source, action.micro_batch])
                clocks[rank] = begin + (backward if kind == "backward" else 1)
                ends[kind, stage, action.micro_batch] = clocks[rank]
                spans.append(Span(rank, kind, action.chunk, action.micro_batch, begin, clocks[rank]))
                positions[rank] += 1
        assert positions != before, "every process waits for another one"
    return spans


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("processes", "window"), [(2, 2), (2, 8), (3, 3), (4, 4), (4, 8)])
def test_the_share_of_waiting_is_that_of_the_papers(name, processes, window):
    assert bubble(spans_of(name, processes, window)) == pytest.approx(expected_bubble(name, processes, window))


def test_separate_passes_for_weights_wait_least():
    shares = {name: expected_bubble(name, 4, 8) for name in SCHEDULES}
    assert shares == {
        "gpipe": 3 / 11, "1f1b": 3 / 11, "interleaved_1f1b": 3 / 19, "zero_bubble": 3 / 27
    }  # fmt: skip


def test_a_timeline_shows_every_pass():
    spans = spans_of("1f1b", 2, 3)
    drawing = timeline(spans, "1F1B & more")
    assert sum("<rect" in part for part in drawing.parts) == len(spans) == 12
    assert "1F1B &amp; more" in drawing.svg()
    assert "waiting 25%" in drawing.svg()
    assert [most_kept(spans, process) for process in range(2)] == [2, 1]
