"""Builds the page of `toolkit demo` for runs, and asks it, in a process of its own: gradio leaves event loops open.

    python demo_pages.py RUN ...

Prints a line of JSON for each run. Ends with an error if another machine is asked for anything.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SECRET = "secret.png"


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuses connections to other machines and look-ups of their names."""
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        print(f"asked another machine: {event} {arguments}", file=sys.stderr, flush=True)
        raise AssertionError(event)


def asked(client: Any, values: Sequence[Any]) -> tuple[str, Any]:
    """Returns the last event, and its values, with which the page answers the values of its fields."""
    event = client.post("/gradio_api/call/predict", json={"data": list(values)}).json()["event_id"]
    lines = client.get(f"/gradio_api/call/predict/{event}").text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("event: ")]
    last = starts[-1]
    return lines[last].removeprefix("event: "), json.loads(lines[last + 1].removeprefix("data: "))


def uploaded(client: Any, file: Path) -> dict[str, Any]:
    """Sends a file as the page does, and returns what refers to it."""
    (path,) = client.post("/gradio_api/upload", files={"files": (file.name, file.read_bytes())}).json()
    return {"path": path, "orig_name": file.name, "meta": {"_type": "gradio.FileData"}}


def refused(client: Any, place: str) -> int:
    """Returns the status with which the page answers a field that refers to a file elsewhere."""
    data = [{"path": place, "meta": {"_type": "gradio.FileData"}}]
    return client.post("/gradio_api/call/predict", json={"data": data}).status_code


def answers(folder: Path, work: Path) -> dict[str, Any]:
    """Returns what the page of a run has, and how it answers its examples."""
    from fastapi.testclient import TestClient

    import toolkit
    from toolkit.deploy.demo import POLICY, build_demo, row_of, shown, validation_examples
    from toolkit.deploy.serving.requests import Columns, Limits
    from toolkit.deploy.serving.server import Guard

    run = toolkit.load(folder)
    columns = Columns(run.task, run.cfg.data.columns)
    examples = validation_examples(run, work / "again")
    found: dict[str, Any] = {"examples": len(examples), "values": list(run.task.answer_columns), "answers": []}
    app = Guard(build_demo(run, folder.name, Limits(), work / "page"), local=False, policy=POLICY)
    with TestClient(app) as client:
        page = client.get("/")
        found |= {
            "html": page.text,
            "policy": page.headers["content-security-policy"],
            "css": client.get("/theme.css").text,
        }
        found["config"] = client.get("/config").json()
        for example in examples[:2]:
            values = dict(zip(columns.example, example.values(), strict=True))
            row = row_of(columns, values)
            given = {name: {"path": value[0], "bytes": value[1]} if isinstance(value, tuple) else value
                     for name, value in row.items()}  # fmt: skip
            expected = shown(run.task.answer(run.predict([given])[0]), run.task.answer_columns)
            sent = [uploaded(client, Path(value)) if name in columns.files else value for name, value in values.items()]
            found["answers"].append([expected, *asked(client, sent)])
        found["empty"] = asked(client, [None] * len(columns.example))
        found["refused"] = [refused(client, place) for place in (str(folder / SECRET), "http://127.0.0.1:9/a.png")]
        found["read"] = client.get(f"/gradio_api/file={folder / SECRET}").status_code
    return found


if __name__ == "__main__":
    sys.addaudithook(watch)
    with tempfile.TemporaryDirectory() as scratch:
        for number, name in enumerate(sys.argv[1:]):
            print("RESULT", json.dumps(answers(Path(name), Path(scratch, str(number)))), flush=True)
