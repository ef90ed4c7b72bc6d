"""Chat and instruction data: which tokens are answers, what is truncated, and what is refused."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from toolkit.api.batch import IGNORE_INDEX, BadRow
from toolkit.base.errors import DataError, InputError
from toolkit.data.keys import GROUP, INPUTS, LABEL, Keys, row_keys, units
from toolkit.modalities import text
from toolkit.recipe import load_task_type
from toolkit.tasks import chat, conversations

TASK_FILE = "recipes/language_modeling.py"
PLAIN = (
    "{% for message in messages %}{% if message.role == 'assistant' %}"
    "<|assistant|>{{ message.content }}{{ eos_token }}\n"
    "{% else %}<|user|>{{ message.content }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MARKED = PLAIN.replace(
    "<|assistant|>{{ message.content }}{{ eos_token }}",
    "<|assistant|>{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}",
)
LAST_ONLY = PLAIN.replace("{{ message.content }}{{ eos", "{% if loop.last %}{{ message.content }}{% endif %}{{ eos")
STRICT = "{{ raise_exception('roles must alternate') }}"
TALK = [("user", "What do ducks eat?"), ("assistant", "Grass."), ("user", "And hens?"), ("assistant", "Grain.")]


def messages(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


def tokenizer(template: str | None):
    task_type = load_task_type(TASK_FILE)
    options = task_type.Options(data_format="messages", chat_template=template)
    config = SimpleNamespace(vocab_size=300, type_vocab_size=0)
    return text.new_processor(iter(content for _, content in TALK), config, options)


def answers(encoded: chat.Encoded, processor) -> list[str]:
    """Returns the text of each run of answer tokens."""
    tokens, mask = encoded
    assert len(tokens) == len(mask)
    edges = np.flatnonzero(np.diff([0, *map(int, mask), 0])).reshape(-1, 2)
    return [processor.decode(tokens[start:end]) for start, end in edges]


@pytest.mark.parametrize("template", [PLAIN, MARKED])
def test_answers_are_the_messages_of_the_assistant_with_their_end(template):
    processor = tokenizer(template)
    encoded = chat.encode_conversation(messages(*TALK), processor)
    assert answers(encoded, processor) == ["Grass.<|endoftext|>", "Grain.<|endoftext|>"]
    assert processor.decode(encoded[0]).startswith("<|user|>What do ducks eat?\n<|assistant|>Grass.<|endoftext|>")
    # The names in the template are tokens of their own.
    assert all(len(processor(name)["input_ids"]) == 1 for name in ("<|user|>", "<|assistant|>", "<|endoftext|>"))


def test_a_template_that_changes_earlier_messages_is_rejected_with_the_row():
    rows = {"messages": [messages(*TALK[:2]), messages(*TALK)], "_number": [7, 8]}
    with pytest.raises(DataError, match=r"row 8: the chat template changes what comes before or in message 2"):
        list(chat.encode_examples(rows, tokenizer(LAST_ONLY), labelled=True))


def test_a_template_that_rejects_a_conversation_is_reported_with_the_row():
    rows = {"messages": [messages(*TALK)], "_number": [3]}
    with pytest.raises(DataError, match="row 3: the chat template cannot be applied: roles must alternate"):
        list(chat.encode_examples(rows, tokenizer(STRICT), labelled=True))


def test_a_tokenizer_without_a_template_is_rejected():
    rows = {"messages": [messages(*TALK)], "_number": [1]}
    with pytest.raises(InputError, match=r"needs a chat template.*set task\.chat_template"):
        list(chat.encode_examples(rows, tokenizer(None), labelled=True))


@pytest.mark.parametrize("prompt", ["What do ducks eat?\n", "What do ducks e"])
def test_a_completion_is_what_follows_the_tokens_of_the_prompt_and_ends(prompt):
    processor = tokenizer(None)
    tokens, mask = chat.encode_pair(prompt, "at? Grass.", processor)
    assert tokens[: mask.index(True)] == processor(prompt)["input_ids"]
    assert answers((tokens, mask), processor) == ["at? Grass.<|endoftext|>"]


def test_prompts_are_encoded_without_the_answer_that_is_to_be_generated():
    processor = tokenizer(PLAIN)
    rows = {"messages": [conversations.check_messages(messages(*TALK), labelled=False)], "_number": [1]}
    ((tokens, mask),) = chat.encode_examples(rows, processor, labelled=False)
    assert mask == []
    assert processor.decode(tokens).endswith("<|user|>And hens?\n<|assistant|>")
    rows = {"prompt": ["What?"], "completion": [None], "_number": [1]}
    assert list(chat.encode_examples(rows, processor, labelled=False)) == [(processor("What?")["input_ids"], [])]


def test_truncation_is_marked_and_examples_without_an_answer_are_dropped():
    examples = [([1, 2, 3, 4, 5], [False, False, True, True, True]), ([1, 2, 3, 4, 5], [False] * 4 + [True])]
    columns = chat.example_columns(examples, block_size=3)
    assert columns["tokens"] == [[1, 2, 3, 4]] * 2
    assert columns["length"] == [3, 3]
    assert columns["truncated_input"] == [True, True]
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    (kept,) = chat.with_answers(rows)
    assert kept["targets"] == [2]
    inputs, labels = chat.inputs_and_labels(np.array(kept["tokens"]), kept["answers"])
    assert (inputs.tolist(), labels.tolist()) == ([1, 2, 3], [IGNORE_INDEX, 3, 4])
    with pytest.raises(DataError, match=r"task\.block_size: the answers of all examples begin after"):
        list(chat.with_answers(rows[1:]))


def test_prompts_to_be_answered_keep_their_end():
    columns = chat.example_columns([([1, 2, 3, 4, 5], [])], block_size=3)
    assert (columns["tokens"], columns["length"], columns["truncated_input"]) == ([[3, 4, 5]], [3], [True])
    (kept,) = chat.with_answers([{name: values[0] for name, values in columns.items()}])
    inputs, labels = chat.inputs_and_labels(np.array(kept["tokens"]), kept["answers"])
    assert (inputs.tolist(), labels.tolist()) == ([3, 4, 5], [IGNORE_INDEX] * 3)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("Hello", "column 'messages' holds 'Hello', not a list of objects with `role` and `content`"),
        ([], "the conversation has no answer"),
        (["Hello"], "not a list of objects"),
        (messages(("assistant", "Hello")), "the conversation has no message before its first answer"),
        (messages(("user", "Hello")), "the conversation has no answer: no message has the role 'assistant'"),
        (messages(("user", " "), ("assistant", "a")), "the content is missing: `content` of message 1 is empty"),
        ([{"speaker": "human", "text": "Hello"}], "message 1 has 'speaker', 'text', expected `role` and `content`"),
        ([{"role": "user", "content": "a", "image": 1}], "message 1 has 'role', 'content', 'image'"),
        ([{"role": "user", "content": "a", "tool_calls": [1]}], r"`tool_calls` of message 1 holds \[1\], not a list"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "a part of type 'image_url'; only text is read"),
        ([{"role": "user", "content": []}], "the content is missing: `content` of message 1 is empty"),
        ([{"role": "assistant", "content": "a", "weight": 0.5}], "`weight` of message 1 is 0.5; answers are trained"),
        (
            [*messages(("user", "q")), {"role": "assistant", "content": "a", "train": False}],
            "no answer to train: all of them have train: false",
        ),
        ([{"from": "function_call", "value": "x"}], "`value` of message 1 is no function call as JSON"),
    ],
)
def test_what_is_not_a_conversation_is_named(value, message):
    with pytest.raises(BadRow, match=message):
        conversations.check_messages(value, labelled=True)


def test_a_conversation_ends_with_its_last_answer_or_with_what_is_to_be_answered():
    talk = messages(*TALK)
    row = {"messages": conversations.check_messages([*talk, *messages(("user", "Thanks."))], labelled=True)}
    assert row["messages"] == talk
    assert (conversations.prompt_of(row), conversations.answer_of(row)) == (talk[:3], "Grain.")
    row = {"messages": conversations.check_messages(talk, labelled=False)}
    assert (conversations.prompt_of(row), conversations.answer_of(row)) == (talk[:3], None)
    with pytest.raises(BadRow, match="no message before its first answer"):
        conversations.check_messages(talk[1:2], labelled=False)


def test_keys_without_a_value_are_no_keys():
    """Arrow gives every message all keys that any message has."""
    value = [{**message, "name": None} for message in messages(*TALK)]
    assert conversations.check_messages(value, labelled=True) == messages(*TALK)


def test_pairs_need_both_texts_unless_one_is_to_be_predicted():
    assert conversations.check_pair({"prompt": "a", "completion": "b"}, True) == {"prompt": "a", "completion": "b"}
    assert conversations.check_pair({"prompt": "a", "completion": None}, False) == {"prompt": "a", "completion": None}
    with pytest.raises(BadRow, match="the completion is missing: column 'completion' is empty"):
        conversations.check_pair({"prompt": "a", "completion": " "}, True)


def test_conversations_that_differ_in_the_last_answer_alone_are_one_unit_with_other_labels():
    task_type = load_task_type(TASK_FILE)
    task = task_type(SimpleNamespace(task=task_type.Options(data_format="messages")))
    twice, other = messages(*TALK[:3], ("assistant", "Worms.")), messages(*TALK[:1], ("assistant", "Seeds."), *TALK[2:])
    rows = [row_keys({"messages": talk}, task, None) for talk in (messages(*TALK), twice, other)]
    keys = Keys(*(np.array([row[name] for row in rows]) for name in (INPUTS, LABEL, GROUP)))
    assert units(keys).tolist() == [0, 0, 1]
    assert len(set(keys.labels)) == 3


CALLING = (
    "{% if tools %}<|system|>{% for tool in tools %}{{ tool.function.name }} {% endfor %}\n{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>{% if message.reasoning_content %}<think>"
    "{{ message.reasoning_content }}</think>{% endif %}{{ message.content }}{% for call in message.tool_calls or [] %}"
    "CALL {{ call.function.name }} {{ call.function.arguments.crop }}{% endfor %}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TOOLS = '[{"type": "function", "function": {"name": "price"}}]'
CALL = {"type": "function", "function": {"name": "price", "arguments": '{"crop": "hay"}'}}
TOOL_TALK = [
    {"role": "user", "content": "Price of hay?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "name": "price", "content": "90"},
    {"role": "assistant", "content": [{"type": "text", "text": "It is "}, {"type": "text", "text": "90."}]},
]


def test_calls_of_tools_are_trained_and_their_results_are_not():
    processor = tokenizer(CALLING)
    checked = conversations.check_messages(TOOL_TALK, labelled=True)
    assert conversations.restored(conversations.stored(checked)) == checked
    encoded = chat.encode_conversation(checked, processor, tools=TOOLS)
    assert answers(encoded, processor) == ["CALL price hay<|endoftext|>", "It is 90.<|endoftext|>"]
    assert "price" in processor.decode(encoded[0]).partition("<|user|>")[0]
    with pytest.raises(BadRow, match="does not write tools"):
        chat.encode_conversation(
            conversations.check_messages(messages(*TALK), labelled=True), tokenizer(PLAIN), tools=TOOLS
        )
    sharegpt = [
        {"from": "human", "value": "Price of hay?"},
        {"from": "function_call", "value": json.dumps(CALL["function"])},
        {"from": "observation", "value": "90"},
        {"from": "gpt", "value": "It is 90."},
    ]
    again = chat.encode_conversation(conversations.check_messages(sharegpt, labelled=True), processor, tools=TOOLS)
    assert answers(again, processor) == answers(encoded, processor)


@pytest.mark.parametrize("template", [PLAIN, MARKED])
@pytest.mark.parametrize("skipped", [{"train": False}, {"weight": 0}])
def test_answers_that_are_not_trained_are_read_as_context(template, skipped):
    processor = tokenizer(template)
    talk = messages(*TALK)
    talk[1] |= skipped
    encoded = chat.encode_conversation(conversations.check_messages(talk, labelled=True), processor)
    assert answers(encoded, processor) == ["Grain.<|endoftext|>"]
    assert encoded[0] == chat.encode_conversation(messages(*TALK), processor)[0]


def test_thinking_is_kept_or_dropped():
    processor, talk = tokenizer(CALLING), messages(*TALK[:2])
    talk[1] |= {"reasoning_content": "They graze."}
    written = messages(TALK[0], ("assistant", "<think>They graze.</think>Grass."))
    for each in (talk, written):
        checked = conversations.check_messages(each, labelled=True)
        (kept,) = answers(chat.encode_conversation(checked, processor), processor)
        assert kept == "<think>They graze.</think>Grass.<|endoftext|>"
        (dropped,) = answers(chat.encode_conversation(conversations.without_thinking(checked), processor), processor)
        assert dropped == "Grass.<|endoftext|>"


def test_alpaca_s_rows_have_its_prompts():
    row = {"instruction": "Name a crop.", "input": "of wet soil", "output": "Rice."}
    with_input, without = conversations.check_alpaca(row, True), conversations.check_alpaca(row | {"input": ""}, True)
    assert with_input["prompt"].endswith("### Instruction:\nName a crop.\n\n### Input:\nof wet soil\n\n### Response:\n")
    assert without["prompt"].endswith("request.\n\n### Instruction:\nName a crop.\n\n### Response:\n")
    assert with_input["completion"] == "Rice."
    assert conversations.check_alpaca(row, False)["completion"] is None
