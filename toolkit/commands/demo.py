"""Try a finished run in the browser: `toolkit demo RUN`."""

from __future__ import annotations

import argparse

from toolkit.commands import _trained_run, options

PORT = 7860


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run and the address."""
    _trained_run.add_run(parser, bad_rows=None)
    options.add_address(parser, PORT)


def work(arguments: argparse.Namespace) -> None:
    """Serves a page on which the run can be tried, until SIGTERM or Ctrl-C.

    Raises:
        ConfigError: if an override does not concern the columns of rows.
        InputError: if the run cannot be opened, or the address cannot be used.
    """
    from toolkit.deploy.demo import serve_demo
    from toolkit.deploy.serving.requests import Limits

    run, name, opened = _trained_run.open_served(arguments, ("gradio", "uvicorn"))
    serve_demo(run, name, opened, Limits())
