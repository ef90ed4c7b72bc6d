"""Clipping: as accelerate's, to the bit, also where nothing is multiplied."""

from __future__ import annotations

import math

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from toolkit.distributed.window import clip


def parameters(size: float) -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(3)
    made = [nn.Parameter(torch.zeros(shape)) for shape in ((7, 5), (9,), (2, 3, 4))]
    for each in made[:2]:  # the last one is frozen
        each.grad = size * torch.randn(each.shape, generator=random)
    return made


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3, math.inf, math.nan])
@pytest.mark.parametrize("limit", ["none", "norm", "above", "below", "far"])
def test_gradients_are_clipped_as_by_accelerate(size, limit):
    own, other = parameters(size), parameters(size)
    accelerator = Accelerator(cpu=True)
    norm = float(torch.nn.utils.get_total_norm([each.grad for each in own[:2]]))
    known = norm if math.isfinite(norm) else 1.0
    most = {"none": 0.0, "norm": known, "above": known + 1e-6, "below": 0.9 * known, "far": 10 * known}[limit]
    expected = accelerator.clip_grad_norm_(other, most or math.inf)
    assert clip(accelerator, own, most) == pytest.approx(float(expected), rel=0, abs=0, nan_ok=True)
    for a, b in zip(own[:2], other[:2], strict=True):
        if most or math.isfinite(norm):  # accelerate turns other gradients into NaN, which are not applied either
            torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=0, equal_nan=True)
