"""Conversations, prompts with completions and Alpaca's rows, as files hold them: checked, stored and shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from toolkit.api.batch import BadRow, Row
from toolkit.base.console import shorten
from toolkit.data.values import printed_list
from toolkit.tasks.records import checked_text

Message = dict[str, Any]
"""A message of a conversation: `role`, `content`, and what else the chat template may write (see `FURTHER`)."""
ASSISTANT = "assistant"
SHAREGPT = {"human": "user", "gpt": ASSISTANT, "observation": "tool"}
"""Roles in ShareGPT's files that have another name here."""
FURTHER = ("name", "tool_calls", "tool_call_id", "reasoning_content")
"""Further keys of messages, which are given to the chat template: OpenAI's, and the thinking before an answer."""
TRAIN = "train"
"""Key of messages of the assistant that are not trained; its value is false."""
PRINTED = re.compile(r"\s*\[\s*\{.*?['\"](role|from)['\"]\s*:", re.DOTALL)
"""How a conversation begins that a cell of a table holds as text, in JSON or as Python prints it."""
_THINKING = re.compile(r"\A\s*<think>(.*?)</think>\s*", re.DOTALL)


def check_pair(row: Row, labelled: bool) -> Row:
    """Returns a row's `prompt` and `completion`, which is None unless `labelled`.

    Raises:
        BadRow: if one of them is missing or not text.
    """
    names = ("prompt", "completion") if labelled else ("prompt",)
    return {"completion": None} | {name: checked_text(row[name], name, f"column {name!r}") for name in names}


def check_messages(value: Any, labelled: bool, begins: bool = True) -> list[Message]:
    """Returns the messages of a conversation.

    Args:
        value: a list of mappings with `role` and `content` (a text, or a list of parts of type `text`), or `from` and
            `value` as in ShareGPT's files, and the keys `FURTHER`; answers with `train: false` or `weight: 0` are not
            trained. Printed ones are read (see `unprinted`); without labels, other text is a message of the user.
        labelled: whether the conversation must have an answer, a message of the assistant. What follows the last answer
            is removed, because it changes nothing; otherwise, answers at the end are removed, to be predicted.
        begins: whether it begins the conversation, and so cannot begin with an answer.

    Raises:
        BadRow: if it is no such list, or has no answer or nothing to answer.
    """
    value = unprinted(value)
    if isinstance(value, str) and not labelled and value.strip():
        value = [{"role": "user", "content": value}]
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    if not listed or not all(isinstance(each, Mapping) for each in value):
        raise BadRow(f"column 'messages' holds {shorten(repr(value))}, not a list of objects with `role` and `content`")
    messages = [_message(number, message) for number, message in enumerate(value, start=1)]
    if labelled and not any(message["role"] == ASSISTANT for message in messages):
        raise BadRow(f"the conversation has no answer: no message has the role {ASSISTANT!r}")
    if labelled and not any(message["role"] == ASSISTANT and message.get(TRAIN, True) for message in messages):
        raise BadRow("the conversation has no answer to train: all of them have train: false or weight: 0")
    while messages and (messages[-1]["role"] == ASSISTANT) != labelled:
        messages.pop()
    if not messages or (begins and messages[0]["role"] == ASSISTANT):
        raise BadRow("the conversation has no message before its first answer")
    return messages


def unprinted(value: Any) -> Any:
    """Returns the list of messages that text holds in JSON, or as Python prints it; other values as they are."""
    if isinstance(value, str) and PRINTED.match(value):
        with suppress(BadRow):
            return printed_list(value) or value
    return value


def _message(number: int, message: Mapping[str, Any]) -> Message:
    given = {name: value for name, value in message.items() if value is not None}
    if {"from", "value"} <= given.keys():
        said, text = given.pop("from"), given.pop("value")
        given = {"role": SHAREGPT.get(said, said), "content": text, **given}
        if said == "function_call":
            given = {**given, "role": ASSISTANT, "content": "", "tool_calls": [_sharegpt_call(number, text)]}
    if "thinking" in given:
        given["reasoning_content"] = given.pop("thinking")
    trained = [_flag(number, name, given.pop(name)) for name in (TRAIN, "weight") if name in given]
    calls = given.get("tool_calls")
    if calls and "content" not in given:
        given["content"] = ""
    if not {"role", "content"} <= given.keys() <= {"role", "content", *FURTHER}:
        raise BadRow(f"message {number} has {', '.join(map(repr, given)) or 'nothing'}, expected `role` and `content`")
    if calls and not (isinstance(calls, list) and all(isinstance(each, Mapping) for each in calls)):
        raise BadRow(f"`tool_calls` of message {number} holds {shorten(repr(calls))}, not a list of objects")
    content = _joined(number, given["content"])
    if not (calls and content == ""):
        content = checked_text(content, "content", f"`content` of message {number}")
    role = checked_text(given["role"], "role", f"`role` of message {number}")
    further = {name: given[name] for name in FURTHER if name in given}
    return {"role": role, "content": content, **further, **({} if all(trained) else {TRAIN: False})}


def _sharegpt_call(number: int, text: Any) -> dict[str, Any]:
    try:
        return {"type": "function", "function": dict(json.loads(text))}
    except (TypeError, ValueError):
        raise BadRow(f"`value` of message {number} is no function call as JSON: {shorten(repr(text))}") from None


def _flag(number: int, name: str, value: Any) -> bool:
    if value not in (0, 1):
        raise BadRow(f"`{name}` of message {number} is {shorten(repr(value))}; answers are trained (1) or not (0)")
    return bool(value)


def _joined(number: int, content: Any) -> Any:
    """Returns the text of a list of parts; other values as they are."""
    if not isinstance(content, Sequence) or isinstance(content, str):
        return content
    kinds = [part.get("type", "text") if isinstance(part, Mapping) else "text" for part in content]
    if other := next((kind for kind in kinds if kind != "text"), None):
        raise BadRow(f"`content` of message {number} has a part of type {other!r}; only text is read")
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
    return "".join(text for text in texts if isinstance(text, str))


def stored(messages: Sequence[Message]) -> list[dict[str, str | None]]:
    """Returns messages in the columns of a table; their further keys are JSON in `more`."""

    def more(message: Message) -> str | None:
        further = {name: value for name, value in message.items() if name not in ("role", "content")}
        return json.dumps(further, ensure_ascii=False) if further else None

    return [{"role": each["role"], "content": each["content"], "more": more(each)} for each in messages]


def restored(messages: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Returns the messages that `stored` was given."""
    return [
        {"role": each["role"], "content": each["content"], **json.loads(each.get("more") or "{}")} for each in messages
    ]


def without_thinking(messages: Iterable[Message]) -> list[Message]:
    """Returns messages without the thinking before answers: `reasoning_content`, and `<think>` at their beginning."""
    return [
        {**{name: value for name, value in each.items() if name != "reasoning_content"},
         "content": _THINKING.sub("", each["content"]) if each["role"] == ASSISTANT else each["content"]}
        for each in messages
    ]  # fmt: skip


def checked_tools(value: Any) -> str | None:
    """Returns the tools of a conversation as JSON; None if there are none. Raises BadRow for anything but a list."""
    if isinstance(value, str) and value.strip():
        with suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, str):
        with suppress(BadRow):
            value = printed_list(value) or value
    if value in (None, "", []):
        return None
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        raise BadRow(f"column 'tools' holds {shorten(repr(value))}, not a list of objects")
    return json.dumps(value, ensure_ascii=False)


ALPACA = (
    "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
    "response that appropriately completes the request.\n\n### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n"
    "### Response:\n",
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:\n",
)
"""Alpaca's own prompts (Taori et al. 2023), with an input and without."""


def check_alpaca(row: Row, labelled: bool) -> Row:
    """Returns a row's instruction and input as a prompt, and its output as the completion; see `check_pair`."""
    given = {"instruction": checked_text(row["instruction"], "instruction", "column 'instruction'")}
    if (more := row.get("input")) not in (None, "") and str(more).strip():
        given["input"] = checked_text(more, "input", "column 'input'")
    prompt = ALPACA["input" not in given].format(**given)
    answer = checked_text(row["output"], "output", "column 'output'") if labelled else None
    return {"prompt": prompt, "completion": answer}


def prompt_of(row: Row) -> str | list[Message]:
    """Returns what an example's last answer follows: the prompt, or the messages before it."""
    if "prompt" in row:
        return str(row["prompt"])
    messages = restored(row["messages"])
    return messages[:-1] if messages[-1]["role"] == ASSISTANT else messages


def as_text(prompt: str | list[Message], answer: str = "") -> str:
    """Returns a prompt and its answer as text for people."""
    if isinstance(prompt, str):
        return prompt + answer
    answered = [*prompt, {"role": ASSISTANT, "content": answer}] if answer else prompt
    calls = [f" {json.dumps(each['tool_calls'])}" if each.get("tool_calls") else "" for each in answered]
    return "\n".join(f"{each['role']}: {each['content']}{call}" for each, call in zip(answered, calls, strict=True))


def answer_of(row: Row) -> str | None:
    """Returns an example's last answer, or None if it has none."""
    if "prompt" in row:
        return None if row["completion"] is None else str(row["completion"])
    last: Message = row["messages"][-1]
    return str(last["content"]) if last["role"] == ASSISTANT else None


def checked_prompt(prompt: Any, data_format: str) -> str | list[Message]:
    """Returns a prompt as the format of the data has it: messages, or text. Raises BadRow for another one."""
    if data_format == "messages":
        return check_messages(prompt, labelled=False)
    if not isinstance(prompt, str):
        raise BadRow(f"received {shorten(repr(prompt))}; this run continues texts, it has no chat template")
    return prompt
