"""The measured numbers in the pages equal those in the committed results."""

from __future__ import annotations

import itertools
import json
import math
import re
from importlib import import_module
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import pytest
from launching import ROOT
from transformers import AutoConfig

from toolkit.distributed.pipeline.partition import stage_problems

RESULTS = ROOT / "benchmarks" / "results"


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def row(page: str, setting: str) -> str:
    """Returns the line of a table about a setting."""
    lines = [line for line in (ROOT / page).read_text(encoding="utf-8").splitlines() if f"| `{setting}" in line]
    assert len(lines) == 1, setting
    return lines[0]


def factors(text: str) -> list[float]:
    return [float(factor) for factor in re.findall(r"\bx (\d\.\d\d)\b", text)]


def test_the_time_of_a_step_in_the_trainer() -> None:
    found = read(RESULTS / "p7_loop.json")["cases"]["loop against the Trainer engine, large model"]
    text = row("docs/switches.md", "engine` | the toolkit")
    assert factors(text) == [round(found["ratio_median"], 2)]
    assert f"median of {found['pairs']} pairs" in text


def test_the_memory_of_activation_checkpointing() -> None:
    variants = read(RESULTS / "plan.json")["bert"]["variants"]
    none, full = (
        next(v for v in variants if (v["optim"], v["activation_checkpointing"]) == ("adamw_torch_fused", kind))
        for kind in ("none", "full")
    )
    expected = [round(full["measured_bytes"] / none["measured_bytes"], 2)]
    assert factors(row("docs/switches.md", "train.activation_checkpointing` | recomputes")) == expected


def test_the_effect_of_mixed_precision() -> None:
    variants = read(ROOT / "docs" / "worked_example.json")["variants"]
    (after,) = (variant for variant in variants if variant["name"] == "+ mixed_precision=bf16")
    text = (ROOT / "docs" / "switches.md").read_text(encoding="utf-8").split("### Mixed precision")[1].split("\n##")[0]
    assert factors(text) == [round(after["step"]["step_seconds"]["value"], 2)]


@pytest.mark.parametrize(
    ("file", "ratios"),
    [
        ("worked_example", ("train_peak", "step_seconds")),
        ("worked_example_images", ("train_peak", "step_seconds", "train_seconds")),
    ],
)
def test_the_steps_of_a_worked_example_are_those_of_its_runs(file, ratios) -> None:
    found = read(ROOT / "docs" / f"{file}.json")
    for part in (found, *([found["transfer"]] if "transfer" in found else [])):
        for before, after in itertools.pairwise(part["variants"]):
            assert before["seeds"].keys() == after["seeds"].keys()
            pairs = [(before["seeds"][seed], after["seeds"][seed]) for seed in after["seeds"]]
            changes = [new["eval_accuracy"] - old["eval_accuracy"] for old, new in pairs]
            assert after["step"]["eval_accuracy"]["value"] == pytest.approx(fmean(changes))
            for name in ratios:
                change = after["step"][name]
                assert change["value"] == pytest.approx(geometric_mean([new[name] / old[name] for old, new in pairs]))
                assert change["low"] <= change["value"] <= change["high"]


def test_the_rates_of_the_image_example_are_those_of_its_range_test(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    found = read(ROOT / "docs" / "worked_example_images.json")
    rates = import_module("worked_example").rates_of(found)
    used = [variant["settings"]["train.learning_rate"] for variant in found["variants"]]
    assert used == ["5e-5", rates["plain"], rates["one_cycle"], *[rates["plain"]] * 3]


def test_the_gains_on_a_cpu() -> None:
    cases = read(RESULTS / "cpu_step.json")["cases"]
    assert cases.keys() >= {"fast_dropout_fp32", "fast_dropout_bf16", "labelled_logits_bf16", "flush_denormal_adamw"}
    not_used = {name for name in cases if name.startswith(("autocast_cache", "jemalloc"))}
    assert min(case["ratio_median"] for name, case in cases.items() if name not in not_used) > 1
    assert max(case["ratio_median"] for name, case in cases.items() if name.startswith("jemalloc")) < 1
    kept = [case["mib_with"] / case["mib_without"] for name, case in cases.items() if name.startswith("kept")]
    assert kept
    assert all(0.9 < ratio < 1.1 for ratio in kept)


def test_the_accuracy_of_plans() -> None:
    models = [found for found in read(RESULTS / "plan.json").values() if isinstance(found, dict)]
    variants = [variant for found in models for variant in found["variants"]]
    page = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
    worst = max(abs(variant["peak"] - 1) for variant in variants)
    assert f"within {100 * worst:.1f} %" in page
    low, high = (round(100 * pick(v["peak_uncalibrated"] for v in variants)) for pick in (min, max))
    assert f"{low} to {high} %" in page


def test_the_scores_of_searches_and_similarities() -> None:
    cases = read(RESULTS / "search_scores.json")["cases"]
    text = (ROOT / "recipes/configs/embeddings/README.md").read_text(encoding="utf-8")
    reward = cases.pop("trec_qa_reward")
    page = (ROOT / "recipes/configs/preference/README.md").read_text(encoding="utf-8")
    assert f"({', '.join(f'{score:.3f}' for score in reward['scores']['trained'])} with seeds 42 to 44)" in page
    assert f"({reward['baselines']['the longer answer']['reward_accuracy']:.3f})" in page
    for name, case in cases.items():
        metric, words = case["metric"], case["baselines"]
        (before,) = {each["before"][metric] for each in case["by_seed"]}
        trained = ", ".join(f"{score:.3f}" for score in case["scores"]["trained"])
        bm25, tfidf = (f"{words[kind][metric]:.3f}" if kind in words else "-" for kind in ("BM25", "cosine of TF-IDF"))
        assert re.search(rf"\| {name} \| \S+ \| {before:.3f} \| {trained} \| {bm25} \| {tfidf} \|", text), name


def test_the_word_errors_of_speakers_that_were_never_heard() -> None:
    cases = read(RESULTS / "spoken_digits.json")["cases"]
    text = (ROOT / "recipes/configs/speech_recognition/README.md").read_text(encoding="utf-8")
    for name, case in cases.items():
        expected = ", ".join(f"{rate:.2f}" for rate in case["scores"]["spoken_digits.yaml"])
        assert f"| {name} | {expected} |" in text
    assert f"a training takes {round(cases['theo']['seconds_min'] / 60)} minutes" in text


def test_peaks_of_every_pair_of_values_are_said_as_measured() -> None:
    cases = read(RESULTS / "sharding_pairs.json")["cases"]
    assert all(abs(case["planned"] / case["counted"] - 1) <= 0.1 for case in cases.values())
    assert f"peak of all {len(cases)} cases is within 10 %" in (ROOT / "docs/plan.md").read_text(encoding="utf-8")


def test_why_encoder_decoders_have_no_stages_is_counted() -> None:
    found = read(RESULTS / "stages.json")
    page = " ".join((ROOT / "docs/parallel.md").read_text(encoding="utf-8").split())
    runs, memory = found["generation"].values(), found["memory"]
    passes = f"{min(run['fewest'] for run in runs)} to {max(run['most'] for run in runs)} passes of the decoder"
    assert passes in stage_problems(AutoConfig.for_model("t5"), 2, 1)[0]
    longest = sorted(run["longest_reference"] for run in runs)
    assert f"{passes} for each batch" in page
    assert f"longest references have {longest[0]:.0f} to {math.ceil(longest[-1])} tokens" in page
    assert f"takes {memory['FSDP2']:,.0f} MiB" in page
    assert f"at least {memory['largest stage, at least']:,.0f} MiB" in page

    cases = found["cases"]
    four = {name: case["4 stages"] for name, case in cases.items()}
    translation, blocks, chat = (
        four[name]["waiting"] for name in ("T5-base, translation", "Llama, language modelling", "Llama, chat")
    )
    own = 100 * (translation["all"] - translation["lengths"])
    assert f"wait for {translation['all']:.0%}".replace("%", " %") in page
    assert f"only {own:.1f} points of it" in page
    assert f"{blocks['all']:.0%} for blocks of text and {chat['all']:.0%}".replace("%", " %") in page
    assert all(case["sent"] <= case["sent_by_decoder"] for case in four.values())
    per_operation = [
        case["sent"] / case["sent_by_decoder"] * cases[name]["operations_of_decoder"] / cases[name]["operations"]
        for name, case in four.items()
        if not name.startswith("Llama")
    ]
    assert f"{min(per_operation):.1f} to {max(per_operation):.1f} times as many per operation" in page


def test_the_bytes_of_shards_are_those_of_the_plan() -> None:
    cases = read(RESULTS / "sharding.json")["cases"]
    for name, case in cases.items():
        assert abs(case["planned"] / case["counted"] - 1) <= 0.1, name
        assert abs(case["planned_sent"] / case["sent"] - 1) <= 0.01, name
    for processes, most in ((2, 0.6), (4, 0.4)):
        own, all_of_it = (cases[f"{kind}, {processes} processes, 4 x bf16"]["counted"] for kind in ("FSDP2", "DDP"))
        assert own <= most * all_of_it
