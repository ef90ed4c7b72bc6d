"""Tolerances for comparing two computations of the same numbers on any CPU.

Exact contracts are tested bit for bit on one machine, or in float64 to `FLOAT64`. Float32 is compared only to check
that it works like float64. Its last bits depend on the CPU (AVX2, AVX-512, AMX), the library's kernels, the number of
threads and the shapes of the tensors, since each changes the order of additions.
"""

from __future__ import annotations

import math

import torch

FLOAT64 = 1e-9
"""Tolerance in float64 for mathematically equal computations."""

WIDEST = 400
"""Number of terms of the longest sum in the tests' small models, over their vocabulary."""

CONDITION = 8
"""Factor by which softmax, normalisation and cancellation in all layers may increase a rounding error."""


def float32_tolerance(steps: int = 1, terms: int = WIDEST) -> float:
    """Returns the tolerance, relative to the larger of a result and 1, between two orders of additions in float32.

    Rounding moves a sum of `n` terms by about `eps * sqrt(n)`. Each update of the parameters starts from the difference
    that the previous ones left and adds its own: the difference grows with the number of updates.

    Args:
        steps: number of updates before the result.
        terms: number of terms of the longest sum: width of a layer, size of the vocabulary, or elements of a loss.
    """
    return CONDITION * torch.finfo(torch.float32).eps * math.sqrt(terms) * steps
