"""The files that start the toolkit elsewhere, as their programs would read them: image, Job, cloud task, workflow."""

from __future__ import annotations

import re
import shlex
from functools import cache
from typing import Any, NamedTuple

from launching import ROOT
from ruamel.yaml import YAML


class Instruction(NamedTuple):
    """One instruction of a Dockerfile: its name in capitals and the rest of its line."""

    name: str
    text: str


def read_yaml(name: str) -> Any:
    return YAML(typ="safe", pure=True).load(ROOT / name)


def the_job() -> dict[str, Any]:
    return read_yaml("deploy/kubernetes/job.yaml")


def the_pod() -> dict[str, Any]:
    return the_job()["spec"]["template"]["spec"]


@cache
def stages(file: str = "Dockerfile") -> dict[str, list[Instruction]]:
    """Returns the instructions of each stage of a Dockerfile, `FROM` included, with the values of early arguments."""
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    found: dict[str, list[Instruction]] = {}
    early: dict[str, str] = {}
    for line in filter(str.strip, text.splitlines()):
        name, _, rest = line.strip().partition(" ")
        if name == "FROM":
            rest = re.sub(r"\$\{(\w+)\}", lambda match: early[match[1]], rest)
            found[rest.split(" AS ")[-1]] = []
        elif not found:
            assert name == "ARG"
            key, _, value = rest.partition("=")
            early[key] = value
            continue
        found[list(found)[-1]].append(Instruction(name, " ".join(rest.split())))
    return found


def given(stage: str, name: str) -> list[str]:
    """Returns the texts of a stage's instructions of one name, those of the stages that it builds on first."""
    (start,) = [each.text for each in stages()[stage] if each.name == "FROM"]
    image = start.split(" AS ")[0]
    own = [each.text for each in stages()[stage] if each.name == name]
    return own if name == "FROM" or image not in stages() else [*given(image, name), *own]


def trainings() -> list[str]:
    """Returns the commands that train, as one would type them."""
    (container,) = the_pod()["containers"]
    script = read_yaml("deploy/sky.yaml")["run"].replace("\\\n", " ")
    (line,) = [line for line in script.splitlines() if "toolkit train " in line]
    return [shlex.join(["toolkit", *container["args"]]), " ".join(line[line.index("toolkit train ") :].split())]


def docker_commands(name: str) -> list[list[str]]:
    """Returns the words after `docker <name>` in the page about images."""
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8").replace("\\\n", " ")
    return [shlex.split(line) for line in re.findall(rf"^docker {name} (.+)$", page, re.M)]


def docker_trainings() -> list[str]:
    """Returns the trainings that are run in an image, as one would type them without it."""
    return [shlex.join(words) for words in in_images() if words[1] == "train"]


def in_images() -> list[list[str]]:
    """Returns the words of the commands that are run in an image of the toolkit, as one would type them without it."""
    runs = [words for words in docker_commands("run") if any(word.startswith("finetune-toolkit:") for word in words)]
    starts = [next(i for i, word in enumerate(words) if word.startswith("finetune-toolkit:")) for words in runs]
    return [["toolkit", *words[start + 1 :]] for words, start in zip(runs, starts, strict=True)]
