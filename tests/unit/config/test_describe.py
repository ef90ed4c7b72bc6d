"""Help, schema, explanation and resolved file agree with the declared settings."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from checked import load_checked
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.config import STRICT, Loaded, dump_config, flatten
from toolkit.config.describe import explain_text, help_text, schema
from toolkit.config.sections import Positive


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the task does."""

    __pydantic_config__ = STRICT

    kind: Literal["a", "b"]
    """Which of two
    kinds."""
    max_length: Positive = 384
    """Longest input."""
    names: dict[str, str] = field(default_factory=dict)
    """Names of things."""


GOOD = "output_dir: out\ntask: {kind: b}\nmodel: {name_or_path: some-model}\ndata: {dataset_name: rows}\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("configs")


def load(folder: Path, yaml: str, *overrides: str, **environ: str) -> Loaded:
    (folder / "a.yaml").write_text(yaml, encoding="utf-8", newline="")
    return load_checked(Options, folder / "a.yaml", overrides, environ)


def test_resolved_file_is_the_same_configuration(folder: Path) -> None:
    loaded = load(
        folder,
        GOOD,
        "train.mixed_precision=no",
        "train.learning_rate=3e-5",
        "train.optim_args.foreach=false",
        "model.config_overrides={id2label: {0: 'no', 1: '1e5'}, layers: [1, 2]}",
        "task.names.x=null",
        "output_dir=2024-01-31",
        "eval.eval_steps=0.5",
        "tracking.report_to=[wandb]",
        "seed=0",
        ACCELERATE_GRADIENT_ACCUMULATION_STEPS="4",
    )
    text = dump_config(loaded.config)
    assert load(folder, text).config == loaded.config
    assert re.findall(r"^(\w+):", text, re.MULTILINE) == [
        "callbacks",
        "engine",
        "offline_dir",
        "output_dir",
        "seed",
        "task",
        "model",
        "data",
        "train",
        "parallel",
        "eval",
        "checkpoint",
        "tracking",
        "trainer",
    ]


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=9)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    texts | numbers | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
)


@settings(max_examples=60, deadline=None)
@given(overrides=st.dictionaries(texts, values, max_size=3), names=st.dictionaries(texts, texts, max_size=3))
def test_resolved_file_keeps_any_value(folder: Path, overrides: dict[str, Any], names: dict[str, str]) -> None:
    config = load(folder, GOOD).config
    config = replace(
        config, model=replace(config.model, config_overrides=overrides), task=replace(config.task, names=names)
    )
    assert load(folder, dump_config(config)).config == config


def test_flat_names_are_those_of_overrides(folder: Path) -> None:
    loaded = load(folder, GOOD, "train.optim_args.foreach=true")
    flat = flatten(loaded.config)
    assert list(flat)[:6] == ["callbacks", "engine", "offline_dir", "output_dir", "seed", "task.kind"]
    assert (flat["train.optim_args.foreach"], flat["task.names"], flat["data.dataset_name"]) == (True, {}, "rows")
    assert list(loaded.origins) == list(flat)


def test_explanation_names_every_key_value_and_origin(folder: Path) -> None:
    path = "folder/" * 20 + "model"
    loaded = load(
        folder,
        GOOD,
        f"output_dir={path}",
        "model.config_overrides.some_very_long_name_of_a_field=[1, 2]",
        "tracking.run_name=null",
        ACCELERATE_MIXED_PRECISION="bf16",
    )
    lines = explain_text(loaded).splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines]
    for row in (
        ["seed", "42", "default"],
        ["task.kind", "b", "file"],
        ["task.names", "{}", "default"],
        ["train.mixed_precision", "bf16", "launcher"],
        ["tracking.run_name", "null", "override"],
        ["[1,", "2]", "override"],
    ):
        assert row in rows
    assert path in "".join(line[36:72].strip() for line in lines)
    assert set(flatten(loaded.config)) <= {row[0] for row in rows if row}


def test_help_names_every_key_with_type_default_and_meaning(folder: Path) -> None:
    text = help_text(Options, "things")
    assert "toolkit train things --config FILE [--processes N] [section.key=value ...]" in text
    assert max(map(len, text.splitlines())) <= 80
    keys = re.findall(r"^  ([\w.]+)$", text, re.MULTILINE)
    assert keys == list(flatten(load(folder, GOOD).config))
    for entry in (
        "task: What the task does.",
        "  task.kind\n      'a' or 'b'; must be given\n      Which of two kinds.\n",
        "  task.max_length\n      a whole number of at least 1; default: 384\n      Longest input.\n",
        "  task.names\n      a mapping of names to text; default: {}\n",
        "  train.num_train_epochs\n      a number above 0; default: 3.0\n",
        "  train.mixed_precision\n      'no', 'bf16', 'fp16', 'fp8' or null; default: null\n",
        "  tracking.report_to\n      a list of 'tensorboard', 'wandb', 'mlflow' or 'trackio'; default: []\n",
    ):
        assert entry in text


def test_schema_describes_the_whole_file() -> None:
    whole = schema(Options)
    assert whole["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert whole["required"] == ["output_dir", "task"]
    sections = [part for part in whole["properties"].values() if "properties" in part]
    assert len(sections) == 9
    for part in (whole, *sections):
        assert (part["additionalProperties"], part["patternProperties"]) == (False, {"^x-": {}})
        assert all(setting["description"] for setting in part["properties"].values())
    assert (whole["properties"]["task"]["type"], whole["properties"]["train"]["type"]) == ("object", ["object", "null"])
    assert whole["properties"]["task"]["properties"]["kind"] == {
        "description": "Which of two kinds.",
        "enum": ["a", "b"],
        "type": "string",
    }
    assert whole["properties"]["train"]["properties"]["learning_rate"]["minimum"] == 0


@dataclass(frozen=True, kw_only=True)
class Wider(Options):
    """More of it."""

    max_length: Positive = 512
    """Longest input of all."""


def test_options_of_a_base_class_keep_their_help() -> None:
    text = " ".join(help_text(Wider, "recipes/x.py").split())
    assert "Which of two kinds." in text
    assert "default: 512 Longest input of all." in text
    assert "Longest input." not in text
