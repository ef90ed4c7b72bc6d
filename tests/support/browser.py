"""Opens pages in a headless browser without network, if one is installed."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason=f"no browser on PATH ({', '.join(NAMES)})")
NO_ADDRESS = "--host-resolver-rules=MAP * ~NOTFOUND"


def open_page(page: Path, script: str = "", width: int = 1280) -> tuple[str, Any]:
    """Opens a page, and runs a script in a copy of it whose content security policy allows that.

    Args:
        page: the HTML file.
        script: the body of a JavaScript function.
        width: width of the window, in pixels.

    Returns:
        The page's document after its own scripts ran, and the result of the script.

    Raises:
        AssertionError: if the browser's console has any message.
    """
    document = _dump(page, width)
    if not script:
        return document, None
    text = page.read_text(encoding="utf-8")
    policy = re.compile(r"script-src (?:&#39;sha256-[^&]*&#39; ?)+;")
    assert len(policy.findall(text)) == 1
    probe = f"<script>document.body.dataset.found = JSON.stringify((() => {{{script}}})());</script></body>"
    copy = page.with_name(f"probe-{page.name}")
    copy.write_text(policy.sub("script-src 'unsafe-inline';", text).replace("</body>", probe), encoding="utf-8")
    found = re.search(r'<body[^>]* data-found="([^"]*)"', _dump(copy, width))
    assert found is not None, "the script did not finish"
    return document, json.loads(html.unescape(found[1]))


def screenshot(page: Path, picture: Path, width: int, height: int = 2400, dark: bool = False) -> None:
    """Writes a screenshot of a page as a PNG file."""
    dark_flags = ["--blink-settings=preferredColorScheme=0"] if dark else []
    _run(page, width, f"--screenshot={picture}", "--hide-scrollbars", *dark_flags, height=height)


def _dump(page: Path, width: int) -> str:
    done = _run(page, width, "--dump-dom", "--enable-logging=stderr", "--v=0")
    messages = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not messages, messages
    return done.stdout


def _run(page: Path, width: int, *flags: str, height: int = 2400) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    fixed = ("--headless", "--no-sandbox", "--disable-gpu", NO_ADDRESS, f"--window-size={width},{height}")
    # With a profile of its own: browsers that share one end with an error if they start at the same time. It aborts if
    # the path of its socket, below TMPDIR, is longer than 107 bytes, as in a test with a temporary folder of its own.
    with TemporaryDirectory(prefix="browser-", dir="/tmp", ignore_cleanup_errors=True) as profile:
        command = [BROWSER, *fixed, f"--user-data-dir={profile}", *flags, page.absolute().as_uri()]
        environment = {**os.environ, "TMPDIR": profile}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=90)
