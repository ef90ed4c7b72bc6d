"""Messages about many unusable rows: files with the same problem are one line."""

from __future__ import annotations

from toolkit.data.table import LISTED_ROWS, BadRowReport, listing


def test_files_with_the_same_problem_share_a_line():
    photos = [f"a/IMG_{number}.heic" for number in range(30)]
    bad = [("fotos", BadRowReport(n, f"{name}: HEIC needs X", {"image": name})) for n, name in enumerate(photos, 1)]
    bad.insert(3, ("fotos", BadRowReport(99, "b/1.png: cannot be decoded: x", {"image": "b/1.png"})))
    bad.append(("other", BadRowReport(7, "c.heic: HEIC needs X", {"image": "c.heic"})))
    assert listing(bad).splitlines() == [
        "  fotos, row 1: a/IMG_0.heic: HEIC needs X (30 files have this problem)",
        "  fotos, row 99: b/1.png: cannot be decoded: x",
        "  other, row 7: c.heic: HEIC needs X",
    ]


def test_other_rows_are_listed_one_by_one_up_to_a_limit():
    bad = [("a.csv", BadRowReport(row, "column 'text' is empty", {"text": ""})) for row in range(2, LISTED_ROWS + 7)]
    *lines, last = listing(bad).splitlines()
    assert lines == [f"  a.csv, row {row}: column 'text' is empty" for row in range(2, LISTED_ROWS + 2)]
    assert last == "  and 5 more"
