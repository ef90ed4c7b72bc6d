"""What is installed works in any folder without a network: the wheel has recipes, configurations and sample data."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from fake_hub import served
from fetch_runs import HUB_ALONE, YAML, make_hub
from offline_runs import Offline
from packages import install

pytestmark = pytest.mark.slow
FEW = ("train.max_steps=2", "eval.eval_steps=null", "checkpoint.save_steps=null")
TEXT = "the film was good"
WITHOUT_TOOLKIT = f"""
import runpy, sys
sys.modules["toolkit"] = None  # cannot be imported
sys.argv = ["colleague/predict.py", "--text", "{TEXT}"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
ASK = """
import sys
from urllib.request import Request, urlopen
address, rows = sys.argv[1:]
request = Request(f"{address}/predict", rows.encode(), {"Content-Type": "application/json"})
print(urlopen(request, timeout=300).read().decode())
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

    def serving(self, *arguments: object) -> AbstractContextManager[str]:
        """Runs the installed program, which serves; gives the address."""
        return self.offline.serving(self.package / "bin" / "toolkit", *arguments, path=self.package)


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


def test_a_fetched_run_is_trained_used_served_and_exported_and_then_needs_no_toolkit(
    installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_hub(tmp_path / "hub")
    (installed.folder / "run.yaml").write_text(YAML)
    run = ("reviews", "--config", "run.yaml")
    with served(tmp_path / "hub") as (address, _), monkeypatch.context() as online:
        for name, value in {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "online"), **HUB_ALONE}.items():
            online.setenv(name, value)
        installed.toolkit("fetch", *run, "--output", "fetched", "--prepare")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))  # that of another machine
    installed.toolkit("validate", *run, "offline_dir=fetched", "output_dir=run")
    installed.toolkit("train", *run, "offline_dir=fetched", "output_dir=run")
    told = installed.toolkit("predict", "run", "--input-text", TEXT)
    installed.toolkit("export", "run", "--format", "zip", "--output", "colleague.zip")
    with zipfile.ZipFile(installed.folder / "colleague.zip") as file:
        file.extractall(installed.folder / "colleague")
    answer = installed.offline.run("-c", WITHOUT_TOOLKIT).stdout.splitlines()
    assert answer[0] == "text,prediction,score"
    prediction, score = answer[1].split(",")[1:]
    assert f"prediction: {prediction}" in told
    assert f"score: {float(score):.4g}" in told
    rows = json.dumps({"rows": [{"text": TEXT}]})
    with installed.serving("serve", "run", "--port", "0") as address:
        (sent,) = json.loads(installed.python("-c", ASK, address, rows))["predictions"]
    assert (sent["prediction"], f"{sent['score']:.4g}") == (prediction, f"{float(score):.4g}")
