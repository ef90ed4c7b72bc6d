"""Instruction and chat data: prompts with completions, or conversations, of which only the answers are trained."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from toolkit.api.batch import IGNORE_INDEX, BadRow
from toolkit.base.errors import DataError, InputError
from toolkit.tasks.blocks import encode_beginning, encode_plain, separators
from toolkit.tasks.conversations import ASSISTANT, TRAIN, Message, as_text, prompt_of, restored
from toolkit.tasks.generation import Generating, continue_all, occurrences

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Encoded = tuple[list[int], list[bool]]
"""The tokens of an example, and for each whether it belongs to an answer; an empty list without an answer."""

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_CONTROL = re.compile(r"<\|[^|<>\s]+\|>")


def control_tokens(template: str) -> tuple[str, ...]:
    """Returns the names of the form `<|name|>` in a chat template, which a new tokenizer must not split."""
    return tuple(dict.fromkeys(_CONTROL.findall(template)))


def samples(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Iterable[str | list[Message]],
    how: Generating,
    data_format: str,
    seed: int,
) -> list[str]:
    """Returns prompts and their continuations or answers, sampled as `how` says.

    The unwrapped model is in evaluation mode. For `messages`, text is a message of the user. The `seed` is that of the
    first sample; that of each further one is greater by 1.
    """
    chats = data_format == "messages"
    prompts = [[{"role": "user", "content": each}] if chats and isinstance(each, str) else each for each in prompts]
    encode: Any = encode_beginning if data_format == "text" else encode_prompt
    ids = [encode(prompt, tokenizer) for prompt in prompts]
    found = continue_all(model, ids, how.sampled(), [*range(seed, seed + len(ids))]) if ids else ()
    answers = decoded(found, tokenizer, how.around)
    return [as_text(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]


def decoded(
    ids: Iterable[Iterable[int]], tokenizer: PreTrainedTokenizerBase, around: tuple[str, str] = ("", "")
) -> list[str]:
    """Returns the texts of answers, without the template's `margins`; `IGNORE_INDEX` is padding."""
    rows = ([int(token) for token in row if token != IGNORE_INDEX] for row in ids)
    texts = (str(tokenizer.decode(row, skip_special_tokens=True)) for row in rows)
    return [text.removeprefix(around[0]).removesuffix(around[1]) for text in texts]


def encode_prompt(
    prompt: str | list[Message], tokenizer: PreTrainedTokenizerBase, tools: str | None = None
) -> list[int]:
    """Returns the tokens that a model answers: the prompt's, or the messages' in the chat template."""
    if not isinstance(prompt, str):
        text = _written(prompt, tokenizer, add_generation_prompt=True, tools=tools)
        return encode_plain(text, tokenizer) + header(tokenizer)
    ids: list[int] = tokenizer(prompt, verbose=False)["input_ids"]
    return ids[:-1] if ids[-1:] == [tokenizer.eos_token_id] else ids  # some tokenizers end every text


def encode_pair(prompt: str, completion: str, tokenizer: PreTrainedTokenizerBase) -> Encoded:
    """Tokenises a prompt and its completion, which ends with the end-of-text token.

    The two are tokenised as one text, unless that would change the tokens of the prompt, which is all that a model has
    when it generates; then each is tokenised by itself.
    """
    begin, both = encode_prompt(prompt, tokenizer), encode_prompt(prompt + completion, tokenizer)
    joined = both[: len(begin)] == begin
    answer = both[len(begin) :] if joined else encode_plain(completion, tokenizer)
    answer = [*answer, separators(tokenizer)[1]]
    return begin + answer, [False] * len(begin) + [True] * len(answer)


def encode_answer(
    prompt: str | list[Message], answer: str, tokenizer: PreTrainedTokenizerBase, end: Sequence[int] | None = None
) -> Encoded:
    """Tokenises a prompt and one answer to it, of which alone the mask is true; see `encode_conversation`."""
    if isinstance(prompt, str):
        return encode_pair(prompt, answer, tokenizer)
    tokens, mask = encode_conversation([*prompt, {"role": ASSISTANT, "content": answer}], tokenizer, end)
    last = max((place for place, own in enumerate(mask) if own), default=-1)
    first = next((place + 1 for place in range(last, -1, -1) if not mask[place]), 0)
    return tokens[: last + 1], [first <= place for place in range(last + 1)]


def answer_end(tokenizer: PreTrainedTokenizerBase, prompt: object = None) -> list[int]:
    """Returns the tokens that end an answer: of text, the end-of-text token; of messages, what the template writes.

    That is the end-of-text token or another token of its own behind an answer, or all that follows it.
    """
    end = separators(tokenizer)[1]
    if isinstance(prompt, str):
        return [end]
    behind = _behind_answers(tokenizer) or []
    own = [token for token in behind if token in tokenizer.added_tokens_decoder]
    if end in behind or own:
        return [end if end in behind else own[0]]
    return behind if str(tokenizer.decode(behind)).strip() else [end]


def end_problems(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Returns the problem if a chat template without `{% generation %}` writes only blanks behind an answer."""
    behind = None if _GENERATION.search(template_of(tokenizer)) else _behind_answers(tokenizer)
    if behind is None or str(tokenizer.decode(behind)).strip():
        return []
    return [
        "task.chat_template: nothing marks the end of an answer, so that generation would not stop there; write the "
        "end-of-text token behind it, {{ eos_token }}"
    ]


def header(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns the tokens that a chat template without a generation prompt writes before an answer, else none."""
    if "add_generation_prompt" in template_of(tokenizer) or (answered := _answered(tokenizer)) is None:
        return []
    (one, other), before = answered, encode_plain(_written([_QUESTION], tokenizer), tokenizer)
    same = next((i for i in range(len(one)) if one[: i + 1] != other[: i + 1]), len(one))
    return one[len(before) : same] if one[: len(before)] == before else []


def _behind_answers(tokenizer: PreTrainedTokenizerBase) -> list[int] | None:
    """Returns the tokens that the chat template writes behind the last answer, None if it rejects a short exchange."""
    if (answered := _answered(tokenizer)) is None:
        return None
    one, other = answered
    same = next((i for i in range(len(one)) if one[-1 - i :] != other[-1 - i :]), 0)
    return one[len(one) - same :]


_QUESTION: Message = {"role": "user", "content": "x"}
_ANSWER = "Yes"


def _answered(tokenizer: PreTrainedTokenizerBase) -> list[list[int]] | None:
    """Returns the tokens of a question with two answers, None if the chat template rejects it."""
    from jinja2 import TemplateError

    try:
        texts = [_written([_QUESTION, {"role": ASSISTANT, "content": each}], tokenizer) for each in ("No.", _ANSWER)]
    except TemplateError:
        return None
    return [encode_plain(each, tokenizer) for each in texts]


def encode_conversation(
    messages: list[Message],
    tokenizer: PreTrainedTokenizerBase,
    end: Sequence[int] | None = None,
    tools: str | None = None,
) -> Encoded:
    """Tokenises a conversation in the tokenizer's chat template.

    Answers are what the template encloses in `{% generation %}`; in other templates, what follows the template's prompt
    for an answer, up to its `end` (None: that of `answer_end`). Those with `train: false` are left out.

    Raises:
        BadRow: if a template without `{% generation %}` writes earlier messages differently once others follow, or one
            with it does not enclose each answer, some of which are not trained, or `tools` are not written.
        InputError: if the tokenizer has no chat template.
    """
    if _GENERATION.search(template_of(tokenizer)):
        return _enclosed(messages, tokenizer, tools)
    text = partial(_written, tokenizer=tokenizer, tools=tools)
    whole = text(messages)
    if tools is not None and whole == _written(messages, tokenizer):
        raise BadRow("the chat template does not write tools, so the column would be lost; use another template")
    around = {
        place: (text(messages[:place], add_generation_prompt=True), text(messages[: place + 1]))
        for place, message in enumerate(messages)
        if message["role"] == ASSISTANT and message.get(TRAIN, True)
    }
    tokens, head, end = encode_plain(whole, tokenizer), header(tokenizer), end or answer_end(tokenizer)
    mask = [False] * len(tokens)
    for texts in around.values():
        before, answered = (encode_plain(each, tokenizer) for each in texts)
        if answered[: len(before)] != before or tokens[: len(answered)] != answered:
            return _by_text(whole, around, tokenizer, end)
        before += head if answered[len(before) :][: len(head)] == head else []
        length = _length(answered[len(before) :], end)
        mask[len(before) : len(before) + length] = [True] * length
    return tokens, mask


def _by_text(
    whole: str, around: Mapping[int, tuple[str, str]], tokenizer: PreTrainedTokenizerBase, end: Sequence[int]
) -> Encoded:
    """Tokenises answers apart from what is before them, as they are generated.

    For templates whose prompt for an answer ends in a blank, which would belong to the answer's first token. `around`
    has the texts up to each answer and with it.
    """
    parts, begin = list[str](), 0
    for place, (before, answered) in around.items():
        if not answered.startswith(before) or not whole.startswith(answered):
            raise BadRow(
                f"the chat template changes what comes before or in message {place + 1} once other messages follow, so "
                "the answer cannot be found; set task.chat_template to one that encloses answers in {% generation %}"
            )
        parts += [whole[begin : len(before)], whole[len(before) : len(answered)]]
        begin = len(answered)
    ids = [encode_plain(part, tokenizer) for part in (*parts, whole[begin:])]
    lengths = [_length(each, end) if number % 2 else 0 for number, each in enumerate(ids)]  # every second is an answer
    mask = [place < length for each, length in zip(ids, lengths, strict=True) for place in range(len(each))]
    return [*chain(*ids)], mask


def _length(answer: Sequence[int], end: Sequence[int]) -> int:
    """Returns the number of tokens of an answer, up to its last end."""
    return max((place + len(end) for place in occurrences(end, answer)), default=len(answer))


def _enclosed(messages: list[Message], tokenizer: PreTrainedTokenizerBase, tools: str | None) -> Encoded:
    """Tokenises a conversation whose answers are enclosed: tokens that begin in one belong to it.

    Transformers' own mask looks for the tokens of a span's first and last character, which has none if it is a blank
    that the tokenizer leaves out of its offsets.
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    render: Any = render_jinja_template
    template, known = template_of(tokenizer), tokenizer.special_tokens_map
    shown, given = [_shown(each) for each in messages], None if tools is None else json.loads(tools)
    (text,), (spans,) = render([shown], tools=given, chat_template=template, return_assistant_tokens_mask=True, **known)
    answers = [message.get(TRAIN, True) for message in messages if message["role"] == ASSISTANT]
    if not all(answers):
        if len(spans) != len(answers):
            raise BadRow("some answers are not trained, and the chat template does not enclose each of them by itself")
        spans = [span for span, trained in zip(spans, answers, strict=True) if trained]
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    mask, former = [], 0
    for begin, end in encoded["offset_mapping"]:
        begin = former if begin == end else begin  # of a blank that is left out of the offsets
        mask.append(any(start <= begin < stop for start, stop in spans))
        former = end
    return encoded["input_ids"], mask


def template_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """Returns the tokenizer's chat template; without one, raises an InputError."""
    try:
        return tokenizer.get_chat_template()
    except ValueError as error:
        raise InputError(
            "task.data_format: messages needs a chat template, which this model's tokenizer does not have; use a model "
            "that was trained for chat, or set task.chat_template"
        ) from error


def _shown(message: Message) -> Message:
    """Returns what the template is given of a message; arguments of calls are objects, as templates expect them."""
    shown = {name: value for name, value in message.items() if name != TRAIN}
    if calls := shown.get("tool_calls"):
        shown["tool_calls"] = [_call(each) for each in calls]
    return shown


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if isinstance(function, Mapping) and isinstance(given := function.get("arguments"), str):
        with suppress(ValueError):
            return {**call, "function": {**function, "arguments": json.loads(given)}}
    return dict(call)


def _written(
    messages: list[Message],
    tokenizer: PreTrainedTokenizerBase,
    add_generation_prompt: bool = False,
    tools: str | None = None,
) -> str:
    """Returns a conversation in the chat template as text."""
    template_of(tokenizer)
    text: Any = tokenizer.apply_chat_template(
        [_shown(each) for each in messages], tools=None if tools is None else json.loads(tools), tokenize=False,
        add_generation_prompt=add_generation_prompt,
    )  # fmt: skip
    return str(text)


def margins(tokenizer: PreTrainedTokenizerBase) -> tuple[str, str]:
    """Returns the blanks that the chat template writes before an answer, behind its prompt, and behind it."""
    from jinja2 import TemplateError

    try:
        before = _written([_QUESTION], tokenizer, add_generation_prompt=True) + str(tokenizer.decode(header(tokenizer)))
        whole = _written([_QUESTION, {"role": ASSISTANT, "content": _ANSWER}], tokenizer)
    except TemplateError:
        return "", ""
    first, found, behind = whole.removeprefix(before).partition(_ANSWER)
    last = behind.partition(str(tokenizer.decode(answer_end(tokenizer))))[0]
    if not whole.startswith(before) or not found:
        return "", ""
    return first if first.isspace() else "", last if last.isspace() and last != behind else ""


def encode_examples(
    rows: Mapping[str, Sequence[Any]],
    tokenizer: PreTrainedTokenizerBase,
    labelled: bool,
    end: Sequence[int] | None = None,
) -> Iterator[Encoded]:
    """Tokenises a batch of checked rows with the columns `prompt` and `completion`, or `messages`.

    Raises:
        DataError: if the chat template cannot be applied to a row.
        InputError: if the tokenizer lacks an end-of-text token or a chat template.
    """
    names = [name for name in ("prompt", "completion", "messages", "tools") if name in rows]
    for number, *values in zip(rows["_number"], *(rows[name] for name in names), strict=True):
        row = dict(zip(names, values, strict=True))
        with of_row(number):
            tools = row.get("tools")
            if not labelled:
                found: Encoded = encode_prompt(prompt_of(row), tokenizer, tools), []
            elif "prompt" in row:
                found = encode_pair(row["prompt"], row["completion"], tokenizer)
            else:
                found = encode_conversation(restored(row["messages"]), tokenizer, end, tools)
        yield found


@contextmanager
def of_row(number: str) -> Iterator[None]:
    """Turns errors of the chat template into a DataError that names the row."""
    from jinja2 import TemplateError

    try:
        yield
    except BadRow as error:
        raise DataError(f"row {number}: {error}") from error
    except TemplateError as error:
        raise DataError(f"row {number}: the chat template cannot be applied: {error}") from error


def example_columns(
    examples: Iterable[Encoded], block_size: int, end: Sequence[int] = (), prompt_size: int | None = None
) -> dict[str, list[Any]]:
    """Returns the feature columns of tokenised examples, truncated to `block_size` tokens of input.

    Examples lose their end; those without an answer, which are prompts to be answered, keep their last `prompt_size`
    tokens (None: `block_size`). `ended` says whether the end of an answer is trained.
    """
    columns: dict[str, list[Any]] = {name: [] for name in ("tokens", "answers", "length", "truncated_input", "ended")}
    for tokens, mask in examples:
        kept = tokens[: block_size + 1] if mask else tokens[-(prompt_size or block_size) :]
        ended = not mask or any(mask[place] for place in occurrences(end, kept))
        values = (kept, mask[: len(kept)], len(kept) - bool(mask), len(kept) < len(tokens), ended)
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    return columns


def with_answers(features: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields the feature rows of `example_columns` without those whose answers were truncated completely.

    Each gets the column `targets`: a list of its number of predicted tokens.

    Raises:
        DataError: if none is left.
    """
    left = False
    for row in features:
        targets = sum(row["answers"][1:])
        if targets or not row["answers"]:
            left = True
            yield row | {"targets": [targets]}
    if not left:
        raise DataError("task.block_size: the answers of all examples begin after this number of tokens; raise it")


def inputs_and_labels(tokens: np.ndarray, mask: Sequence[bool]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the input ids and the labels `[T]` of a feature row: each token's successor, if it is of an answer."""
    import numpy as np

    if not mask:
        return tokens, np.full_like(tokens, IGNORE_INDEX)
    return tokens[:-1], np.where(mask[1:], tokens[1:], IGNORE_INDEX)
