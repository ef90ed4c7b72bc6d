"""OpenAI's `chat/completions` and `completions`: how requests are read, answered, and in what form.

Requests are answered one at a time, in the worker's thread; those that stream get each part when it is there.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from toolkit.api.batch import BadRow
from toolkit.base.console import shorten
from toolkit.base.errors import DataError
from toolkit.deploy.serving.requests import Refusal
from toolkit.distributed.launch import float32_precision
from toolkit.tasks.generation import Generating, continue_all, log_probabilities, stop_tokens

if TYPE_CHECKING:
    from torch import Tensor

    from toolkit.deploy.trained import TrainedRun

MOST_STOPS = 4
NUMBERS: Mapping[str, tuple[Any, float, float]] = {
    "temperature": ((int, float), 0, 2), "top_p": ((int, float), 0, 1), "seed": (int, -(2**63), 2**63 - 1),
    "max_tokens": (int, 1, 2**31), "max_completion_tokens": (int, 1, 2**31), "n": (int, 1, 1),
    "top_logprobs": (int, 0, 0),
}  # fmt: skip
"""Numbers of a request, with their types and bounds."""


class Invalid(Refusal):
    """A request that cannot be answered, and the parameter that is wrong, if it is one."""

    def __init__(self, error: str, parameter: str | None = None) -> None:
        super().__init__(400, error)
        self.parameter = parameter


def refused(refusal: Refusal) -> dict[str, Any]:
    """Returns OpenAI's form of a refusal."""
    kind = "invalid_request_error" if refusal.status < 500 else "server_error"
    parameter = getattr(refusal, "parameter", None)
    return {"error": {"message": refusal.error, "type": kind, "param": parameter, "code": None}}


@dataclass(frozen=True)
class Asked:
    """A request that was read."""

    ids: list[int]
    how: Generating
    seed: int
    stops: Sequence[str]
    streams: bool
    with_usage: bool
    scored: bool
    """Whether log-probabilities of tokens are wanted."""


@dataclass
class Answer:
    """The answer to a request while it is generated, filled by the worker's thread."""

    text: str = ""
    tokens: int = 0
    finish: str = ""
    cancelled: bool = False
    scores: list[tuple[str, float]] | None = None
    """The tokens with their log-probabilities, if wanted."""


def read(body: bytes, run: TrainedRun, chat: bool) -> Asked:
    """Reads a request; raises Invalid with the reason if it cannot be answered."""
    try:
        given = json.loads(body)
    except ValueError as error:
        raise Invalid(f"the body is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise Invalid("the body must be a JSON object")
    for name, (kind, low, high) in NUMBERS.items():
        value = given.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high):
            raise Invalid(f"{name}: received {shorten(repr(value))}, expected {low:g} to {high:g}", name)
    for name in ("tools", "functions", "response_format", "logit_bias", "audio"):
        if given.get(name):
            raise Invalid(f"{name}: is not supported", name)
    if (scored := given.get("logprobs") not in (None, False)) and given.get("stream"):
        raise Invalid("logprobs: are not streamed", "logprobs")
    name = "messages" if chat else "prompt"
    prompt = given.get(name)
    if not chat and isinstance(prompt, list) and len(prompt) == 1:
        (prompt,) = prompt
    if prompt is None or (not chat and not isinstance(prompt, str)):
        raise Invalid(f"{name}: received {shorten(repr(prompt))}, expected {'a list' if chat else 'a text'}", name)
    try:
        ids, how = run.task.prompt_ids(prompt, run.processor)
    except (BadRow, DataError) as error:
        raise Invalid(f"{name}: {error}", name) from error
    if len(ids) > how.kept:
        raise Invalid(f"the prompt has {len(ids):,} tokens, and this run reads at most {how.kept:,}")
    stops = [given["stop"]] if isinstance(given.get("stop"), str) else given.get("stop") or []
    if not isinstance(stops, list) or len(stops) > MOST_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise Invalid(f"stop: expected a text or up to {MOST_STOPS} of them", "stop")
    most = given.get("max_completion_tokens") or given.get("max_tokens") or how.max_new_tokens
    how = replace(_sampled(how, given), max_new_tokens=min(most, how.block_size - len(ids)))
    seed = uuid.uuid4().int % 2**63 if given.get("seed") is None else given["seed"]
    streamed = given.get("stream_options") or {}
    if not isinstance(streamed, dict):
        raise Invalid(f"stream_options: received {shorten(repr(streamed))}, expected an object", "stream_options")
    return Asked(ids, how, seed, stops, bool(given.get("stream")), bool(streamed.get("include_usage")), scored)


def _sampled(how: Generating, given: Mapping[str, Any]) -> Generating:
    """Returns how a request is answered: as `toolkit predict` does, unless it asks for a temperature or `top_p`."""
    sampling = {name: given[name] for name in ("temperature", "top_p") if given.get(name) is not None}
    if not sampling:
        return how
    greedy = sampling.get("temperature") == 0
    replaced = ("do_sample", *sampling, *(("top_k", "top_p") if greedy else ()))
    settings = {name: value for name, value in how.settings.items() if name not in replaced}
    own = {} if greedy else {"top_k": settings.get("top_k", 0), "do_sample": True, **sampling}
    return replace(how, settings=settings | own)


def generate(run: TrainedRun, asked: Asked, answer: Answer, tell: Callable[[str], Any]) -> None:
    """Generates an answer, in the worker's thread; calls `tell` with each further part of its text."""
    model, begin, end = run.model, len(asked.ids), asked.how.end
    stops = [*asked.stops, *filter(None, [asked.how.ending(run.processor)])]
    final = set(stop_tokens(run.bare_model, end))
    lead, trail = asked.how.around
    held = max(max(map(len, stops), default=1) - 1, len(trail))

    def note(new: list[int], done: bool) -> bool:
        """Takes over the tokens so far; returns whether the text has ended."""
        text = str(run.processor.decode(new, skip_special_tokens=True)).removeprefix(lead)
        places = [place for stop in stops if (place := text.find(stop)) >= 0]
        text = text[: min(places)] if places else text
        ended = answer.finish == "stop" or bool(places) or bool(new and new[-1] in final)
        text = text.removesuffix(trail) if ended else text
        answer.tokens, answer.finish = len(new), "stop" if ended else "length"
        # A character of several tokens, or what may begin a stop, is not complete yet.
        ready = text if done or ended else text[: max(0, len(text) - held)].rstrip("\ufffd")
        if len(ready) > len(answer.text):
            tell(ready[len(answer.text) :])
            answer.text = ready
        return ended

    def watch(input_ids: Tensor, scores: Any, **more: Any) -> Tensor:
        ended = answer.cancelled or (len(input_ids) == 1 and note(input_ids[0, begin:].tolist(), done=False))
        return input_ids.new_full((len(input_ids),), ended).bool()

    with float32_precision(run.cfg.train.tf32):
        (found,) = continue_all(model, [asked.ids], asked.how, [asked.seed], watch)
        new = found[found >= 0].tolist()
        if asked.scored:
            chosen, _ = log_probabilities(model, asked.ids[-asked.how.kept :], new)
            texts = [str(run.processor.decode([token])) for token in new]
            answer.scores = list(zip(texts, chosen.tolist(), strict=True))
    note(new, done=True)


class Form:
    """OpenAI's form of an answer and of its parts."""

    def __init__(self, chat: bool, name: str) -> None:
        self._chat = chat
        self._kind, prefix = ("chat.completion", "chatcmpl") if chat else ("text_completion", "cmpl")
        self._frame = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": name}

    def whole(self, answer: Answer, prompt: int) -> dict[str, Any]:
        """Returns a complete answer to a prompt of this many tokens."""
        said = {"message": {"role": "assistant", "content": answer.text}} if self._chat else {"text": answer.text}
        choice = {"index": 0, **said, "logprobs": self._scores(answer), "finish_reason": answer.finish}
        return {**self._frame, "object": self._kind, "choices": [choice], "usage": self._usage(answer, prompt)}

    def part(self, delta: Mapping[str, str], finish: str | None = None) -> str:
        """Returns the event of a part: its role, its text, or why the text ends."""
        said: dict[str, Any] = {"delta": delta} if self._chat else {"text": delta.get("content", "")}
        return self._event([{"index": 0, **said, "logprobs": None, "finish_reason": finish}])

    def usage(self, answer: Answer, prompt: int) -> str:
        """Returns the event of the numbers of tokens."""
        return self._event([], usage=self._usage(answer, prompt))

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> str:
        kind = f"{self._kind}.chunk" if self._chat else self._kind
        return event({**self._frame, "object": kind, "choices": choices, **more})

    def _scores(self, answer: Answer) -> dict[str, Any] | None:
        if answer.scores is None:
            return None
        if self._chat:
            return {"content": [{"token": token, "logprob": score, "bytes": [*token.encode()], "top_logprobs": []}
                                for token, score in answer.scores]}  # fmt: skip
        tokens, scores = [token for token, _ in answer.scores], [score for _, score in answer.scores]
        offsets = [*accumulate(map(len, tokens), initial=0)][:-1]
        return {"tokens": tokens, "token_logprobs": scores, "top_logprobs": None, "text_offset": offsets}

    def _usage(self, answer: Answer, prompt: int) -> dict[str, int]:
        return {"prompt_tokens": prompt, "completion_tokens": answer.tokens, "total_tokens": prompt + answer.tokens}


def event(content: Mapping[str, Any]) -> str:
    """Returns an event of a stream."""
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"
