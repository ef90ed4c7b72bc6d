"""What a server takes and answers: as OpenAPI, and as a page without remote resources."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from toolkit.api.task import Task
from toolkit.deploy.serving.requests import Columns, Limits
from toolkit.document.blocks import Block, Code, Section, Table, Text
from toolkit.document.render import render_html as render

MEANINGS = {
    "prediction": "the prediction",
    "score": "its probability, from 0 to 1",
    "confidence": "mean probability of its parts, from 0 to 1",
    "words": "its words, with their times in seconds",
    "no_answer_score": "the probability that the context has no answer",
    "scores": "the score of every class",
    "unsure": "whether a person should decide, as `toolkit calibrate` found",
    "prediction_set": "the classes among which the true one is, as often as `toolkit calibrate --sets` says",
    "low": "lower end of the interval of `toolkit calibrate`",
    "high": "upper end of the interval of `toolkit calibrate`",
    "n_best": "the answers that were considered, with their scores",
    "entities": "the entities that were found",
    "embedding": "its embedding, a list of numbers",
    "loss": "mean loss per token, in nats",
    "num_tokens": "number of predicted tokens",
}
"""Columns of answers of the toolkit's tasks."""
FOUND = {
    "rank": "1 for the most similar document",
    "score": "dot product of the embeddings; a cosine if they are normalised",
    "document": "the document",
    "document_row": "its row in the file, from 1",
}
"""What a search answers for each document."""
STATUSES = {
    400: "the body is not JSON, or the form is broken",
    403: "sent by a page of another site",
    408: "the request was not received in time",
    413: "too many rows, or the body is too large",
    415: "neither JSON nor a form",
    422: "rows cannot be used; problems has the row, the column and the reason of each",
    429: "too many requests are waiting; Retry-After says when to try again",
    500: "the answer could not be computed; the server's log has the reason",
    503: "nothing can be computed any more",
    504: "there was no answer in time",
}
"""Meaning of the status codes of `POST /predict` other than 200."""
EXAMPLES = {"tokens": ["Anna", "lives", "in", "Rome"], "messages": [{"role": "user", "content": "..."}]}
"""Values of columns that are not text."""
BASE64 = {"type": "string", "contentEncoding": "base64"}


@dataclass(frozen=True)
class Served:
    """The served run: its name, task, columns and limits."""

    name: str
    task: Task
    columns: Columns
    limits: Limits
    documents: int = 0  # number of documents that rows can be searched in

    @property
    def example(self) -> dict[str, Any]:
        """A row."""
        own, files = self.columns.own, self.columns.files
        return {name: "<base64>" if name in files else EXAMPLES.get(own[name], "...") for name in self.columns.example}


def predict_schema(served: Served) -> dict[str, Any]:
    """Returns the parameters of the route of `POST /predict`."""
    names = served.task.answer_columns
    answers = {"type": "array", "items": _object({name: _described(MEANINGS.get(name, "")) for name in names})}
    return _schema(served, {"predictions": answers}, "the values that `toolkit predict` writes")


def search_schema(served: Served) -> dict[str, Any]:
    """Returns the parameters of the route of `POST /search`."""
    found = {"type": "array", "items": _object({name: _described(text) for name, text in FOUND.items()})}
    return _schema(served, {"results": {"type": "array", "items": found}}, "the documents that are most similar")


def _schema(served: Served, answers: dict[str, Any], what: str) -> dict[str, Any]:
    errors = {status: {"description": text, "content": _json(_error())} for status, text in STATUSES.items()}
    return {
        "description": f"Answers have the order of the rows, and {what}.",
        "responses": {200: {"description": "the answers", "content": _json(_object(answers))}, **errors},
        "openapi_extra": {"requestBody": {"required": True, "content": _body(served)}},
    }


def health_schema() -> dict[str, Any]:
    """Returns the parameters of the route of `GET /health`."""
    parts = ("ready", "reason", "model", "versions", "queue", "computed")
    content = _json(_object({name: {} for name in parts}))
    return {
        "responses": {
            200: {"description": "rows are answered", "content": content},
            503: {"description": "nothing can be computed any more; `reason` says why", "content": content},
        }
    }


def _body(served: Served) -> dict[str, Any]:
    columns, limits = served.columns, served.limits
    in_json, in_form = {}, {}
    for name, column in columns.given.items():
        if name in columns.files:
            named = _object({"data": BASE64, "name": {"type": "string"}}, ["data"])
            in_json[name] = {"description": column.help, "oneOf": [BASE64, named]}
            in_form[name] = {"type": "array", "items": {"type": "string", "format": "binary"}}
        else:
            in_json[name] = _described(column.help)
            in_form[name] = {"type": "array", "items": {"type": "string"}}
    rows = {"type": "array", "minItems": 1, "maxItems": limits.max_rows, "items": _object(in_json, columns.needed)}
    sent = _json(_object({"rows": rows}, ["rows"]))
    sent["application/json"]["example"] = {"rows": [served.example]}
    return {**sent, "multipart/form-data": {"schema": _object(in_form)}}


def _error() -> dict[str, Any]:
    text = {"type": "string"}
    problem = _object({"row": {"type": "integer"}, "column": {"type": ["string", "null"]}, "reason": text})
    return _object({"error": text, "problems": {"type": "array", "items": problem}})


def _object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _described(text: str) -> dict[str, Any]:
    return {"description": text} if text else {}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def page(served: Served) -> str:
    """Returns the description of the service as HTML, which loads nothing else."""
    limits = served.limits
    searched = f"takes the same rows; the most similar of {served.documents:,} documents, with {', '.join(FOUND)}"
    sections = [
        Section("Request", _request(served)),
        Section("Answer", _answer(served)),
        Section(
            "Limits",
            [
                _table(
                    ["limit", "value"],
                    ["rows per request", limits.max_rows],
                    ["size of a request", f"{limits.max_body_mb:g} MB"],
                    ["requests that wait", limits.max_queue],
                    ["time for an answer", f"{limits.timeout:g} s"],
                )
            ],
        ),
        Section(
            "Other addresses",
            [
                _table(
                    ["address", "content"],
                    *([["POST /search?top_k=10", searched]] if served.documents else []),
                    ["GET /health", "whether rows are answered, by what, and how many requests wait"],
                    ["GET /openapi.json", "this page as OpenAPI 3.1, for programs"],
                )
            ],
        ),
    ]
    return render(served.name, "Predictions of a finished run, over HTTP", sections)


def _table(header: list[str], *rows: list[Any]) -> Table:
    return Table(header, rows, stacked=True)


def _request(served: Served) -> list[Block]:
    columns = served.columns
    needed = {name: "yes" if name in columns.needed else "no" for name in columns.given}
    described = [[name, column.help, needed[name]] for name, column in columns.given.items()]
    table = _table(["column", "meaning", "needed"], *described)
    body = json.dumps({"rows": [served.example]}, ensure_ascii=False)
    blocks: list[Block] = [
        Text("POST /predict takes rows as JSON, with these columns; other columns are ignored."),
        table,
        Code(f"curl http://HOST:PORT/predict \\\n  -H 'Content-Type: application/json' \\\n  -d '{body}'", "bash"),
    ]
    if columns.files:
        fields = " ".join(f"-F {name}=@{each}" for name in columns.files for each in ("one", "two"))
        blocks += [
            Text(
                "A file is its content in base64, or an object with data and name. Files can also be sent as a form, "
                "in which a repeated column begins a new row."
            ),
            Code(f"curl http://HOST:PORT/predict {fields}", "bash"),
        ]
    return blocks


def _answer(served: Served) -> list[Block]:
    names = served.task.answer_columns
    return [
        Text("The answer is an object whose predictions have the order of the rows. Each has these values:"),
        _table(["value", "meaning"], *([name, MEANINGS.get(name, "a value of this task")] for name in names)),
        Text("Other answers have an error, and problems of single rows:"),
        _table(["status", "meaning"], *([str(status), text] for status, text in STATUSES.items())),
    ]
