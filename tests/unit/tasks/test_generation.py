"""Continuations of prompts: the same alone and together, sampled by each row's own random numbers."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from toolkit.api.batch import IGNORE_INDEX
from toolkit.tasks.generation import Generating, continue_all, settings_problems

VOCABULARY, END = 40, [3]
CONFIGS = {
    "llama": LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, eos_token_id=3, bos_token_id=1, pad_token_id=None, initializer_range=0.3,
    ),
    "gpt2": GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=24, eos_token_id=3, bos_token_id=1,
        initializer_range=0.3,
    ),
}  # fmt: skip
SETTINGS = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "sampled": {"do_sample": True, "temperature": 1.3, "top_p": 0.9, "min_p": 0.01},
    "penalty": {"repetition_penalty": 1.4},
}


@pytest.fixture(scope="module", params=CONFIGS)
def model(request):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS[request.param]).double().eval()


def prompts(count: int) -> list[list[int]]:
    return [[(7 * row + 3 * place) % 35 + 4 for place in range(1 + row % 9)] for row in range(count)]


@pytest.mark.fast(3)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_prompt_is_continued_alone_as_with_others(model, settings):
    how, given = Generating(END, 10, 24, settings), [*prompts(12), [5] * 30, [6] * 20]
    seeds = [*range(100, 100 + len(given))]
    together = continue_all(model, given, how, seeds)
    for row, (ids, seed) in enumerate(zip(given, seeds, strict=True)):
        (alone,) = continue_all(model, [ids], how, [seed])
        assert together[row][together[row] != IGNORE_INDEX].tolist() == alone[alone != IGNORE_INDEX].tolist()
    longest = (together != IGNORE_INDEX).sum(1).tolist()
    assert max(longest[:-2]) == 10
    assert longest[-2] <= 3  # the last 21 tokens of 30 are read, which leaves three of 24
    ends = [(row == END[0]).nonzero().flatten().tolist() for row in together]
    assert all(places in ([], [length - 1]) for places, length in zip(ends, longest, strict=True))


def test_answers_of_samples_depend_on_their_seed_and_on_nothing_else(model):
    how = Generating(END, 10, 24, {"do_sample": True})
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = continue_all(model, prompts(4), how, [1, 2, 3, 4])
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(one, continue_all(model, prompts(4), how, [1, 2, 3, 4]))
    assert not torch.equal(one, continue_all(model, prompts(4), how, [5, 6, 7, 8]))


def test_a_sample_has_no_beams_whoever_asks_for_them(model):
    beams = Generating(END, 10, 24, {"num_beams": 3})
    expected = continue_all(model, prompts(4), Generating(END, 10, 24, {"do_sample": True}), [1, 2, 3, 4])
    assert torch.equal(continue_all(model, prompts(4), beams.sampled(), [1, 2, 3, 4]), expected)


def test_samples_are_drawn_from_the_model_s_distribution(model):
    prompt, count = [5, 9, 11], 1500
    how = Generating(END, 1, 24, {"do_sample": True, "temperature": 2.0, "top_k": 4})
    found = continue_all(model, [prompt] * count, how, [*range(count)])[:, 0].tolist()
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0, -1] / 2.0
    values, tokens = logits.topk(4)
    likely, counts = values.softmax(0).tolist(), Counter(found)
    assert set(counts) <= set(tokens.tolist())
    for token, share in zip(tokens.tolist(), likely, strict=True):
        assert abs(counts[token] / count - share) < 5 * (share * (1 - share) / count) ** 0.5


def test_an_end_of_several_tokens_is_cut_off(model):
    (plain,) = continue_all(model, [[5, 9]], Generating(END, 8, 24))
    tokens = plain[plain != IGNORE_INDEX].tolist()
    place = next(i for i in range(len(tokens)) if tokens[i : i + 2] not in [tokens[k : k + 2] for k in range(i)] and i)
    (cut,) = continue_all(model, [[5, 9]], Generating(tokens[place : place + 2], 8, 24))
    assert cut.tolist() == tokens[:place]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.5}, "task.generation.temperature: has no effect without"),
        ({"do_sample": True, "num_beams": 2}, "task.generation.num_beams: beams are not sampled"),
        ({"max_new_tokens": 3}, "task.generation.max_new_tokens: set task.max_new_tokens"),
        ({"do_sample": True, "typical_p": 0.5}, "task.generation.typical_p: is not supported"),
    ],
)
def test_settings_that_cannot_be_used_are_named(settings, message):
    (problem,) = settings_problems(settings)
    assert problem.startswith(message)
