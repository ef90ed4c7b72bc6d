"""`toolkit lr-plot`: the curve before a run, over as many steps as the run will have."""

from __future__ import annotations

import argparse

import pytest
from runs import ROOT, TINY, lines, train

from toolkit.base.errors import ConfigError, InputError
from toolkit.commands import find

CONFIG = ("recipes/reviews.py", "--config", "recipes/configs/reviews/smoke.yaml")
FEW = (*TINY, "data.max_train_samples=37", "train.num_train_epochs=1", "train.per_device_train_batch_size=2")


def plot(*arguments: str) -> None:
    parser = argparse.ArgumentParser()
    find.add_lr_plot(parser)
    find.run_lr_plot(parser.parse_intermixed_args([*CONFIG, *arguments]))


@pytest.fixture(autouse=True)
def _folder(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_the_picture_has_the_steps_and_the_rates_of_the_run(tmp_path, monkeypatch, capsys):
    train("reviews", tmp_path / "run", *FEW, "eval.eval_steps=null")
    steps = lines(tmp_path / "run", "loss")
    capsys.readouterr()
    plot("--output", str(tmp_path / "lr.svg"), *FEW)
    shown = capsys.readouterr().out
    assert f"total    {len(steps)} steps, the last at {steps[-1]['learning_rate']:.4g}" in shown
    assert "peak     0.001 at step 2" in shown
    assert "warm-up  1 steps" in shown
    assert (tmp_path / "lr.svg").read_text().startswith("<svg")
    plot("--output", str(tmp_path / "lr.svg"), "--overwrite", "--processes", "2", *FEW)
    assert f"total    {(len(steps) + 1) // 2} steps" in capsys.readouterr().out


def test_a_momentum_and_lengths_in_epochs_are_those_of_the_run(tmp_path, capsys):
    cycle = "{base_lr: 0.0001, step_size_up: 0.5 epochs, cycle_momentum: true}"
    few = (*FEW, "train.max_steps=-1", "train.num_train_epochs=2", "train.warmup_steps=0",
           "train.gradient_accumulation_steps=1", "data.validation_split=0", "eval.eval_steps=null")  # fmt: skip
    plot(
        "--output",
        str(tmp_path / "lr.svg"),
        *few,
        "train.lr_scheduler_type=cyclic",
        f"train.lr_scheduler_kwargs={cycle}",
    )
    shown = capsys.readouterr().out
    assert "peak     0.001 at step 11" in shown  # of 19 in an epoch: ten up, ten down
    assert "momentum 0.9 at first, 0.8 at step 11" in shown


def test_a_given_number_of_steps_needs_no_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(find, "plan", None)
    plot("--output", str(tmp_path / "lr.svg"), "train.max_steps=1000000", "eval.eval_steps=100",
         "train.lr_scheduler_type=reduce_lr_on_plateau")  # fmt: skip
    shown = capsys.readouterr().out
    assert "total    1000000 steps" in shown
    assert "cannot be drawn in advance" in shown


def test_what_cannot_be_drawn_is_said(tmp_path):
    with pytest.raises(ConfigError, match="exponential requires it"):
        plot("train.max_steps=3", "train.lr_scheduler_type=exponential")
    with pytest.raises(InputError, match=r"must end in \.svg"):
        plot("--output", str(tmp_path / "lr.png"), "train.max_steps=3")
    with pytest.raises(InputError, match="--output: there is no folder"):
        plot("--output", str(tmp_path / "none" / "lr.svg"), "train.max_steps=3")
