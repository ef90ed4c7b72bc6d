"""The documentation is correct: its commands parse, its YAML is valid, its settings and links exist."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from checked import load_checked
from deployed import docker_trainings, trainings
from launching import ROOT
from ruamel.yaml import YAML
from runs import shipped

from toolkit.base.errors import problems_of
from toolkit.commands import train
from toolkit.commands.cli import command_of
from toolkit.commands.cli import main as toolkit_command
from toolkit.config.keys import field_types, section_types
from toolkit.lab.search.space import read_space
from toolkit.recipe import config_file, validate

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("recipes/**/*.md")])
SHIPPED = sorted(ROOT.glob("recipes/configs/*/*.yaml"))
RECIPES = tuple(sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("recipes/*.py")))
WRITTEN_BY_TEST = (ROOT / "CONTRIBUTING.md", ROOT / "docs" / "own.md")
"""Their blocks are applied and run by `test_contributing` and `test_own`."""
TUTORIALS = ROOT / "docs" / "tutorials"
"""Their commands depend on each other, and are run by `test_tutorials`."""


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(encoding="utf-8"), re.M | re.S)


def pages() -> list[Path]:
    return [page for page in PAGES if page not in WRITTEN_BY_TEST and page.parent != TUTORIALS]


def commands(program: str) -> list[str]:
    """Returns the commands in the pages' shell blocks that begin with a program's name, without comments."""
    lines = [
        line
        for page in pages()
        for block in blocks(page, "bash")
        if not block.startswith("#!")
        for line in block.replace("\\\n", " ").splitlines()
    ]
    return [line for line in lines if re.match(rf"{program}\b", line)]


def whole_configs() -> dict[str, tuple[str, str]]:
    """Returns YAML blocks that are complete files: recipe and text by name; their first line has name and recipe."""
    found = {}
    for block in (block for page in pages() for block in blocks(page, "yaml")):
        if title := re.match(r"# (\S+\.yaml), for (recipes/\S+\.py)\n", block):
            found[title[1]] = (title[2], block)
    return found


@pytest.fixture
def reader(tmp_path, monkeypatch) -> Path:
    """Returns a folder with the repository, the YAML files shown in the pages, and the data they name."""
    for name in ("recipes", "accelerate_configs", "toolkit"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name, (_, text) in whole_configs().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        for file in re.findall(r"_file: (\S+)", text):
            if not (tmp_path / file).exists():
                (tmp_path / file).touch()
    for name in ("reviews", "old", "new"):
        (tmp_path / f"{name}.csv").write_bytes((ROOT / "recipes/data/reviews/train.csv").read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def wrong_settings(recipe: str, config: Path | str | dict[str, Any], overrides: list[str]) -> list[str]:
    """Returns the problems of a configuration's settings, except for missing public datasets."""
    task_type = shipped(recipe)
    found = problems_of(lambda: load_checked(task_type.Options, config, overrides, {}, task_type.columns))
    return [each for each in found if not ("there is no such file" in each and "`toolkit data get " in each)]


def problems(recipe: str, config: Path | str | dict[str, Any], overrides: list[str]) -> list[str]:
    """Returns the problems of a configuration, except for those of this machine."""
    found = wrong_settings(recipe, config, overrides)
    return [*found, *validate(shipped(recipe), config, overrides, elsewhere=True).problems]


def config_and_overrides(arguments: list[str]) -> tuple[str, list[str]]:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--config", required=True)
    parser.add_argument("overrides", nargs="*")
    parsed = parser.parse_intermixed_args(arguments)
    return parsed.config, parsed.overrides


@pytest.mark.parametrize("command", commands("toolkit (?:init|validate|explain|schema|data show)"))
def test_commands_about_settings_run(command: str, reader, capsys) -> None:
    arguments = shlex.split(command.split(" > ")[0], comments=True)[1:]
    if arguments[0] == "init":
        Path(arguments[arguments.index("--output") + 1]).unlink(missing_ok=True)  # it is for the commands that use it
    if arguments[0] == "validate" and "--elsewhere" not in arguments:
        arguments.append("--elsewhere")  # the reader's own data, and models of the hub, are not on this machine
    with pytest.raises(SystemExit) as ended:
        toolkit_command(arguments)
    assert not ended.value.code, capsys.readouterr().err
    assert capsys.readouterr().out


def parse(name: str, arguments: list[str]) -> None:
    """Parses the arguments of a sub-command of `toolkit`."""
    command = command_of(name)
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    command.add_arguments(parser)
    parser.parse_intermixed_args(list(command.rewritten(arguments)))


@pytest.mark.parametrize("command", commands("toolkit"))
def test_commands_of_the_toolkit_parse(command: str) -> None:
    _, name, *arguments = shlex.split(command.split(" > ")[0], comments=True)
    parse(name, arguments)


@pytest.mark.parametrize(
    "command",
    re.findall(r"^\| [^|]+ \| `toolkit ([^`]+)`", (ROOT / "docs/i_have.md").read_text(encoding="utf-8"), re.M),
)
def test_the_commands_for_every_starting_point_parse(command: str) -> None:
    name, *arguments = shlex.split(command)
    parse(name, arguments)


@pytest.mark.parametrize("command", [*commands("toolkit train"), *trainings(), *docker_trainings()])
def test_trainings_are_valid(command: str, reader) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("recipe")
    parser.add_argument("--processes", type=int)
    words = shlex.split(command, comments=True)[2:]
    if "--config" not in words:
        parser = argparse.ArgumentParser(allow_abbrev=False)
        train.add_train(parser)
        parsed = parser.parse_intermixed_args(list(train.rewrite_train(words)))
        assert problems(parsed.recipe, {}, train.settings(parsed)) == []
        return
    arguments, rest = parser.parse_known_args(words)
    config, overrides = config_and_overrides(rest)
    assert problems(arguments.recipe, config_file(arguments.recipe, config), overrides) == []


@pytest.mark.parametrize("command", commands("accelerate launch"))
def test_launches_parse_and_their_settings_are_valid(command: str, reader) -> None:
    from accelerate.commands.launch import launch_command_parser

    launched = launch_command_parser().parse_args(shlex.split(command, comments=True)[2:])
    if launched.config_file is not None:
        assert Path(launched.config_file).is_file()
    if launched.module:
        assert launched.training_script == "toolkit"
        name, *arguments = launched.training_script_args
        parse(name, arguments)
    else:
        config, overrides = config_and_overrides(launched.training_script_args)
        assert problems(launched.training_script, config, overrides) == []


@pytest.mark.parametrize("command", commands(r"python recipes/\w+\.py"))
def test_recipes_are_run_as_they_say(command: str, reader) -> None:
    script, *arguments = shlex.split(command, comments=True)[1:]
    assert Path(script).is_file()
    assert arguments == ["--help"] or problems(script, *config_and_overrides(arguments)) == []


def test_every_kind_of_command_was_found() -> None:
    about_runs = ("predict", "evaluate", "certify", "plan", "runs", "diff", "reproduce", "checkpoint")
    kinds = ("init", "validate", "explain", "schema", *about_runs, "data")
    for program in (*(f"toolkit {kind}" for kind in kinds), "accelerate launch", "python recipes/", "make"):
        assert commands(program), program


def test_there_are_shipped_configurations_of_every_recipe() -> None:
    assert {path.parent.name for path in SHIPPED} >= {Path(recipe).stem for recipe in RECIPES}
    assert all((ROOT / "recipes" / f"{path.parent.name}.py").is_file() for path in SHIPPED)


@pytest.mark.parametrize("path", SHIPPED, ids=named)
def test_a_shipped_configuration_is_valid_and_explained(path: Path, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    assert path.read_text(encoding="utf-8").startswith("# ")
    assert problems(str(ROOT / "recipes" / f"{path.parent.name}.py"), path, []) == []
    page = (path.parent / "README.md").read_text(encoding="utf-8")
    assert f"## {path.name}\n" in page


def test_the_usual_models_of_every_task_are_shipped() -> None:
    yaml = YAML(typ="safe", pure=True)
    names = {yaml.load(path)["model"].get("name_or_path") for path in SHIPPED}
    assert names >= {
        "distilbert/distilbert-base-uncased",
        "facebook/wav2vec2-base",
        "google-t5/t5-small",
        "google/vit-base-patch16-224-in21k",
        "openai-community/gpt2",
        "openai/whisper-tiny",
    }


@pytest.mark.parametrize("name", whole_configs())
def test_a_whole_configuration_of_the_pages_is_valid(name: str, reader) -> None:
    recipe, _ = whole_configs()[name]
    assert problems(recipe, name, []) == []


SPACE = "# space.yaml\n"
"""How a space of `toolkit search` begins."""


def fragments() -> list[str]:
    return [b for b in all_blocks("yaml") if not re.search(r"^output_dir:", b, re.M) and not b.startswith(SPACE)]


def all_blocks(language: str) -> list[str]:
    return [block for page in pages() for block in blocks(page, language)]


def test_the_space_of_the_page_about_searching_is_valid(tmp_path: Path) -> None:
    (space,) = [block for block in all_blocks("yaml") if block.startswith(SPACE)]
    file = tmp_path / "space.yaml"
    file.write_text(space, encoding="utf-8")
    config = ROOT / "recipes" / "configs" / "reviews" / "smoke.yaml"
    assert len(read_space(file, shipped("reviews"), str(config), ())) == space.count("\n") - 1


@pytest.mark.parametrize("fragment", fragments())
def test_a_part_of_a_configuration_is_valid_in_a_whole_one(fragment: str, reader) -> None:
    yaml = YAML(typ="safe", pure=True)
    found = {}
    for recipe in RECIPES:
        for smoke in Path(f"recipes/configs/{Path(recipe).stem}").glob("smoke*.yaml"):
            whole: dict[str, Any] = yaml.load(smoke)
            for section, values in yaml.load(fragment).items():
                whole[section] = {**whole.get(section, {}), **values} if isinstance(values, dict) else values
            with Path("merged.yaml").open("w", encoding="utf-8") as file:
                yaml.dump(whole, file)
            found[str(smoke)] = wrong_settings(recipe, "merged.yaml", [])
            if not found[str(smoke)]:
                return
    pytest.fail(str(found))


def test_whole_configurations_and_parts_were_found() -> None:
    assert "my_reviews.yaml" in whole_configs()
    assert fragments()


def known_settings() -> set[str]:
    types = [field_types(section_types(shipped(ROOT / recipe).Options)) for recipe in RECIPES]
    return {".".join(key) for part in types for key in part}


def settings_named(text: str) -> Iterator[str]:
    sections = "task|model|data|train|eval|checkpoint|tracking"
    for code in re.findall(r"`([^`\n]+)`", text):
        yield from re.findall(rf"^(?:{sections})\.[a-z_0-9]+(?:\.[a-z_]+)*(?=$|[=: ])", code)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_settings_of_a_page_exist(page: Path) -> None:
    known = known_settings()
    used = set(settings_named(page.read_text(encoding="utf-8")))
    models, rows = ("onnx", "onnx.data", "pt2", "safetensors"), ("conll", "csv", "json", "jsonl", "txt")
    files = {f"model.{ending}" for ending in models} | {f"train.{ending}" for ending in rows}  # look alike
    assert {
        name for name in used - files if not any(f"{name}.".startswith(f"{key}.") for key in known if "." in key)
    } == set()


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith(("https://", "http://"))]
    for link in links:
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            links = re.findall(r"\]\(([^)\s#]+\.md)", page.read_text(encoding="utf-8"))
            waiting += [(page.parent / link).resolve() for link in links if "://" not in link]
    assert set(PAGES) - reached == set()


@pytest.mark.parametrize(
    "script",
    [
        "render_benchmarks",
        "render_commands",
        "render_cpu",
        "render_lessons",
        "render_python",
        "render_settings",
        pytest.param("render_strategies", marks=pytest.mark.slow),  # asks the checks about each strategy and task
        "render_switches",
        "render_unpadded",
    ],
)
def test_what_a_script_writes_into_a_page_is_that_of_the_code(script, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    page = import_module(script)
    assert page.rendered() == page.PAGE.read_text(encoding="utf-8"), f"run `python docs/{script}.py`"


@pytest.mark.parametrize("name", ["text", "images"])
def test_a_worked_example_is_that_of_its_figures(name, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    example = import_module("worked_example")
    walk = example.WALKS[name]
    page, pictures = example.rendered(walk, json.loads(example.figures_file(walk).read_text(encoding="utf-8")))
    assert page == example.page_file(walk).read_text(encoding="utf-8"), "run `python docs/worked_example.py`"
    for file, picture in pictures.items():
        assert picture == (example.PICTURES / file).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("script", "figures", "titles"),
    [("draw_strategies", "HELD", "STRATEGIES"), ("draw_explanations", "MEMORY", "SAVINGS")],
)
def test_pictures_are_those_of_the_code_and_its_figures(script, figures, titles, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    draw = import_module(script)
    found = json.loads(getattr(draw, figures).read_text(encoding="utf-8"))
    assert found.keys() == getattr(draw, titles).keys()
    for name, picture in draw.rendered(found).items():
        assert picture == (draw.PICTURES / name).read_text(encoding="utf-8"), f"run `python docs/{script}.py`"
