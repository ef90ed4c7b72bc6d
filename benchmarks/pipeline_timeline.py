"""When the processes of a pipeline computed and when they waited, from the measured times of their passes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import get_args

from toolkit.distributed.pipeline.execution import Span
from toolkit.distributed.pipeline.schedules import CHUNKS, Kind
from toolkit.document.svg import WIDTH, Drawing, coloured, text

LEFT, TOP, ROW, GAP = 26, 24, 26, 6
"""Pixels in front of and above the rows, the height of a row, and the distance between two rows."""


def bubble(spans: Sequence[Span]) -> float:
    """Returns the share of the time of a window in which the average process of a pipeline waits.

    Args:
        spans: all passes of one window, on every process.
    """
    processes = {span.process for span in spans}
    busy = sum(span.end - span.begin for span in spans)
    return 1 - busy / (len(processes) * (max(span.end for span in spans) - min(span.begin for span in spans)))


def expected_bubble(schedule: str, processes: int, micro_batches: int) -> float:
    """Returns the share if all passes take equally long and nothing else takes time: (p - 1) / (v m + p - 1).

    Args:
        schedule: its name; v is the number of chunks per process, and 3 for `zero_bubble`, which waits for one of the
            three passes of a micro-batch where 1F1B waits for all.
        processes: number of processes, p.
        micro_batches: micro-batches of a window, m.
    """
    factor = 3 if schedule == "zero_bubble" else CHUNKS.get(schedule, 1)
    return (processes - 1) / (factor * micro_batches + processes - 1)


def most_kept(spans: Sequence[Span], process: int) -> int:
    """Returns the highest number of forward passes for which a process kept activations, or a part, at one time."""
    own = sorted((span for span in spans if span.process == process), key=lambda span: span.begin)
    frees = own[-1].kind  # backward passes, or those for weights, if they are separate
    kept = most = 0
    for span in own:
        kept += (span.kind == "forward") - (span.kind == frees)
        most = max(most, kept)
    return most


def timeline(spans: Sequence[Span], title: str) -> Drawing:
    """Draws a window: a row for each process, with its passes (of each chunk) and its waits.

    Args:
        spans: all passes of one window, on every process.
        title: the heading.
    """
    begin, end = min(span.begin for span in spans), max(span.end for span in spans)
    scale = (WIDTH - LEFT - 2) / (end - begin)
    processes = sorted({span.process for span in spans})
    waiting = f"{1000 * (end - begin):.0f} ms, waiting {bubble(spans):.0%}"
    parts = [text(title, 2, 14, kind="ink"), text(waiting, WIDTH - 2, 14, "end")]
    for row, process in enumerate(processes):
        top = TOP + row * (ROW + GAP)
        parts.append(text(str(process), LEFT - 8, top + ROW / 2 + 5, "end"))
        for span in (each for each in spans if each.process == process):
            left, wide = LEFT + (span.begin - begin) * scale, (span.end - span.begin) * scale
            words = f"{span.kind} pass of micro-batch {span.micro_batch}, chunk {span.chunk}: "
            words += f"{1000 * (span.end - span.begin):.3g} ms"
            box = f'<rect x="{left:.1f}" y="{top}" width="{wide:.1f}" height="{ROW}" fill-opacity="0.75"'
            parts.append(coloured(_colour(span), f'{box} stroke="#fff"><title>{escape(words)}</title></rect>'))
    bottom = TOP + len(processes) * (ROW + GAP) + 12
    return Drawing([*parts, *_legend(spans, bottom)], title, bottom + 8)


def _colour(span: Span) -> int:
    return 2 * span.chunk + get_args(Kind).index(span.kind)


def _legend(spans: Sequence[Span], top: float) -> list[str]:
    """Returns the kinds of passes, with the number of their chunk if there are several, side by side."""
    chunks = len({span.chunk for span in spans})
    kinds = {_colour(span): f"{span.kind} {span.chunk + 1}" if chunks > 1 else span.kind for span in spans}
    parts = []
    for place, colour in enumerate(sorted(kinds)):
        left = LEFT + 3 + 100 * place
        parts.append(coloured(colour, f'<circle cx="{left}" cy="{top - 5}" r="3"/>'))
        parts.append(text(kinds[colour], left + 8, top))
    return parts
