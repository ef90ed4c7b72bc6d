"""Processes that read different rows or settings do not train together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import rows_by_rank
from launching import fork

pytestmark = pytest.mark.distributed


def test_a_rank_with_other_files_or_settings_stops_all_and_is_named(tmp_path):
    fork([Path(rows_by_rank.__file__), tmp_path], 2)
    found, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert found == other
    assert found.keys() == {"train", "validation", "label", *rows_by_rank.OTHERS}
    for setting in rows_by_rank.OTHERS:
        message, shared = found.pop(setting)
        assert f"{setting.partition('=')[0]}: {setting.partition('=')[2]} on rank 1 (" in message
        assert shared
        assert not (tmp_path / "settings").exists()
    named = {case: message.splitlines()[1] for case, (message, _) in found.items()}
    assert all(line.startswith("  rank 1 (on ") for line in named.values())
    assert all(shared for _, shared in found.values())
    assert "train rows: 16 (sha256 " in named["train"]
    assert "validation rows" not in named["train"]
    assert "validation rows: 16 (sha256 " in named["validation"]
    assert "train rows" not in named["validation"]
    assert "what the task learned from the training rows: sha256 " in named["label"]
