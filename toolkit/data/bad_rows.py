"""What happens to rows that cannot be used: `data.bad_rows`, `data.max_bad_rows` and the file that lists them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

from toolkit.base.errors import DataError
from toolkit.base.files import written_whole
from toolkit.data.table import BadRowReport, Table

LISTED_ROWS = 20
LISTED_REASONS = 3
_VALUES = re.compile(r"(?<!column )(?:'[^']*'|\"[^\"]*\")|0x[0-9a-f]+|\d+")
"""What may differ between rows with the same reason: numbers, and quoted values other than names of columns."""


def apply_policy(tables: Mapping[str, Table], policy: str, most: float = 1.0) -> dict[str, int]:
    """Applies `data.bad_rows` and `data.max_bad_rows` to tables and returns the number of bad rows of each.

    Args:
        tables: tables by split.
        policy: `error` or `skip`.
        most: with `skip`, the largest fraction of bad rows in a table.

    Raises:
        DataError: with policy `error` if any row is bad (lists the first 20); with `skip` if more than the fraction
            `most` of a table's rows are, or all of them.
    """
    bad = [(table.source, row) for table in tables.values() for row in table.bad]
    total = sum(len(table.rows) + len(table.bad) for table in tables.values())
    if bad and policy == "error":
        raise DataError(
            f"{len(bad)} of {total} rows cannot be used:\n{listing(bad)}\n"
            "Correct them, or skip them with data.bad_rows=skip, which lists them all in bad_rows.jsonl."
        )
    for table in tables.values():
        count, everything = len(table.bad), len(table.rows) + len(table.bad)
        if not len(table.rows):
            bad_ones = listing([(table.source, row) for row in table.bad])
            everything += sum(table.excluded.values())
            reasons = "\n".join([*([bad_ones] if count else []), *(f"  {line}" for line in exclusions(table))])
            raise DataError(f"{table.source}: none of its {everything} rows can be used:\n{reasons}")
        if count > most * everything:
            raise DataError(
                f"{skipped(table)}; data.max_bad_rows={most:g} allows {most:.0%}. Correct them, or set "
                f"data.max_bad_rows to at least {math.ceil(1000 * count / everything) / 1000:g}."
            )
    return {split: len(table.bad) for split, table in tables.items()}


def skipped(table: Table) -> str:
    """Returns how many rows of a table cannot be used, their share and the reasons, as one line without a full stop.

    Reasons that differ only in numbers and quoted values are counted together, most frequent first.
    """
    reasons: dict[str, list[BadRowReport]] = {}
    for row in table.bad:
        reasons.setdefault(_VALUES.sub("…", _problem_of_file(row) or row.reason), []).append(row)
    most = sorted(reasons.values(), key=len, reverse=True)
    shown = [f"{rows[0].reason} ({len(rows):,}, first in row {rows[0].number})" for rows in most[:LISTED_REASONS]]
    more = [f"{len(most) - LISTED_REASONS} other reasons"] if len(most) > LISTED_REASONS else []
    total = len(table.rows) + len(table.bad)
    return (
        f"{table.source}: {len(table.bad):,} of {total:,} rows cannot be used ({len(table.bad) / total:.1%}): "
        + "; ".join([*shown, *more])
    )


def exclusions(table: Table) -> list[str]:
    """Returns one line without a full stop for each reason why the task's options exclude rows of a table."""
    return [
        f"{table.source}: {count:,} {'row is' if count == 1 else 'rows are'} skipped, because {reason}"
        for reason, count in table.excluded.items()
    ]


def write_bad_rows(tables: Mapping[str, Table], path: str | Path) -> None:
    """Writes each bad row as a JSON line `{file, row, reason, values}`; the file is written atomically."""
    with written_whole(Path(path)) as file:
        for table in tables.values():
            for row in table.bad:
                record = {"file": table.source, "row": row.number, "reason": row.reason, "values": row.values}
                file.write(json.dumps(record, ensure_ascii=False) + "\n")


def listing(bad: list[tuple[str, BadRowReport]]) -> str:
    """Returns the bad rows for a message, up to a limit, one per line; files with the same problem share one.

    Args:
        bad: name of the source and report of each row.
    """
    alike: dict[tuple[str, str | int], list[BadRowReport]] = {}
    for place, (source, row) in enumerate(bad):
        alike.setdefault((source, _problem_of_file(row) or place), []).append(row)
    shown = list(alike.items())[:LISTED_ROWS]
    lines = [
        f"  {source}, row {rows[0].number}: {rows[0].reason}"
        + (f" ({len(rows):,} files have this problem)" if len(rows) > 1 else "")
        for (source, _), rows in shown
    ]
    more = len(bad) - sum(len(rows) for _, rows in shown)
    return "\n".join([*lines, *([f"  and {more} more"] if more else [])])


def _problem_of_file(row: BadRowReport) -> str | None:
    """Returns the reason without the file's name if it begins with that, or None."""
    return next((row.reason[len(name) :] for name in row.values.values() if row.reason.startswith(f"{name}: ")), None)
