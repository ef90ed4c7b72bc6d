"""`toolkit profile`: what is read from a trace, what is advised, and that a planted sleep is found and named."""

from __future__ import annotations

import cProfile
import json
from dataclasses import replace
from threading import Timer
from typing import Any

import pytest
import torch
from runs import ROOT, TINY

from toolkit.commands.cli import main
from toolkit.document.blocks import Code, Text
from toolkit.lab.profile.measure import FlopCount, slowest
from toolkit.lab.profile.report import NOTHING, Profile, advice_of, profile_of
from toolkit.lab.profile.trace import read_events
from toolkit.recipe import load_settings, load_task_type

pytestmark = pytest.mark.usefixtures("forked_trials")

SLEEP = 0.03
MICRO_BATCHES = 8
SLOW = f"""
import time

from toolkit.recipe import load_task_type

Reviews = load_task_type({str(ROOT / "recipes/reviews.py")!r})


class SlowReviews(Reviews):
    def compact(self, *arguments):
        time.sleep({SLEEP})
        return super().compact(*arguments)


TASK = SlowReviews
"""


MEASURED: dict[str, Any] = {
    "ranks": [
        {
            "seconds": {"fetch": 0.0, "forward": 0.4, "backward": 0.5, "exchange": 0.05, "clip": 0.01, "other": 0.04},
            "hidden_exchange": 0.0, "flops": 5e9, "matmul_rate": 2e10, "counts": True,
            "rows": 8.0, "positions": 1000.0, "real": 950.0,
        }
    ],
    "trace": {
        "operations": [{"name": "aten::mm", "calls": 60.0, "seconds": 0.6, "share": 0.7}],
        "kernels": [], "leaves": 5000.0, "memory": {"forward": {"peak": 2**20, "kept": 2**19}},
        "exchange_seconds": 0.3, "busy_seconds": 0.0,
    },
    "loading": {"seconds": 0.2, "function": "collate", "place": "task.py:7", "function_seconds": 0.15},
    "attention": {"implementation": "sdpa", "can_be_fused": True, "dropout": None, "share": 0.0},
    "unpadded": False, "can_leave_out_padding": True, "memory": 2**22,
    "machine": {"device": "cpu", "gpus": 0, "cores": 2, "threads": 2, "smallest_operation": 2e-6, "precision": "no"},
}  # fmt: skip
"""What a process measures in a step of a second that wastes nothing."""


FACTS: dict[str, Any] = {"steps": 5, "skipped": 5, "config": "c.yaml", "command": "toolkit profile"}


def changed(**parts: Any) -> Profile:
    """Returns the figures of a profile in which parts of `MEASURED` are changed; `rank` changes the first rank."""
    rank = MEASURED["ranks"][0] | parts.pop("rank", {})
    merged = {name: MEASURED[name] | part if isinstance(part, dict) else part for name, part in parts.items()}
    return profile_of(MEASURED | {"ranks": [rank]} | merged, **FACTS)


def seconds(**phases: float) -> dict[str, Any]:
    return {"seconds": MEASURED["ranks"][0]["seconds"] | phases}


def advised(found: Profile, *overrides: str, refused: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Returns the advice for the smoke configuration of reviews, where the settings refuse some overrides."""
    task_type, config = load_task_type(ROOT / "recipes/reviews.py"), ROOT / "recipes/configs/reviews/smoke.yaml"

    def allowed(choice: Any) -> bool:
        return not set(choice) & set(refused)

    return advice_of(found, load_settings(task_type, config, overrides).config, allowed)


CASES: dict[str, tuple[dict[str, Any], str, float, str, list[str]]] = {
    "loading": (
        {"rank": seconds(fetch=0.25)}, "loading", 0.2,
        "20% of a step (250 ms) is spent waiting for rows. Of the 200 ms to load the rows of a step in one process, "
        "collate (task.py:7) takes 150 ms.", ["train.dataloader_num_workers=1"],
    ),
    "more workers": (
        {"rank": seconds(fetch=1.0), "loading": {"seconds": 3.5, "function": None}}, "loading", 0.5,
        "load rows in 4 worker processes", ["train.dataloader_num_workers=4"],
    ),
    "padding": (
        {"rank": {"real": 700.0}}, "padding", 0.3, "30% of the positions that the model computes are padding.",
        ["train.unpadded=true"],
    ),
    "padding of a model that needs it": (
        {"rank": {"real": 700.0}, "can_leave_out_padding": False}, "padding", 0.3, "rows of similar length",
        ["train.train_sampling_strategy=group_by_length"],
    ),
    "launches": (
        {"trace": {"leaves": 150_000.0}}, "launches", 0.3,
        "A step has 150,000 operations. If none computed anything, they would still take 2 us each, 30% of the step.",
        ["train.per_device_train_batch_size=8"],
    ),
    "a GPU that waits": (
        {"trace": {"busy_seconds": 0.3}, "machine": {"device": "cuda", "gpus": 1}}, "launches", 0.7,
        "the GPU computes in 30% of it", ["train.per_device_train_batch_size=8"],
    ),
    "attention": (
        {"attention": {"implementation": "eager", "share": 0.4}}, "attention", 0.4,
        "40% of the operations' time is spent in attention that is computed step by step",
        ["model.attn_implementation=sdpa"],
    ),
    "attention with dropout": (
        {"attention": {"dropout": "attention_probs_dropout_prob", "share": 0.4}}, "attention", 0.4,
        "because it has dropout (attention_probs_dropout_prob)",
        ["model.config_overrides.attention_probs_dropout_prob=0.0"],
    ),
    "idle GPUs": (
        {"machine": {"device": "cuda", "gpus": 4}, "trace": {"busy_seconds": 0.9}}, "idle", 0.75,
        "4 GPUs visible, 1 used.", ["--processes 4"],
    ),
    "idle cores": ({"machine": {"cores": 8}}, "threads", 0.75, "8 cores, 2 threads in 1 process.",
                   ["OMP_NUM_THREADS=8"]),
    "too many threads": ({"machine": {"threads": 8}}, "threads", 0.75, "They wait for each other.",
                         ["OMP_NUM_THREADS=2"]),
}  # fmt: skip
"""For what is changed: the advice, its number, what its text says, and its override."""


@pytest.mark.fast(5)
@pytest.mark.parametrize("case", CASES)
def test_each_waste_is_named_with_its_number_and_an_override(case):
    parts, what, number, text, override = CASES[case]
    settings = ("train.global_batch_size=8", "train.per_device_train_batch_size=4")
    (advice,) = advised(changed(**parts), *settings)
    assert advice["what"] == what
    assert advice["number"] == pytest.approx(number, rel=1e-6)
    assert text in advice["text"]
    assert advice["override"] == override
    load_settings(load_task_type(ROOT / "recipes/reviews.py"), ROOT / "recipes/configs/reviews/smoke.yaml",
                  [each for each in override if each.startswith(("train.", "model."))])  # fmt: skip


def test_a_step_that_wastes_nothing_needs_no_advice():
    found = changed()
    assert advised(found) == []
    assert found.page().lead == NOTHING


def test_advice_that_the_settings_reject_is_replaced_or_left_out():
    padded = changed(rank={"real": 700.0})
    (advice,) = advised(padded, refused=("train.unpadded=true",))
    assert advice["override"] == ["train.train_sampling_strategy=group_by_length"]
    assert advised(padded, refused=("train.unpadded=true", *advice["override"])) == []


def test_the_largest_waste_comes_first():
    found = changed(rank=seconds(fetch=0.25) | {"real": 500.0})
    assert [each["what"] for each in advised(found)] == ["padding", "loading"]


def test_exchange_counts_what_is_hidden_in_the_backward_pass_and_tells_waiting_apart():
    first = MEASURED["ranks"][0]
    ranks = [first | {"hidden_exchange": 0.25}, first | {"hidden_exchange": 0.05}]
    found = profile_of(MEASURED | {"ranks": ranks}, **FACTS)
    assert found.exchange == pytest.approx({"share": 0.2, "waiting": 0.1, "in_flight": 0.3})
    assert found.rows_per_second == pytest.approx(16)
    assert found.flops == pytest.approx({"step": 1e10, "second": 1e10, "matmul_second": 4e10, "utilisation": 0.25})
    threads, exchange = advised(found)
    assert (threads["text"], threads["override"]) == (
        "2 cores, 4 threads in 2 processes. They wait for each other.", ["OMP_NUM_THREADS=1"],
    )  # fmt: skip
    assert exchange["text"].startswith("20% of a step is spent in exchanges between processes and nothing else; 10%")
    assert exchange["override"] == ["train.global_batch_size=32"]  # twice the configured ones
    by_split = ("train.global_batch_size=null", "train.gradient_accumulation_steps=2")
    assert advised(found, *by_split)[1]["override"] == ["train.gradient_accumulation_steps=4"]


def event(name: str, start: float, length: float, cat: str = "cpu_op", thread: int = 1) -> dict[str, Any]:
    return {"name": name, "ts": start, "dur": length, "cat": cat, "pid": 1, "tid": thread}


def memory(start: float, size: int, device: int = 0) -> dict[str, Any]:
    return {"name": "[memory]", "ts": start, "cat": "cpu_instant_event", "args": {"Bytes": size, "Device Type": device}}


def test_an_operation_has_the_time_that_operations_inside_it_have_not():
    reading = read_events([
        event("aten::linear", 0, 10), event("aten::t", 1, 2), event("aten::addmm", 3, 6), event("aten::linear", 20, 5),
        event("aten::mul", 2, 4, thread=2),
    ])  # fmt: skip
    own = {name: (each.calls, round(each.seconds * 1e6, 6)) for name, each in reading.operations.items()}
    assert own == {"aten::linear": (2, 7), "aten::t": (1, 2), "aten::addmm": (1, 6), "aten::mul": (1, 4)}
    assert reading.leaves == 4  # all but the first, which calls others


def test_memory_is_that_of_the_phase_in_which_it_changes():
    phases = [event(f"phase: {name}", start, 9, "user_annotation") for name, start in (("forward", 0), ("update", 10))]
    changes = [memory(1, 100), memory(2, -40), memory(11, 10), memory(12, -70)]
    assert read_events([*phases, *changes]).memory == {
        "forward": {"peak": 100, "kept": 60}, "update": {"peak": 70, "kept": -60},
    }  # fmt: skip
    assert read_events([*phases, *changes, memory(3, 7, device=1)]).memory == {"forward": {"peak": 7, "kept": 7}}


def test_exchanges_and_kernels_that_overlap_count_once():
    reading = read_events([
        event("gloo:all_reduce", 0, 10, thread=2), event("gloo:all_reduce", 5, 10, thread=3),
        event("matmul", 0, 4, "kernel"), event("add", 2, 4, "kernel"),
    ])  # fmt: skip
    assert reading.exchange_seconds == pytest.approx(15e-6)
    assert reading.busy_seconds == pytest.approx(6e-6)
    assert reading.kernels["matmul"].seconds == pytest.approx(4e-6)


def test_operations_are_counted_by_their_shapes():
    one, other = torch.ones(3, 4, requires_grad=True), torch.ones(4, 5, requires_grad=True)
    with FlopCount() as count:
        (one @ other).sum().backward()
    assert count.total == 3 * (2 * 3 * 4 * 5)  # the product, and one for each of its gradients


def test_time_in_libraries_is_that_of_the_code_that_calls_them():
    def wait() -> None:
        Timer(0.05, lambda: None).run()  # waits in an event of the standard library

    profiler = cProfile.Profile()
    profiler.enable()
    wait()
    profiler.disable()
    found = slowest(profiler, 0.06, 1)
    assert found.function == "wait"
    assert found.place.startswith("test_profile.py:")
    assert 0.05 <= found.function_seconds <= 0.06
    nothing = cProfile.Profile()
    nothing.enable()
    nothing.disable()
    assert slowest(nothing, 0.5, 1).function is None


def test_the_page_and_the_terminal_show_the_same_advice():
    found = changed(rank=seconds(fetch=0.25), machine={"device": "cuda", "gpus": 4}, trace={"busy_seconds": 0.9})
    found = replace(found, advice=advised(found))
    for blocks in (found.page().sections[0].blocks, list(found.on_terminal())):
        texts = [block.text for block in blocks if isinstance(block, Text | Code)]
        for advice in found.advice:
            assert advice["text"] in texts
            assert advice["override"][0] in texts


def profile(*arguments: str, code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["profile", *arguments])
    assert ended.value.code == code


@pytest.mark.slow
def test_a_sleep_in_the_collator_is_found_and_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "temporary").mkdir()
    recipe, data = tmp_path / "slow_reviews.py", ROOT / "recipes/data/reviews"
    recipe.write_text(SLOW)
    profile(str(recipe), "--config", str(ROOT / "recipes/configs/reviews/smoke.yaml"), "--skip", "2", "--steps", "2",
            "--output", "out", *TINY, f"output_dir={tmp_path / 'run'}", "eval.eval_on_start=true",
            "model.freeze=[backbone]", "model.unfreeze={epoch_1: ['*encoder*', '*embeddings*']}",
            "train.per_device_train_batch_size=1", f"train.gradient_accumulation_steps={MICRO_BATCHES}",
            f"data.train_file={data / 'train.csv'}", f"data.validation_file={data / 'validation.csv'}")  # fmt: skip
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    found = json.loads((tmp_path / "out" / "profile.json").read_text())
    least = MICRO_BATCHES * SLEEP
    assert found["phases"]["fetch"]["seconds"] >= least
    advice = next(each for each in found["advice"] if each["what"] == "loading")
    assert advice["number"] == found["phases"]["fetch"]["share"] > 0.05
    place = f"compact (slow_reviews.py:{SLOW.splitlines().index('    def compact(self, *arguments):') + 1})"
    assert place in advice["text"]
    assert found["loading"]["function_seconds"] >= least
    (override,) = advice["override"]
    assert override.startswith("train.dataloader_num_workers=")
    assert override in shown.splitlines()
    assert sum(each["share"] for each in found["phases"].values()) == pytest.approx(1)
    assert found["rows_per_second"] == pytest.approx(MICRO_BATCHES / found["step_seconds"])
    assert found["flops"]["step"] > 1e6
    assert 0 < found["flops"]["utilisation"] < 1
    assert found["memory"]["phases"]["forward"]["peak"] > 0
    assert found["launches"]["operations"] > 100
    assert "aten::addmm" in {each["name"] for each in found["operations"]}
    assert 0.5 < sum(each["share"] for each in found["operations"]) <= 1 + 1e-9
    names = ["profile.html", "profile.json", "profile.md", "trace.json.gz"]
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == names
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"out", "slow_reviews.py", "temporary"}
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_under_the_trainer_show_their_exchange(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = ROOT / "recipes/data/reviews"
    profile("reviews", "--config", "smoke", "--processes", "2", "--skip", "2", "--steps", "2", "--output", "out",
            *TINY, "engine=trainer", f"data.train_file={data / 'train.csv'}", "train.unpadded=false",
            f"data.validation_file={data / 'validation.csv'}", f"output_dir={tmp_path / 'run'}")  # fmt: skip
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    found = json.loads((tmp_path / "out" / "profile.json").read_text())
    assert found["processes"] == 2
    assert found["phases"]["exchange"]["seconds"] > 0
    share = found["exchange"]["share"]
    assert share > found["phases"]["exchange"]["share"]  # with what DDP waits for in its backward pass
    assert 0 <= found["exchange"]["waiting"] < share < 1
    assert found["exchange"]["in_flight"] > 0
    assert 0 < found["padding"]["share"] < 1
    assert "exchange and nothing else" in shown
    padding = next(each for each in found["advice"] if each["what"] == "padding")
    assert padding["number"] == found["padding"]["share"]
