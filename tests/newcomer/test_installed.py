"""What is installed works in any folder without a network: the wheel has recipes, configurations and sample data."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from offline_runs import Offline
from packages import install

pytestmark = pytest.mark.slow
FEW = ("train.max_steps=2", "eval.eval_steps=null", "checkpoint.save_steps=null")
WITHOUT_TOOLKIT = """
import runpy, sys
sys.modules["toolkit"] = None  # cannot be imported
sys.argv = ["colleague/predict.py", "--text", "Dry feet at last."]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def package(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the wheel alone, without what it depends on."""
    return install(wheel, tmp_path_factory.mktemp("installed") / "package")


class Installed:
    """The wheel alone on the path of an empty folder, without a network."""

    def __init__(self, package: Path, tmp_path: Path):
        self.package, self.folder = package, tmp_path / "empty"
        self.folder.mkdir()
        self.offline = Offline(self.folder, tmp_path / "attempts")

    def toolkit(self, *arguments: object) -> str:
        """Runs the installed program; returns what it prints."""
        return self.python(self.package / "bin" / "toolkit", *arguments)

    def python(self, *arguments: object) -> str:
        """Runs Python; returns what it prints."""
        return self.offline.run(*arguments, path=self.package).stdout


@pytest.fixture
def installed(package: Path, tmp_path: Path) -> Iterator[Installed]:
    """Returns the installed toolkit; at the end, nothing must have been asked of a network."""
    installed = Installed(package, tmp_path)
    yield installed
    assert installed.offline.attempts() == ""


def test_a_copied_recipe_is_valid_and_trains(installed: Installed) -> None:
    where = installed.python("-c", "import toolkit; print(toolkit.__file__)").strip()
    assert Path(where).is_relative_to(installed.package)
    assert "agxqa" in installed.toolkit("ls")
    installed.toolkit("cp", "qa", "my_qa")
    configured = ("my_qa/qa.py", "--config", "my_qa/configs/qa/smoke.yaml")
    installed.toolkit("validate", *configured)
    installed.python("-m", "accelerate.commands.launch", "--cpu", *configured, "output_dir=copied", *FEW)
    assert (installed.folder / "copied" / "model" / "model.safetensors").is_file()


def test_a_run_is_used_and_exported_and_then_needs_no_toolkit(installed: Installed) -> None:
    installed.toolkit("train", "reviews", "--config", "smoke", "output_dir=run", *FEW)
    told = installed.toolkit("predict", "run", "--input-text", "Dry feet at last.")
    installed.toolkit("export", "run", "--format", "zip", "--output", "colleague.zip")
    with zipfile.ZipFile(installed.folder / "colleague.zip") as file:
        file.extractall(installed.folder / "colleague")
    answer = installed.offline.run("-c", WITHOUT_TOOLKIT).stdout.splitlines()
    assert answer[0] == "text,prediction,score"
    prediction, score = answer[1].split(",")[1:]
    assert f"prediction: {prediction}" in told
    assert f"score: {float(score):.4g}" in told
