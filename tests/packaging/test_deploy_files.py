"""The Kubernetes Job, the SkyPilot task and the dev container: the fields on which a resumed training depends."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from typing import Any

import pytest
from deployed import given, read_yaml, stages, the_job, the_pod, trainings
from launching import ROOT

from toolkit.base.version import __version__

STOPPED, MISTAKE = 143, 2  # exit codes: after SIGTERM and a checkpoint, and for a wrong setting (docs/configuration.md)
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
TASK: dict[str, Any] = read_yaml("deploy/sky.yaml")


def bytes_of(quantity: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", quantity).groups()
    return int(number) << {"Mi": 20, "Gi": 30}[unit]


def the_container() -> dict[str, Any]:
    (container,) = the_pod()["containers"]
    return container


def test_the_job_makes_a_new_pod_for_what_another_pod_can_go_on_with() -> None:
    job = the_job()
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", job["metadata"]["name"])
    spec = job["spec"]
    assert the_pod()["restartPolicy"] == "Never"  # a policy for failed pods needs it
    assert spec["podReplacementPolicy"] == "Failed"  # two pods would want the same output folder
    assert spec["backoffLimit"] > 0
    rules = spec["podFailurePolicy"]["rules"]
    codes = {rule["action"]: rule["onExitCodes"] for rule in rules if "onExitCodes" in rule}
    assert {action: (each["operator"], each["values"]) for action, each in codes.items()} == {
        "FailJob": ("In", [MISTAKE]), "Ignore": ("In", [STOPPED]),
    }  # fmt: skip
    assert {each["containerName"] for each in codes.values()} == {the_container()["name"]}
    conditions = [rule for rule in rules if "onPodConditions" in rule]
    assert conditions == [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]


def test_the_pod_has_time_to_save_memory_to_share_and_no_rights() -> None:
    pod, container = the_pod(), the_container()
    assert pod["terminationGracePeriodSeconds"] >= 300  # Kubernetes would wait 30 s
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    (folder,) = given("cuda", "WORKDIR")
    assert mounts.keys() == {folder, "/dev/shm"}
    assert container["workingDir"] == folder
    assert {"name": "HOME", "value": folder} in container["env"]
    assert "persistentVolumeClaim" in mounts[folder]
    shared = mounts["/dev/shm"]["emptyDir"]
    resources = container["resources"]
    assert shared["medium"] == "Memory"
    assert bytes_of(shared["sizeLimit"]) <= bytes_of(resources["limits"]["memory"]) // 2
    assert resources["requests"] == resources["limits"]
    user = ":".join(str(pod["securityContext"][name]) for name in ("runAsUser", "runAsGroup"))
    assert [user] == given("cuda", "USER")
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert pod["automountServiceAccountToken"] is False


def test_the_image_of_the_job_is_one_of_this_version() -> None:
    tag = the_container()["image"].rpartition(":")[2]
    version, _, stage = tag.partition("-")
    assert version == __version__
    assert stage in stages()
    assert ("nvidia.com/gpu" in the_container()["resources"]["limits"]) == (stage == "cuda")


@pytest.mark.parametrize("command", trainings())
def test_a_training_that_may_be_stopped_resumes_and_saves(command: str) -> None:
    words = shlex.split(command)
    assert "checkpoint.resume=auto" in words
    assert any(re.fullmatch(r"checkpoint\.save_steps=\d+", word) for word in words)


def test_the_cloud_task_goes_on_after_a_preemption_from_outputs_that_outlive_the_machine() -> None:
    resources = TASK["resources"]
    assert resources["use_spot"] is True
    assert resources["job_recovery"]["recover_on_exit_codes"] == [STOPPED]
    assert MISTAKE not in resources["job_recovery"]["recover_on_exit_codes"]
    ((folder, mount),) = TASK["file_mounts"].items()
    assert mount["mode"] == "MOUNT_CACHED"
    assert re.search(rf"\boutput_dir={folder}/", TASK["run"])


def test_the_cloud_task_installs_the_tested_versions() -> None:
    for script in (TASK["setup"], TASK["run"]):
        subprocess.run(["bash", "-n", "-c", script], check=True)
    assert "--constraint constraints.txt" in TASK["setup"]
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", TASK["setup"])
    assert set(extras.split(",")) <= EXTRAS.keys()
    (python,) = re.findall(r"--python (\S+) (\S+)$", TASK["setup"], re.M)
    assert python == ("3.11", "~/toolkit")
    assert "~/toolkit/bin/toolkit " in TASK["run"]


def test_the_dev_container_sets_up_what_make_does() -> None:
    dev = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    assert re.search(r":\d+-3\.11-\w+$", dev["image"])
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    target = dev["postCreateCommand"].removeprefix("make ")
    assert re.search(rf"^{target}:", makefile, re.M)
    settings = dev["customizations"]["vscode"]["settings"]
    assert "\nBIN := .venv/bin\n" in makefile
    assert settings["python.defaultInterpreterPath"] == "${containerWorkspaceFolder}/.venv/bin/python"
    assert dev["remoteUser"] != "root"
    assert dev["containerEnv"] == read_yaml(".github/workflows/ci.yml")["env"]  # the index of CPU builds
