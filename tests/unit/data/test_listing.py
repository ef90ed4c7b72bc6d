"""Messages about many unusable rows: those with the same problem are one line."""

from __future__ import annotations

from toolkit.data.table import LISTED_ROWS, BadRowReport, listing


def test_files_with_the_same_problem_share_a_line():
    photos = [f"a/IMG_{number}.heic" for number in range(30)]
    bad = [("fotos", BadRowReport(n, f"{name}: HEIC needs X", {"image": name})) for n, name in enumerate(photos, 1)]
    bad.insert(3, ("fotos", BadRowReport(99, "b/1.png: cannot be decoded: x", {"image": "b/1.png"})))
    bad.append(("other", BadRowReport(7, "c.heic: HEIC needs X", {"image": "c.heic"})))
    assert listing(bad).splitlines() == [
        "  fotos, rows 1, 2, 3, 4, 5 and 25 more: a/IMG_0.heic: HEIC needs X",
        "  fotos, row 99: b/1.png: cannot be decoded: x",
        "  other, row 7: c.heic: HEIC needs X",
    ]


def test_rows_with_the_same_reason_share_a_line_and_others_are_listed_up_to_a_limit():
    reasons = ["column 'text' is empty", *(f"label {number} is unknown" for number in range(2, LISTED_ROWS + 7))]
    bad = [("a.csv", BadRowReport(row, reasons[row % len(reasons)], {"text": ""})) for row in range(2 * len(reasons))]
    first, *lines, last = listing(bad).splitlines()
    assert first == f"  a.csv, rows 0 and {len(reasons)}: column 'text' is empty"
    assert len(lines) == LISTED_ROWS - 1
    assert last == f"  and {2 * (len(reasons) - LISTED_ROWS)} more"
