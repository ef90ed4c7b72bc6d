"""`toolkit ls` and `toolkit cp`: recipes are listed, and copied to be changed."""

from __future__ import annotations

import pytest
from commands import run_command
from runs import ROOT

from toolkit.recipe import load_settings, load_task_type


def test_every_recipe_and_configuration_is_listed_within_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run_command("ls") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    words = {line.split()[0].rstrip(":") for line in lines if line.strip()}
    files = [
        *ROOT.glob("recipes/*.py"),
        *ROOT.glob("recipes/configs/*/*.yaml"),
        *ROOT.glob("accelerate_configs/*.yaml"),
    ]
    assert len(files) > 30
    assert {file.stem for file in files} <= words


def test_one_recipe_is_listed_and_a_wrong_name_has_a_suggestion(capsys):
    assert run_command("ls", "qa") == 0
    out = capsys.readouterr().out
    assert "agxqa" in out
    assert "wikitext2" not in out
    assert run_command("ls", "qaa") == 2
    assert "did you mean 'qa'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(file.stem for file in ROOT.glob("recipes/*.py")))
def test_a_copied_recipe_is_complete(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the sample data of the repository is not there
    folder = tmp_path / "own" / "copy"
    assert run_command("cp", name, folder) == 0
    out = capsys.readouterr().out
    assert f"toolkit train {folder / name}.py --config " in out
    task_type = load_task_type(folder / f"{name}.py")
    configs = sorted(folder.glob(f"configs/{name}/*.yaml"))
    assert [file.name for file in configs] == sorted(f.name for f in ROOT.glob(f"recipes/configs/{name}/*.yaml"))
    for config in (file for file in configs if file.stem.startswith("smoke")):
        load_settings(task_type, config, ())

    before = sorted(tmp_path.rglob("*"))
    assert run_command("cp", name, folder) == 2
    assert "exists already; give the name of a new folder" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_recipe_without_configurations_can_be_copied(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("TASK = None\n")
    assert run_command("cp", tmp_path / "mine.py", tmp_path / "copy") == 0
    assert capsys.readouterr().out == f"copied {tmp_path / 'copy' / 'mine.py'}\n"
