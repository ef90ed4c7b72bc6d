"""The page of `toolkit demo`: a field for every input, the answer beside them, examples, and its server."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.base.console import format_value, say
from toolkit.base.errors import ToolkitError
from toolkit.config.fields import Column
from toolkit.config.templates import is_template
from toolkit.data.columns import roles
from toolkit.data.loading import check_rows
from toolkit.data.media.files import open_file
from toolkit.data.readers.raw import Reading
from toolkit.data.sources import read_rows
from toolkit.data.table import FILE, NUMBER, progress_bars
from toolkit.data.writers import flat
from toolkit.deploy.predict import needed_columns
from toolkit.deploy.search import Corpus
from toolkit.deploy.serving.requests import Columns, Limits, Refusal
from toolkit.deploy.serving.server import Guard, answer_refusal, is_loopback, serve
from toolkit.deploy.trained import TrainedRun

if TYPE_CHECKING:
    import gradio
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


MOST = 6
"""Number of examples."""


def validation_examples(run: TrainedRun, folder: Path) -> list[dict[str, Any]]:
    """Returns evenly spaced validation rows as values of fields, if they can be read, with copies of their files."""
    # Of its own: reading the rows learns labels, and the run's task has them already.
    task = type(run.task)(run.cfg)
    cfg = replace(run.cfg, data=replace(run.cfg.data, bad_rows="skip", max_bad_rows=1.0))
    try:
        with progress_bars(shown=False):
            rows = check_rows(cfg, task).splits.get("validation")
    except (ToolkitError, OSError) as error:
        say(f"no examples: the run's rows cannot be read ({str(error).splitlines()[0]})")
        return []
    if rows is None or not len(rows):
        say("no examples: the run has no validation rows")
        return []
    count = min(MOST, len(rows))
    chosen = [rows[place * len(rows) // count] for place in range(count)]
    if not any(map(is_template, run.cfg.data.columns.values())):
        return [dict(_fields(run, row, folder / str(number))) for number, row in enumerate(chosen)]
    if not (files := cfg.data.files("validation_file") or cfg.data.files("train_file")):
        say("no examples: columns of a hub dataset's rows are joined by a template")
        return []
    places, names = [(row[FILE], row[NUMBER]) for row in chosen], Columns(run.task, run.cfg.data.columns).example
    every = ((cfg.data.file_names.get(file), row) for file in files for row in read_rows(file, Reading.of(cfg.data)))
    raw = {(name, row.number): row.values or {} for name, row in every if (name, row.number) in places}
    return [{name: as_text(raw[place].get(name)) for name in names} for place in places]


def _fields(run: TrainedRun, row: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, Any]]:
    needed = needed_columns(run.task)
    for given, name in roles(run.task, run.cfg.data.columns).items():
        if name in needed:
            yield given, _copied(row[name], folder) if needed[name].file else as_text(row[name])


def _copied(file: Mapping[str, Any], folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / Path(file["name"]).name
    with open_file(file) as opened:
        copy.write_bytes(opened.read())
    return str(copy)


def as_text(value: Any) -> str:
    """Returns a value as text for a field: tokens separated by blanks, a conversation as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, Sequence) and all(isinstance(part, str) for part in value):
        return " ".join(value)
    return json.dumps(value, ensure_ascii=False, indent=1)


def from_text(text: str, messages: bool) -> Any:
    """Returns the value of a field for a row; in a conversation, text that is not JSON is a message of the user."""
    if not messages:
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, list) else [{"role": "user", "content": text}]


FONT, FONT_MONO = ("system-ui", "sans-serif"), ("ui-monospace", "monospace")
"""Fonts of the reader's system; gradio's themes load theirs from Google."""
SHOWN_CLASSES = 8
TABLES = ("n_best", "entities", "words", "documents")
"""Values of answers that are lists of mappings."""
Answer = Callable[[list[dict[str, Any]]], Awaitable[list[dict[str, Any]]]]


def build_page(
    title: str,
    columns: Columns,
    examples: Sequence[Mapping[str, Any]],
    predict: Answer,
    answers: Sequence[str] | None = None,
) -> gradio.Blocks:
    """Returns the page: fields for a row's columns with examples, and beside them the answer of `predict`.

    The `answers` are the names of its values, by default those of the task.
    """
    import gradio as gr

    schema = columns.task.schema()
    spoken = [name for name in columns.example if _is_conversation(schema.get(columns.own[name]))]
    fields = {name: _field(gr, name, columns.own[name], columns.given[name]) for name in columns.example}
    answers = answers or columns.task.answer_columns

    async def answered(*values: Any) -> Any:
        try:
            (found,) = await predict([row_of(columns, dict(zip(fields, values, strict=True)))])
        except Refusal as refusal:
            reasons = [problem.reason for problem in refusal.problems] or [refusal.error]
            raise gr.Error(escape("; ".join(reasons)), print_exception=False) from None
        parts = shown(found, answers)
        return parts if len(parts) > 1 else parts[0]  # gradio takes a list for the value of a single output

    with gr.Blocks(title=title, analytics_enabled=False) as page:
        gr.Markdown(f"# {escape(title)}")
        if columns.task.has("prompt_ids") and len(columns.example) == len(spoken) == 1:
            gr.ChatInterface(replying(gr, spoken[0], predict), api_name="chat", analytics_enabled=False)
            gr.Markdown("## Whole conversations")
        with gr.Row():
            with gr.Column():
                for field in fields.values():
                    field.render()
                button = gr.Button("Predict", variant="primary")
            with gr.Column():
                outputs = _outputs(gr, answers)
        if examples:
            rows = [[example.get(name) for name in fields] for example in examples]
            gr.Examples(rows, list(fields.values()), label="Rows of the validation set", cache_examples=False)
        button.click(answered, list(fields.values()), outputs, api_name="predict")
    return page


def replying(gr: Any, column: str, predict: Answer) -> Callable[..., Awaitable[str]]:
    """Returns a function that answers a message with those before it, for runs of conversations."""

    async def replied(message: str, history: Sequence[Mapping[str, Any]]) -> str:
        before = [{"role": each["role"], "content": _said(each["content"])} for each in history]
        try:
            (found,) = await predict([{column: [*before, {"role": "user", "content": message}]}])
        except Refusal as refusal:
            reasons = [problem.reason for problem in refusal.problems] or [refusal.error]
            raise gr.Error(escape("; ".join(reasons)), print_exception=False) from None
        return str(found["prediction"])

    return replied


def _said(content: Any) -> str:
    """Returns the text of a message in the page's history, where it may be a list of parts."""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "image": ("Image", {"image_mode": None, "sources": ["upload", "clipboard"]}),
    "audio": ("Audio", {"sources": ["upload", "microphone"]}),
}
"""Components of gradio for columns that hold files, and their settings; for others, any file can be uploaded."""


def _field(gr: Any, shown_name: str, name: str, column: Column) -> Any:
    kind, settings = FILES.get(name, ("File", {})) if column.file else ("Textbox", {"lines": 4})
    if column.file:
        settings = {"type": "filepath", **settings}
    return getattr(gr, kind)(label=f"{shown_name}: {column.help}", render=False, **settings)


def row_of(columns: Columns, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the row for the values of the fields, of which files are paths; empty fields are omitted."""
    schema, row = columns.task.schema(), dict[str, Any]()
    for name, value in values.items():
        if value is None or value == "":
            if name in columns.joined:  # a column of a template may be empty
                row[name] = None
        elif name in columns.files:
            row[name] = (Path(value).name, Path(value).read_bytes())
        else:
            row[name] = from_text(value, _is_conversation(schema.get(columns.own[name])))
    return row


def _is_conversation(feature: Any) -> bool:
    """Whether a column of this type holds a list of messages."""
    inner = getattr(feature, "feature", None)
    return isinstance(inner, Mapping) and {"role", "content"} <= inner.keys()


def _outputs(gr: Any, answers: Sequence[str]) -> list[Any]:
    """Returns the parts of the page that show an answer, in the order of `shown`."""
    parts = [gr.Textbox(label=answers[0], lines=2, interactive=False)]
    if "scores" in answers:
        parts.append(gr.Label(label="confidence", num_top_classes=SHOWN_CLASSES))
    if numbers := _numbers(answers):
        parts.append(gr.Textbox(label=" and ".join(numbers), lines=len(numbers), interactive=False))
    parts += [gr.Dataframe(label=name, interactive=False) for name in TABLES if name in answers]
    return parts


def shown(answer: Mapping[str, Any], answers: Sequence[str]) -> list[Any]:
    """Returns the values of the page's parts for an answer with these columns."""
    parts: list[Any] = [_text(answer[answers[0]])]
    if "scores" in answers:
        parts.append(answer["scores"])
    if numbers := _numbers(answers):
        parts.append("\n".join(f"{name}: {_text(answer[name])}" for name in numbers))
    return parts + [_table(answer[name]) for name in TABLES if name in answers]


def _numbers(answers: Sequence[str]) -> list[str]:
    shown = (answers[0], "scores", *TABLES, *(["score"] if "scores" in answers else []))
    return [name for name in answers if name not in shown]


def _text(value: Any) -> str:
    return format_value(value) if isinstance(value, float) else flat(value)


def _table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {"headers": names, "data": [[_text(row.get(name)) for name in names] for row in rows]}


UPLOAD = "/gradio_api/upload"
"""Where the page sends files, as a form; every other request is JSON."""


class OwnFiles:
    """Middleware that answers requests with files from elsewhere, or bodies larger than `max_body`, with an error.

    A page refers to an uploaded file by its path on the server. gradio 6.31 opens any path, and loads any address,
    unless it was started by its own `launch`.
    """

    def __init__(self, app: ASGIApp, folder: Path, max_body: int) -> None:
        self._app, self._folder, self._max_body = app, folder.resolve(), max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] == UPLOAD:
            await self._app(scope, receive, send)
            return
        received, more = bytearray(), True
        while more and len(received) <= self._max_body:
            message = await receive()
            received += message.get("body", b"")
            more = message.get("more_body", False)
        body = bytes(received)
        if refusal := self._rejection(body):
            await answer_refusal(send, refusal)
            return
        whole: list[Message] = [{"type": "http.request", "body": body}]

        async def replayed() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, replayed, send)

    def _rejection(self, body: bytes) -> Refusal | None:
        """Returns why a body is rejected, or None."""
        if len(body) > self._max_body:
            return Refusal(413, "the request is too large")
        try:
            places = [Path(place).resolve() for place in _places(json.loads(body))] if body else []
        except (ValueError, RecursionError):  # the former also for names that no file can have
            return Refusal(400, "the body is not JSON with places of files")
        if all(place.is_relative_to(self._folder) for place in places):
            return None
        return Refusal(403, "the page uses only files that were sent to it")


def _places(value: Any) -> Iterator[str]:
    """Yields all values of `path` at any depth."""
    if isinstance(value, Mapping):
        if (place := value.get("path")) is not None:
            yield str(place)
        for inner in value.values():
            yield from _places(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _places(inner)


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


def build_demo(run: TrainedRun, name: str, limits: Limits, folder: Path, corpus: Corpus | None = None) -> ASGIApp:
    """Returns the web application of the page; uploads and the examples' files are kept in an empty folder.

    With a corpus, the page answers with the most similar documents.
    """
    os.environ |= {**ENVIRONMENT, "GRADIO_TEMP_DIR": str(folder / "received")}
    from gradio import mount_gradio_app, themes

    from toolkit.deploy.serving.app import Service, application

    service = Service(run, name, limits, corpus)
    examples = validation_examples(run, folder / "examples")
    if corpus is None:
        page = build_page(name, service.columns, examples, service.answers)
    else:
        page = build_page(name, service.columns, examples, service.found, ("prediction", "documents"))
    page.queue(default_concurrency_limit=limits.max_queue, max_size=limits.max_queue)
    app = mount_gradio_app(
        application(service), page, path="/", footer_links=[], run_history=False, ssr_mode=False, mcp_server=False,
        show_error=False, max_file_size=limits.max_body, allowed_paths=[str(folder / "examples")],
        theme=themes.Default(font=FONT, font_mono=FONT_MONO),
    )  # fmt: skip
    return OwnFiles(app, folder, limits.max_body)


def serve_demo(run: TrainedRun, name: str, opened: socket.socket, limits: Limits, corpus: Corpus | None = None) -> None:
    """Serves the page of a run at a bound socket until SIGTERM or Ctrl-C: `toolkit demo`."""
    with tempfile.TemporaryDirectory(prefix="toolkit-demo-") as folder:
        app = Guard(build_demo(run, name, limits, Path(folder), corpus), is_loopback(opened), POLICY)
        serve(app, opened, GRACE, lambda address: [f"open {address} in a browser to try {name}"])
