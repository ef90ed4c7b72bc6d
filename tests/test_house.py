"""The house rules: layout of the project's files, their size, style and imports."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from import_rules import circles, read_imports, upward
from launching import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SOURCES = sorted([*ROOT.glob("toolkit/**/*.py"), *ROOT.glob("recipes/**/*.py"), *ROOT.glob("benchmarks/**/*.py")])
LAUNCHER_FILES = sorted(ROOT.glob("accelerate_configs/*.yaml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

MAX_FILE_LINES = 900
LONG_FILE_LINES = 600
LONG_FILES = {"recipes/speech_recognition.py": "a recipe is one file, and this one trains two kinds of models"}
"""Files above `LONG_FILE_LINES`, and why: a longer file is an error unless it stands here."""
MAX_FUNCTION_LINES = 80
MAX_NESTING = 4
"""Blocks inside each other that branch, repeat or catch; `with` does none of these."""
MAX_MODULES = 12
SMALL_MODULE_LINES = 100
SMALL_MODULES = {
    "checks.trainer": "a user of the Trainer looks for it",
    "deploy.export.generating": "its source is part of the script of an export",
    "optim.lamb": "loaded by name",
    "tracking.mlflow": "loaded by name",
    "tracking.tensorboard": "loaded by name",
}
"""Modules of few lines that only a neighbour imports, and why they are files of their own."""


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def imports(path: Path) -> set[str]:
    """Returns the full names of all modules and objects that a file imports."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{named(path)}:{node.lineno}: a relative import; write the full name"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def within(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def num_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_long_files_have_a_reason_and_a_limit() -> None:
    lengths = {named(path): num_lines(path) for path in SOURCES}
    assert {name for name, length in lengths.items() if length > LONG_FILE_LINES} == set(LONG_FILES)
    assert max(lengths.values()) <= MAX_FILE_LINES


def test_folders_stay_small() -> None:
    modules = Counter(named(path.parent) for path in ROOT.glob("toolkit/**/*.py") if path.name != "__init__.py")
    assert {folder: number for folder, number in modules.items() if number > MAX_MODULES} == {}


def test_a_module_of_few_lines_has_more_than_one_user_or_a_reason() -> None:
    users: dict[str, set[str]] = defaultdict(set)
    for each in read_imports(ROOT / "toolkit"):
        users[each.target].add(each.source)
    small = {
        name.removeprefix("toolkit.")
        for name, importers in users.items()
        if (path := ROOT / f"{name.replace('.', '/')}.py").exists() and num_lines(path) < SMALL_MODULE_LINES
        if len(importers) == 1 and {importer.rpartition(".")[0] for importer in importers} == {name.rpartition(".")[0]}
    }
    assert small == set(SMALL_MODULES)


def nesting(node: ast.AST, inside: int = 0) -> int:
    """Returns how deep the blocks of a function are inside each other; an `elif` is not inside its `if`."""
    blocks = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.Match)
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    depths = [inside]
    for child in ast.iter_child_nodes(node):
        is_elif = isinstance(node, ast.If) and node.orelse == [child] and isinstance(child, ast.If)
        if not isinstance(child, functions):
            depths.append(nesting(child, inside + (isinstance(child, blocks) and not is_elif)))
    return max(depths)


def test_functions_stay_short() -> None:
    long = [
        f"{named(path)}:{node.lineno} {node.name}: {length} lines"
        for path in SOURCES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert long == []


def test_blocks_are_not_deep_inside_each_other() -> None:
    deep = [
        f"{named(path)}:{node.lineno} {node.name}"
        for path in SOURCES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and nesting(node) > MAX_NESTING
    ]
    assert deep == []


LAYERS = (
    *("base", "system", "catalog", "metrics", "config", "document", "api", "optim", "tracking", "data", "distributed"),
    *("checkpoint", "models", "modalities", "tasks", "footprint", "prepare", "engine", "checks", "report", "recipe"),
    *("run", "deploy", "main", "lab", "commands", "__init__", "__main__"),
)
"""The folders and loose files of toolkit/, from the ground up: an import goes down or stays where it is."""

MOST_LOOSE_FILES = 5


def test_imports_go_down_and_never_in_a_circle() -> None:
    found = read_imports(ROOT / "toolkit")
    assert {each.source.split(".")[1] for each in found if "." in each.source} >= {"run", "engine", "commands"}
    assert upward(found, LAYERS) == []
    assert circles(found) == []


def test_few_files_are_loose_and_every_layer_exists() -> None:
    loose = {path.stem for path in (ROOT / "toolkit").glob("*.py")}
    folders = {path.parent.name for path in (ROOT / "toolkit").glob("*/*.py")}
    assert len(loose) <= MOST_LOOSE_FILES
    assert loose | folders == set(LAYERS)


def section_rows(title: str) -> list[list[str]]:
    """Returns the cells of the table under a heading of CONTRIBUTING.md, without its header."""
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split(f"## {title}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("|")]
    return rows[2:]


def test_the_layers_of_contributing_are_those_of_the_code() -> None:
    rows = section_rows("Layers")
    assert [name.strip("`") for name, _ in rows] == list(LAYERS)
    assert all(contents for _, contents in rows)


def test_the_story_of_a_step_is_told_in_files_that_use_each_other() -> None:
    rows = section_rows("One training step, in six files")
    story = [re.findall(r"`(toolkit/[\w/]+\.py)`", file) for file, _ in rows]
    files = [ROOT / name for (name,) in story]
    assert len(files) == 6
    used = {path: {name.rpartition(".")[0] for name in imports(path)} for path in files}
    modules = {path: path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in files}
    assert {name for path in files[:3] for name in used[path]} >= {
        "toolkit.engine",
        modules[files[2]],
        modules[files[5]],
    }
    assert modules[files[4]] in used[files[3]]
    for path, (_, text) in zip(files, rows, strict=True):
        defined = {node.name for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        told = re.findall(r"`(\w+)`", text)
        assert told[0] in defined, path
        assert [
            name for name in told if name not in defined and f"{name}(" not in path.read_text(encoding="utf-8")
        ] == []


def test_dotted_names_in_words_are_those_of_the_code() -> None:
    """A name such as `toolkit.api.task.Task` in a docstring, a comment or a page leads somewhere."""
    names = {
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__"): path
        for path in ROOT.glob("toolkit/**/*.py")
    }
    files = [path for path in SOURCES if path.name != "recipe.py"]  # which names former modules
    pages = [path for path in ROOT.glob("docs/*.md") if path.name not in ("python.md", "python_reference.md")]
    lost = []
    for file in [*files, *pages, ROOT / "CONTRIBUTING.md"]:
        for name in re.findall(r"`(toolkit(?:\.\w+)+)`", file.read_text(encoding="utf-8")):
            parts = name.split(".")
            module, *rest = next(
                [".".join(parts[:end]), *parts[end:]]
                for end in range(len(parts), 0, -1)
                if ".".join(parts[:end]) in names
            )
            defined = rest == [] or re.search(rf"\b{rest[0]}\b", names[module].read_text(encoding="utf-8"))
            if not defined and name not in ("toolkit.train", "toolkit.load"):
                lost.append(f"{named(file)}: {name}")
    assert lost == []


def test_contributing_names_the_place_of_every_change() -> None:
    rows = section_rows("Where does a change go?")
    expected = {"task", "modality", "optimizer", "schedule", "strategy", "callback", "metric", "setting", "command"}
    assert {change for change, _ in rows} >= expected
    for change, where in rows:
        words = re.findall(r"`([^`]+)`", where)
        paths = [ROOT / word for word in words if "/" in word]
        assert paths, change
        assert [path for path in paths if not path.exists()] == [], change
        files = [path for place in paths for path in ([place] if place.is_file() else place.glob("*.py"))]
        code = "\n".join(path.read_text(encoding="utf-8") for path in files)
        assert [word for word in words if word.isupper() and not re.search(rf"^{word}\b", code, re.M)] == [], change


def test_tests_are_named_as_tests_and_helpers_live_in_support() -> None:
    files = [path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("*.py")]
    helpers = {path for path in files if not path.name.startswith("test_")}
    assert {path.name if path.name == "conftest.py" else path.parts[0] for path in helpers} == {
        "conftest.py",
        "data",
        "support",
    }
    assert {path.parts[0] for path in set(files) - helpers} >= {"contracts", "recipes", "unit", "docs"}
    assert "support" not in {path.parts[0] for path in set(files) - helpers}
    assert {path.parts[1] for path in files if path.parts[0] == "unit"} <= set(LAYERS)


def test_toolkit_never_imports_recipes() -> None:
    assert [
        named(path) for path in ROOT.glob("toolkit/**/*.py") for name in imports(path) if within(name, {"recipes"})
    ] == []


def test_settings_import_nothing_but_settings() -> None:
    files = ("fields", "train", "sections")
    own = {name for file in files for name in imports(ROOT / f"toolkit/config/{file}.py") if within(name, {"toolkit"})}
    assert [name for name in own if not within(name, {f"toolkit.config.{file}" for file in files})] == []


TASK_WORDS = {
    *("answer", "answers", "audio", "bleu", "image", "images", "pixel", "qa", "question"),
    *("review", "reviews", "speech", "squad", "translation"),
}


def words(node: ast.AST) -> Iterator[str]:
    """Returns the words in all names and strings of a syntax tree, except docstrings."""
    docstrings = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant):
            docstrings.add(part.value)
        for value in vars(part).values():
            if isinstance(value, str) and part not in docstrings:
                yield from re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", value).lower())


ENGINE_FILES = sorted(ROOT.glob("toolkit/engine/**/*.py"))


@pytest.mark.parametrize("path", ENGINE_FILES, ids=named)
def test_engines_know_no_task_and_no_modality(path: Path) -> None:
    assert TASK_WORDS.isdisjoint(words(tree(path)))
    assert [name for name in imports(path) if within(name, {"recipes", "toolkit.modalities"})] == []


MOST_SHARED_LINES = 5


def logic(path: Path) -> Iterator[str]:
    """Returns the normalised lines of a file's functions, without signatures, docstrings and imports."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[ast.get_docstring(node) is not None :]
            statements = [part for part in body if not isinstance(part, ast.Import | ast.ImportFrom)]
            yield from (line.strip() for part in statements for line in ast.unparse(part).splitlines())


def test_no_two_recipes_share_their_logic() -> None:
    size, found = MOST_SHARED_LINES + 1, {}
    for path in sorted(ROOT.glob("recipes/*.py")):
        lines = list(logic(path))
        assert lines, named(path)
        found[named(path)] = {tuple(lines[i : i + size]) for i in range(len(lines) - size + 1)}
    shared = {(a, b): found[a] & found[b] for a in found for b in found if a < b}
    assert {pair: runs for pair, runs in shared.items() if runs} == {}


@pytest.mark.parametrize("path", LAUNCHER_FILES, ids=named)
def test_a_launcher_file_says_how_to_use_it_and_leaves_the_run_alone(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert f"accelerate launch --config_file {named(path)}" in text.split("compute_environment")[0]
    assert "gradient_accumulation_steps" not in text
    config = load_config_from_file(str(path))  # accelerate's own reader: unknown keys are errors
    assert config.mixed_precision is None


def test_every_launcher_file_is_there() -> None:
    assert {path.stem for path in LAUNCHER_FILES} >= {"cpu", "cpu_2proc", "single_gpu", "ddp", "multi_node"}


def code_blocks() -> str:
    return "\n".join(
        re.findall(r"^```[a-z]*\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    )


MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def test_ci_ends_with_the_tests_of_the_readme() -> None:
    lines = re.findall(r"^make ([^#\n]+)", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.M)
    commands = [word for line in lines for word in line.split() if not word.startswith("--")]
    assert set(commands) == {"quality", "smoke", "test-slow", "test-deepspeed", "test-faults", "test"}
    assert lines[-1] == "test"
    assert re.search(r"^make test( |$)", code_blocks(), re.M)
    assert set(commands) <= MAKE_TARGETS


def test_the_make_targets_of_the_readme_exist() -> None:
    used = {word for line in re.findall(r"^\s*(?:\$ )?make ([a-z -]+)", code_blocks(), re.M) for word in line.split()}
    assert used >= {"demo", "test"}
    assert used <= MAKE_TARGETS


def test_the_commands_of_the_readme_exist() -> None:
    help_text = subprocess.run(
        [sys.executable, "-m", "toolkit", "--help"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    used = set(re.findall(r"^\s*(?:\$ )?toolkit ([a-z]+)", code_blocks(), re.M))
    assert used
    assert {name for name in used if not re.search(rf"\b{name}\b", help_text)} == set()


EVERY_HELP = """
import sys
from toolkit.commands.cli import COMMANDS, main

for name in COMMANDS:
    try:
        main([name, "--help"])
    except SystemExit as ended:
        assert ended.code == 0, name
    heavy = {"accelerate", "datasets", "numpy", "torch", "transformers"} & sys.modules.keys()
    assert not heavy, (name, heavy)
"""


def test_the_help_of_commands_imports_no_heavy_library() -> None:
    subprocess.run([sys.executable, "-c", EVERY_HELP], capture_output=True, text=True, check=True, cwd=ROOT)


def test_dependencies_are_what_the_code_imports() -> None:
    distributions = importlib.metadata.packages_distributions()
    top_level = {name.split(".")[0] for path in SOURCES for name in imports(path)}
    ours = {"toolkit", "recipes", *(path.stem for path in ROOT.glob("benchmarks/*"))}
    imported = {
        canonicalize_name(distribution)
        for name in top_level - sys.stdlib_module_names - ours - {"__future__"}
        for distribution in distributions.get(name, [name])
    }
    declared = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    extras = {extra: lines for extra, lines in PROJECT["optional-dependencies"].items() if extra != "dev"}
    optional = {canonicalize_name(Requirement(line).name) for lines in extras.values() for line in lines}
    assert imported - {"mlflow-skinny"} <= declared | optional  # the part of mlflow that `dev` has
    assert declared - imported <= {"sentencepiece"}  # transformers imports it for some tokenizers


def test_constraints_pin_every_dependency_within_its_range() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {
        canonicalize_name(name): version for name, version in (line.split("==") for line in lines if line[0] != "#")
    }
    for requirement in map(Requirement, [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), str(requirement)


def test_no_file_names_a_path_of_one_machine() -> None:
    folders = ["toolkit", "recipes", "tests", "benchmarks", "docs", "accelerate_configs", ".ci"]
    suffixes = {".py", ".md", ".yaml", ".toml", ".txt", ".json", ".jsonl", ".csv", ""}
    paths = [*ROOT.iterdir(), *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    machine_path = re.compile(rf"(?<![\w.])/(?:home|root|Users|work)/\w|{re.escape(str(ROOT))}\b")
    found = [
        f"{named(path)}: {match.group()}"
        for path in paths
        if path.is_file() and path.suffix in suffixes and path.name != ".git"  # a file in a git worktree
        for match in machine_path.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []
