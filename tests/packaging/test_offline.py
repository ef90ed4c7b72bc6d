"""The guard that stands for a machine without a network stops every way out, and no way inside the machine."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from offline_runs import Offline

OUTSIDE = "192.0.2.1"  # an address that belongs to nobody (RFC 5737)
TCP = f"import socket; socket.socket().connect(({OUTSIDE!r}, 443))"
WAYS_OUT = {
    "tcp": ("connect", TCP),
    "udp": ("sendto", f"import socket as s; s.socket(s.AF_INET, s.SOCK_DGRAM).sendto(b'x', ({OUTSIDE!r}, 53))"),
    "all interfaces": ("bind", "import socket; socket.socket().bind(('', 0))"),
    "name": ("getaddrinfo", "import socket; socket.create_connection(('example.com', 443))"),
    "urllib": ("getaddrinfo", f"from urllib.request import urlopen; urlopen('http://{OUTSIDE}/')"),
    "hub": ("getaddrinfo", "from huggingface_hub import hf_hub_download; hf_hub_download('gpt2', 'config.json')"),
    "child": ("connect", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {TCP!r}], check=True)"),
    "worker": (
        "getaddrinfo",
        "import multiprocessing, socket\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        f"        pool.apply(socket.create_connection, [({OUTSIDE!r}, 443)])",
    ),
}


@pytest.mark.parametrize(
    ("event", "script"),
    [
        pytest.param(*each, id=name, marks=[pytest.mark.slow] if name == "hub" else [])
        for name, each in WAYS_OUT.items()
    ],
)
def test_a_way_out_fails_and_is_noted(event: str, script: str, tmp_path: Path) -> None:
    offline = Offline(tmp_path, tmp_path / "log")
    file = tmp_path / "script.py"
    file.write_text(script)
    assert offline.run(file, check=False).returncode == 1
    assert f"socket.{event} " in offline.attempts()


def test_an_attempt_whose_error_is_caught_is_noted(tmp_path: Path) -> None:
    offline = Offline(tmp_path, tmp_path / "log")
    offline.run("-c", f"try:\n    {TCP}\nexcept OSError:\n    pass")
    first, *stack = offline.attempts().splitlines()
    assert first.startswith(f"socket.connect ('{OUTSIDE}', 443) by ")
    assert any("<module>" in line for line in stack)


def test_what_stays_on_the_machine_works(tmp_path: Path) -> None:
    offline = Offline(tmp_path, tmp_path / "log")
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        for name in (host, "localhost"):
            offline.run("-c", f"import socket; socket.create_connection(({name!r}, {port}), timeout=60)")
    offline.run("-c", "import socket; a, b = socket.socketpair(); a.send(b'x'); socket.socket().bind(('127.0.0.1', 0))")
    assert offline.attempts() == ""
