"""Reads and writes sizes and rates with units."""

from __future__ import annotations

import re

from toolkit.base.errors import InputError

_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_bytes(text: str, option: str) -> int:
    """Parses a size such as `16GiB` or `800 MB`, or for `--bandwidth` a rate such as `25GB/s`.

    Args:
        text: the received text.
        option: the option to name in errors.

    Returns:
        Bytes, or bytes per second.

    Raises:
        InputError: if the text is not a number with a unit of bytes, or is 0.
    """
    # pydantic's ByteSize accepts `16` and bits, which are mistakes here.
    rate = option == "--bandwidth"
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT]?i?)B" + ("/s" if rate else "") + r"\s*", text)
    if match is None or match[2] == "i" or not float(match[1]):
        example = "25GB/s (bytes: a network of 200 Gbit/s has 25GB/s)" if rate else "16GiB or 24GB"
        raise InputError(f"{option}: received {text!r}; write a number and a unit, for instance {example}")
    return round(float(match[1]) * _SIZES[match[2].lower()])


def show_flops(count: float) -> str:
    """Formats a number of floating-point operations with three digits and a unit."""
    for unit in ("MFLOP", "GFLOP", "TFLOP", "PFLOP"):
        count /= 1e6 if unit == "MFLOP" else 1e3
        if count < 999.5:
            break
    return f"{count:.3g} {unit}"
