"""What is installed works in any folder: recipes, configurations and sample data are part of the package."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from launching import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder with the files of the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", folder / "lib", "egg_info", "-e", folder]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder / "lib"


def test_a_run_of_the_package_is_exported_and_used_without_it(package: Path, tmp_path: Path) -> None:
    def run(*arguments: object, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, *map(str, arguments)], cwd=tmp_path, env=os.environ | environment, text=True,
            capture_output=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    installed = {"PYTHONPATH": str(package)}
    assert run("-c", "import toolkit; print(toolkit.__file__)", **installed).startswith(str(package))
    few = ("train.max_steps=2", "eval.eval_steps=null", "checkpoint.save_steps=null")
    assert "agxqa" in run("-m", "toolkit", "ls", **installed)
    run("-m", "toolkit", "cp", "qa", "my_qa", **installed)
    launched = ("-m", "accelerate.commands.launch", "--cpu", "my_qa/qa.py", "--config", "my_qa/configs/qa/smoke.yaml")
    run(*launched, "output_dir=copied", *few, **installed)
    assert (tmp_path / "copied" / "model" / "model.safetensors").is_file()
    run("-m", "toolkit", "train", "reviews", "--config", "smoke", "output_dir=run", *few, **installed)
    told = run("-m", "toolkit", "predict", "run", "--input-text", "Dry feet at last.", **installed)
    run("-m", "toolkit", "export", "run", "--format", "zip", "--output", "colleague.zip", **installed)
    with zipfile.ZipFile(tmp_path / "colleague.zip") as file:
        file.extractall(tmp_path / "colleague")
    blocked = (
        "import sys; sys.modules['toolkit'] = None; import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    script = f"import sys; sys.argv = ['colleague/predict.py', *sys.argv[1:]]; {blocked}"
    answer = run("-c", script, "--text", "Dry feet at last.").splitlines()
    assert answer[0] == "text,prediction,score"
    prediction, score = answer[1].split(",")[1:]
    assert f"prediction: {prediction}" in told
    assert f"score: {float(score):.4g}" in told
