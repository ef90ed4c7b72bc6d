"""What a server accepts, and how long it waits."""

from __future__ import annotations

from dataclasses import dataclass

MEGABYTE = 10**6


@dataclass(frozen=True)
class Limits:
    """The limits of a server.

    Args:
        max_rows: rows of a request.
        max_body_mb: size of a request's body, in megabytes.
        max_queue: requests that are being received or wait for their answers; a further one is refused.
        timeout: seconds in which a request is received, and then answered.
        batch_wait_ms: milliseconds for which a batch with room waits for further requests.
    """

    max_rows: int = 256
    max_body_mb: float = 32.0
    max_queue: int = 128
    timeout: float = 60.0
    batch_wait_ms: float = 3.0

    @property
    def max_body(self) -> int:
        """Size of a request's body, in bytes."""
        return int(self.max_body_mb * MEGABYTE)
