"""Searches whose trials are trained by a stand-in: what runs, what does not, what is kept, and what is said."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from browser import needs_browser, open_page
from runs import ROOT

from toolkit.api.state import Milestones
from toolkit.base.errors import InputError, RunError
from toolkit.checkpoint.lock import OutputLock
from toolkit.commands.cli import main
from toolkit.lab.jobs import jobs
from toolkit.lab.jobs.jobs import Launch
from toolkit.lab.search import population, report, trials, winner
from toolkit.lab.search.report import SearchReport, verdict
from toolkit.lab.search.space import POPULATION, Dimension
from toolkit.lab.search.study import JOURNAL, OWNER, Book, Search, result_of
from toolkit.lab.search.trials import lighten, require_gpus, resources
from toolkit.lab.search.winner import differences, interval, same
from toolkit.lab.search.worker import Watcher, risen
from toolkit.lab.tool import Request
from toolkit.metrics.score import Score
from toolkit.recipe import load_settings, load_task_type

RECIPE, CONFIG = ROOT / "recipes/reviews.py", ROOT / "recipes/configs/reviews/smoke.yaml"
RATE = Dimension("train.learning_rate", low=1e-6, high=1e-1, log=True)
RATES = Dimension("train.learning_rate", ("1.0e-05", "0.0001", "0.001", "10.0"))
RATE_PAIR = Dimension("train.learning_rate", ("0.0001", "0.001"))
RATE_TRIPLE = Dimension("train.learning_rate", ("1.0e-05", "0.0001", "0.001"))
OPTIM = Dimension("train.optim", ("adamw_torch", "sgd"))


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Returns a function that makes a search, whose trials the stand-in trains, and the log of the stand-in."""
    log = tmp_path / "log"
    log.touch()
    monkeypatch.setattr(jobs, "WORKER", (str(ROOT / "tests/support/search_worker.py"), str(log)))
    monkeypatch.chdir(ROOT)

    def search(*space: Dimension, method: str = "random", trials: int = 4, **more) -> Search:
        task_type = load_task_type(RECIPE)
        cfg = load_settings(task_type, CONFIG).config
        launch, command = Launch(None, 1, {}), "toolkit search"
        request = Request(Path(RECIPE), Path(CONFIG), [], task_type, cfg, launch, tmp_path / "out", command)
        return Search(request, list(space), method, Score("eval_accuracy"), trials, **more)

    return search, log


def opened(search: Search) -> Book:
    book = Book(search, report.claim(search)["owner"])
    book.open()
    return book


def run(search: Search) -> SearchReport:
    """Runs what is left of a search, as the command does."""
    book = opened(search)
    work = population if search.method in POPULATION else trials
    work.run(search, book, lambda number, result: None)
    found = winner.score(search, book)
    return report.report_of(report.read(search.folder), book.study, found, 1.0)


def opened_and_run(search: Search) -> Book:
    book = opened(search)
    trials.run(search, book, lambda number, result: None)
    return book


def states(found: SearchReport) -> dict[str, int]:
    return dict(Counter(row["state"] for row in found.trials))


@pytest.mark.slow
def test_a_grid_trains_each_point_once_and_says_what_happened_to_each(make):
    search, log = make
    momentum = Dimension("train.optim_args", ("{}", "{momentum: 0.9}"))  # which Adam has not: infeasible points
    found = run(search(RATES, OPTIM, momentum, method="grid", trials=99))
    assert states(found) == {"finished": 3, "infeasible": 4, "diverged": 3, "failed": 6}
    by_state = {}
    for row in found.trials:
        by_state.setdefault(row["state"], []).append(row)
    assert {row["params"]["train.optim"] for row in by_state["infeasible"]} == {"adamw_torch"}
    assert all("momentum" in row["reason"] for row in by_state["infeasible"])
    assert {row["params"]["train.learning_rate"] for row in by_state["diverged"]} == {"10.0"}
    assert by_state["diverged"][0]["reason"] == "the training loss rose from 0.7 to 10"
    assert {row["reason"] for row in by_state["failed"]} == {"no memory left"}
    trained = [line for line in log.read_text().splitlines() if line.startswith("search ")]
    assert len(trained) == len(set(trained)) + 4 == 16 - 4  # with and without momentum, the log has the same line
    assert found.best["overrides"][0] == "train.learning_rate=0.0001"
    page = str([(part.title, [str(block) for block in part.blocks]) for part in found.page().sections])
    assert "the training loss rose from 0.7 to 10" in page
    assert "no memory left" in page


@pytest.mark.slow
def test_a_search_that_goes_on_does_only_the_rest_and_says_the_same(make):
    search, log = make
    whole = run(search(RATE, trials=6))
    first = log.read_text().splitlines()
    asked = search(RATE, trials=6)
    again = run(asked)
    assert log.read_text().splitlines() == first  # nothing is left to do, also not the score of the winner
    assert again.trials == whole.trials
    longer = run(replace(asked, trials=8))
    added = log.read_text().splitlines()[len(first) :]
    assert len([line for line in added if line.startswith("search ")]) == 2
    assert longer.trials[:6] == whole.trials
    assert longer.best["value"] >= whole.best["value"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["random", "tpe", "gp", "cmaes"])
def test_points_do_not_depend_on_interruptions(make, tmp_path, method):
    search, _ = make
    decay = Dimension("train.weight_decay", low=0.0, high=1.0)
    asked = search(RATE, decay, method=method)
    for most in (2, 4, 13):
        interrupted = run(replace(asked, trials=most))
    whole = run(replace(asked, trials=13, request=replace(asked.request, output=tmp_path / "whole")))
    assert [row["params"] for row in interrupted.trials] == [row["params"] for row in whole.trials]
    assert len({row["params"]["train.learning_rate"] for row in whole.trials}) == 13
    assert whole.trials[0]["params"]["train.learning_rate"] == 1e-3  # the configured settings come first
    parts = whole.importance["values"]
    assert sum(parts.values()) == pytest.approx(1)
    if method == "random":
        assert parts["train.learning_rate"] > 0.5  # the stand-in knows no weight decay


def test_a_killed_search_tells_what_was_over_and_trains_what_was_not(make):
    search, log = make
    asked = search(RATE, trials=3)
    book = opened(asked)
    over, not_over = book.ask(), book.ask()
    done = asked.folder_of(over.number)
    done.mkdir(parents=True)
    (done / "result.json").write_text(json.dumps({"state": "finished", "value": 0.5, "steps": 1, "seconds": 2.0}))
    found = run(asked)
    assert found.trials[over.number]["value"] == 0.5
    assert found.trials[not_over.number]["state"] == "finished"
    assert len([line for line in log.read_text().splitlines() if line.startswith("search ")]) == 2


def test_a_torn_last_line_of_the_study_is_mended(make):
    search, _ = make
    run(search(RATE, trials=2))
    journal = search(RATE).folder / JOURNAL
    with journal.open("ab") as file:
        file.write(b'{"op_code":4,"work')
    assert len(run(search(RATE, trials=3)).trials) == 3


def test_a_trial_that_another_search_trains_is_left_to_it(make):
    search, log = make
    asked = search(RATE, trials=1)
    book = opened(asked)
    trial = book.ask()
    place = asked.folder_of(trial.number)
    place.mkdir(parents=True)
    with OutputLock(place):
        assert book.orphans() == []
        trials.run(asked, book, lambda number, result: None)
    assert log.read_text() == ""
    assert [each.number for each in book.orphans()] == [trial.number]


def test_a_trial_that_another_search_has_taken_is_left_to_it(make, monkeypatch):
    search, log = make
    asked = search(RATE, trials=1)
    book = opened(asked)
    trial = book.ask()
    monkeypatch.setattr(book, "orphans", lambda: [trial])  # seen before the other search had taken it
    place = asked.folder_of(trial.number)
    place.mkdir(parents=True)
    with OutputLock(place):
        trials.run(asked, book, lambda number, result: None)
    book.tell(trial, {"state": "finished", "value": 0.5})
    trials.run(asked, book, lambda number, result: None)
    assert log.read_text() == ""


def test_a_point_that_another_machine_is_drawing_is_left_to_it(make, monkeypatch):
    search, _ = make
    asked = search(RATE, trials=3)
    book = opened(asked)
    other = book.study.ask({RATE.key: RATE.distribution()})
    theirs = book.study.ask({RATE.key: RATE.distribution()})
    monkeypatch.setattr("toolkit.lab.search.study.time.sleep", lambda _: theirs.set_user_attr(OWNER, "another folder"))
    monkeypatch.setattr(book, "search", replace(asked, storage="a database"))
    assert book.orphans() == []
    ended = {each.number: result_of(each)["state"] for each in book.trials()}
    assert ended[other.number] == "abandoned"
    assert ended[theirs.number] == "running"


def test_a_trial_that_a_signal_ended_before_it_could_save_goes_on(make):
    search, log = make  # the stand-in is killed the first time
    asked = search(RATE, Dimension("train.optim", ("rmsprop",)), trials=1)
    assert [result_of(each)["state"] for each in opened_and_run(asked).trials()] == ["running"]
    assert states(run(asked)) == {"finished": 1}
    assert log.read_text().count("search ") == 2


def test_a_search_whose_trials_are_all_impossible_ends(make):
    search, log = make
    with pytest.raises(RunError, match="10 trials in a row cannot be trained; the last one: no validation rows"):
        run(search(RATE, Dimension("train.optim", ("adagrad",)), trials=99))
    assert len(log.read_text().splitlines()) == 10


def test_a_winner_of_another_folder_is_scored_there(make, capsys):
    search, _ = make
    asked = search(RATE, trials=2)
    book = opened_and_run(asked)
    best = trials.best_of(book.trials(), True)
    book.owner = "that of another folder"
    assert winner.score(asked, book) is None
    assert f"trial {best.number}, the best one, was trained in another folder" in capsys.readouterr().out


def test_after_the_time_trials_wait_for_the_next_search(make):
    search, log = make
    optim = Dimension("train.optim", ("adafactor", "adamw_torch"))  # the stand-in has no time for Adafactor
    late = search(optim, RATE_PAIR, method="grid", trials=4, deadline=time.time() + 3600)
    found = report.report_of(report.claim(late), opened_and_run(late).study, None, 1.0)
    assert states(found) == {"finished": 2, "running": 2}
    assert "2 trials of 4 are left" in str(found.page().sections)
    book = opened_and_run(replace(late, deadline=time.time() - 1))
    assert len(log.read_text().splitlines()) == 4  # the time was over before anything could start
    assert [result_of(each)["state"] for each in book.trials()].count("running") == 2
    assert states(run(replace(late, deadline=None))) == {"finished": 4}
    assert len([line for line in log.read_text().splitlines() if line.startswith("search ")]) == 6


def test_only_the_best_and_the_configured_settings_keep_their_checkpoints(make):
    search, _ = make
    asked = search(RATE_TRIPLE, method="grid", trials=3)
    found = run(asked)
    assert found.best["number"] != 0
    kept = {int(path.parents[1].name) for path in asked.folder.glob("trials/*/run/checkpoints")}
    assert kept == {0, found.best["number"]}
    assert found.winner["baseline"] == 0
    lighten(asked.folder_of(0))
    assert not (asked.folder_of(0) / "run/checkpoints").exists()


def test_the_winner_is_scored_once_on_rows_by_which_nothing_was_chosen(make):
    search, log = make
    found = run(search(RATE_TRIPLE, method="grid", trials=3))
    scored = [line for line in log.read_text().splitlines() if line.startswith("search_score")]
    assert len(scored) == 2  # the winner and the configured settings
    sets = found.winner["sets"]
    assert sets["test"]["rows"] == 40
    assert sets["test"]["difference"]["value"] == pytest.approx(sets["test"]["value"] - sets["test"]["baseline"])
    said = " ".join(verdict(found))
    assert "the best of 3" in said
    assert "On 40 test rows, which it was not chosen by" in said
    assert "against the configured settings (trial 0) on the test rows" in said
    assert found.page().lead.startswith("grid: every combination of the values.")


def test_the_difference_is_that_of_the_same_rows():
    one, other = [0.8 + 0.01 * (n % 9) for n in range(200)], [0.7 + 0.01 * (n % 9) for n in range(200)]
    low, high = interval(differences(one, other))
    assert low == pytest.approx(0.1)
    assert high == pytest.approx(0.1)
    assert same({"low": low, "high": high}) is False
    assert same({"low": -0.1, "high": 0.1}) is True
    assert same({"low": None, "high": None}) is None
    assert interval([0.5] * 10) == (None, None)
    assert interval(differences([None, *one], [0.1, *other]))[0] == pytest.approx(0.1)


def test_a_point_that_was_trained_is_not_trained_again(make):
    search, log = make
    found = run(search(Dimension("train.learning_rate", ("0.0001", "0.001")), trials=6))
    assert states(found) == {"finished": 2, "repeated": 4}
    assert len([line for line in log.read_text().splitlines() if line.startswith("search ")]) == 2
    twin = next(row for row in found.trials if row["state"] == "repeated")
    assert twin["value"] in {row["value"] for row in found.trials if row["state"] == "finished"}
    assert twin["seconds"] == 0


def test_a_search_in_which_everything_fails_ends(make):
    search, log = make
    with pytest.raises(RunError, match="the first 3 trials failed; the last one: no memory left"):
        run(search(RATE, Dimension("train.optim", ("sgd",)), trials=9))
    assert len(log.read_text().splitlines()) == 3


@pytest.mark.slow
def test_a_space_without_a_possible_point_ends(make):
    search, log = make
    smoothing = Dimension("train.optim_args", ("{momentum: 0.9}", "{momentum: 0.8}"))
    with pytest.raises(RunError, match="points in a row"):
        run(search(RATE, smoothing))
    assert log.read_text() == ""


def test_another_search_is_rejected(make):
    search, _ = make
    asked = search(RATE)
    run(asked)
    with pytest.raises(InputError, match=r"(?s)holds a search with other settings.*method: it has 'random', now 'tpe'"):
        report.claim(replace(asked, method="tpe"))
    (asked.folder / "study.json").unlink()
    with pytest.raises(InputError, match="is not empty and is no search"):
        report.claim(asked)


def test_several_trials_run_at_once_with_their_part_of_the_machine(make):
    search, _ = make
    found = run(search(RATE, trials=6, parallel=3))
    assert states(found) == {"finished": 6}
    assert resources(1, 1, 1, {}) == {}
    gpus = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    assert resources(1, 2, 2, gpus) == {"CUDA_VISIBLE_DEVICES": "6,7"}
    assert resources(0, 2, 1, {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "3"}) == {}
    assert int(resources(0, 2, 1, {"CUDA_VISIBLE_DEVICES": ""})["OMP_NUM_THREADS"]) >= 1
    with pytest.raises(InputError, match="3 trials of 2 processes need 6 GPUs, and there are 4; set --parallel 2"):
        require_gpus(3, 2, gpus)


# Pruning


class OneProcess:
    is_main_process, num_processes = True, 1


def test_halving_ends_trials_that_are_behind(make):
    search, _ = make
    asked = search(RATE, method="asha", trials=9)
    book = opened(asked)

    def reported(values: list[float]) -> int:
        """Returns after how many evaluations a trial ends."""
        trial = book.ask()
        study = {"folder": str(asked.folder), "name": book.name, "method": "asha", "trial_id": trial._trial_id}
        watcher = Watcher({"metric": "eval_accuracy", "study": study})
        watcher.milestones = Milestones(90, 10, 10, 10, 1)
        ended = len(values)
        for number, value in enumerate(values, start=1):
            if watcher.is_hopeless(10 * number, value):
                ended = number
                break
            assert watcher.is_hopeless(10 * number, value) is False  # a resumed trial reports a step again
        book.tell(trial, {"state": "finished" if ended == 9 else "pruned", "value": values[ended - 1]})
        return ended

    assert reported([0.5] * 9) == 9
    assert reported([0.4] * 9) == 1
    assert reported([0.6] * 9) == 9
    assert reported([0.61, 0.6, 0.55, *[0.5] * 6]) == 3
    found = report.report_of(report.read(asked.folder), book.study, None, 0.0)
    assert states(found) == {"finished": 2, "pruned": 2}
    assert [value for _, value in found.trials[3]["evaluations"]] == [0.61, 0.6, 0.55]


def test_a_loss_that_rises_is_divergence():
    assert risen([0.7, 0.6, 0.5]) is None
    assert risen([0.7, 0.75]) is None
    assert risen([0.7] * 10 + [0.2] * 80 + [3.5] * 10) == "the training loss rose from 0.7 to 3.5"
    assert risen([0.7]) is None


# Populations


@pytest.mark.slow
def test_a_population_replaces_its_worst_and_a_killed_one_does_the_rest(make, monkeypatch):
    search, log = make
    asked = search(RATE, method="pbt", trials=4)
    copied = []

    def copy(child: Path, parent: Path, before: dict, after: dict) -> int:
        copied.append((child.parts[-2], parent.parts[-2]))
        if len(copied) == 2:
            raise KeyboardInterrupt
        return 4

    monkeypatch.setattr(population, "replace_run", copy)
    original = population.trials.train

    def train(search, job, place, slot):
        found = original(search, job, place, slot)
        return found if job["segment"] == 4 else {**found, "state": "segment", "steps": 4 * job["segment"]}

    monkeypatch.setattr(population.trials, "train", train)
    with pytest.raises(KeyboardInterrupt):
        run(asked)
    before = log.read_text().splitlines()
    assert len(before) == 8  # two parts of four members; the second copy was not done
    found = run(asked)
    after = [line for line in log.read_text().splitlines() if line.startswith("search ")]
    assert len(after) == 16  # nothing was trained twice
    assert copied[1] == copied[2]
    assert states(found) == {"finished": 4}
    children = [part for row in found.trials for part in row["history"] if part["parent"] is not None]
    assert len(children) == 3
    assert found.best["value"] == max(row["value"] for row in found.trials)
    assert all(row["params"] == row["history"][-1]["settings"] for row in found.trials)
    assert [part.title for part in found.page().sections].count("Population") == 1


WRITES = [(population.Member, "keep"), (population, "replace_run"), (trials, "start"), (trials, "write_json"),
          (population, "_note"), (Book, "tell"), (trials, "lighten"), (Book, "_draw")]  # fmt: skip
"""All that a population leaves behind, in whose midst it can be killed."""


@pytest.mark.slow
@pytest.mark.parametrize(("part", "method"), [(0, "pbt"), (1, "pbt"), (2, "pbt"), (0, "pbt-tpe")])
def test_a_population_goes_on_from_a_kill_at_any_moment(part, method, make, monkeypatch, tmp_path):
    """Each part kills it at every third moment."""
    asked = make[0](RATE, method=method, trials=3)
    calls, end = [], 0

    def trained(work, job, *_):
        rate = next(float(each.split("=")[1]) for each in job["overrides"] if each.startswith("train.learning_rate="))
        state = "finished" if job["segment"] == 2 else "segment"
        return jobs.Outcome(result={"state": state, "value": -abs(math.log10(rate) + 4), "steps": 4 * job["segment"]})

    def interrupting(owner, name):
        original = getattr(owner, name)

        def called(*arguments, **options):
            calls.append(name)
            if len(calls) == end:
                raise KeyboardInterrupt
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, called)

    monkeypatch.setattr(trials, "start", trained)
    monkeypatch.setattr(population, "replace_run", lambda *_: 4)
    monkeypatch.setattr(trials.time, "monotonic", lambda: 0.0)
    monkeypatch.setattr(Book, "_check", lambda *_: None)  # slow, and every point is possible
    for owner, name in WRITES:
        interrupting(owner, name)

    def ended(place: str) -> tuple[bool, list]:
        """Runs a population until it is killed, and then to its end; returns whether it was, and how members ended."""
        request = replace(asked.request, output=tmp_path / place)
        search, killed = replace(asked, request=request), False
        calls.clear()
        try:
            population.run(search, opened(search), lambda *_: None)
        except KeyboardInterrupt:
            killed = True
            population.run(search, opened(search), lambda *_: None)
        return killed, [result_of(each) for each in Book(search, "").trials() if each.state.is_finished()
                        and result_of(each)["state"] != "abandoned"]  # fmt: skip

    _, whole = ended("whole")
    assert [each["state"] for each in whole] == ["finished"] * 3
    assert {name for _, name in WRITES} == set(calls)
    for end in range(1 + part, len(calls) + 1, 3):
        assert ended(f"killed-{end}") == (True, whole), (end, calls[end - 1])


# The command


def test_the_command_needs_its_files(tmp_path, capsys):
    for arguments, message in (
        (["reviews", "--config", "smoke"], "--space FILE is required"),
        (["--show", str(tmp_path)], "is not the folder of a search"),
        (["reviews", "--config", "smoke", "--space", str(tmp_path / "no.yaml")], "no.yaml: cannot be read"),
        (["reviews", "--time", "1:00"], "must be a time such as 01:30:00"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["search", *arguments])
        assert ended.value.code == 2
        assert message in capsys.readouterr().err.replace("\n  ", " ")


@pytest.mark.slow
@needs_browser
def test_the_command_writes_its_pages_and_shows_them(make, tmp_path, capsys):
    space = tmp_path / "space.yaml"
    space.write_text("train.learning_rate: {low: 1e-5, high: 1e-2, log: true}\ntrain.weight_decay: [0.0, 0.1]\n")
    out = tmp_path / "shown"
    before = {path for path in tmp_path.rglob("*") if path.is_dir()}
    with pytest.raises(SystemExit) as ended:
        main(["search", "reviews", "--config", "smoke", "--space", str(space), "--trials", "6", "--output",
              str(out)])  # fmt: skip
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= max(80, len(str(out)) + 40)
    assert "trial 0: finished accuracy 0.8" in shown
    found = json.loads((out / "search.json").read_text())
    assert found["best"]["value"] == max(row["value"] for row in found["trials"])
    assert found["cost"]["steps"] == 48
    assert {path for path in tmp_path.rglob("*") if path.is_dir() and out not in path.parents} - before <= {out}
    with pytest.raises(SystemExit) as ended:
        main(["search", "--show", str(out)])
    assert ended.value.code == 0
    assert found["best"]["overrides"][0] in capsys.readouterr().out
    narrow = 'const page = document.querySelector("main"); page.style.width = "400px"; return page.scrollWidth;'
    document, wide = open_page(out / "search.html", narrow)
    assert wide == 400
    assert "Parallel coordinates" in document
    assert "fANOVA" in document
    assert (out / "coordinates.svg").read_text().startswith("<svg")
    assert "## Trials" in (out / "search.md").read_text()
