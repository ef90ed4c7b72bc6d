"""The page: a field for every input, the answer beside them, and examples."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.api.task import answer_columns
from toolkit.base.console import format_value
from toolkit.config.fields import Column
from toolkit.data.writers import flat
from toolkit.deploy.demo.examples import from_text
from toolkit.deploy.serving.refusals import Refusal
from toolkit.deploy.serving.requests import Columns

if TYPE_CHECKING:
    import gradio

FONT, FONT_MONO = ("system-ui", "sans-serif"), ("ui-monospace", "monospace")
"""Fonts of the reader's system; those of gradio's themes come from Google."""
SHOWN_CLASSES = 8
TABLES = ("n_best", "entities")
"""Values of answers that are lists of mappings."""
Answer = Callable[[list[dict[str, Any]]], Awaitable[list[dict[str, Any]]]]


def build_page(title: str, columns: Columns, examples: Sequence[Mapping[str, Any]], predict: Answer) -> gradio.Blocks:
    """Returns the page.

    Args:
        title: its title.
        columns: the columns of a row.
        examples: values of the fields, by the task's names.
        predict: answers rows.
    """
    import gradio as gr

    names = {columns.names.get(name, name): name for name in columns.task.columns}
    fields = {name: _field(gr, name, names[name], columns.given[name]) for name in columns.example}
    answers = answer_columns(columns.task)

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
        with gr.Row():
            with gr.Column():
                for field in fields.values():
                    field.render()
                button = gr.Button("Predict", variant="primary")
            with gr.Column():
                outputs = _outputs(gr, answers)
        if examples:
            rows = [[example.get(names[name]) for name in fields] for example in examples]
            gr.Examples(rows, list(fields.values()), label="Rows of the validation set", cache_examples=False)
        button.click(answered, list(fields.values()), outputs, api_name="predict")
    return page


def _field(gr: Any, shown_name: str, name: str, column: Column) -> Any:
    label = f"{shown_name}: {column.help}"
    if not column.file:
        return gr.Textbox(label=label, lines=4, render=False)
    if name == "image":
        return gr.Image(label=label, type="filepath", image_mode=None, sources=["upload", "clipboard"], render=False)
    if name == "audio":
        return gr.Audio(label=label, type="filepath", sources=["upload", "microphone"], render=False)
    return gr.File(label=label, type="filepath", render=False)


def row_of(columns: Columns, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the row of what was written into the fields; a field that is empty is left out.

    Args:
        columns: the columns of a row.
        values: values by column: texts, and paths of files that the page has received.
    """
    schema = columns.task.schema()
    ours = {columns.names.get(name, name): name for name in columns.task.columns}
    row: dict[str, Any] = {}
    for name, value in values.items():
        if value is None or value == "":
            continue
        if name in columns.files:
            row[name] = (Path(value).name, Path(value).read_bytes())
        else:
            row[name] = from_text(value, is_conversation(schema.get(ours[name])))
    return row


def is_conversation(feature: Any) -> bool:
    """Whether a column of this type holds a list of messages."""
    inner = getattr(feature, "feature", None)
    return isinstance(inner, Mapping) and {"role", "content"} <= inner.keys()


def _outputs(gr: Any, answers: Sequence[str]) -> list[Any]:
    """Returns the parts of the page that show an answer, in the order of `shown`."""
    parts = [gr.Textbox(label="prediction", lines=2, interactive=False)]
    if "scores" in answers:
        parts.append(gr.Label(label="confidence", num_top_classes=SHOWN_CLASSES))
    elif numbers := _numbers(answers):
        parts.append(gr.Textbox(label=" and ".join(numbers), lines=len(numbers), interactive=False))
    parts += [gr.Dataframe(label=name, interactive=False) for name in TABLES if name in answers]
    return parts


def shown(answer: Mapping[str, Any], answers: Sequence[str]) -> list[Any]:
    """Returns the values of the parts of the page for an answer.

    Args:
        answer: the answer.
        answers: names of its values.
    """
    parts: list[Any] = [_text(answer["prediction"])]
    if "scores" in answers:
        parts.append(answer["scores"])
    elif numbers := _numbers(answers):
        parts.append("\n".join(f"{name}: {_text(answer[name])}" for name in numbers))
    return parts + [_table(answer[name]) for name in TABLES if name in answers]


def _numbers(answers: Sequence[str]) -> list[str]:
    return [name for name in answers if name not in ("prediction", "scores", *TABLES)]


def _text(value: Any) -> str:
    return format_value(value) if isinstance(value, float) else flat(value)


def _table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {"headers": names, "data": [[_text(row.get(name)) for name in names] for row in rows]}
