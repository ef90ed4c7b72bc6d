"""What a run knows of its own files: which it seals, and which a resumed session writes again."""

from __future__ import annotations

import json
import math

from toolkit.report.intact import is_intact, of_former_session, sealed


def test_a_changed_value_breaks_the_seal_and_another_form_of_the_same_does_not():
    facts = sealed({"labels": {1: 2}, "loss": math.nan, "names": ("a", "é")})
    read = json.loads(json.dumps({**facts, "loss": None}, ensure_ascii=False))
    assert is_intact(read)
    assert sealed(read) == read
    assert not is_intact({**read, "names": ["a", "e"]})
    assert is_intact({"names": ["of an older version"]})


def test_a_session_that_resumes_writes_settings_and_metrics_again():
    names = ("model/config.json", "report.html", "config.yaml", "metrics.jsonl", "processor/tokenizer.json")
    assert list(of_former_session(dict.fromkeys(names, ""))) == ["model/config.json", "report.html"]
