"""The model card: licence of the base model, limits, and sections that are added later."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from runs import ROOT

from toolkit.recipe import load_settings, load_task_type
from toolkit.report.card import Card, model_card, with_section


def card(tmp_path: Path, recipe: str = "translation", *overrides: str, **facts: Any) -> str:
    task_type = load_task_type(ROOT / f"recipes/{recipe}.py")
    file = ROOT / f"recipes/configs/{recipe}/smoke.yaml"
    cfg = load_settings(task_type, file, [f"output_dir={tmp_path}", *overrides]).config
    known = {"num_rows": {"train": 1200, "validation": 30}, **facts}
    return model_card(Card("name", cfg, task_type(cfg), SimpleNamespace(model_type="t5"), known, "None.", False))


@pytest.mark.parametrize(
    ("front", "expected"),
    [
        ("---\nlanguage: en\nlicense: apache-2.0\n---\n# Base\n", "apache-2.0"),
        ('---\nlicense: "mit"\n---\n', "mit"),
        ("---\nlicense:\n- mit\n- cc-by-4.0\n---\n", "mit, cc-by-4.0"),
        ("---\nlicense: [unclosed\n---\n", "unknown"),
        ("---\nlicense: '<b>free</b>'\n---\n", "unknown"),
        ("# A card without metadata\nlicense: mit\n", "unknown"),
        ("", "unknown"),
    ],
)
def test_the_licence_is_that_of_the_base_models_card(front, expected, tmp_path):
    (tmp_path / "README.md").write_text(front)
    text = card(tmp_path, "translation", "model.from_config=null", f"model.name_or_path={tmp_path}")
    assert f"Licence of the base model: {expected}." in text
    assert f"\nlicense: {f'[{expected}]' if ',' in expected else expected}\n" in text
    assert "What the base model learned from its own data" in text


def test_data_and_limits_are_told(tmp_path):
    digest = "0123456789abcdef" * 4
    text = card(tmp_path, bad_rows={"train": 12, "validation": 0}, data_fingerprints={"train": digest})
    assert "| train | train.jsonl | 1,200 | 0123456789ab |" in text
    assert digest not in text
    limits = text.partition("## Limits\n\n")[2].partition("\n\n##")[0].splitlines()
    assert limits[0].startswith("- Of an input, the model reads at once at most ")
    assert "- Rows that could not be used were skipped in training and scores: 12 of train." in limits
    assert not any("base model" in line or "optimistic" in line for line in limits)
    chosen = card(tmp_path, "translation", "checkpoint.load_best_model_at_end=true", "eval.eval_steps=1")
    assert "so their scores are optimistic" in chosen


def test_a_section_is_added_once_and_keeps_what_was_edited():
    before = "---\nlicense: mit\n---\n\n# Mine\n\nBy hand.\n"
    once = with_section(before, "Export: onnx", "First.")
    assert once == before + "\n## Export: onnx\n\nFirst.\n"
    both = with_section(once, "Export: int8", "Other.")
    again = with_section(both, "Export: onnx", "Second.")
    assert again == before + "\n## Export: int8\n\nOther.\n\n## Export: onnx\n\nSecond.\n"
    assert with_section(again, "Export: onnx", "Second.") == again
