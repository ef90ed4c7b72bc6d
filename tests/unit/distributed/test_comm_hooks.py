"""Communication hooks: PowerSGD is its formula, its state is resumed exactly, and fewer bytes are sent."""

from __future__ import annotations

import json

import pytest
import torch
from launching import fork
from runs import ROOT, assert_same_weights, lines, train, weights
from safetensors.torch import load_file
from tolerances import FLOAT64

from toolkit.api.mesh import Mesh
from toolkit.base.errors import ToolkitError
from toolkit.checkpoint.state import ACCUMULATION, BATCH, BUDGET, changed_settings, layout
from toolkit.distributed.strategies.ddp import factor_elements


def test_what_is_worth_factors():
    assert factor_elements(torch.Size([100, 50]), 2) == 300
    assert factor_elements(torch.Size([8, 4]), 4) is None
    assert factor_elements(torch.Size([1000]), 1) is None
    assert factor_elements(torch.Size([16, 8, 3, 3]), 2) == 2 * (16 + 72)  # a kernel


def test_the_processes_of_a_run_with_a_hook_stay_as_many():
    settings = {"train.strategy": "sync", ACCUMULATION: 1, BUDGET: None}
    two = {**settings, BATCH: 4, **layout(Mesh(replicas=2))}
    one = {**settings, BATCH: 8, **layout(Mesh())}
    assert changed_settings(two, one) == []
    hook = {"train.ddp_comm_hook": "fp16"}
    assert changed_settings(two | hook, two | hook) == []
    changes = changed_settings(two | hook, one | hook)
    assert [change.partition(":")[0] for change in changes] == ["mesh.replicas", BATCH]


@pytest.mark.distributed
def test_hooks_on_two_processes(tmp_path):
    fork([ROOT / "tests" / "support" / "comm_hook_runs.py", tmp_path], 2)
    assert json.loads((tmp_path / "formula.json").read_text()) < FLOAT64
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    assert lines(tmp_path / "whole", "loss") == lines(tmp_path / "parts", "loss")
    sync, fp16, power = (weights(tmp_path / name) for name in ("sync", "fp16", "whole"))
    assert 0 < distance(sync, fp16) < 1e-3
    assert 0 < distance(sync, power) < 0.5
    sent = {name: lines(tmp_path / name, "exchange_bytes")[-1]["exchange_bytes"] for name in ("sync", "fp16", "whole")}
    assert 0.25 <= sent["fp16"] / sent["sync"] < 0.26  # of float64, and buffers
    assert sent["whole"] < 0.2 * sent["sync"]
    kept = load_file(tmp_path / "whole" / "checkpoints" / "step-3" / "sync.safetensors")
    assert {key.rpartition(".")[0].split(".")[0] for key in kept} == {"error", "query"}
    # Without the hook, the checkpoint's numbers would be others.
    with pytest.raises(ToolkitError, match=r"ddp_comm_hook"):
        train("reviews", tmp_path / "whole", "checkpoint.resume=auto", double=True)


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)
