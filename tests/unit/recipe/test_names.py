"""Recipes, their configurations and sample data are found by name and path, from any directory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from commands import run_command
from launching import ROOT

from toolkit.base import package
from toolkit.base.errors import InputError
from toolkit.recipe import config_file, launcher_file, load_settings, load_task_type, recipe_file, recipe_names

SMOKE = Path("recipes/configs/reviews/smoke.yaml")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_is_found_by_name_and_by_path(name: str) -> None:
    file = ROOT / "recipes" / f"{name}.py"
    assert [recipe_file(each) for each in (name, f"recipes/{name}.py", file)] == [file] * 3
    smoke = min(path.stem for path in (ROOT / "recipes/configs" / name).glob("smoke*.yaml"))
    assert config_file(name, smoke) == config_file(file, f"recipes/configs/{name}/{smoke}.yaml")


def test_a_launcher_file_is_found_by_name_and_by_path(tmp_path: Path) -> None:
    file = ROOT / "accelerate_configs" / "fsdp2_cpu.yaml"
    assert [launcher_file(each) for each in ("fsdp2_cpu", "accelerate_configs/fsdp2_cpu.yaml", file)] == [file] * 3
    with pytest.raises(
        InputError, match=r"--launch: received 'fsdp_cpu', .* \(did you mean 'fsdp2_cpu'\?\); accel.* has"
    ):
        launcher_file("fsdp_cpu")
    (tmp_path / "ddp").touch()
    assert launcher_file("ddp") == Path("ddp")


def test_paths_are_relative_where_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert (recipe_file("reviews"), config_file("reviews", "smoke")) == (Path("recipes/reviews.py"), SMOKE)


def test_an_own_file_wins_over_a_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    own = tmp_path / "recipes/reviews.py"
    shutil.copy(ROOT / "recipes/reviews.py", own)
    (tmp_path / "smoke").touch()
    assert recipe_file("recipes/reviews.py") == own.relative_to(tmp_path)
    assert config_file("reviews", "smoke") == Path("smoke")


def test_configurations_of_an_own_recipe_are_found_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "mine/configs/tickets"
    folder.mkdir(parents=True)
    (folder / "small.yaml").touch()
    (tmp_path / "mine/tickets.py").touch()
    assert config_file("mine/tickets.py", "small") == folder.relative_to(tmp_path) / "small.yaml"


@pytest.mark.parametrize("name", ["revews", "recipes/revews.py", "nowhere/revews.py"])
def test_an_unknown_recipe_is_answered_with_the_nearest_and_all_names(name: str) -> None:
    with pytest.raises(InputError, match=r"no such recipe \(did you mean 'reviews'\?\); the recipes are .*, qa, revi"):
        recipe_file(name)


def test_an_unknown_configuration_is_answered_with_the_nearest_and_all_names() -> None:
    with pytest.raises(InputError, match=r"received 'smok', .* \(did you mean 'smoke'\?\); reviews has .*, demo, "):
        config_file("reviews", "smok")


def test_data_of_a_shipped_configuration_is_found_from_any_directory(tmp_path: Path, capsys) -> None:
    assert run_command("validate", "reviews", "--config", "smoke") == 0
    loaded = load_settings(load_task_type("reviews"), config_file("reviews", "smoke"))
    assert loaded.config.data.train_file == str(ROOT / "recipes/data/reviews/train.csv")
    (tmp_path / "recipes/data/reviews").mkdir(parents=True)
    own = tmp_path / "recipes/data/reviews/train.csv"
    own.write_text("text,label\n")
    loaded = load_settings(load_task_type("reviews"), config_file("reviews", "smoke"))
    assert loaded.config.data.train_file == str(own.relative_to(tmp_path))


def test_data_of_a_copied_configuration_is_named_instead(tmp_path: Path, capsys) -> None:
    shutil.copy(ROOT / SMOKE, tmp_path / "my.yaml")
    assert run_command("validate", "reviews", "--config", "my.yaml") == 2
    sample = ROOT / "recipes/data/reviews/train.csv"
    assert f"there is no such file (tried {tmp_path}" in (message := capsys.readouterr().err)
    assert f"the toolkit's sample data is {sample}" in message


def test_in_a_wheel_the_files_are_inside_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "__file__", str(tmp_path / "toolkit/base/package.py"))
    assert package.shipped_root() == tmp_path
    (tmp_path / "toolkit/shipped/recipes").mkdir(parents=True)
    assert package.shipped_root() == tmp_path / "toolkit/shipped"
