"""The wheel has the code and what it needs, and nothing else; the source distribution builds the same wheel."""

from __future__ import annotations

import email
import zipfile
from pathlib import Path

import pytest
from launching import ROOT
from packages import build_source, build_wheel, content, copy_repository, repository_files

from toolkit.base.version import __version__

PACKED = {"toolkit/": "toolkit/", "recipes/": "toolkit/shipped/recipes/",
          "accelerate_configs/": "toolkit/shipped/accelerate_configs/"}  # fmt: skip
"""Folders of the repository, and where they are in the wheel."""
ABOUT = f"finetune_toolkit-{__version__}.dist-info/"
MESS = ("toolkit/base/__pycache__/errors.cpython-311.pyc", "outputs/run/model/model.safetensors", ".venv/pyvenv.cfg",
        "recipes/data/reviews/__pycache__/x.pyc", "recipes/outputs/run.json", "tests/newcomer/test_more.py",
        "toolkit/notes.txt", "data/squad/train.json")  # fmt: skip
"""Files that are in the folders of people who work here."""


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    expected = {
        there + name.removeprefix(here)
        for name in repository_files()
        for here, there in PACKED.items()
        if name.startswith(here)
    }
    found = set(content(wheel))
    assert {name for name in found if not name.startswith(ABOUT)} == expected
    about = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt")
    assert {name for name in found if name.startswith(ABOUT)} == {ABOUT + name for name in about}
    assert expected >= {
        "toolkit/py.typed", "toolkit/shipped/recipes/qa.py", "toolkit/shipped/recipes/configs/qa/smoke.yaml",
        "toolkit/shipped/recipes/data/reviews/train.csv", "toolkit/document/templates/page.html",
    }  # fmt: skip


def test_its_files_are_those_of_the_repository(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        assert file.read("toolkit/shipped/recipes/qa.py") == (ROOT / "recipes" / "qa.py").read_bytes()
        assert file.read(f"{ABOUT}licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
        about = email.message_from_bytes(file.read(f"{ABOUT}METADATA"))
        assert file.read(f"{ABOUT}entry_points.txt").decode() == (
            "[console_scripts]\ntoolkit = toolkit.commands.cli:main\n"
        )
        assert b"Root-Is-Purelib: true" in file.read(f"{ABOUT}WHEEL")
    assert (about["Name"], about["Version"]) == ("finetune-toolkit", __version__)
    assert (about["License-Expression"], about["Requires-Python"]) == ("Apache-2.0", ">=3.11")
    assert about["Description-Content-Type"] == "text/markdown"


@pytest.mark.slow  # three builds
def test_what_lies_about_stays_out_and_the_source_distribution_builds_the_same(wheel: Path, tmp_path: Path) -> None:
    source = copy_repository(tmp_path / "repository")
    for name in MESS:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("mess")
    assert content(build_wheel(source, tmp_path / "direct")) == content(wheel)
    unpacked = build_source(source, tmp_path / "dist")
    names = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    assert names.isdisjoint(MESS)
    assert names >= {"LICENSE", "README.md", "CHANGELOG.md", "constraints.txt", "pyproject.toml", "setup.py"}
    assert {name for name in names if name.startswith("tests/")} == set()
    assert content(build_wheel(unpacked, tmp_path / "wheel")) == content(wheel)
