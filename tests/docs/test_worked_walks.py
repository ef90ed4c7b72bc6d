"""The walk-through of CIFAR-10 works from the download to the last training, here with drawn images."""

from __future__ import annotations

import json
from importlib import import_module
from itertools import pairwise

import pytest
from commands import run_command
from image_files import drawn, write_batches
from launching import ROOT

from toolkit.lab.compare.variants import combine, read_switch

TINY = (
    "task.image.size=16",
    "train.num_train_epochs=1",
    "train.global_batch_size=128",
    "model.from_config.hidden_sizes=[8, 8]",
    "model.from_config.depths=[1, 1]",
    "model.from_config.embedding_size=8",
)
RATES = {"plain": "0.001", "one_cycle": "0.01"}


@pytest.fixture
def downloaded(tmp_path, monkeypatch) -> None:
    """Gets CIFAR-10 from a local mirror into the working folder."""
    batches = {
        f"data_batch_{n}": [(number, drawn(number, 40 * n + k)) for k in range(40) for number in range(10)]
        for n in range(1, 6)
    }
    (tmp_path / "mirror").mkdir()
    write_batches(tmp_path / "mirror", {**batches, "test_batch": [(0, drawn(0, 255))]})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    assert run_command("data", "get", "cifar10", "--from", "mirror") == 0


@pytest.mark.slow
def test_every_command_of_the_walk_through_runs(downloaded, monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    example = import_module("worked_example")
    walk = example.WALKS["cifar10"]
    assert run_command(*example.finder_command(walk), "--steps", "40", *TINY[:1], *TINY[3:]) == 0
    found = json.loads((example.output(walk, "rates") / "lr_find.json").read_text(encoding="utf-8"))
    assert example.rates_of({"finder": found}).keys() == RATES.keys()
    assert run_command(*example.pretraining_command(walk, RATES), *TINY) == 0, capsys.readouterr().err
    for part in (walk.main, walk.transfer):
        words = example.compare_command(walk, part, RATES)
        switches = [read_switch(value, {}) for word, value in pairwise(words) if word == "--switch"]
        settings = words[words.index("--output") + 2 :]
        variants = combine(switches, "cumulative")
        assert len(variants) == len(part.changes) + 1
        for number, variant in enumerate(variants):
            new = variant.settings.get("model.name_or_path", "null") == "null"
            folder = f"outputs/{part.folder}-{number}"
            tiny = TINY if new else TINY[:3]
            overrides = [*settings, *variant.overrides, *tiny, f"output_dir={folder}"]
            assert run_command("train", *words[1:4], *overrides) == 0, capsys.readouterr().err
            assert (tmp_path / folder / "model" / "model.safetensors").is_file()
