"""Serves a finished run until a stop signal, and only to allowed hosts and origins."""

from __future__ import annotations

import ipaddress
import json
import logging
import math
import signal
import socket
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING, Any

from toolkit.base.console import say
from toolkit.base.errors import InputError
from toolkit.deploy.serving.requests import Limits, Refusal

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from toolkit.deploy.search import Corpus
    from toolkit.deploy.trained import TrainedRun


class Guard:
    """Middleware that answers requests for other hosts and from other sites with 403.

    Every page in a browser of the machine reaches a server on the loopback. Such a page names its own site as the
    origin or, if its address resolves to the loopback, as the host.
    """

    def __init__(self, app: ASGIApp, local: bool, policy: str = "") -> None:
        self._app, self._local, self._policy = app, local, policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        host, origin = (headers.get(name, b"").decode("latin-1") for name in (b"host", b"origin"))
        if refusal := rejection(host, origin, self._local):
            await answer_refusal(send, refusal)
            return

        async def guarded(message: Message) -> None:
            if self._policy and message["type"] == "http.response.start":
                policy = (b"content-security-policy", self._policy.encode())
                message = {**message, "headers": [*message.get("headers", []), policy]}
            await send(message)

        await self._app(scope, receive, guarded)


def rejection(host: str, origin: str, local: bool) -> Refusal | None:
    """Returns why a request with this host and origin (empty from programs) is rejected, or None."""
    if local and not is_local(host):
        return Refusal(403, f"Host: received {host!r}, which is not a name of this machine's loopback")
    if origin and origin.partition("://")[2] != host:
        return Refusal(403, f"Origin: received {origin!r}; pages of other sites may not send requests")
    return None


def is_local(host: str) -> bool:
    """Whether a host, with or without a port, is this machine's loopback."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


async def answer_refusal(send: Send, refusal: Refusal) -> None:
    """Sends a refusal, for middleware."""
    body = json.dumps(refusal.content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def bounded_protocol(seconds: float, most: int) -> type[Any]:
    """Returns uvicorn's protocol with a deadline for the head of a request, and at most so many connections.

    uvicorn bounds the time between requests alone, and counts connections after it has accepted them. If there are too
    many, the one that has waited longest without a request is closed, of those that have never sent one first.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    idle: tuple[dict[Any, None], dict[Any, None]] = ({}, {})  # those without a request, new and known, the oldest first

    class Bounded(H11Protocol):
        deadline: Any = None
        known = False

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > most and any(idle):
                next(chain(*idle)).expire()
            self.wait()

        def wait(self) -> None:
            idle[self.known][self] = None
            self.deadline = self.loop.call_later(seconds, self.expire)

        def expire(self) -> None:
            self.answering()
            self.transport.abort()

        def answering(self) -> None:
            idle[self.known].pop(self, None)
            if self.deadline is not None:
                self.deadline.cancel()

        def handle_events(self) -> None:
            super().handle_events()
            if self.cycle is not None and not self.cycle.response_complete:
                self.answering()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self.answering()
            self.known = True
            self.wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self.answering()
            super().connection_lost(exc)

    return Bounded


RESERVED = 64
"""Descriptors that are kept for files and libraries."""
QUIET_SECONDS = 10.0
"""Time in which a library's message is logged once."""


def most_connections() -> int:
    """Returns how many connections the limit of descriptors (`ulimit -n`) leaves room for."""
    import resource

    import psutil

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(8, (limit - psutil.Process().num_fds() - RESERVED) // 2)


def log_rarely() -> Callable[[logging.LogRecord], bool]:
    """Returns a filter that passes a message of a library once in `QUIET_SECONDS`: clients can cause many."""
    logged: dict[str, float] = {}

    def rare(record: logging.LogRecord) -> bool:
        if is_rare := record.created - logged.get(record.msg, -math.inf) >= QUIET_SECONDS:
            logged[record.msg] = record.created
        return is_rare

    return rare


STOPS = (signal.SIGINT, signal.SIGTERM)
BACKLOG = 1024
"""Connections that the system keeps while the server is busy."""
GRACE = 5.0
"""Seconds that a stopping server needs in addition to the time of an answer."""


def require_libraries(extra: str, names: Sequence[str]) -> None:
    """Raises InputError if a module of an extra, which has the name of a command, is not installed."""
    if missing := [name for name in names if find_spec(name) is None]:
        raise InputError(f"toolkit {extra} needs {' and '.join(missing)}: pip install 'finetune-toolkit[{extra}]'")


def bound(host: str, port: int) -> socket.socket:
    """Returns a socket that has the address but does not listen yet, so that a model is not loaded in vain.

    Raises InputError if the address cannot be used.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise InputError(f"--host: received {host!r}, which is no address of this machine ({error})") from error
    family, kind, protocol, _, address = found[0]
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind(address)
    except OSError as error:
        opened.close()
        raise _unusable(host, port, error) from error
    return opened


def _unusable(host: str, port: int, error: OSError) -> InputError:
    return InputError(
        f"--host, --port: cannot use port {port} of {host}: {error.strerror}; choose another one (0: any free one)"
    )


def serve(app: ASGIApp, opened: socket.socket, timeout: float, notes: Callable[[str], Sequence[str]]) -> None:
    """Answers requests until SIGTERM or Ctrl-C, then finishes those in flight.

    `timeout` is the time in which a request is received, and then answered, in seconds.
    """
    import uvicorn

    host, port = opened.getsockname()[:2]
    most = most_connections()
    backlog = min(BACKLOG, 1 + most // 3)  # so many are accepted before those above are closed, twice
    for name in ("asyncio", "uvicorn.error"):
        logging.getLogger(name).addFilter(log_rarely())
    try:
        opened.listen(backlog)  # so that readers of the address below can connect
    except OSError as error:
        opened.close()
        raise _unusable(host, port, error) from error
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=bounded_protocol(timeout, most),
        ws="none",
        log_config=None,  # its warnings go to the same place as other libraries'
        access_log=False,
        backlog=backlog,
        timeout_keep_alive=math.ceil(timeout),
        timeout_graceful_shutdown=math.ceil(2 * timeout + GRACE),
    )
    server = uvicorn.Server(config)

    def stop(*_: object) -> None:
        server.should_exit = True

    # uvicorn has handlers of its own while it runs. At its end, it restores these and sends the signal again.
    before = {number: signal.signal(number, stop) for number in STOPS}
    try:
        for note in notes(f"http://{f'[{host}]' if ':' in host else host}:{port}"):
            say(note)
        say("Ctrl-C or SIGTERM ends it, once the requests in flight are answered")
        server.run(sockets=[opened])
    finally:
        opened.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    say("stopped")


def serve_run(run: TrainedRun, name: str, opened: socket.socket, limits: Limits, corpus: Corpus | None = None) -> None:
    """Serves a finished run at a bound socket: `toolkit serve`."""
    from toolkit.deploy.serving.app import build

    app = Guard(build(run, name, limits, corpus), local=is_loopback(opened))
    serve(
        app,
        opened,
        limits.timeout,
        lambda address: [
            f"{name} is served at {address}",
            "POST /predict answers rows, GET /health says whether rows are answered,",
            f"and {address}/docs describes requests and answers",
        ],
    )


def is_loopback(opened: socket.socket) -> bool:
    """Whether a bound socket is reached from this machine alone."""
    return ipaddress.ip_address(opened.getsockname()[0]).is_loopback
