"""Examines the rows of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.api.task import Task
from toolkit.base.console import counted
from toolkit.config.sections import Config
from toolkit.data.columns import group_column, used_columns
from toolkit.lab.doctor.columns import column_findings, described
from toolkit.lab.doctor.exact import equal_rows, shared_groups
from toolkit.lab.doctor.findings import Finding, Part, parts_of
from toolkit.lab.doctor.label_errors import label_errors
from toolkit.lab.doctor.labels import label_findings
from toolkit.lab.doctor.near import different_rows, fingerprints, near_rows
from toolkit.lab.doctor.predicted import predictions_of
from toolkit.lab.doctor.sizes import (
    Histogram,
    cuts,
    file_histograms,
    lengths_of,
    number_outliers,
    outliers,
    text_histograms,
)
from toolkit.lab.init.overview import Subject


@dataclass(frozen=True)
class Examined:
    """What was found.

    Args:
        rows: number of rows by split.
        labels: number of rows with each label by split; empty without labels.
        columns: the columns of the training file, as JSON objects.
        histograms: distributions of lengths, durations and sizes of the training rows.
        findings: what may be wrong.
    """

    rows: dict[str, int]
    labels: dict[str, dict[str, int]]
    columns: list[dict[str, Any]]
    histograms: list[Histogram]
    findings: list[Finding]


def examine(subject: Subject, run: Path | None, recipe: Path) -> Examined:
    """Examines the rows of a run.

    Args:
        subject: the settings, and all rows, of which those that cannot be used are skipped.
        run: output folder of a finished run or of a cross-validation, whose predictions are used, or None.
        recipe: the recipe's file.

    Raises:
        InputError: if the predictions cannot be used.
    """
    cfg, task, checked = subject.cfg, subject.task, subject.rows
    predicted = None if run is None else predictions_of(run, recipe)
    parts = parts_of(checked)
    roles = {cfg.data.columns.get(name, name): name for name in used_columns(task)}
    rows = different_rows(parts)
    prints = fingerprints(task, rows)
    histograms = list(_histograms(cfg, task, parts[0], [
        each for each, (part, _) in zip(prints, rows, strict=False) if each is not None and part is parts[0]
    ]))  # fmt: skip
    findings = [
        *_bad_rows(subject),
        *equal_rows(parts),
        *near_rows(task, rows, prints),
        *shared_groups(parts, group_column(cfg.data, task)),
        *([] if predicted is None else label_errors(predicted)),
        *label_findings(checked.findings),
        *cuts(histograms),
        *column_findings(subject.profile, roles),
        *outliers(rows, lengths_of(task, rows, prints)),
        *number_outliers(task, parts),
    ]
    return Examined(
        rows={part.name: len(part.numbers) for part in parts},
        labels={name: dict(counts) for name, counts in checked.findings.labels.items()},
        columns=described(subject.profile, roles),
        histograms=histograms,
        findings=findings,
    )


def _histograms(cfg: Config, task: Task, train: Part, prints: list[Any]) -> Iterator[Histogram]:
    if prints:
        yield from file_histograms(task, prints)
    yield from text_histograms(cfg, task, train)


def _bad_rows(subject: Subject) -> Iterator[Finding]:
    """Yields the rows that cannot be used at all."""
    for name, table in subject.rows.tables.items():
        if table.bad:
            rows = [{"split": name, "file": table.source, "row": bad.number, "reason": bad.reason} for bad in table.bad]
            said = f"{counted(len(rows), 'row')} of {table.source} cannot be used: {table.bad[0].reason}."
            yield Finding("bad_rows", len(rows), said, rows)
