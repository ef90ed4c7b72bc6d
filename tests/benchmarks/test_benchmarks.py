"""Every benchmark runs in its quick form, and its result has the keys that the documentation is rendered from."""

from __future__ import annotations

import json
import subprocess
import sys

import bench_preprocessing
import datasets
import ours
import pytest
import texts
from launching import ROOT

WITH_QUICK_FORM = sorted(
    file.stem for file in ROOT.glob("benchmarks/bench_*.py") if "read_options(" in file.read_text(encoding="utf-8")
)

ONE_CASE = {
    "bench_first_results": ["--only", "problems", "images"],
    "bench_gpu": ["--case", "qa_base"],
    "bench_guards": ["--only", "guards"],
    "bench_media": ["--case", "audio"],
    "bench_predict": ["--case", "texts", "qa"],
    "bench_training": ["--case", "qa"],
}
"""Cases of benchmarks whose other cases share their code."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return texts.with_head(texts.new_bert(tmp_path_factory.mktemp("base")), tmp_path_factory.mktemp("qa"), False)


def test_a_recipe_is_timed_by_step(model, tmp_path) -> None:
    rows = texts.qa_rows(texts.one_token_words(model), 4, 2, "random", 48)
    settings = [
        "data.dataset_name=null", f"data.train_file={texts.write_rows(rows, tmp_path / 'rows.jsonl')}",
        f"model.name_or_path={model}", "task.max_length=48", "task.doc_stride=16", "train.num_train_epochs=1",
        "train.per_device_train_batch_size=2", "train.dataloader_num_workers=0", "train.mixed_precision=no",
        *ours.no_waste(256),
    ]  # fmt: skip
    found = ours.train("qa", "recipes/configs/qa/squad.yaml", settings, str(tmp_path), warm_up=2)
    assert found["steps"] == 2
    assert found["seconds"] > 0
    assert len(found["losses"]) == 4


def test_preprocessing_makes_the_same_features_as_the_example(model, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)  # the toolkit's side sets it
    words = texts.one_token_words(model)
    files = {
        "file": texts.write_rows(texts.qa_rows(words, 9, 1, "random"), tmp_path / "rows.jsonl"),
        "warm_up": texts.write_rows(texts.qa_rows(words, 2, 1, "random"), tmp_path / "warm_up.jsonl"),
        "tokenizer": str(model),
    }
    own = bench_preprocessing.toolkit(folder=str(tmp_path), **files)
    for variant in ("defaults", "tuned"):
        example = bench_preprocessing.example(variant=variant, cache=str(tmp_path / "cache"), **files)
        assert {**example, "seconds": own["seconds"]} == own


@pytest.mark.benchmarks
@pytest.mark.parametrize("name", WITH_QUICK_FORM)
def test_the_quick_form_writes_a_result(name, tmp_path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--quick", "--results", str(tmp_path)]
    command += ONE_CASE.get(name, [])
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    pages = [json.loads(file.read_text(encoding="utf-8")) for file in tmp_path.glob("*.json")]
    assert pages
    for page in pages:
        assert {"benchmark", "title", "clock", "threads", "cpu", "versions", "commit"} <= page.keys()
        assert page["quick"] is True
        assert "ratio_median" in page or "seconds" in page
