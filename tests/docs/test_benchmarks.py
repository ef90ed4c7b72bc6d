"""The figures of README and docs are those of the files that the benchmarks wrote."""

from __future__ import annotations

import json
import math
import re
from importlib import import_module

import pytest
from launching import ROOT

OTHERS = {
    *("GPU", "first results", "guards", "phases", "samples", "real data", "retrieval", "reviews", "search", "speech"),
    *("tools", "window loss", "chunked loss"),
}
TIMES = ("seconds_min", "seconds", "seconds_max", "runs")


@pytest.fixture
def render(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return import_module("render_benchmarks")


def test_the_readme_has_the_figures_of_the_results(render) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert render.rendered_readme() == text, "run `python docs/render_benchmarks.py`"


def test_results_have_their_keys_and_are_no_quick_runs(render) -> None:
    for file, page in render.results().items():
        assert page["quick"] is False, file
        assert page["benchmark"] in {*render.EXPECTED, *OTHERS}, file
        for case in (page, *page.get("cases", {}).values()):
            names = ("ratio_min", "ratio_median", "ratio_max", "pairs") if "ratio_median" in case else TIMES
            low, middle, high, number = (case[name] for name in names)
            assert 0 < low <= middle <= high < math.inf, file
            assert number >= 1


def test_every_benchmark_has_its_figures_or_is_said_to_have_none(render) -> None:
    measured = {page["benchmark"]: page for page in render.results().values()}
    for key, names in render.EXPECTED.items():
        assert key not in measured or all(name in measured[key] for name in names)
    missing = [key for key in render.EXPECTED if key not in measured]
    assert set(re.findall(r"P\d+", "".join(render.not_measured()))) == set(missing)


def test_a_result_is_rendered_with_its_range_and_machine(render, tmp_path, monkeypatch) -> None:
    page = {
        "benchmark": "P2", "title": "a | b", "ratio_median": 1.404, "ratio_min": 1.3, "ratio_max": 1.5, "pairs": 3,
        "case": "main", "clock": "wall", "threads": 2, "cpu": "A CPU", "bf16": ["amx_bf16"], "quick": False,
        "versions": {"torch": "2", "transformers": "5"}, "commit": "0123456789abcdef",
        "loss_check": {"losses": "largest difference", "tuned": 1e-7},
    }  # fmt: skip
    timed = {**page, "benchmark": "P10", "seconds": 1.5, "seconds_min": 1, "seconds_max": 2, "runs": 4}
    del timed["ratio_median"]
    for name, content in (("a", timed), ("b", page), ("c", {"other": 1})):
        (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.setattr(render, "RESULTS", tmp_path)
    details = render.details()
    assert details.index("## P2: a") < details.index("## P10")  # by number, not by letter
    assert "| main | **1.40x** (1.30 to 1.50, 3 pairs) |" in details
    assert "**1.50 s** (1.00 to 2.00, 4 runs)" in details
    assert "tuned 1.0e-07" in details
    assert "A CPU with amx_bf16, 2 threads, wall-clock time; torch 2, transformers 5; commit 0123456789ab" in details
    assert "| P2 | a \\| b | main | **1.40x** (1.30 to 1.50, 3 pairs) |" in render.summary()
    assert "P10" not in render.summary()


def test_scores_of_real_data_are_shown_for_each_seed(render) -> None:
    times = {"ratio_median": 1.25, "ratio_min": 1.2, "ratio_max": 1.3, "pairs": 2}
    runs = [{"this": {"score": 0.875}, "other": {"score": 0.8}}, {"this": {"score": 0.885}, "other": {"score": 0.9}}]
    case = {"metric": "eval_accuracy", "runs": runs, "train": times, "commit": "0123456789abcdef"}
    whole = case | {"metric": "eval_bleu", "whole": {"this": {"score": 36.71234}}, "whole_seed": 1}
    found = render.scores({"a": case, "b": whole})
    shown = "0.88 (0.875, 0.885) | 0.85 (0.8, 0.9) | **1.25x** (1.20 to 1.30, 2 pairs)"
    assert f"| a | eval_accuracy | 0123456789ab | {shown} |" in found
    assert "| b | eval_bleu | 0123456789ab | 36.71 (seed 1) | not measured | **1.25x**" in found


def test_the_seconds_of_each_tool_are_shown_for_each_configuration(render) -> None:
    found = render.each_configuration({"plan": {"each": {"a": 1.4, "b": 2}}, "profile": {"each": {"b": 61.2}}})
    assert "| a | 1 |  |" in found
    assert "| b | 2 | 61 |" in found


def test_the_limits_are_those_of_their_file():
    limits = json.loads((ROOT / "benchmarks/results/limits.json").read_text(encoding="utf-8"))
    page = " ".join((ROOT / "docs/benchmarks.md").read_text(encoding="utf-8").split())
    words, images, rows, loop, server = (limits[key] for key in ("P3", "P4", "P5", "P7", "P16"))
    example, own = (words[f"{side}_ms_without_products"] for side in ("example", "toolkit"))
    half, padded = words["toolkit_products_ms_fp32"] // 2, words["padded_tokens_ratio"]
    assert f"takes the example {example} ms and the toolkit {own}. Products take the toolkit {2 * half} ms" in page
    best = (example + padded * half) / (own + half)
    assert f"({example} + {padded} x {half}) / ({own} + {half}) = {best:.2f}" in page
    needed, whole = images["products_ms"], images["example_ms"]
    assert f"take {needed} of the example's {whole} ms" in page
    assert f"but dropout {images['rest_of_model_ms']}. If random numbers ({images['random_numbers_ms']}), files" in page
    best = whole / (needed + images["rest_of_model_ms"])
    assert f"files ({images['files_ms']}) and all the rest took no time, the ratio would be {best:.2f}" in page
    assert f"{rows['tokenizer_ms_per_row']} of the example's {rows['example_ms_per_row']} ms" in page
    start, kinds = limits["P6"], limits["P15"]
    assert f"takes {start['imports_s']} of the {start['first_step_s']} s until the first step" in page
    assert f"with the Trainer, take {start['example_imports_s']} s" in page
    image = f"{kinds['model_ms_per_image']} of the pipeline's {kinds['pipeline_ms_per_image']} ms"
    assert f"takes {image} per image" in page
    assert f"takes {kinds['model_ms_per_question']} of the loop's {kinds['loop_ms_per_question']} ms" in page
    own = kinds["toolkit_model_ms_per_question"]
    assert f"{own} of the toolkit's {kinds['toolkit_ms_per_question']}: nothing but padding" in page
    generation = f"{kinds['generation_ms_per_translation']} of the loop's {kinds['loop_ms_per_translation']} ms"
    assert f"takes {generation} per translation" in page
    assert f"needs {loop['ratio_of_sums']} of the toolkit's CPU time" in page
    assert f"server {server['toolkit_ms_per_request']} ms of CPU time, of which the model takes" in page
    assert f"the model takes {server['model_ms_per_request']} and checks" in page
    assert f"features {server['checks_and_features_ms']}; the app needs {server['app_ms_per_request']} ms" in page
