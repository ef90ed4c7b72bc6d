"""Samples of a process: what they count, how they are written, and that they never disturb it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from toolkit.system import watch
from toolkit.system.watch import Estimate, Gpu, Host, Rapl, SystemWatch

NEVER = 1000.0
"""Seconds between samples, so that only those of the test are taken."""
CUDA = torch.device("cuda", 1)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_a_thread_writes_a_line_per_interval_and_ends_with_the_run(tmp_path):
    step = 0
    with SystemWatch(0.05, rank=3) as system:
        system.begin(tmp_path / "system.jsonl", lambda: step)
        end = time.monotonic() + 60
        while len(lines(tmp_path / "system.jsonl")) < 4 and time.monotonic() < end:
            step += 1
            burn(0.01)
        assert "system" in {thread.name for thread in threading.enumerate()}
        # Long enough for a sample of the last step: the end takes none shortly after another one.
        burn(2 * watch.LEAST_SECONDS)
        system.end()
        found = lines(tmp_path / "system.jsonl")
    assert "system" not in {thread.name for thread in threading.enumerate()}
    assert {line["rank"] for line in found} == {3}
    assert [line["step"] for line in found] == sorted(line["step"] for line in found)
    assert found[-1]["step"] == step
    assert [line["seconds"] for line in found] == sorted(line["seconds"] for line in found)
    assert all(line["memory_bytes"] > 2**20 and line["watts"] > 0 for line in found)
    assert max(line["cpu_cores"] for line in found) > 0
    assert not any("gpu" in name for line in found for name in line)


def test_processor_time_includes_that_of_children():
    host, own = Host(), time.process_time()
    found, end = 0.0, time.monotonic() + 60
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        while found < 0.1 and time.monotonic() < end:
            time.sleep(0.05)
            found = host.busy_seconds() - (time.process_time() - own)
        child.kill()
    assert found >= 0.1


def test_the_estimate_counts_idle_and_busy_processors_and_memory(monkeypatch):
    monkeypatch.setattr(watch, "threads_per_process", lambda processes: 8 // processes)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    estimate = Estimate(rank=1)
    estimate.add(elapsed=10.0, busy=20.0, resident=5e9)
    idle, busy, memory = 10 * 4 * 0.74, 20 * (3.5 - 0.74), 10 * 5 * 0.392
    assert estimate.joules() == {"rank 1": pytest.approx(idle + busy + memory)}


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    for zone, name, energy_uj in (("intel-rapl:0", "package-0", 900), ("intel-rapl:0:0", "core", 5),
                                  ("intel-rapl:0:1", "dram", 100), ("intel-rapl:1", "psys", 7)):  # fmt: skip
        folder = tmp_path / zone
        folder.mkdir()
        (folder / "name").write_text(f"{name}\n")
        (folder / "energy_uj").write_text(f"{energy_uj}\n")
        (folder / "max_energy_range_uj").write_text("1000\n")
    return tmp_path


def test_counters_of_packages_and_memory_are_added_up_and_may_run_over(powercap):
    counters = Rapl.of(powercap)
    assert counters is not None
    (powercap / "intel-rapl:0" / "energy_uj").write_text("50")
    (powercap / "intel-rapl:0:1" / "energy_uj").write_text("300")
    (powercap / "intel-rapl:1" / "energy_uj").write_text("999")
    assert sorted(counters.joules().values()) == pytest.approx([150e-6, 200e-6])
    (powercap / "intel-rapl:0" / "energy_uj").write_text("60")
    assert sorted(counters.joules().values()) == pytest.approx([160e-6, 200e-6])


def test_counters_that_cannot_be_read_are_not_used(powercap, tmp_path):
    assert Rapl.of(tmp_path / "nothing") is None
    (powercap / "intel-rapl:0" / "energy_uj").unlink()
    (powercap / "intel-rapl:0" / "energy_uj").mkdir()
    assert Rapl.of(powercap) is None


def test_measured_energy_replaces_the_estimate(powercap, tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "POWERCAP", powercap)
    of = Rapl.of
    monkeypatch.setattr(Rapl, "of", lambda: of(powercap))
    with SystemWatch(NEVER) as system:
        (powercap / "intel-rapl:0" / "energy_uj").write_text("950")  # while the model is loaded
        system.begin(tmp_path / "system.jsonl", int)
        (powercap / "intel-rapl:0" / "energy_uj").write_text("990")
        assert sum(system.joules().values()) == pytest.approx(40e-6)
        assert len(lines(tmp_path / "system.jsonl")) == 1  # asking for the energy is no sample
        assert system.source == Rapl.source


class Nvml:
    """Stands in for `pynvml`: a GPU that draws 250 W; `newer` ones count their energy."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def __init__(self, newer: bool) -> None:
        self.newer, self.millijoules = newer, 5000

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:  # noqa: N802
        if name != "GPU-of-torch-1":
            raise self.NVMLError
        return name

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=87)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=3 * 2**30)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        return 250_000

    def nvmlDeviceGetTemperature(self, handle: str, kind: int) -> int:  # noqa: N802
        if not self.newer:
            raise self.NVMLError
        return 61

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        if not self.newer:
            raise self.NVMLError
        return self.millijoules


def with_gpu(monkeypatch: pytest.MonkeyPatch, newer: bool = True) -> Nvml:
    nvml = Nvml(newer)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    properties = lambda device: SimpleNamespace(uuid=f"of-torch-{device.index}")  # noqa: E731
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    return nvml


def test_a_gpu_is_found_by_the_name_that_torch_gives_it_and_its_counter_is_its_energy(monkeypatch, tmp_path):
    nvml = with_gpu(monkeypatch)
    assert Gpu.of(torch.device("cpu")) is None
    assert Gpu.of(torch.device("cuda", 0)) is None  # a part of a GPU, which NVML does not know by this name
    with SystemWatch(NEVER, device=CUDA) as system:
        system.begin(tmp_path / "system.jsonl", int)
        nvml.millijoules += 2500
        burn(0.1)
        assert system.joules()["GPU-of-torch-1"] == pytest.approx(2.5)
        assert "GPU: measured (NVML)" in str(system.source)
        system.end()
    line = lines(tmp_path / "system.jsonl")[-1]
    own = {name: value for name, value in line.items() if "gpu" in name}
    assert own == {"gpu_percent": 87, "gpu_memory_bytes": 3 * 2**30, "gpu_watts": 250.0, "gpu_celsius": 61}


def test_without_a_counter_the_power_of_a_gpu_is_summed(monkeypatch):
    with_gpu(monkeypatch, newer=False)
    gpu = Gpu.of(CUDA)
    assert gpu is not None
    began = time.monotonic()
    time.sleep(0.05)
    assert "gpu_celsius" not in gpu.read()
    assert 0.05 * 250 <= gpu.joules <= (time.monotonic() - began + 1) * 250


@pytest.mark.parametrize("missing", [True, False])
def test_a_gpu_whose_power_cannot_be_read_is_named(missing, monkeypatch):
    with_gpu(monkeypatch)
    if missing:
        monkeypatch.setitem(sys.modules, "pynvml", None)
    with SystemWatch(NEVER, device=CUDA if missing else torch.device("cuda", 0)) as system:
        assert "the GPU is not included" in str(system.source)


def test_a_line_that_a_killed_process_left_is_removed(tmp_path):
    file = tmp_path / "system.jsonl"
    file.write_text('{"seconds": 1.0}\n{"seconds": 2.')
    with SystemWatch(NEVER) as system:
        system.begin(file, int)
        burn(0.1)
        system.end()
    assert lines(file)[0] == {"seconds": 1.0}
    assert len(lines(file)) == 3


@pytest.mark.parametrize("place", [".", "nowhere/system.jsonl"])
def test_a_file_that_cannot_be_written_is_a_warning(place, tmp_path, caplog):
    with SystemWatch(NEVER) as system:
        system.begin(tmp_path / place, int)
        burn(0.02)
        system.end()
        assert sum(system.joules().values()) > 0
    (message,) = caplog.messages
    assert message.startswith(f"no more samples are written to {tmp_path / place}: ")


def test_a_process_that_does_not_compute_does_not_write(tmp_path, monkeypatch):
    """Otherwise a stalled process would look as if it worked, because it writes to a disk."""
    file = tmp_path / "system.jsonl"
    with SystemWatch(NEVER) as system:
        burn(0.05)
        system.begin(file, int)
        written = file.read_bytes()
        monkeypatch.setattr(watch, "LEAST_SHARE", 1e9)
        for _ in range(3):
            system.guarded(system.sample)
        assert file.read_bytes() == written
    assert len(lines(file)) == 4


def test_a_reading_that_does_not_return_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "LIMIT_SECONDS", 0.05)
    released = threading.Event()
    with SystemWatch(0.01) as system:
        system.begin(tmp_path / "system.jsonl", int)
        monkeypatch.setattr(system.host, "read", lambda: released.wait(60) and {})
        time.sleep(0.1)
        before = system.joules()
        system.end()
        assert system.joules() == before
    released.set()
    for thread in threading.enumerate():
        if thread.name == "system":
            thread.join(60)
    assert system.file is not None
    system.file.close()


def test_without_an_interval_only_time_is_measured(tmp_path):
    with SystemWatch(None) as system:
        assert system.seconds == 0
        system.begin(tmp_path / "system.jsonl", int)
        time.sleep(0.01)
        assert system.seconds >= 0.01
        system.end()
        assert (system.joules(), system.source) == ({}, None)
    assert not [*tmp_path.iterdir()]
