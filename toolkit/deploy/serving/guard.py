"""Keeps pages of other sites away from a server, through a browser of this machine too."""

from __future__ import annotations

import ipaddress
import json
from typing import TYPE_CHECKING

from toolkit.deploy.serving.refusals import Refusal

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Guard:
    """Middleware that answers requests for other hosts and from other sites with 403.

    A server that listens on the loopback is reached by every page that a browser of the machine shows. Such a page
    names its own site as the origin or, if its address was made to lead to the loopback, as the host.

    Args:
        app: the application.
        local: whether the server listens on the loopback, and is known only by the names of that.
        policy: content security policy of all answers; empty for none.
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
        if refusal := refused(host, origin, self._local):
            await answer_refusal(send, refusal)
            return

        async def guarded(message: Message) -> None:
            if self._policy and message["type"] == "http.response.start":
                policy = (b"content-security-policy", self._policy.encode())
                message = {**message, "headers": [*message.get("headers", []), policy]}
            await send(message)

        await self._app(scope, receive, guarded)


def refused(host: str, origin: str, local: bool) -> Refusal | None:
    """Returns why a request is not for this server, or None.

    Args:
        host: the request's host, with its port.
        origin: its origin; empty if it names none, as programs do.
        local: whether the server listens on the loopback.
    """
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
