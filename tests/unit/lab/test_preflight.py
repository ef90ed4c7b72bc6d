"""A machine is checked before a run: everything that is missing is in one list, and a machine without faults passes."""

from __future__ import annotations

import shutil
import socket
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import run_command
from runs import ROOT

from toolkit.config.sections import TrackingConfig
from toolkit.lab import preflight
from toolkit.lab.preflight import Needs

CONFIG = ["reviews", "--config", f"{ROOT}/recipes/configs/reviews/smoke.yaml"]
Usage = namedtuple("Usage", "total used free")
GIB = 2**30


def problems(found: Any) -> list[str]:
    return [problem for each in found for problem in each.problems]


@pytest.fixture
def settings(tmp_path: Path) -> Any:
    """Returns settings whose output folder is in a new folder."""
    from toolkit.recipe import load_settings, load_task_type

    return load_settings(load_task_type("reviews"), CONFIG[2], [f"output_dir={tmp_path}/run"]).config


def test_a_machine_without_faults_passes(tmp_path, capsys):
    assert run_command("preflight", *CONFIG, "--processes", "2", f"output_dir={tmp_path}/run") == 0
    said = capsys.readouterr().out
    lines = {line.strip().split("  ")[0] for line in said.splitlines()}
    assert lines >= {"processes", "output_dir", "cache", "temporary folder", "GPUs", "memory", "cores"}
    assert "smoke.yaml: this machine can start the run" in said
    assert "sizes in parallel" not in said
    assert not any(tmp_path.iterdir())


def test_all_problems_are_in_one_list(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(GIB, GIB, 1000))
    monkeypatch.setattr("toolkit.data.staging.room_problem", lambda *_: "data.stage_to: the copies need much")
    with socket.create_server(("", 0)) as taken:
        number = taken.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(number))
        wrong = ["tracking.report_to=[wandb]", f"output_dir={tmp_path}/run", "train.mixed_precision=fp16"]
        wrong += [f"data.stage_to={tmp_path}/stage"]
        monkeypatch.delenv("WANDB_MODE", raising=False)
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{_closed_port()}")
        assert run_command("preflight", *CONFIG, *wrong) == 2
    said = capsys.readouterr().err
    for message in (
        "train.mixed_precision",
        "output_dir: 0.977 KiB are free",
        "cache: 0.977 KiB are free",
        "temporary folder: 0.977 KiB are free",
        "data.stage_to: the copies need much",
        f"port {number}, where the processes meet, cannot be used (Address already in use)",
        "tracking.report_to: wandb cannot reach 127.0.0.1",
        "set WANDB_MODE to offline",
    ):
        assert message in said


def _closed_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def test_processes_that_the_model_or_the_layout_do_not_allow(tmp_path, capsys):
    given = [*CONFIG, "--processes", "3", f"output_dir={tmp_path}/run", "parallel.tensor=2"]
    assert run_command("preflight", *given) == 2
    assert "parallel" in capsys.readouterr().err


def test_space_inodes_and_shared_memory(settings, monkeypatch):
    plenty = Needs(1, disk=1000, files=100, shared=1000)
    assert problems(preflight.folders(settings, plenty)) == []
    with monkeypatch.context() as patched:
        patched.setattr(preflight, "free_inodes", lambda folder: 7)
        first, *_ = problems(preflight.folders(settings, plenty))
        assert first.startswith("output_dir: the file system of ")
        assert "room for 7 more files (inodes), and about 100 are needed" in first
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(GIB, 0, GIB))
    huge = Needs(1, disk=2 * GIB, shared=3 * GIB)
    output, shared = problems(preflight.folders(settings, huge))
    assert "1 GiB are free in" in output
    assert "about 2 GiB are needed" in output
    assert shared.startswith("/dev/shm: 1 GiB are free, and data loader workers hold about 3 GiB")


def test_folders_that_cannot_be_written_or_locked(settings, monkeypatch):
    import datasets
    import filelock

    class NoLocks:
        def __init__(self, *arguments: object, **options: object) -> None:
            raise NotImplementedError

    monkeypatch.setattr(filelock, "FileLock", NoLocks)
    (problem,) = problems(preflight.folders(settings, Needs(1)))
    assert problem.startswith("cache: the file system of ")
    assert problem.endswith("has no locks; set HF_HOME or HF_DATASETS_CACHE to a folder on another disk")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", "/proc/none")
    (problem,) = problems(preflight.folders(settings, Needs(1)))
    assert problem.startswith("cache: /proc cannot be written: ")


def test_gpus_against_processes(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "A GPU")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (8 * GIB - index, 8 * GIB))
    found = list(preflight.devices(Needs(2, memory=GIB), {}))
    assert problems(found) == []
    assert [each.shown for each in found][:2] == ["2 x A GPU", "8 GiB free of about 1.5 GiB needed"]
    few, memory = problems(preflight.devices(Needs(4, memory=8 * GIB), {}))
    assert few.startswith("GPUs: 4 processes need as many, and this machine has 2")
    assert "about 8.5 GiB are needed, and 8 GiB are free on the fullest GPU" in memory
    assert "`toolkit plan --gpu-memory 8191MiB ...` finds settings that fit" in memory


def test_memory_counts_what_each_process_costs_without_a_model(monkeypatch):
    monkeypatch.setattr(preflight, "held_bytes", lambda device: 500 * 2**20)
    monkeypatch.setattr(preflight, "available_memory", lambda: GIB)
    parts = "(each process: 14 MiB for a step, 500 MiB for Python and libraries)"
    _, memory, _ = preflight.devices(Needs(1, memory=14 * 2**20), {})
    assert memory.shown == f"1 GiB free of about 514 MiB needed {parts}"
    (problem,) = problems(preflight.devices(Needs(2, memory=14 * 2**20), {}))
    assert problem.startswith(f"memory: about 1 GiB are needed {parts}, and 1 GiB are free; ")


def test_gpus_that_torch_does_not_find(monkeypatch):
    monkeypatch.setattr(preflight, "DRIVERS", ())
    assert problems(preflight.devices(Needs(1), {})) == []
    (problem,) = problems(preflight.devices(Needs(1), {"SLURM_GPUS_ON_NODE": "4"}))
    assert problem.startswith("GPUs: the machine has 4, but torch finds none; this torch (")
    assert problems(preflight.devices(Needs(1), {"SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": ""})) == []
    (problem,) = problems(preflight.devices(Needs(2, memory=2**50), {}))
    assert problem.startswith("memory: about 2048 TiB are needed")


def test_the_port_is_that_of_the_job():
    assert preflight.port({}).shown == ""
    assert preflight.port({"SLURM_JOB_ID": "45123"}).shown.startswith("15123")
    assert preflight.port({"MASTER_PORT": str(_closed_port())}).problems == ()
    for wrong in ("none", "65536"):
        assert preflight.port({"MASTER_PORT": wrong}).problems[0].startswith(f"MASTER_PORT: received {wrong}, must be")


def test_trackers_that_need_no_server():
    cfg: Any = SimpleNamespace(tracking=TrackingConfig(report_to=["tensorboard", "wandb", "mlflow", "trackio"]))
    assert problems(preflight.trackers(cfg, {"WANDB_MODE": "offline"})) == []
    server = {"WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{_closed_port()}"}
    (problem,) = problems(preflight.trackers(cfg, server))
    assert "mlflow cannot reach 127.0.0.1" in problem
    with socket.create_server(("127.0.0.1", 0)) as answers:
        server["MLFLOW_TRACKING_URI"] = f"http://127.0.0.1:{answers.getsockname()[1]}"
        assert problems(preflight.trackers(cfg, server)) == []


def test_missing_files_of_weights_are_named(tmp_path):
    import json

    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model-1.safetensors").touch()
    model = SimpleNamespace(name_or_path=str(tmp_path), revision=None)
    cfg: Any = SimpleNamespace(offline_dir=None, model=model)
    (problem,) = problems(preflight.inputs(cfg))
    assert problem == f"model.name_or_path: model-2.safetensors of 2 files of weights are missing in {tmp_path}"
    (tmp_path / "model-2.safetensors").touch()
    assert problems(preflight.inputs(cfg)) == []


def test_a_cache_without_all_weights(tmp_path, monkeypatch):
    import json

    from huggingface_hub import constants

    commit = "0" * 40
    snapshot = tmp_path / "models--tiny--bert/snapshots" / commit
    snapshot.mkdir(parents=True)
    (tmp_path / "models--tiny--bert/refs").mkdir()
    (tmp_path / "models--tiny--bert/refs/main").write_text(commit)
    index = {"weight_map": {"a": "model-1.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    cfg: Any = SimpleNamespace(offline_dir=None, model=SimpleNamespace(name_or_path="tiny/bert", revision=None))
    (problem,) = problems(preflight.inputs(cfg))
    assert problem == f"model.name_or_path: model-1.safetensors of 1 files of weights are missing in {snapshot}"
