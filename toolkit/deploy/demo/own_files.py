"""Keeps the page from opening files that it was not sent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.deploy.serving.guard import answer_refusal
from toolkit.deploy.serving.refusals import Refusal

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


UPLOAD = "/gradio_api/upload"
"""Where the page sends files, as a form; every other request is JSON."""


class OwnFiles:
    """Middleware that answers requests which refer to files elsewhere with 403.

    A page refers to a file that it has sent by its place on the server. gradio 6.31 opens any place, and loads any
    address, unless it was started by its own `launch`.

    Args:
        app: the application.
        folder: where files that were sent are kept.
        max_body: size of a request that is not a file, in bytes.
    """

    def __init__(self, app: ASGIApp, folder: Path, max_body: int) -> None:
        self._app, self._folder, self._max_body = app, folder.resolve(), max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] == UPLOAD:
            await self._app(scope, receive, send)
            return
        received, more = bytearray(), True
        while more and len(received) <= self._max_body:
            message = await receive()
            received += message.get("body", b"")
            more = message.get("more_body", False)
        body = bytes(received)
        if refusal := self._refused(body):
            await answer_refusal(send, refusal)
            return
        whole: list[Message] = [{"type": "http.request", "body": body}]

        async def replayed() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, replayed, send)

    def _refused(self, body: bytes) -> Refusal | None:
        """Returns why a body is refused, or None."""
        if len(body) > self._max_body:
            return Refusal(413, "the request is too large")
        try:
            places = [Path(place).resolve() for place in _places(json.loads(body))] if body else []
        except (ValueError, RecursionError):  # the former also for names that no file can have
            return Refusal(400, "the body is not JSON with places of files")
        if all(place.is_relative_to(self._folder) for place in places):
            return None
        return Refusal(403, "the page uses only files that were sent to it")


def _places(value: Any) -> Iterator[str]:
    """Yields all values of `path` at any depth."""
    if isinstance(value, Mapping):
        place = value.get("path")
        if place is not None:
            yield str(place)
        for inner in value.values():
            yield from _places(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _places(inner)
