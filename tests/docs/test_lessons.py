"""The lessons: their commands are valid, their pictures are there, and the cheapest makes its own."""

from __future__ import annotations

import argparse
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import ROOT
from ruamel.yaml import YAML
from runs import shipped

from toolkit.commands.cli import command_of
from toolkit.lab.compare.variants import check_variants, combine, read_switch
from toolkit.lab.jobs.jobs import Launch
from toolkit.lab.search.space import read_space
from toolkit.recipe import config_file

LESSONS: list[dict[str, Any]] = YAML(typ="safe").load(ROOT / "docs" / "lessons.yaml")
SUBJECTS = {
    "accumulation",
    "checkpointing",
    "local_sgd",
    "optimizers",
    "schedules",
    "collectives",
    "tensor",
    "pipeline",
    "ctc",
    "windows",
    "zero",
    "precision",
    "lr_find",
    "search",
    "adam_8bit",
    "initializer",
    "early_stopping",
    "snapshots",
    "profile",
    "landscape",
}


@pytest.fixture
def page(monkeypatch) -> Any:
    """Returns the script that writes the page."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return import_module("render_lessons")


def parsed(lesson: dict[str, Any]) -> argparse.Namespace:
    program, name, *arguments = shlex.split(lesson["command"])
    if program == "python":
        return import_module(Path(name).stem).parser().parse_args(arguments)
    assert program == "toolkit"
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    command_of(name).add_arguments(parser)
    return parser.parse_intermixed_args(arguments)


def test_every_subject_has_a_lesson() -> None:
    assert {lesson["name"] for lesson in LESSONS} == SUBJECTS


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson["name"])
def test_a_command_is_valid(lesson: dict[str, Any], page: Any) -> None:
    arguments = parsed(lesson)
    assert set(lesson.get("columns", ())) <= page.COLUMNS.keys()
    written = getattr(arguments, "output_dir", None) or arguments.output
    assert lesson["picture"].startswith(str(written))
    if getattr(arguments, "switch", None):
        assert arguments.steps
        check_comparison(arguments)
    if getattr(arguments, "space", None):
        config = str(config_file(arguments.recipe, arguments.config))
        assert read_space(ROOT / arguments.space, shipped(arguments.recipe), config, arguments.overrides)


def check_comparison(arguments: argparse.Namespace) -> None:
    """Raises an error if a variant of a comparison may not run."""
    launch = Launch.of(arguments.launch, arguments.processes or 1)
    task_type = shipped(arguments.recipe)
    overrides = [*arguments.overrides, f"train.max_steps={arguments.steps}"]
    variants = combine([read_switch(text, {}) for text in arguments.switch], arguments.mode)
    config = str(config_file(arguments.recipe, arguments.config))
    check_variants(task_type, config, overrides, variants, launch).raise_problems()


def test_every_lesson_has_its_picture_and_took_less_than_three_minutes(page: Any) -> None:
    known = page.known()
    assert known.keys() == SUBJECTS
    for lesson in LESSONS:
        assert (page.PICTURES / page.picture(lesson)).is_file()
        assert known[lesson["name"]]["processor_seconds"] < 180


@pytest.mark.slow
def test_the_cheapest_lesson_makes_its_picture(page: Any, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(page, "PICTURES", tmp_path)
    (lesson,) = [lesson for lesson in LESSONS if lesson["name"] == "schedules"]
    assert page.run(lesson)["processor_seconds"] < 180
    assert (tmp_path / "schedules.svg").read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.slow
def test_the_picture_of_ctc_shows_the_steps_of_a_training(page: Any, tmp_path: Path, monkeypatch) -> None:
    script = import_module("draw_ctc")
    monkeypatch.setattr(script, "SETTINGS", (*script.SETTINGS, "checkpoint.save_steps=2"))
    script.main(tmp_path / "ctc.svg", steps=(2, 4))
    drawn = (tmp_path / "ctc.svg").read_text(encoding="utf-8")
    assert drawn.startswith("<svg")
    assert "step 2: " in drawn
    assert "step 4: " in drawn
    assert ">blank</text>" in drawn


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sizes", "words"),
    [
        ("early_stopping", {"epochs": 2}, ["best: step 38", "stop: step 38"]),
        ("snapshots", {"cycles": 2, "steps": 4}, ["mean of their predictions"]),
        ("profile", {"ways": {"one row": ["train.global_batch_size=1", "train.per_device_train_batch_size=1"]}},
         ["one row: ", "forward"]),
        ("landscape", {"points": 3, "steps": {8: 2, 16: 1}}, ["batches of 8: loss", "batches of 16: loss"]),
    ],
)  # fmt: skip
def test_a_script_draws_what_it_trained(
    name: str, sizes: dict[str, Any], words: list[str], page: Any, tmp_path: Path
) -> None:
    import_module(f"draw_{name}").main(tmp_path / "drawn.svg", **sizes)
    drawn = (tmp_path / "drawn.svg").read_text(encoding="utf-8")
    assert drawn.startswith("<svg")
    assert all(each in drawn for each in words)


def test_rows_of_a_direction_are_as_long_as_those_of_the_weights(page: Any) -> None:
    weights = {"matrix": torch.randn(3, 4), "kernel": torch.randn(2, 3, 5), "bias": torch.randn(3)}
    found = import_module("draw_landscape").direction(weights, torch.Generator().manual_seed(0))
    for name in ("matrix", "kernel"):
        torch.testing.assert_close(found[name].flatten(1).norm(dim=1), weights[name].flatten(1).norm(dim=1))
    assert not found["bias"].any()
