"""Heads that are split over processes have the losses and gradients of whole ones, and fp16 scalers decide together."""

from __future__ import annotations

from pathlib import Path

import pytest
import split_losses
from launching import fork

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


def test_chunks_of_split_heads_and_overflows_of_one_process(tmp_path):
    fork([Path(split_losses.__file__), tmp_path], 2)
    assert {path.name for path in tmp_path.iterdir()} == {"done-0", "done-1"}
