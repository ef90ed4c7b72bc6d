"""What a run knows of its own files: which it seals, and which a resumed session writes again."""

from __future__ import annotations

import json
import math
from pathlib import Path

from toolkit.report.facts import BEFORE, MODEL, RESULTS, forget, is_intact, sealed


def test_a_changed_value_breaks_the_seal_and_another_form_of_the_same_does_not():
    facts = sealed({"labels": {1: 2}, "loss": math.nan, "names": ("a", "é")})
    read = json.loads(json.dumps({**facts, "loss": None}, ensure_ascii=False))
    assert is_intact(read)
    assert sealed(read) == read
    assert not is_intact({**read, "names": ["a", "e"]})
    assert is_intact({"names": ["of an older version"]})


def test_what_is_written_again_is_forgotten_and_nothing_else(tmp_path: Path):
    before = ("config.yaml", "metrics.jsonl", "processor/tokenizer.json", "snapshots/step-3.safetensors")
    files = dict.fromkeys(("model/base/config.json", "report.html", *before), "0")
    file = tmp_path / "run.json"
    file.write_text(json.dumps(sealed({"seed": 1, "result": {"steps": 4}, "files": files})))
    left = forget(tmp_path, BEFORE)
    assert left == json.loads(file.read_text()) == sealed(left)
    assert (left["result"], [*left["files"]]) == ({"steps": 4}, ["model/base/config.json", "report.html"])
    left = forget(tmp_path, (*MODEL, *RESULTS), ("result",))
    assert left == json.loads(file.read_text()) == sealed({"seed": 1, "files": {}})


def test_facts_that_are_damaged_or_missing_are_not_kept(tmp_path: Path):
    assert forget(tmp_path, BEFORE) == {}
    for content in ("[1", "[]", '{"files": [1]}', '{"files": 1}'):
        (tmp_path / "run.json").write_text(content)
        assert forget(tmp_path, BEFORE) == {}
        assert (tmp_path / "run.json").read_text() == content
