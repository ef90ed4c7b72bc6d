"""The tokens that a row trains, measured by gradients: planted faults show."""

from __future__ import annotations

import json

import pytest
from commands import run_command
from runs import ROOT, shipped

from toolkit.data.loading import check_rows
from toolkit.prepare.inputs import features_of
from toolkit.prepare.signal import Signal, signals
from toolkit.recipe import load_settings

CHAT = ROOT / "recipes/configs/language_modeling/smoke_chat.yaml"
END = "<|endoftext|>"


def measured(task_type: type, *settings: str, config=CHAT, count: int = 3) -> list[Signal]:
    cfg = load_settings(task_type, config, settings).config
    task = task_type(cfg)
    rows = check_rows(cfg, task)
    processor, features = features_of(cfg, task, rows)
    assert task.predicts_tokens
    return signals(task, processor, features["train"], count, cfg.seed)


def inside(text: str) -> list[str]:
    return [part.partition("⟧")[0] for part in text.split("⟦")[1:]]


def test_answers_are_trained_and_nothing_else():
    task_type = shipped("language_modeling")
    file = ROOT / "recipes/data/language_modeling/chat_train.jsonl"
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()[:3]]
    for signal, row in zip(measured(task_type), rows, strict=True):
        said = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
        assert inside(signal.text) == [f"{each}{END}" for each in said]
        assert signal.unlike == 0
        assert {round(weight, 5) for weight in signal.weights} == {0, 1}


def test_a_planted_wrong_mask_is_found():
    class Planted(shipped("language_modeling")):
        """Trains the first half of what it should."""

        def loss_sum(self, outputs, batch):
            labels = batch["labels"].clone()
            labels[:, : labels.shape[1] // 2] = -100
            return super().loss_sum(
                outputs, {**batch, "labels": labels, "labelled": (labels.flatten() != -100).nonzero()[:, 0]}
            )

    found = measured(Planted)
    assert all(signal.unlike > 0 for signal in found)
    assert "have a label and no gradient" in found[0].lines()[1]


def test_a_row_without_a_signal_and_other_weights_are_said():
    class Planted(shipped("language_modeling")):
        """Leaves out the second row, and doubles the third."""

        def loss_sum(self, outputs, batch):
            return super().loss_sum(outputs, batch) * {1: 0.0, 2: 2.0}.get(int(batch["row_ids"][0]), 1.0)

    first, second, third = measured(Planted)
    assert first.trained > 0
    assert second.lines()[1] == "no token is trained: the row changes nothing"
    assert third.lines()[0].endswith("weights 2 to 2")


def test_an_answer_that_is_cut_shows_its_lost_end():
    whole, cut = (measured(shipped("language_modeling"), f"task.block_size={size}", count=1)[0] for size in (96, 16))
    assert inside(whole.text)[0].endswith(END)
    (left,) = inside(cut.text)
    assert whole.text.partition("⟦")[2].startswith(left)
    assert not left.endswith(END)


@pytest.mark.parametrize(
    ("recipe", "config"),
    [("translation", "smoke"), ("language_modeling", "smoke_masked"), ("token_classification", "smoke")],
)
def test_labels_of_all_kinds_are_measured(recipe, config):
    (signal,) = measured(shipped(recipe), config=ROOT / f"recipes/configs/{recipe}/{config}.yaml", count=1)
    assert signal.unlike == 0
    assert 0 < signal.trained <= len(signal.tokens)


def test_the_command_shows_rows_and_rejects_tasks_without_tokens(capsys):
    assert run_command("data", "show", "language_modeling", "--config", "smoke_chat", "--signal", 2) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "row 1: 16 of 26 tokens are trained" in shown
    assert f"freezes.{END}⟧" in shown
    assert run_command("data", "show", "reviews", "--config", "smoke", "--signal") != 0
    assert "--signal: Reviews does not predict tokens" in capsys.readouterr().err
