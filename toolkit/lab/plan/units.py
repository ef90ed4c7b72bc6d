"""Bytes and rates as people write and read them."""

from __future__ import annotations

import re

from toolkit.base.errors import InputError

_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_bytes(text: str, option: str) -> int:
    """Reads `16GiB`, `800 MB`, or `25GB/s` where a rate is asked for.

    Raises:
        InputError: naming the option, for anything else, for nothing, and for bits.
    """
    # Not pydantic's ByteSize: it takes `16` for 16 bytes and accepts bits, which are mistakes here.
    rate = option == "--bandwidth"
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT]?i?)B" + ("/s" if rate else "") + r"\s*", text)
    if match is None or match[2] == "i" or not float(match[1]):
        example = "25GB/s (bytes: a network of 200 Gbit/s has 25GB/s)" if rate else "16GiB or 24GB"
        raise InputError(f"{option}: received {text!r}; write a number and a unit, for instance {example}")
    return round(float(match[1]) * _SIZES[match[2].lower()])


def show_flops(count: float) -> str:
    """Writes floating-point operations with three digits."""
    for unit in ("MFLOP", "GFLOP", "TFLOP", "PFLOP"):
        count /= 1e6 if unit == "MFLOP" else 1e3
        if count < 999.5:
            break
    return f"{count:.3g} {unit}"
