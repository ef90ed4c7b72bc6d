"""`toolkit data show`: what a run will be trained on, before it is trained."""

from __future__ import annotations

import subprocess
import sys

import pytest
from commands import run_command
from newcomer_files import FILES, customers, pairs, prices, questions, ratings, sentences, table
from runs import ROOT

CONFIG = """
output_dir: outputs/mine
task: {max_length: 16}
model: {name_or_path: some/model}
data:
  train_file: mine.csv
  validation_split: 0.25
"""


def shown(capsys, *arguments: object) -> str:
    capsys.readouterr()
    assert run_command("data", "show", *arguments) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_is_shown_in_80_columns(name, tmp_path, capsys) -> None:
    told = shown(capsys, FILES[name](tmp_path))
    assert max(len(line) for line in told.splitlines() if str(tmp_path) not in line) <= 80
    assert "used as" in told
    assert "Examples:" in told
    assert "(set aside) rows" in told


def test_columns_labels_and_lengths_are_shown(tmp_path, capsys) -> None:
    told = shown(capsys, customers(tmp_path))
    rows = {line.split("  ")[0].strip(): line.split() for line in told.splitlines() if line.strip()}
    assert rows["Rating"][1:6] == ["label", "whole", "numbers", "0", "5"]
    assert rows["Datum"][1] == "dates"
    assert sum(map(int, rows["5"][1:3])) == 24
    assert rows["5"][3].endswith("%")
    assert rows["text: tokens"][1] == "tokens"
    assert "estimated as 4 characters per token" in " ".join(told.split())


def test_numbers_and_texts_without_labels_are_shown(tmp_path, capsys) -> None:
    assert "numbers from 1" in shown(capsys, prices(tmp_path))
    told = shown(capsys, pairs(tmp_path))
    assert "source: words" in told
    assert "target: words" in told
    assert "context: tokens" in shown(capsys, questions(tmp_path))


def test_the_settings_of_a_run_are_used(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    texts = sentences(rows=60)
    rows = [[text, ("good", "bad", "Bad")[n % 3]] for n, text in enumerate([*texts, *texts[:4]])]
    table(tmp_path / "mine.csv", ["text", "label"], [*rows, ["", "good"]])
    (tmp_path / "mine.yaml").write_text(CONFIG, encoding="utf-8")
    told = " ".join(shown(capsys, "reviews", "--config", "mine.yaml").split())
    assert "48 train (set aside) + 16 validation (set aside) rows" not in told
    assert "48 train + 16 validation (set aside) rows" in told
    assert "truncated at task.max_length=16" in told
    assert "'Bad'" in told
    assert "column 'text' is empty" in told
    assert "4 exact duplicates of earlier rows" in told
    told = " ".join(shown(capsys, "reviews", "--config", "mine.yaml", "task.max_length=80").split())
    assert "0.0% of the texts are truncated at task.max_length=80" in told
    told = " ".join(shown(capsys, "reviews", "--config", "mine.yaml", "task.label_map.Bad=null").split())
    assert "mine.csv: 21 of 65 rows excluded (32.3%): task.label_map maps 'Bad' to null." in told


def test_options_of_the_other_action_are_rejected(tmp_path, capsys) -> None:
    for arguments, said in (
        (("show", ratings(tmp_path), "--from", "x"), "--from: only `toolkit data get` has this option"),
        (("get", "agxqa", "--config", "x"), "--config: only `toolkit data show` has this option"),
        (("get", "agxq"), "did you mean 'agxqa'?"),
        (("get", "agxqa", "--from", tmp_path / "none"), "--from: there is no folder"),
    ):
        assert run_command("data", *arguments) == 2
        assert said in capsys.readouterr().err


def test_rows_are_shown_without_torch_and_transformers(tmp_path) -> None:
    code = "import sys; from toolkit.commands.cli import main\n"
    code += "try: main(['data', 'show', sys.argv[1]])\n"
    code += "finally: print(sorted({'torch', 'transformers'} & set(sys.modules)))"  # their import takes longest
    command = [sys.executable, "-c", code, str(customers(tmp_path))]
    assert subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.endswith("\n[]\n")
