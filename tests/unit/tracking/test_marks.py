"""Whether metrics.jsonl is as it was when a checkpoint was written."""

from __future__ import annotations

from toolkit.tracking.jsonl import has_changed, mark_of


def test_lines_may_be_added_and_nothing_else(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    assert not has_changed(metrics, mark_of(metrics))
    metrics.write_text('{"step": 1}\n')
    mark = mark_of(metrics)
    metrics.write_text('{"step": 1}\n{"step": 2}\n')
    assert not has_changed(metrics, mark)
    metrics.write_text('{"step": 3}\n{"step": 2}\n')
    assert has_changed(metrics, mark)
    metrics.unlink()
    assert has_changed(metrics, mark)
    assert not has_changed(metrics, None)  # of an older version
