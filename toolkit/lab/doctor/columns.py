"""Columns of the training file that say nothing: empty, nearly empty, or the same in every row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.lab.doctor.findings import Finding
from toolkit.lab.init.profile import Profile

MOSTLY = 0.5


def column_findings(profile: Profile, roles: Mapping[str, str]) -> Iterator[Finding]:
    """Yields a finding for each column without information.

    Args:
        profile: the columns of the training file.
        roles: what a column is used as, by its name in the file.
    """
    for column in profile.columns.values():
        use = f"used as {roles[column.name]}" if column.name in roles else "which the task does not use"
        details: dict[str, Any] = {"column": column.name, "used_as": roles.get(column.name)}
        of = "" if profile.sampled == profile.total else f" of {profile.sampled:,} evenly spaced rows"
        if not column.values:
            yield Finding("empty_columns", 1, f"Column {column.name!r}, {use}, is empty.", details=details)
        elif len(column.counts) == 1 and len(column.values) > 1:
            said = f"Column {column.name!r}, {use}, has the same value in all {len(column.values):,} rows{of}."
            yield Finding("constant_columns", 1, said, details=details)
        elif column.empty > MOSTLY * profile.sampled:
            said = f"Column {column.name!r}, {use}, is empty in {column.empty:,} of {profile.sampled:,} rows."
            yield Finding("empty_columns", 1, said, details={**details, "empty": column.empty})


def described(profile: Profile, roles: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns the columns as JSON objects."""
    return [
        {"name": column.name, "used_as": roles.get(column.name), "type": column.kind, "empty": column.empty,
         "different": len(column.counts)}
        for column in profile.columns.values()
    ]  # fmt: skip
