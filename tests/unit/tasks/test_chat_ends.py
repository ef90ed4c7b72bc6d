"""Where an answer ends in a chat template, and which tokens belong to it, with two kinds of tokenizers."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from toolkit.tasks import chat, conversations, generation

MESSAGES = [
    {"role": "user", "content": "What do ducks eat?"},
    {"role": "assistant", "content": "Slugs and grass."},
    {"role": "user", "content": "And all of the other birds of the farm, please?"},
    {"role": "assistant", "content": "Corn."},
]
FRAME = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}ENDING{% endfor %}" + (
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ENCLOSED = (
    "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}BEFORE{{ m.content }}AFTER"
    "{% endgeneration %}{% else %}{{ m.content }} {% endif %}{% endfor %}"
)


def tokenizer(template: str, trim: bool = True) -> PreTrainedTokenizerFast:
    """Returns a byte-level tokenizer whose end-of-text token is not that of the template's turns."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=trim)
    made.post_processor = processors.ByteLevel(trim_offsets=trim)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    texts = [message["content"] for message in MESSAGES]
    made.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet)
    )
    found = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=special[0], pad_token=special[0], extra_special_tokens=special[1:]
    )
    found.chat_template = template
    return found


def answers(tokens: list[int], mask: list[bool], reader: Any) -> list[str]:
    parts: list[list[int]] = [[]]
    for token, inside in zip(tokens, mask, strict=True):
        if inside:
            parts[-1].append(token)
        elif parts[-1]:
            parts.append([])
    return [reader.decode(part) for part in parts if part]


@pytest.mark.parametrize("trim", [True, False])
@pytest.mark.parametrize(
    ("ending", "end"),
    [("<|im_end|>\n", "<|im_end|>"), ("<|endoftext|>", "<|endoftext|>"), ("\n### end\n", "\n### end\n")],
)
def test_an_answer_ends_with_what_the_template_writes_behind_it(ending, end, trim):
    reader = tokenizer(FRAME.replace("ENDING", ending), trim)
    found = chat.answer_end(reader)
    assert reader.decode(found) == end
    assert chat.end_problems(reader) == []
    tokens, mask = chat.encode_conversation(MESSAGES, reader, found)
    assert answers(tokens, mask, reader) == [f"Slugs and grass.{end}", f"Corn.{end}"]


@pytest.mark.parametrize("trim", [True, False])
@pytest.mark.parametrize("start", ["<|im_start|>{{ m.role }}\n", "[{{ m.role }}]: ", "{{ m.role }}> "])
def test_what_a_template_without_a_prompt_writes_before_an_answer_is_no_part_of_it(start, trim):
    reader = tokenizer("{% for m in messages %}" + start + "{{ m.content }}<|im_end|>\n{% endfor %}", trim)
    tokens, mask = chat.encode_conversation(MESSAGES, reader)
    assert [each.lstrip() for each in answers(tokens, mask, reader)] == [
        "Slugs and grass.<|im_end|>",
        "Corn.<|im_end|>",
    ]
    asked = chat.encode_prompt(MESSAGES[:1], reader)
    assert tokens[: len(asked)] == asked
    assert reader.decode(asked).rstrip().endswith(start.replace("{{ m.role }}", "assistant").rstrip())
    assert chat.header(tokenizer(FRAME.replace("ENDING", "<|im_end|>"))) == []


@pytest.mark.parametrize(("prompt", "answer", "kept"), [(94, 64, 94), (200, 64, 112), (200, 4, 124), (94, 200, 94)])
def test_a_long_prompt_is_read_as_in_training(prompt, answer, kept):
    room = generation.Generating([0], answer, 128).kept
    columns = chat.example_columns([(list(range(prompt)), [])], 128, prompt_size=room)
    assert columns["tokens"] == [list(range(prompt))[-kept:]]
    assert columns["truncated_input"] == [kept < prompt]


@pytest.mark.parametrize("ending", ["", "\n", "  \n\n"])
def test_a_template_without_an_end_is_rejected(ending):
    (problem,) = chat.end_problems(tokenizer(FRAME.replace("ENDING", ending)))
    assert problem.startswith("task.chat_template: nothing marks the end of an answer")


@pytest.mark.parametrize(("before", "after"), [("", " "), (" ", ""), (" ", " "), ("", "<|im_end|>"), ("\n", "\n")])
def test_enclosed_answers_are_the_same_tokens_whatever_the_offsets(before, after):
    template = ENCLOSED.replace("BEFORE", before).replace("AFTER", after)
    masks = []
    for trim in (True, False):
        reader = tokenizer(template, trim)
        tokens, mask = chat.encode_conversation(MESSAGES, reader, chat.answer_end(reader))
        masks.append(mask)
        assert [each.strip() for each in answers(tokens, mask, reader)] == [
            f"{text}{after.strip()}" for text in ("Slugs and grass.", "Corn.")
        ]
    assert masks[0] == masks[1]


def test_examples_say_whether_an_end_is_trained():
    reader = tokenizer(ENCLOSED.replace("BEFORE", "").replace("AFTER", " "))
    end = chat.answer_end(reader)
    example = chat.encode_conversation(MESSAGES, reader, end)
    assert chat.example_columns([example], 500, end)["ended"] == [False]
    reader = tokenizer(FRAME.replace("ENDING", "<|im_end|>\n"))
    end = chat.answer_end(reader)
    example = chat.encode_conversation(MESSAGES, reader, end)
    assert chat.example_columns([example], 500, end)["ended"] == [True]
    assert chat.example_columns([example], 4, end)["ended"] == [False]


def test_shared_chats_and_plain_questions_are_conversations():
    turns = [
        {"from": "system", "value": "Be kind."},
        {"from": "human", "value": "Hay?"},
        {"from": "gpt", "value": "Yes."},
    ]
    assert [message["role"] for message in conversations.check_messages(turns, labelled=True)] == [
        "system",
        "user",
        "assistant",
    ]
    assert conversations.check_messages("Hay?", labelled=False) == [{"role": "user", "content": "Hay?"}]
