"""Serves the page, with everything that it needs, from this machine."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.deploy.demo.examples import validation_examples
from toolkit.deploy.demo.own_files import OwnFiles
from toolkit.deploy.serving.guard import Guard
from toolkit.deploy.serving.limits import Limits
from toolkit.deploy.serving.server import is_loopback, serve

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from toolkit.deploy.trained import TrainedRun

ENVIRONMENT = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "GRADIO_SHARE": "False",
    "GRADIO_MCP_SERVER": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
"""Turns off everything in gradio that asks another machine; read when it is imported."""
GRACE = 5.0
"""Seconds after which a stopping server no longer waits: a page that is open keeps a connection."""
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; media-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'self'"
)
"""Content security policy under which a browser asks no other machine, whatever gradio's scripts try."""


def build_demo(run: TrainedRun, name: str, limits: Limits, folder: Path) -> ASGIApp:
    """Returns the web application of the page.

    Args:
        run: the finished run.
        name: its name, for people.
        limits: the limits of a request.
        folder: an empty folder, for what is uploaded and for the files of the examples.
    """
    os.environ |= {**ENVIRONMENT, "GRADIO_TEMP_DIR": str(folder / "received")}
    from gradio import mount_gradio_app, themes

    from toolkit.deploy.demo.page import FONT, FONT_MONO, build_page
    from toolkit.deploy.serving.app import Service, application

    service = Service(run, name, limits)
    page = build_page(name, service.columns, validation_examples(run, folder / "examples"), service.answers)
    page.queue(default_concurrency_limit=limits.max_queue, max_size=limits.max_queue)
    app = mount_gradio_app(
        application(service),
        page,
        path="/",
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        mcp_server=False,
        show_error=False,
        max_file_size=limits.max_body,
        allowed_paths=[str(folder / "examples")],
        theme=themes.Default(font=FONT, font_mono=FONT_MONO),
    )
    return OwnFiles(app, folder, limits.max_body)


def serve_demo(run: TrainedRun, name: str, opened: socket.socket, limits: Limits) -> None:
    """Serves the page until SIGTERM or Ctrl-C: `toolkit demo`.

    Args:
        run: the finished run.
        name: its name, for people.
        opened: a bound socket.
        limits: the limits of a request.
    """
    with tempfile.TemporaryDirectory(prefix="toolkit-demo-") as folder:
        app = Guard(build_demo(run, name, limits, Path(folder)), is_loopback(opened), POLICY)
        serve(app, opened, GRACE, lambda address: [f"open {address} in a browser to try {name}"])
