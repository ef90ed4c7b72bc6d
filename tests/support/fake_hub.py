"""A hub of models and datasets on this machine, with what the libraries ask of the real one."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

KINDS = {"models": "", "datasets": "datasets/"}
"""Kinds of repositories in the API, and the beginning of their files' addresses."""


class Hub:
    """Repositories `owner/name`, each a folder `<root>/<kind>/<owner>/<name>`; the commit follows from its content."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[str] = []

    def files(self, kind: str, name: str) -> dict[str, bytes]:
        folder = self.root / kind / name
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}

    def commit(self, kind: str, name: str) -> str:
        digests = [f"{path} {_sha(content)}" for path, content in self.files(kind, name).items()]
        return hashlib.sha1("\n".join(digests).encode()).hexdigest()

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Returns status, headers and body."""
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]
        if parts[0] == "api" and parts[1] in KINDS:
            return self._api(parts[1], parts[2:], body)
        kind = "datasets" if parts[0] == "datasets" else "models"
        parts = parts[1:] if kind == "datasets" else parts
        if len(parts) < 5 or parts[2] != "resolve":
            return 404, {}, b"{}"
        name, revision, file = "/".join(parts[:2]), parts[3], "/".join(parts[4:])
        if refusal := self._refusal(kind, name, revision):
            return refusal
        commit, files = self.commit(kind, name), self.files(kind, name)
        if file not in files:
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b""
        self.asked.append(f"{method} {name} {file}")
        return 200, {"ETag": f'"{_sha(files[file])}"', "X-Repo-Commit": commit}, files[file]

    def _refusal(self, kind: str, name: str, revision: str) -> tuple[int, dict[str, str], bytes] | None:
        if not (self.root / kind / name).is_dir():
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        if revision not in ("main", self.commit(kind, name)):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        return None

    def _api(self, kind: str, parts: list[str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        name, what, revision = "/".join(parts[:2]), *(*parts[2:4], "revision", "main")[:2]
        if refusal := self._refusal(kind, name, revision):
            return refusal
        files = self.files(kind, name)
        if what == "revision":
            found: Any = {"id": name, "sha": self.commit(kind, name), "private": False, "tags": [], "downloads": 0}
            found["siblings"] = [{"rfilename": path} for path in files]
        else:
            entries = {path: _file(path, content) for path, content in files.items()}
            folders = {parent.as_posix() for path in files for parent in Path(path).parents} - {"."}
            entries |= {path: {"type": "directory", "path": path, "oid": "0" * 40, "size": 0} for path in folders}
            if what == "paths-info":
                found = [entries[path] for path in _paths(body) if path in entries]
            else:
                inside = "/".join(parts[4:])
                found = [entry for path, entry in entries.items() if not inside or path.startswith(f"{inside}/")]
        return 200, {"Content-Type": "application/json"}, json.dumps(found).encode()


def _paths(body: bytes) -> list[str]:
    try:
        return list(json.loads(body)["paths"])
    except ValueError:
        return parse_qs(body.decode()).get("paths", [])


def _file(path: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "path": path, "oid": _sha(content)[:40], "size": len(content)}


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def served(root: Path) -> Iterator[tuple[str, Hub]]:
    """Serves the repositories of a folder, and yields the address and the hub."""
    hub = Hub(root)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, headers, content = hub.answer(self.command, self.path, body)
            if wanted := self.headers.get("Range"):
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                content, status = content[int(first or 0) : int(last) + 1 if last else None], 206
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_HEAD = do_POST = do_GET  # noqa: N815 - the names of http.server

        def log_message(self, *arguments: Any) -> None:
            if "-v" in sys.argv:
                print(*arguments, file=sys.stderr)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", hub
    finally:
        server.shutdown()
        server.server_close()
