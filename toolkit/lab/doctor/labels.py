"""Findings about the labels of the training rows: how often each occurs, and which are spelled alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from toolkit.base.console import counted
from toolkit.data.findings import FEW_EXAMPLES, RowFindings, listed
from toolkit.data.keys import near_equal
from toolkit.lab.doctor.findings import Finding

UNEVEN = 3.0
"""Labels are uneven if the most frequent one has at least this many times the rows of the least frequent one."""


def label_findings(found: RowFindings) -> Iterator[Finding]:
    """Yields the findings about the labels of the training rows."""
    counts = found.labels.get("train", {})
    present = {name: count for name, count in counts.items() if count}
    if len(present) > 1:
        yield from _imbalance(present)
    if alike := near_equal(counts):
        groups = "; ".join(", ".join(f"{name!r} ({counts[name]:,})" for name in group) for group in alike)
        labels = sum(map(len, alike))
        yield Finding("similar_labels", labels, f"{labels} labels differ only in spelling: {groups}.",
                      details={"groups": [list(group) for group in alike]})  # fmt: skip
    if rare := {name: count for name, count in counts.items() if count < FEW_EXAMPLES}:
        said = f"{counted(len(rare), 'label')} with fewer than {FEW_EXAMPLES} training rows: {listed(rare)}."
        yield Finding("rare_labels", len(rare), said, details={"labels": rare})
    for name, counted_labels in found.labels.items():
        if name == "train":
            continue
        if gone := [label for label, count in counts.items() if count and not counted_labels.get(label)]:
            said = f"{counted(len(gone), 'label')} without any {name} row: {', '.join(gone)}."
            yield Finding("unseen_labels", len(gone), said, details={"labels": gone, "split": name})


def _imbalance(counts: Mapping[str, int]) -> Iterator[Finding]:
    most, least = max(counts, key=lambda name: counts[name]), min(counts, key=lambda name: counts[name])
    ratio, share = counts[most] / counts[least], counts[most] / sum(counts.values())
    if ratio >= UNEVEN:
        said = (
            f"{most!r} has {counts[most]:,} training rows ({share:.0%}), {ratio:.3g} times as many as {least!r} "
            f"({counts[least]:,})."
        )
        yield Finding("imbalance", len(counts), said, details={"ratio": ratio, "most": most, "least": least})
