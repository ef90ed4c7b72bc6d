"""Reads a GPU's use, memory, power, temperature and energy through NVML (extra `system`)."""

from __future__ import annotations

import importlib
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

MILLI = 1e-3


class Gpu:
    """One GPU of NVIDIA's, as NVML sees it.

    Args:
        nvml: the module `pynvml`, initialised.
        handle: NVML's handle of the GPU.
        name: its unique name.
    """

    def __init__(self, nvml: Any, handle: Any, name: str) -> None:
        self.name = name
        self._nvml, self._handle = nvml, handle
        self._first = self._counter()
        self._summed, self._last = 0.0, time.monotonic()

    @staticmethod
    def of(device: torch.device | None) -> Gpu | None:
        """Returns the GPU of a device; None for other devices, or if NVML is not installed or does not know it."""
        if device is None or device.type != "cuda":
            return None
        import torch

        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return None
        # CUDA_VISIBLE_DEVICES renumbers the GPUs for torch, but not for NVML.
        name = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        try:
            nvml.nvmlInit()
            return Gpu(nvml, nvml.nvmlDeviceGetHandleByUUID(name), name)
        except nvml.NVMLError:  # no driver, or a part of a GPU (MIG)
            return None

    def read(self) -> dict[str, float]:
        """Returns `gpu_percent`, `gpu_memory_bytes`, `gpu_watts` and `gpu_celsius`, without what this GPU lacks."""
        nvml, found = self._nvml, dict[str, float]()
        with suppress(nvml.NVMLError):
            found["gpu_percent"] = nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu
        with suppress(nvml.NVMLError):
            found["gpu_memory_bytes"] = nvml.nvmlDeviceGetMemoryInfo(self._handle).used
        with suppress(nvml.NVMLError):
            found["gpu_watts"] = nvml.nvmlDeviceGetPowerUsage(self._handle) * MILLI
        with suppress(nvml.NVMLError):
            found["gpu_celsius"] = nvml.nvmlDeviceGetTemperature(self._handle, nvml.NVML_TEMPERATURE_GPU)
        now = time.monotonic()
        self._summed += found.get("gpu_watts", 0.0) * (now - self._last)
        self._last = now
        return found

    @property
    def joules(self) -> float:
        """Energy since this object was built: of the GPU's counter, or of the power at the readings if it has none."""
        now = self._counter()
        return self._summed if now is None or self._first is None else (now - self._first) * MILLI

    def _counter(self) -> int | None:
        """Returns the millijoules since the driver was loaded; None for GPUs older than Volta."""
        with suppress(self._nvml.NVMLError):
            return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        return None
