"""Measured memory of training, separate from memory used before and between steps."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch
from runs import train
from torch import nn

from toolkit.system.limits import freed_memory_kept
from toolkit.system.memory import MemoryWatch, held_bytes

CPU = torch.device("cpu")
MIB = 2**20


@pytest.mark.parametrize("kept", [nullcontext, freed_memory_kept])
def test_only_training_steps_count_as_training(kept):
    with kept():
        only_training_steps_count()


def only_training_steps_count():
    before = torch.ones(60 * MIB, dtype=torch.uint8)  # a peak from before the watch
    del before
    watch = MemoryWatch(CPU)
    model = nn.Linear(1024, 4096, bias=False)  # 16 MiB
    watch.train()
    step = torch.ones(40 * MIB, dtype=torch.uint8)
    del step
    watch.pause()
    evaluation = [torch.ones(30 * MIB, dtype=torch.uint8) for _ in range(5)]
    del evaluation
    watch.train()
    watch.pause()

    use = watch.use(model, optimizer_state=3)

    assert use.parameters == use.gradients == 16 * MIB
    assert use.optimizer_state == 3
    assert use.train_peak == pytest.approx(56 * MIB, abs=6 * MIB)
    assert use.rest == use.train_peak - 32 * MIB - 3
    assert use.peak - use.baseline == pytest.approx(166 * MIB, abs=20 * MIB)
    assert use.baseline == pytest.approx(held_bytes(CPU) - 16 * MIB, abs=20 * MIB)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot reset a peak")
@pytest.mark.slow
def test_the_memory_of_the_process_that_started_it_does_not_count():
    code = "import torch; from toolkit.system.memory import peak_memory_bytes as peak; print(peak(torch.device('cpu')))"
    large = torch.ones(1500 * MIB, dtype=torch.uint8)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    del large
    assert 50 * MIB < int(done.stdout) < 1200 * MIB


def test_frozen_parameters_have_no_gradient():
    model = nn.Linear(10, 10)
    model.bias.requires_grad_(False)
    use = MemoryWatch(CPU).use(model, 0)
    assert (use.parameters, use.gradients) == (440, 400)


def test_a_run_says_what_it_took(tmp_path):
    use = train("reviews", tmp_path / "run", "train.max_steps=3").memory
    assert 0 < use.gradients < use.parameters < use.gradients + 2048  # positions are buffers
    assert use.optimizer_state == pytest.approx(2 * use.gradients, rel=0.01)
    assert 0 <= use.train_peak <= use.peak  # what earlier tests have freed may be enough
