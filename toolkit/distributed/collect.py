"""Collects values and tensors of all processes."""

from __future__ import annotations

from typing import TypeVar

from torch import distributed as dist

T = TypeVar("T")


def objects_of_all(own: T) -> list[T]:
    """Returns the picklable objects of all processes, by rank, on every process."""
    if not dist.is_initialized():
        return [own]
    found: list[T] = [own] * dist.get_world_size()
    dist.all_gather_object(found, own)
    return found
