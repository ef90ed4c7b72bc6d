"""OpenAI's `POST /v1/chat/completions`, `POST /v1/completions` and `GET /v1/models` for a run that generates text.

Requests are answered one at a time, in the worker's thread; those that stream get each part when it is there.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from toolkit.api.batch import BadRow
from toolkit.base.console import shorten
from toolkit.base.errors import DataError
from toolkit.deploy.serving.requests import Limits, Refusal
from toolkit.deploy.serving.schema import Served
from toolkit.deploy.serving.worker import Worker
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


class Invalid(Exception):  # noqa: N818 - an answer of the server, not a failure
    """A request that OpenAI's clients report as an error: HTTP status, message, and the parameter if it is one."""

    def __init__(self, message: str, parameter: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.status, self.parameter = status, parameter

    @property
    def response(self) -> Response:
        """The answer to the client."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.parameter, "code": None}
        return JSONResponse({"error": error}, self.status)


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
    parts: list[str] = field(default_factory=list)
    """Parts of the text that are not sent yet."""
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
    return Asked(ids, _limited(ids, _how(how, given), given), _seed(run, given), _stops(given.get("stop")),
                 bool(given.get("stream")), bool((given.get("stream_options") or {}).get("include_usage")),
                 scored)  # fmt: skip


def _how(how: Generating, given: Mapping[str, Any]) -> Generating:
    """Returns how a request is answered: as `toolkit predict` does, unless it asks for a temperature or `top_p`."""
    sampling = {name: given[name] for name in ("temperature", "top_p") if given.get(name) is not None}
    if not sampling:
        return how
    settings = {name: value for name, value in how.settings.items() if name != "do_sample" and name not in sampling}
    if sampling.get("temperature") == 0:
        return replace(
            how, settings={name: value for name, value in settings.items() if name not in ("top_k", "top_p")}
        )
    return replace(how, settings={**settings, "top_k": settings.get("top_k", 0), "do_sample": True, **sampling})


def _limited(ids: Sequence[int], how: Generating, given: Mapping[str, Any]) -> Generating:
    most = given.get("max_completion_tokens") or given.get("max_tokens") or how.max_new_tokens
    if len(ids) > how.kept:
        raise Invalid(f"the prompt has {len(ids):,} tokens, and this run reads at most {how.kept:,}")
    return replace(how, max_new_tokens=min(most, how.block_size - len(ids)))


def _seed(run: TrainedRun, given: Mapping[str, Any]) -> int:
    return int(given["seed"]) if given.get("seed") is not None else uuid.uuid4().int % 2**63


def _stops(given: Any) -> list[str]:
    stops = [given] if isinstance(given, str) else given or []
    if not isinstance(stops, list) or len(stops) > MOST_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise Invalid(f"stop: expected a text or up to {MOST_STOPS} of them", "stop")
    return stops


def generate(run: TrainedRun, asked: Asked, answer: Answer, tell: Callable[[], None]) -> None:
    """Generates an answer, in the worker's thread; calls `tell` whenever it has another part."""
    from transformers import StoppingCriteria

    model, begin, end = run.model, len(asked.ids), asked.how.end
    stops = [*asked.stops, *([run.processor.decode([*end])] if len(end) > 1 else [])]
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
            answer.parts.append(ready[len(answer.text) :])
            answer.text = ready
            tell()
        return ended

    class Watching(StoppingCriteria):
        def __call__(self, input_ids: Tensor, scores: Any, **more: Any) -> Any:
            import torch

            ended = answer.cancelled or (len(input_ids) == 1 and note(input_ids[0, begin:].tolist(), done=False))
            return torch.full((len(input_ids),), ended, dtype=torch.bool, device=input_ids.device)

    with float32_precision(run.cfg.train.tf32):
        (found,) = continue_all(model, [asked.ids], asked.how, [asked.seed], Watching())
        new = found[found >= 0].tolist()
        if asked.scored:
            chosen, _ = log_probabilities(model, asked.ids[-asked.how.kept :], new)
            texts = [str(run.processor.decode([token])) for token in new]
            answer.scores = list(zip(texts, chosen.tolist(), strict=True))
    note(new, done=True)


class Host(Protocol):
    """The service of the application, `toolkit.deploy.serving.app.Service`."""

    run: TrainedRun
    worker: Worker
    served: Served
    limits: Limits

    def enter(self) -> None:
        """Counts a request; rejects it if there are too many."""

    def leave(self) -> None:
        """Counts a request as answered."""

    async def received(self, request: Request) -> bytes:
        """Returns the body of a request within the limits."""


class Completions:
    """The endpoints."""

    def __init__(self, service: Host) -> None:
        self._service, self._began = service, int(time.time())

    async def models(self) -> Response:
        """The run, as the only model."""
        name = self._service.served.name
        own = {"id": name, "object": "model", "created": self._began, "owned_by": "finetune-toolkit"}
        return JSONResponse({"object": "list", "data": [own]})

    async def chat(self, request: Request) -> Response:
        """Answers a conversation."""
        return await self._answered(request, chat=True)

    async def text(self, request: Request) -> Response:
        """Continues a prompt."""
        return await self._answered(request, chat=False)

    async def _answered(self, request: Request, chat: bool) -> Response:
        service, loop = self._service, asyncio.get_running_loop()
        answer, parts = Answer(), asyncio.Event()
        try:
            service.enter()
            try:
                asked = read(await service.received(request), service.run, chat)

                def tell() -> None:
                    loop.call_soon_threadsafe(parts.set)

                done = service.worker.call(partial(generate, service.run, asked, answer, tell))
            except BaseException:
                service.leave()
                raise
            done.add_done_callback(lambda _: loop.call_soon_threadsafe(service.leave))
            shape = _Shape(chat, service.served.name)
            if asked.streams:
                stream = self._stream(asked, answer, done, parts, shape)
                return StreamingResponse(stream, media_type="text/event-stream")
            await self._finished(done, answer)
        except Invalid as error:
            return error.response
        except Refusal as error:
            return Invalid(error.error, status=error.status).response
        return JSONResponse(shape.whole(answer, len(asked.ids)))

    async def _finished(self, done: Future[None], answer: Answer) -> None:
        seconds = self._service.limits.timeout
        try:
            async with asyncio.timeout(seconds):
                await asyncio.wrap_future(done)
        except TimeoutError:
            raise Invalid(f"the request was not answered within {seconds:g} s", status=504) from None
        finally:
            answer.cancelled = True

    async def _stream(
        self, asked: Asked, answer: Answer, done: Future[None], parts: asyncio.Event, shape: _Shape
    ) -> AsyncIterator[str]:
        finished = asyncio.ensure_future(self._finished(done, answer))
        finished.add_done_callback(lambda _: parts.set())
        try:
            yield _event(shape.first())
            while True:
                await parts.wait()
                parts.clear()
                while answer.parts:
                    yield _event(shape.part(answer.parts.pop(0)))
                if finished.done():
                    break
            finished.result()
            yield _event(shape.last(answer.finish))
            if asked.with_usage:
                yield _event(shape.usage(answer, len(asked.ids)))
        except (Invalid, Refusal) as error:
            yield _event({"error": {"message": str(error), "type": "server_error", "param": None, "code": None}})
        finally:
            answer.cancelled = True
            finished.cancel()
        yield "data: [DONE]\n\n"


def _event(content: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


class _Shape:
    """OpenAI's form of an answer and of its parts."""

    def __init__(self, chat: bool, name: str) -> None:
        self._chat = chat
        kind, prefix = ("chat.completion", "chatcmpl") if chat else ("text_completion", "cmpl")
        self._kind = kind
        self._frame = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": name}

    def _of(self, choices: list[dict[str, Any]], part: bool = True, **more: Any) -> dict[str, Any]:
        kind = f"{self._kind}.chunk" if part and self._chat else self._kind
        return {**self._frame, "object": kind, "choices": choices, **more}

    def whole(self, answer: Answer, prompt: int) -> dict[str, Any]:
        """The complete answer."""
        said = {"message": {"role": "assistant", "content": answer.text}} if self._chat else {"text": answer.text}
        choice = {"index": 0, **said, "logprobs": self._scores(answer), "finish_reason": answer.finish}
        return self._of([choice], part=False, usage=_usage(answer, prompt))

    def _scores(self, answer: Answer) -> dict[str, Any] | None:
        if answer.scores is None:
            return None
        if self._chat:
            return {"content": [{"token": token, "logprob": score, "bytes": [*token.encode()], "top_logprobs": []}
                                for token, score in answer.scores]}  # fmt: skip
        tokens, scores = [token for token, _ in answer.scores], [score for _, score in answer.scores]
        offsets = [*accumulate(map(len, tokens), initial=0)][:-1]
        return {"tokens": tokens, "token_logprobs": scores, "top_logprobs": None, "text_offset": offsets}

    def first(self) -> dict[str, Any]:
        """The first part, which has no text."""
        return self._part({"role": "assistant", "content": ""}, "", None)

    def part(self, text: str) -> dict[str, Any]:
        """A part of the text."""
        return self._part({"content": text}, text, None)

    def last(self, finish: str) -> dict[str, Any]:
        """The last part, with the reason why the text ends."""
        return self._part({}, "", finish)

    def usage(self, answer: Answer, prompt: int) -> dict[str, Any]:
        """The numbers of tokens."""
        return self._of([], usage=_usage(answer, prompt))

    def _part(self, delta: dict[str, Any], text: str, finish: str | None) -> dict[str, Any]:
        said: dict[str, Any] = {"delta": delta} if self._chat else {"text": text}
        return self._of([{"index": 0, **said, "logprobs": None, "finish_reason": finish}])


def _usage(answer: Answer, prompt: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": answer.tokens, "total_tokens": prompt + answer.tokens}
