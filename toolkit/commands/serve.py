"""Serve a finished run: `toolkit serve RUN --port N`, JSON over HTTP."""

from __future__ import annotations

import argparse

from toolkit.commands import _trained_run, options

PORT = 8000
LIMITS = {
    "--max-rows": (options.at_least(1), "rows per request"),
    "--max-body-mb": (options.number_from(0.001), "megabytes per request"),
    "--max-queue": (options.at_least(1), "requests that wait or are computed; a further one is refused (429)"),
    "--timeout": (options.number_from(0.001), "seconds to receive a request, and then to answer it"),
    "--batch-wait-ms": (options.number_from(0), "milliseconds for which a batch with room waits for more rows"),
}
"""Options of `Limits`, which has their defaults: types and meanings."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run, the address and the limits."""
    from toolkit.deploy.serving.requests import Limits

    _trained_run.add_run(parser, bad_rows=None)
    options.add_address(parser, PORT)
    for option, (kind, meaning) in LIMITS.items():
        default = getattr(Limits(), option.removeprefix("--").replace("-", "_"))
        parser.add_argument(option, type=kind, default=default, metavar="N", help=f"{meaning} (default: {default:g})")


def work(arguments: argparse.Namespace) -> None:
    """Serves the run until SIGTERM or Ctrl-C.

    Raises:
        ConfigError: if an override does not concern the columns of rows.
        InputError: if the limits contradict each other, the run cannot be opened, or the address cannot be used.
    """
    from toolkit.base.errors import InputError
    from toolkit.deploy.serving.requests import Limits
    from toolkit.deploy.serving.server import serve_run

    limits = Limits(**{name: getattr(arguments, name) for name in vars(Limits())})
    if limits.batch_wait_ms >= 1000 * limits.timeout:
        raise InputError(
            f"--batch-wait-ms: received {limits.batch_wait_ms:g}, but rows are answered within --timeout, "
            f"{limits.timeout:g} s; choose a shorter wait"
        )
    run, name, opened = _trained_run.open_served(arguments, ("fastapi", "uvicorn", "python_multipart"))
    serve_run(run, name, opened, limits)
