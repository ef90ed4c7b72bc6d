"""The web application: `POST /predict`, `POST /search`, OpenAI's, `GET /health`, and pages that describe them."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

# Not inside functions: FastAPI looks the annotations of the endpoints up in this module.
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from toolkit.base.files import finite
from toolkit.data.readers.raw import Reading
from toolkit.deploy.search import Corpus
from toolkit.deploy.serving.completions import Answer, Asked, Form, event, generate, read, refused
from toolkit.deploy.serving.requests import Columns, Limits, Refusal, checked_table, rows_of_form, rows_of_json
from toolkit.deploy.serving.schema import Served, health_schema, page, predict_schema, search_schema
from toolkit.deploy.serving.worker import FAILED, Worker
from toolkit.system.environment import versions
from toolkit.system.limits import give_back_freed, usable_cores

if TYPE_CHECKING:
    from starlette.types import Message, Receive

    from toolkit.deploy.trained import TrainedRun

LARGE = 2**19
"""Bytes of a request from which the memory that it has taken is given back, once it has been answered for sure."""
FORM = "multipart/form-data"
CHECKERS = 4
"""Largest number of threads that check rows, of which some decode images."""
LONGEST_RETRY = 60
"""Largest number of seconds in `Retry-After`."""
TOP_K, MOST_DOCUMENTS = 10, 1000
"""Documents of an answer to a search, and the most that may be asked for."""
CLOSED = 499
"""Status after the client has disconnected, for the log."""
Read = Callable[[], list[dict[str, Any]]]
"""Returns the rows of a request that was received, or raises the refusal of it."""


class Service:
    """Answers the requests of the application."""

    def __init__(self, run: TrainedRun, name: str, limits: Limits, corpus: Corpus | None = None) -> None:
        self.run, self.limits, self.corpus = run, limits, corpus
        self.columns = Columns(run.task, run.cfg.data.columns)
        self.served = Served(name, run.task, self.columns, limits, 0 if corpus is None else len(corpus.texts))
        self.worker = Worker(run, limits.batch_wait_ms / 1000)
        self.versions = versions()
        self._reading = Reading.of(run.cfg.data)
        self._checkers = ThreadPoolExecutor(min(CHECKERS, usable_cores()), "check")
        self._inside, self._began = 0, int(time.time())

    @asynccontextmanager
    async def running(self, app: FastAPI) -> AsyncIterator[None]:
        """Runs the worker while the application runs."""
        self.worker.start()
        yield
        self.worker.end(self.limits.timeout)
        self._checkers.shutdown(wait=False, cancel_futures=True)

    async def predict(self, request: Request) -> Response:
        """Answers the rows of a request."""
        return _json(200, {"predictions": await self._of_request(request)})

    async def search(self, request: Request, top_k: int = TOP_K) -> Response:
        """Answers the rows of a request with the `top_k` most similar documents of each."""
        if not 1 <= top_k <= MOST_DOCUMENTS:
            raise Refusal(422, f"top_k: received {top_k}, expected 1 to {MOST_DOCUMENTS}")
        return _json(200, {"results": await self._ranked(await self._of_request(request), top_k)})

    async def _ranked(self, answers: list[dict[str, Any]], top_k: int) -> list[list[dict[str, Any]]]:
        assert self.corpus is not None
        queries, corpus = np.array([each["embedding"] for each in answers], dtype=np.float32), self.corpus
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._checkers, lambda: [*corpus.ranking(queries, top_k)])

    async def _of_request(self, request: Request) -> list[dict[str, Any]]:
        if int(request.headers.get("content-length", LARGE)) >= LARGE:  # or of unknown length
            asyncio.get_running_loop().call_later(2 * self.limits.timeout, give_back_freed)
        with self._place():
            return await self._answers(await self._within_limits(request, self._received))

    async def _within_limits(self, request: Request, receive: Callable[[Request], Awaitable[Any]]) -> Any:
        """Returns what `receive` makes of a request whose body and time are limited."""
        request = Request(request.scope, _limited(request, self.limits))
        return await _in_time(receive(request), self.limits.timeout, 408, "the request was not received")

    async def models(self) -> Response:
        """The run, as OpenAI's only model."""
        own = {"id": self.served.name, "object": "model", "created": self._began, "owned_by": "finetune-toolkit"}
        return _json(200, {"object": "list", "data": [own]})

    async def chat(self, request: Request) -> Response:
        """Answers a conversation, as OpenAI's interface does."""
        return await self._completed(request, chat=True)

    async def text(self, request: Request) -> Response:
        """Continues a prompt, as OpenAI's interface does."""
        return await self._completed(request, chat=False)

    async def _completed(self, request: Request, chat: bool) -> Response:
        loop, answer, form = asyncio.get_running_loop(), Answer(), Form(chat, self.served.name)
        parts: asyncio.Queue[str | None] = asyncio.Queue()
        try:
            with ExitStack() as place:
                place.enter_context(self._place())
                asked = read(await self._within_limits(request, Request.body), self.run, chat)
                tell = lambda part: loop.call_soon_threadsafe(parts.put_nowait, part)  # noqa: E731
                done = self.worker.call(partial(generate, self.run, asked, answer, tell))
                leave = place.pop_all().close
            done.add_done_callback(lambda _: loop.call_soon_threadsafe(leave))
            if asked.streams:
                stream = self._stream(asked, answer, done, parts, form)
                return StreamingResponse(stream, media_type="text/event-stream")
            await self._finished(done, answer)
        except Refusal as refusal:
            return _json(refusal.status, refused(refusal), _headers(refusal))
        return _json(200, form.whole(answer, len(asked.ids)))

    async def _finished(self, done: Future[None], answer: Answer) -> None:
        try:
            await _in_time(asyncio.wrap_future(done), self.limits.timeout, 504, "the request was not answered")
        finally:
            answer.cancelled = True

    async def _stream(
        self, asked: Asked, answer: Answer, done: Future[None], parts: asyncio.Queue[str | None], form: Form
    ) -> AsyncIterator[str]:
        """Yields the events of an answer; `parts` has those of its text."""
        finished = asyncio.ensure_future(self._finished(done, answer))
        finished.add_done_callback(lambda _: parts.put_nowait(None))
        try:
            yield form.part({"role": "assistant", "content": ""})
            while (part := await parts.get()) is not None:
                yield form.part({"content": part})
            finished.result()
            yield form.part({}, answer.finish)
            if asked.with_usage:
                yield form.usage(answer, len(asked.ids))
        except Refusal as refusal:
            yield event(refused(refusal))
        finally:
            answer.cancelled = True
            finished.cancel()
        yield "data: [DONE]\n\n"

    async def answers(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Answers rows that do not come from a request, for the page of `toolkit demo`; may raise a Refusal."""
        with self._place():
            return await self._answers(lambda: rows)

    async def found(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Answers such rows with the best document as `prediction`, and all as `documents`."""
        rankings = await self._ranked(await self.answers(rows), TOP_K)
        return [{"prediction": each[0]["document"], "documents": each} for each in rankings]

    async def health(self) -> Response:
        """Whether rows are answered, by what, and how many requests are not answered yet."""
        config = self.run.model.config
        content = {
            "ready": self.worker.is_alive,
            "reason": self.worker.failure or None,
            "model": {
                "run": self.served.name,
                "task": type(self.run.task).__name__,
                "modality": self.run.task.modality,
                "architecture": (config.architectures or [type(self.run.model).__name__])[0],
                "device": str(self.run.accelerator.device),
            },
            "versions": self.versions,
            "queue": {"requests": self._inside, "limit": self.limits.max_queue},
            "computed": {"batches": self.worker.batches, "rows": self.worker.rows},
        }
        return _json(200 if self.worker.is_alive else 503, content)

    async def page(self) -> Response:
        """The description of the service, for people."""
        return HTMLResponse(page(self.served))

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Counts a request until it is answered; rejects it if there are too many."""
        if self._inside >= self.limits.max_queue:
            seconds = math.ceil(self._inside * self.worker.seconds_per_row)
            wait = min(max(1, seconds), LONGEST_RETRY)
            raise Refusal(429, f"{self._inside} requests are waiting; try again in {wait} s", retry_after=wait)
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    async def _received(self, request: Request) -> Read:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in ("application/json", FORM):
            received = f"received {kind}" if kind else "it is missing"
            raise Refusal(415, f"Content-Type: {received}; expected application/json or {FORM}")
        if kind == FORM:
            return partial(rows_of_form, await _parts(request, self.limits), self.columns, self.limits)
        return partial(rows_of_json, await request.body(), self.limits)

    async def _answers(self, read: Read) -> list[dict[str, Any]]:
        return await _in_time(self._predicted(read), self.limits.timeout, 504, "the rows were not answered")

    async def _predicted(self, read: Read) -> list[dict[str, Any]]:
        table = await asyncio.get_running_loop().run_in_executor(
            self._checkers, lambda: checked_table(read(), self.columns, self._reading, self.limits)
        )
        records = await asyncio.wrap_future(self.worker.submit(table).done)
        return [self.run.task.answer(record) for record in records]


def _headers(refusal: Refusal) -> dict[str, str] | None:
    return {"Retry-After": str(refusal.retry_after)} if refusal.retry_after else None


def application(service: Service) -> FastAPI:
    """Returns a web application without pages of its own, in which the service runs."""
    app = FastAPI(
        title=service.served.name,
        version=service.versions["finetune-toolkit"],
        docs_url=None,
        redoc_url=None,
        lifespan=service.running,
    )

    async def rejected(request: Request, error: Any) -> Response:
        return _json(error.status, error.content, _headers(error))

    async def unknown(request: Request, error: Any) -> Response:
        return _json(error.status_code, Refusal(error.status_code, str(error.detail)).content, error.headers)

    async def failed(request: Request, error: Exception) -> Response:
        return _json(500, Refusal(500, FAILED).content)

    app.add_exception_handler(Refusal, rejected)
    app.add_exception_handler(Exception, failed)  # it is logged as well
    app.add_exception_handler(HTTPException, unknown)
    return app


def build(run: TrainedRun, name: str, limits: Limits, corpus: Corpus | None = None) -> FastAPI:
    """Returns the web application of a finished run with this name; with a corpus, rows can be searched in it."""
    service = Service(run, name, limits, corpus)
    app = application(service)

    async def start() -> Response:
        return RedirectResponse("docs")

    post = partial(app.add_api_route, methods=["POST"])
    post("/predict", service.predict, summary="Predict rows", **predict_schema(service.served))
    if run.task.for_documents() is not None:
        post("/embed", service.predict, summary="Embed rows", **predict_schema(service.served))
    if run.task.has("prompt_ids"):
        post("/v1/chat/completions", service.chat, summary="OpenAI's: answer")
        post("/v1/completions", service.text, summary="OpenAI's: continue")
        app.add_api_route("/v1/models", service.models, summary="OpenAI's: the run")
    if corpus is not None:
        post("/search", service.search, summary="Find the most similar documents", **search_schema(service.served))
    app.add_api_route("/health", service.health, summary="Whether rows are answered", **health_schema())
    app.add_api_route("/docs", service.page, include_in_schema=False)
    app.add_api_route("/", start, include_in_schema=False)
    return app


async def _in_time(work: Any, seconds: float, status: int, what: str) -> Any:
    """Awaits work; rejects the request with `status` after `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise Refusal(status, f"{what} within {seconds:g} s") from None
    except ClientDisconnect:
        raise Refusal(CLOSED, "the client has closed the connection") from None


async def _parts(request: Request, limits: Limits) -> list[tuple[str, Any]]:
    """Returns the fields of a form in their order; files are read into memory."""
    most = 8 * limits.max_rows  # more columns than any task has
    try:
        async with request.form(max_files=most, max_fields=most, max_part_size=limits.max_body) as form:
            return [
                (name, value if isinstance(value, str) else (value.filename or "", await value.read()))
                for name, value in form.multi_items()
            ]
    except HTTPException as error:
        raise Refusal(400, f"the form cannot be read: {error.detail}") from error


def _limited(request: Request, limits: Limits) -> Receive:
    """Returns a request's `receive` with a limit for the body; rejects a known length above it."""
    receive, received = request.receive, 0
    over = Refusal(
        413, f"the body is larger than {limits.max_body_mb:g} MB; send several requests, or raise --max-body-mb"
    )
    if (length := request.headers.get("content-length", "")).isdecimal() and int(length) > limits.max_body:
        raise over

    async def limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limits.max_body:
            raise over
        return message

    return limited


def _json(status: int, content: Any, headers: Any = None) -> Response:
    """Returns an answer as strict JSON, in which numbers that are not finite are null."""
    text = json.dumps(finite(content), ensure_ascii=False, allow_nan=False, default=str)
    return Response(text.encode("utf-8", "backslashreplace"), status, headers, "application/json")
