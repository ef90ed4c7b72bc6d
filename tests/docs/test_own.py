"""The page about own models, losses, metrics and callbacks: its files and commands, in a folder of their own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from launching import ROOT, run
from newcomer_models import save_text_model
from page_blocks import apply, blocks_of, commands
from runs import assert_close, assert_same_weights, lines, weights
from transformers import BertConfig

pytestmark = [pytest.mark.slow, pytest.mark.distributed]

BLOCKS = blocks_of((ROOT / "docs" / "own.md").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the page's files, in which its scripts and commands have run."""
    folder = tmp_path_factory.mktemp("own")
    save_text_model(folder / "encoder")
    config = BertConfig.from_pretrained(folder / "encoder")
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0  # which depends on the number of processes
    config.save_pretrained(folder / "encoder")
    apply(BLOCKS, folder)
    for name in ("before.py", "script.py"):
        run([sys.executable, str(folder / name)], folder=folder)
    for command, _ in commands(BLOCKS):
        run(command, folder=folder)
    return folder


def test_the_recipe_has_about_sixty_lines() -> None:
    (recipe,) = [block.text for block in BLOCKS if block.file == "tickets.py"]
    assert recipe.count("\n") <= 66


def test_all_ways_give_the_same_numbers(folder: Path) -> None:
    one = folder / "outputs/tickets"
    assert_same_weights(one, folder / "outputs/trainer")
    assert_same_weights(one, folder / "outputs/python")
    two = folder / "outputs/two"
    assert_close(*({name: value.tolist() for name, value in weights(each).items()} for each in (one, two)), 1e-5)
    steps = [line for line in lines(one) if "head_norm" in line]
    assert len(steps) == 4
    assert_close(steps, [line for line in lines(two) if "head_norm" in line], 1e-5)


def test_the_metric_selects_the_best_model(folder: Path) -> None:
    facts = json.loads((folder / "outputs/tickets/run.json").read_text(encoding="utf-8"))
    costs = [line["eval_cost"] for line in lines(folder / "outputs/tickets", "eval_cost")]
    assert facts["metric_for_best_model"] == "eval_cost"
    assert facts["result"]["best_metric"] == min(costs)


def test_exports_that_could_not_load_the_model_are_rejected(folder: Path) -> None:
    # In processes of their own: what the recipe registers stays registered.
    export = [sys.executable, "-m", "toolkit", "export", "outputs/tickets", "--format"]
    rejected = run([*export, "zip", "--output", "tickets.zip"], folder=folder, check=False)
    assert rejected.returncode == 2
    assert "Tickets has no script" in rejected.stderr
    run([*export, "onnx", "--output", "graph"], folder=folder)
    assert json.loads((folder / "graph/parity.json").read_text(encoding="utf-8"))["metric"] == "cost"
    assert not (folder / "graph/predict.py").exists()
