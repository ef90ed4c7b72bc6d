"""`data.train_file` as a list, and `data.mix`: the same rows however they are split, in every recipe; resumed, too."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from commands import run_command
from launching import fork
from runs import ROOT, SGD, SIZES, TINY, assert_close, assert_same_weights, lines, train, weights
from tolerances import FLOAT64

CONFIGS = sorted(str(file.relative_to(ROOT / "recipes/configs").with_suffix(""))
                 for file in (ROOT / "recipes/configs").glob("*/smoke*.yaml"))  # fmt: skip
ROWS = {"old": 43, "new": 12}
OWN = ("data.validation_file=null", "data.validation_split=0.2", "data.mix=[1, 1.5]", "checkpoint.save_steps=null")
WHOLE = (*OWN, *SGD, "train.num_train_epochs=3")


def files(folder: Path) -> str:
    """Returns the setting of two files of different sizes, which are written first."""
    for name, count in ROWS.items():
        rows = [f"the {name} {'soil' if row % 3 else 'rain'} was {row},{'good' if row % 3 else 'bad'}"
                for row in range(count)]  # fmt: skip
        (folder / f"{name}.csv").write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    return f"data.train_file=[{folder / 'old.csv'}, {folder / 'new.csv'}]"


def split(rows: int, accumulation: int) -> tuple[str, str]:
    return f"train.per_device_train_batch_size={rows}", f"train.gradient_accumulation_steps={accumulation}"


def run(folder: Path, name: str, *settings: str) -> Path:
    train("reviews", folder / name, f"data.train_file=[{folder / 'old.csv'}, {folder / 'new.csv'}]", *WHOLE,
          *settings, double=True)  # fmt: skip
    return folder / name


def assert_same_run(one: Path, other: Path) -> None:
    assert_close(lines(one, "loss"), lines(other, "loss"), FLOAT64)
    left, right = weights(one), weights(other)
    assert_close({k: v.tolist() for k, v in left.items()}, {k: v.tolist() for k, v in right.items()}, FLOAT64)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    files(folder)
    return run(folder, "8x1", *split(8, 1))


@pytest.mark.parametrize("how", [split(2, 4), (*split(8, 1), "train.max_tokens_per_batch=40")])
def test_every_split_of_a_window_has_the_same_rows(whole, how):
    assert len(lines(whole, "loss")) == 3 * 6  # an epoch has as many rows as both files: 44 of 55 are not set aside
    assert_same_run(whole, run(whole.parent, f"other-{len(how)}", *how))


def test_both_engines_train_on_the_same_rows_and_other_shares_on_others(whole):
    assert_same_weights(whole, run(whole.parent, "trainer", *split(8, 1), "engine=trainer"))
    other = run(whole.parent, "even", *split(8, 1), "data.mix=[1, 1]")
    assert lines(other, "loss") != lines(whole, "loss")


@pytest.mark.parametrize("engine", ["loop", "trainer"])
def test_a_run_resumed_inside_an_epoch_ends_with_the_same_bits(tmp_path, engine):
    files(tmp_path)
    own = (*split(4, 2), f"engine={engine}", "train.train_sampling_strategy=group_by_length")
    whole = run(tmp_path, "whole", *own)
    half = ("train.max_steps=9", "checkpoint.save_steps=9")  # of steps 7 to 12, which are the second epoch
    run(tmp_path, "cut", *own, *half)
    run(tmp_path, "cut", *own, "checkpoint.resume=auto")
    assert_same_weights(whole, tmp_path / "cut")
    with pytest.raises(Exception, match=r"data\.mix: the run was started with \[1\.0, 1\.5\], now \[1\.0, 2\.0\]"):
        run(tmp_path, "cut", *own, "checkpoint.resume=auto", "data.mix=[1, 2]")


@pytest.mark.distributed
def test_two_processes_train_on_the_same_rows(whole):
    fork([Path(__file__), whole.parent], 2)
    for engine in ("loop", "trainer"):
        assert_same_run(whole, whole.parent / f"two-{engine}")


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS)
def test_every_recipe_reads_and_mixes_several_files(tmp_path, monkeypatch, config):
    """Also those whose rows become several features, or whose features span several rows."""
    monkeypatch.chdir(ROOT)
    text = (ROOT / f"recipes/configs/{config}.yaml").read_text(encoding="utf-8")
    given = [line.split(": ")[1] for line in text.splitlines() if line.lstrip().startswith(("train_f", "validation_f"))]
    name = config.removesuffix("/smoke")
    sizes = [each for each in SIZES.get(name, TINY) if "max_eval_samples" not in each]
    settings = [f"data.train_file=[{', '.join(given)}]", *OWN, "data.validation_split=0.4", "train.max_steps=2",
                "data.max_train_samples=40"]  # fmt: skip
    train(name, tmp_path / "run", *settings, sizes=tuple(sizes))
    facts = json.loads((tmp_path / "run/run.json").read_text())
    mixed = {each["where"]: each for each in facts["omissions"] if "(data.mix)" in each["what"]}
    assert len(mixed) == 2
    total = {int(each["details"].split()[3].replace(",", "")) for each in mixed.values()}
    shares = [int(each["details"].split(" has ")[1].split()[0].replace(",", "")) for each in mixed.values()]
    assert {sum(shares)} == total
    assert abs(shares[0] / sum(shares) - 0.4) <= 1 / sum(shares)
    report = (tmp_path / "run/report.md").read_text(encoding="utf-8")
    assert "file=" in report.partition("## Slices (validation)")[2].partition("\n## ")[0]


@pytest.mark.slow
def test_a_list_goes_through_every_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = ["reviews", "--config", ROOT / "recipes/configs/reviews/smoke.yaml", files(tmp_path), *OWN[:2]]
    small = [*TINY, "train.max_steps=2"]
    assert run_command("data", "show", *recipe) == 0
    assert "44 train + 11 validation (set aside)" in " ".join(capsys.readouterr().out.split())
    assert run_command("doctor", *recipe, "--output", tmp_path / "doctor") == 0
    found = (tmp_path / "doctor/doctor.md").read_text(encoding="utf-8")
    assert f"{tmp_path / 'new.csv'}" in found
    assert f"{tmp_path / 'old.csv'}" in found
    assert run_command("baseline", *recipe, "--no-model", "--output", tmp_path / "baseline") == 0
    assert json.loads((tmp_path / "baseline/baseline.json").read_text())["rows"] == {"validation": 11}
    assert run_command("train", *recipe, *small, f"output_dir={tmp_path / 'run'}") == 0
    assert run_command("export", tmp_path / "run", "--format", "zip", "--output", tmp_path / "model.zip") == 0
    assert run_command("fetch", *recipe, "--output", tmp_path / "fetched") == 0
    for name in ROWS:
        (tmp_path / f"{name}.csv").unlink()
    offline = [f"offline_dir={tmp_path / 'fetched'}", f"output_dir={tmp_path / 'offline'}"]
    assert run_command("train", *recipe, *small, *offline) == 0
    assert_same_weights(tmp_path / "run", tmp_path / "offline")
    card = (tmp_path / "run/model/README.md").read_text(encoding="utf-8")
    assert "| train | old.csv, new.csv | 44 |" in card


if __name__ == "__main__":
    for engine in ("loop", "trainer"):
        run(Path(sys.argv[1]), f"two-{engine}", *split(2, 2), f"engine={engine}")
    from finishing import finish

    finish()
