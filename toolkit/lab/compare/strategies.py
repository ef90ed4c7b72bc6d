"""What a comparison of parallel strategies shows in addition: estimates, all processes, and when to use which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.base.console import format_bytes
from toolkit.document.blocks import MISSING, Cell, Section, Table, Text
from toolkit.lab.compare.statistics import PARTS
from toolkit.system.memory import MEMORY

HELD = ("parameters", "gradients", "optimizer_state")
"""Parts of the memory that are estimated one by one."""
BESIDE = (
    "The process that holds the most, with the estimate of toolkit plan in parentheses. Estimates count tensors only; "
    "those of the peak are shifted by the difference of the first variant, to include the memory of libraries. "
    "Rows without a measurement need more processes, and are estimates for as many as they need."
)


def is_of_strategies(found: Mapping[str, Any]) -> bool:
    """Returns whether a comparison is one of parallel strategies."""
    return any("technique" in variant for variant in found["variants"])


def shift(found: Mapping[str, Any]) -> float:
    """Returns the measured peak of the first variant minus its estimate, in bytes; 0 if one is missing."""
    first = found["variants"][0]
    if not first.get("estimate") or "ranks" not in first:
        return 0.0
    return float(most(first, "train_peak")) - float(first["estimate"]["peak"])


def most(variant: Mapping[str, Any], part: str) -> int:
    """Returns the bytes of a part on the process that has the most."""
    return max(rank[part] for rank in variant["ranks"])


def pairs(found: Mapping[str, Any], variant: Mapping[str, Any]) -> list[tuple[float | None, float | None]]:
    """Returns measured and estimated bytes of the parts in `HELD`, the peak, and what is sent per step."""
    estimate, ran = variant.get("estimate"), "ranks" in variant
    measured = [most(variant, part) for part in (*HELD, "train_peak")] if ran else [None] * 4
    guessed = [estimate[part] for part in HELD] + [estimate["peak"] + shift(found)] if estimate else [None] * 4
    sent = (variant["exchange"].get("bytes") if ran else None, estimate["sent"] if estimate else None)
    return [*zip(measured, guessed, strict=True), sent]


def strategy_sections(found: Mapping[str, Any]) -> list[Section]:
    """Returns the sections of a page; none for other comparisons of a single process."""
    numbered = list(enumerate(found["variants"], start=1))
    parts = []
    if is_of_strategies(found):
        parts += [
            Section("Measured and estimated", [_beside(found, numbered), Text(BESIDE)]),
            Section("When to use which", [_uses(numbered)]),
        ]
    if found["num_processes"] > 1 and any("ranks" in variant for variant in found["variants"]):
        parts.append(Section("Memory of each process", [_ranks(numbered)]))
    return parts


def _beside(found: Mapping[str, Any], numbered: Sequence[tuple[int, Any]]) -> Table:
    rows = [
        [number, variant["name"], variant["technique"]["processes"], *(_pair(*pair) for pair in pairs(found, variant))]
        for number, variant in numbered
        if not variant["technique"]["refused"]
    ]
    titles = ["weights", "gradients", "optimizer state", "peak", "sent per step"]
    return Table(["#", "strategy", "processes", *titles], rows, sortable=True)


def _pair(measured: float | None, estimate: float | None) -> Cell:
    texts = [MISSING if value is None else format_bytes(value) for value in (measured, estimate)]
    return Cell(f"{texts[0]} ({texts[1]})", estimate if measured is None else measured)


def _uses(numbered: Sequence[tuple[int, Any]]) -> Table:
    rows = [
        [number, variant["name"], variant["technique"]["complexity"], variant["technique"]["when"]]
        for number, variant in numbered
    ]
    return Table(["#", "strategy", "complexity", "when to use"], rows)


def _ranks(numbered: Sequence[tuple[int, Any]]) -> Table:
    parts = (*PARTS, "train_peak")
    rows = [
        [number, variant["name"], rank, *(Cell(format_bytes(held[part]), held[part]) for part in parts)]
        for number, variant in numbered
        for rank, held in enumerate(variant.get("ranks", ()))
    ]
    return Table(["#", "variant", "process", *(MEMORY[part] for part in parts)], rows)


def strategy_lines(found: Mapping[str, Any]) -> list[tuple[list[str], list[list[str]]]]:
    """Returns titles and rows of the tables for a terminal of 80 columns; a cell may have two lines."""
    if not is_of_strategies(found):
        return []
    rows, uses = [], []
    for variant in found["variants"]:
        uses.append([variant["name"], variant["technique"]["complexity"], variant["technique"]["when"]])
        if variant["technique"]["refused"]:
            continue
        *parts, peak, sent = [
            "\n".join(MISSING if value is None else format_bytes(value) for value in pair)
            for pair in pairs(found, variant)
        ]
        name = f"{variant['name']}\n  {variant['technique']['processes']} processes, estimate"
        rows.append([name, *parts, peak, sent])
    return [
        (["measured, estimated", "weights", "gradients", "optimizer", "peak", "sent/step"], rows),
        (["strategy", "complexity", "when to use"], uses),
    ]
