"""How long stages wait in a window is computed from the costs of their passes."""

from __future__ import annotations

import pytest
from bench_stages import waiting
from pipeline_timeline import expected_bubble


@pytest.mark.parametrize(("stages", "window"), [(2, 8), (4, 8), (4, 4)])
def test_stages_of_equal_passes_wait_for_the_bubble(stages, window) -> None:
    waits, whole = waiting([[1.0] * stages] * window)
    assert waits / whole == pytest.approx(expected_bubble("1f1b", stages, window))


def test_stages_wait_for_the_slower_one() -> None:
    # Passes of the first stage: 0 to 1, 1 to 2, 7 to 9, 16 to 18; of the second: 1 to 3, 3 to 7, 7 to 10, 10 to 16.
    waits, whole = waiting([[1.0, 2.0], [1.0, 3.0]])
    assert (waits, whole) == (2 * 18 - 21, 2 * 18)
