"""How far apart two computations of the same numbers may be on any CPU.

What is promised exactly is compared bit for bit within one machine, or in float64 to `FLOAT64`. Float32 is compared
only to see that it works as float64 does. Its last bits depend on the CPU (AVX2, AVX-512, AMX), on the library's
kernels, on the number of threads and on the shapes of the tensors, since each adds up in an order of its own.
"""

from __future__ import annotations

import math

import torch

FLOAT64 = 1e-9
"""What equal mathematics agrees to in float64."""

WIDEST = 400
"""The longest sum in the small models of the tests: over their vocabulary."""

CONDITION = 8
"""How much softmax, normalisation and differences of nearly equal numbers may widen a rounding error, in all layers."""


def float32_tolerance(steps: int = 1, terms: int = WIDEST) -> float:
    """Returns by which part of its size, or of 1, a float32 result may differ between two orders of addition.

    Rounding moves a sum of `n` terms by about `eps * sqrt(n)`. Each update of the parameters starts from the difference
    that the previous ones left and adds its own: the difference grows with the number of updates.

    Args:
        steps: updates before the result.
        terms: what the longest sum adds up: the widest layer, the vocabulary, or the elements of a loss.
    """
    return CONDITION * torch.finfo(torch.float32).eps * math.sqrt(terms) * steps
