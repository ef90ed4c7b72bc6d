"""Files for language models, as people and hubs have them: init, validate, train and predict without an edit."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
import pytest
from commands import run_command
from ruamel.yaml import YAML

NUM_ROWS = 24
QUICK = ("train.num_train_epochs=1", "train.max_steps=2", "eval.eval_steps=null", "checkpoint.save_steps=null")
TOOLS = [
    {"type": "function", "function": {"name": "weigh", "description": "Weighs an animal.", "parameters": {
        "type": "object", "properties": {"animal": {"type": "string"}}, "required": ["animal"]}}},
]  # fmt: skip


def asked(number: int) -> str:
    return f"What do {number} ducks eat?"


def good(number: int) -> str:
    return f"Slugs and grass, {number} of them."


def bad(number: int) -> str:
    return f"I cannot say, {number}."


def user(number: int) -> dict[str, Any]:
    return {"role": "user", "content": asked(number)}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def called(number: int) -> list[dict[str, Any]]:
    """Returns a conversation in which a tool is called, as OpenAI writes it."""
    call = {"type": "function", "function": {"name": "weigh", "arguments": json.dumps({"animal": f"duck {number}"})}}
    answers = {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": f"{number} kg"}
    return [user(number), *answers, assistant(good(number))]


def sharegpt(number: int) -> list[dict[str, str]]:
    """Returns a conversation in which a tool is called, as ShareGPT writes it."""
    call = json.dumps({"name": "weigh", "arguments": {"animal": f"duck {number}"}})
    said = {"human": asked(number), "function_call": call, "observation": f"{number} kg", "gpt": good(number)}
    return [{"from": name, "value": text} for name, text in said.items()]


def alpaca(number: int) -> dict[str, str]:
    """Returns an instruction whose input is there, empty or absent."""
    given = ({"input": f"They are {number}."}, {"input": ""}, {})[number % 3]
    return {"instruction": asked(number), **given, "output": good(number)}


@dataclass(frozen=True)
class Layout:
    """A layout of rows.

    Args:
        row: makes a row of its number.
        recipe: name of the recipe that `init` must find.
        found: settings that `init` must write, as sections.
        model: kind of the model.
        asks: what `init` says is missing.
        given: what must be passed to `init`, by its message.
    """

    row: Callable[[int], dict[str, Any]]
    recipe: str = "language_modeling"
    found: tuple[tuple[str, str, Any], ...] = ()
    model: str = "language"
    asks: str = ""
    given: Sequence[str] = ()


CHAT, TEXTS = ("task", "data_format", "messages"), ("task", "data_format", "prompt_completion")
LAYOUTS = {
    "conversations of ShareGPT with tools": Layout(
        lambda n: {"id": f"c{n}", "conversations": sharegpt(n), "tools": json.dumps(TOOLS)},
        found=(CHAT, ("data", "columns", {"messages": "conversations"})), model="chat",
    ),
    "preferences in whole conversations": Layout(
        lambda n: {"chosen": [user(n), assistant(good(n))], "rejected": [user(n), assistant(bad(n))]},
        recipe="preference", found=(CHAT, ("data", "columns", {"prompt": "chosen"})), model="chat",
    ),
    "plain text": Layout(lambda n: {"text": f"{asked(n)} {good(n)}"}, found=(("task", "objective", "causal"),)),
    "texts in a table": Layout(
        lambda n: {"id": n, "text": f"{asked(n)} {good(n)}"}, found=(("task", "objective", "causal"),),
        asks="To train a language model on a column: --recipe language_modeling data.columns.text=COLUMN.",
        given=("--recipe", "language_modeling", "data.columns.text=text"),
    ),
    "prompts with completions": Layout(
        lambda n: {"id": n, "source": ("web", "book")[n % 2], "prompt": asked(n), "completion": good(n)}, found=(TEXTS,)
    ),
    "prompts with completions in messages": Layout(
        lambda n: {"prompt": [user(n)], "completion": [assistant(good(n))]}, model="chat",
        asks="prompt and completion are parts of one conversation. Write them into one column",
    ),
    "messages": Layout(
        lambda n: {"prompt": asked(n), "messages": [user(n), assistant(good(n))]}, found=(CHAT,), model="chat"
    ),
    "messages with tools": Layout(lambda n: {"messages": called(n), "tools": TOOLS}, found=(CHAT,), model="chat"),
    "instructions of Alpaca": Layout(alpaca, found=(("task", "data_format", "alpaca"),)),
    "preferences": Layout(
        lambda n: {"prompt": asked(n), "chosen": good(n), "rejected": bad(n)}, recipe="preference"
    ),
    "preferences in messages": Layout(
        lambda n: {"prompt": [user(n)], "chosen": [assistant(good(n))], "rejected": [assistant(bad(n))]},
        recipe="preference", found=(CHAT,), model="chat",
    ),
    "judged completions": Layout(
        lambda n: {"prompt": asked(n), "completion": (bad, good)[n % 2](n), "label": n % 2 == 1},
        recipe="preference", found=(("task", "loss", "kto"),),
    ),
    "judged completions in messages": Layout(
        lambda n: {"prompt": [user(n)], "completion": [assistant((bad, good)[n % 2](n))], "label": n % 2 == 1},
        recipe="preference", found=(CHAT, ("task", "loss", "kto")), model="chat",
    ),
    "questions with answers": Layout(
        lambda n: {"question": asked(n), "answer": good(n)},
        found=(TEXTS, ("data", "columns", {"prompt": "question", "completion": "answer"})),
    ),
}  # fmt: skip
LISTS = [name for name, layout in LAYOUTS.items() if layout.model == "chat" and not layout.asks]
FILES = [
    *((name, "txt" if name == "plain text" else "jsonl") for name in LAYOUTS),
    *((name, ending) for name in (*LISTS, "instructions of Alpaca") for ending in ("csv", "parquet")),
]


def written(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Writes rows; a list in a cell of a table is as Python prints it."""
    frame = pandas.DataFrame(list(rows))
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        lines = [row["text"] if path.suffix == ".txt" else json.dumps(row) for row in rows]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.fast(1)
@pytest.mark.parametrize(("name", "ending"), FILES)
def test_a_file_needs_no_edit_or_what_it_needs_is_said(
    name: str, ending: str, model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    layout, file = LAYOUTS[name], f"rows.{ending}"
    monkeypatch.chdir(tmp_path)
    rows = [layout.row(number) for number in range(NUM_ROWS)]
    written(tmp_path / file, rows)
    init = ("init", file, "--model", model(layout.model), "--output", "my.yaml")
    if layout.asks:
        assert run_command(*init) == 2
        assert layout.asks in capsys.readouterr().err
        if not layout.given:
            return

    assert run_command(*init, *layout.given) == 0
    assert f"toolkit train {layout.recipe} --config my.yaml" in capsys.readouterr().out
    settings = YAML(typ="safe", pure=True).load(Path("my.yaml"))
    assert [settings[section].get(key) for section, key, _ in layout.found] == [value for *_, value in layout.found]
    assert run_command("validate", layout.recipe, "--config", "my.yaml") == 0
    assert "the rows were read: 19 train, 5 validation" in capsys.readouterr().out
    assert run_command("train", layout.recipe, "--config", "my.yaml", "output_dir=run", *QUICK) == 0
    assert "truncated" not in capsys.readouterr().out
    assert run_command("predict", "run", "--input", file, "--output", "answers.jsonl") == 0

    answers = [json.loads(line) for line in Path("answers.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(answers) == NUM_ROWS
    assert not any(answer["error"] for answer in answers)
    assert all(isinstance(answer["prediction"], str) for answer in answers)
    shown = capsys.readouterr()
    assert "Traceback" not in shown.out + shown.err
