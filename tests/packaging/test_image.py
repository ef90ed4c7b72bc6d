"""The Dockerfile: what can be checked without building it, and what its steps without a network do."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from commands import run_command
from deployed import docker_commands, given, in_images, stages
from launching import ROOT
from packages import content
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from runs import train

from toolkit.commands.cli import command_of

FINAL = ("cpu", "cuda")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINS = {
    canonicalize_name(line.partition("==")[0])
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
}


def copies(stage: str) -> list[tuple[list[str], str]]:
    """Returns sources and target of each `COPY` of files of the repository."""
    return [(words[:-1], words[-1]) for text in given(stage, "COPY") if "--from" not in (words := shlex.split(text))]


def copied(stage: str, folder: Path) -> Path:
    """Copies into a folder what a stage copies into its own."""
    for sources, target in copies(stage):
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, folder / target)
            else:
                shutil.copy(ROOT / source, folder / target)
    return folder


def installs(stage: str) -> list[list[str]]:
    """Returns the words after `pip install` of each installation of a stage."""
    return [shlex.split(text.split("pip install ")[1]) for text in given(stage, "RUN") if "pip install " in text]


def test_it_has_a_stage_for_cpus_and_one_for_gpus_on_an_image_with_a_tag() -> None:
    assert set(stages()) >= {*FINAL}
    bases = {text.split(" AS ")[0] for stage in stages() for text in given(stage, "FROM")} - set(stages())
    assert len(bases) == 1
    image, _, tag = bases.pop().partition(":")
    python = re.match(r"3\.\d+", tag)
    assert (image, python is not None) == ("python", True)
    assert f"Programming Language :: Python :: {python[0] if python else ''}" in PROJECT["classifiers"]


@pytest.mark.parametrize("stage", stages())
def test_what_is_copied_exists_and_is_not_ignored(stage: str) -> None:
    ignored, *kept = [
        line for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] not in ("", "#")
    ]
    assert ignored == "*"
    allowed = {line[1:] for line in kept if line.startswith("!")}
    for sources, _ in copies(stage):
        assert [each for each in sources if not (ROOT / each).exists()] == []
        assert {Path(each).parts[0] for each in sources} <= allowed
    assert allowed <= {path.name for path in ROOT.iterdir()}


@pytest.mark.parametrize("stage", FINAL)
def test_versions_are_those_of_the_constraints_and_layers_go_from_rare_to_frequent_changes(stage: str) -> None:
    torch, requirements, toolkit = installs(stage)
    for words in (torch, requirements):
        assert words[words.index("--constraint") + 1] == "/build/constraints.txt"
    assert torch[-1] == "torch"
    assert requirements[-1] == "/build/requirements.txt"
    assert toolkit == ["--no-deps", "/dist/*.whl"]
    runs = given(stage, "RUN")
    assert [re.findall(r"from=(\w+)", text) for text in runs[-3:]] == [["requirements"], ["requirements"], ["wheel"]]
    assert given(stage, "COPY") == []  # the code reaches the image as a wheel
    assert "==" not in (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert ("https://download.pytorch.org/whl/cpu" in torch) == (stage == "cpu")


@pytest.mark.parametrize("stage", FINAL)
def test_it_runs_the_toolkit_as_a_user_and_keeps_no_cache(stage: str, capsys) -> None:
    (made,) = [text for text in given(stage, "RUN") if text.startswith("useradd ")]
    assert given(stage, "USER") == [f"{made.split('--uid ')[1].split()[0]}:1000"] == ["1000:1000"]
    assert f"HOME={given(stage, 'WORKDIR')[0]} " in given(stage, "ENV")[0]  # also for a user that it does not know
    assert given(stage, "WORKDIR") == [made.split("--home-dir ")[1].split()[0]]
    assert stages()[stage][-1].name == "USER"
    assert "PIP_NO_CACHE_DIR=1" in given(stage, "ENV")[0]
    for text in given(stage, "RUN"):
        assert "apt-get install" not in text or text.endswith("&& rm -rf /var/lib/apt/lists/*")
    assert json.loads(given(stage, "ENTRYPOINT")[-1]) == ["tini", "--", "toolkit"]
    assert run_command(*json.loads(given(stage, "CMD")[-1])) == 0
    assert "usage: toolkit" in capsys.readouterr().out


def test_the_requirements_are_those_of_the_project_and_pinned(tmp_path: Path) -> None:
    folder = copied("requirements", tmp_path)
    (extras,) = (shlex.split(text.partition("=")[2])[0] for text in given("requirements", "ARG"))
    (step,) = [text for text in given("requirements", "RUN") if text.startswith("python ")]
    command = step.removeprefix("python").replace("${EXTRAS}", extras)
    subprocess.run(["bash", "-c", f"{shlex.quote(sys.executable)}{command}"], cwd=folder, check=True)
    wanted = (folder / "requirements.txt").read_text(encoding="utf-8").splitlines()
    optional = PROJECT["optional-dependencies"]
    assert wanted == [*PROJECT["dependencies"], *(line for extra in extras.split() for line in optional[extra])]
    assert {canonicalize_name(Requirement(line).name) for line in wanted} <= PINS


def test_the_page_about_images_builds_and_runs_what_there_is() -> None:
    builds = [words for words in docker_commands("build") if "--target" in words]
    assert {words[words.index("--target") + 1] for words in builds} == set(FINAL)
    assert all(f"finetune-toolkit:{words[words.index('--target') + 1]}" in words for words in builds)
    images = {word for words in docker_commands("run") for word in words if word.startswith("finetune-toolkit:")}
    assert images == {f"finetune-toolkit:{stage}" for stage in FINAL}
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    (extras,) = re.findall(r'--build-arg EXTRAS="([\w ]+)"', page)
    assert set(extras.split()) <= PROJECT["optional-dependencies"].keys()


def test_an_extra_that_does_not_exist_is_named() -> None:
    script = ROOT / "deploy" / "requirements.py"
    done = subprocess.run([sys.executable, script, "peft", "pft"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("pyproject.toml: no extra pft; there are: dev, ")


@pytest.mark.slow
def test_its_wheel_is_that_of_the_repository(wheel: Path, tmp_path: Path) -> None:
    folder = copied("wheel", tmp_path)
    (step,) = [text for text in given("wheel", "RUN") if text.startswith("pip wheel ")]
    subprocess.run([sys.executable, "-m", *shlex.split(step)], cwd=folder, check=True, capture_output=True)
    (built,) = (folder / "dist").glob("*.whl")
    assert content(built) == content(wheel)


SERVED = {
    name: [text for each, text in stages("deploy/serve.Dockerfile")["finetune-toolkit:cpu"] if each == name]
    for name in ("FROM", "WORKDIR", "COPY", "HEALTHCHECK", "CMD", "EXPOSE")
}
"""Instructions of the image with a run inside."""


def test_the_image_that_serves_a_run_has_all_that_is_read(tmp_path: Path, capsys) -> None:
    train("reviews", tmp_path / "run", "train.max_steps=1", "data.max_train_samples=8", "data.max_eval_samples=4")
    (place,) = SERVED["WORKDIR"]
    inside = tmp_path / place.strip("/")
    inside.mkdir(parents=True)
    for text in SERVED["COPY"]:
        *sources, target = shlex.split(text)
        for source in sources:
            whole = tmp_path / "run" / source
            (shutil.copytree if whole.is_dir() else shutil.copy)(whole, inside / target)
    shutil.rmtree(tmp_path / "run")
    assert run_command("predict", inside, "--input-text", "A fine pair of boots.") == 0
    assert "prediction: " in capsys.readouterr().out
    serving = [json.loads(SERVED["CMD"][-1]), *(words[1:] for words in in_images() if words[1] == "serve")]
    assert len(serving) == 2
    for words in serving:
        parser = argparse.ArgumentParser(allow_abbrev=False)
        command_of("serve").add_arguments(parser)
        parsed = parser.parse_intermixed_args(words[1:])
        assert (parsed.run, parsed.host, [str(parsed.port)]) == (place, "0.0.0.0", SERVED["EXPOSE"])
    assert "serve" in given("requirements", "ARG")[0]


@pytest.mark.parametrize("status", [200, 503])
def test_the_health_check_is_that_of_the_server(status: int) -> None:
    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Health) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        _, _, check = SERVED["HEALTHCHECK"][0].partition("CMD ")
        python, *words = json.loads(check.replace(f":{SERVED['EXPOSE'][0]}/", f":{server.server_port}/"))
        assert python == "python"
        done = subprocess.run([sys.executable, *words], capture_output=True, check=False)
        server.shutdown()
    assert done.returncode == (0 if status == 200 else 1)
