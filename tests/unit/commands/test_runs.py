"""`toolkit runs`, `diff` and `reproduce`: runs are listed, compared and repeated."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from runs import ROOT, train
from safetensors.torch import load_file, save_file

from toolkit.base.trust import trust, trust_run
from toolkit.commands import compare, options
from toolkit.commands.cli import main
from toolkit.report import facts
from toolkit.report.facts import MODEL, digests, sealed
from toolkit.system.environment import Checkout

pytestmark = pytest.mark.usefixtures("forked_trials")

FEW = ("train.max_steps=3", "data.max_train_samples=24", "data.max_eval_samples=8", "eval.eval_steps=null")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("outputs")
    train("reviews", made / "one", *FEW, "model.config_overrides.hidden_dropout_prob=0.1")
    train("reviews", made / "below" / "other", *FEW, "model.config_overrides.hidden_dropout_prob=0.1",
          "train.learning_rate=0.01", "engine=trainer")  # fmt: skip
    return made


def call(captured, *arguments) -> tuple[int, str, str]:
    captured.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    out, err = captured.readouterr()
    return ended.value.code, out, err


def test_runs_are_listed_with_their_score(folder, capsys, tmp_path):
    code, out, _ = call(capsys, "runs", folder)
    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines()[1:]}
    assert set(rows) == {"one", "below/other"}
    assert "loop" in rows["one"]
    assert "eval_accuracy" in rows["one"]
    assert max(map(len, out.splitlines())) <= 80
    losses = [json.loads((folder / name / "run.json").read_text())["result"]["train_loss"] for name in rows]
    _, out, _ = call(capsys, "runs", folder, "--sort", "train_loss")
    names = [line.split()[0] for line in out.splitlines()[1:]]
    assert names == [name for _, name in sorted(zip(losses, rows, strict=True))]
    code, _, err = call(capsys, "runs", folder, "--sort", "bleu")
    assert (code, "eval_accuracy" in err) == (2, True)
    code, _, err = call(capsys, "runs", tmp_path)
    assert (code, "contains no runs" in err) == (2, True)


def test_runs_are_chosen_and_written_as_a_page_and_as_csv(folder, capsys, tmp_path):
    page, table = tmp_path / "board.html", tmp_path / "runs.csv"
    code, out, err = call(capsys, "runs", folder, "--where", "train.learning_rate>=0.01", "engine=trainer",
                          "--columns", "engine", "eval_accuracy", "--output", page, "--output", table)  # fmt: skip
    assert code == 0, err
    assert [line.split()[:2] for line in out.splitlines()[:2]] == [["run", "engine"], ["below/other", "trainer"]]
    accuracy = json.loads((folder / "below" / "other" / "run.json").read_text())["result"]["eval_accuracy"]
    expected = f"run,state,engine,eval_accuracy\nbelow/other,finished,trainer,{accuracy}\n"
    assert table.read_text() == expected
    assert page.read_text().count('data-run="') == 1
    code, _, err = call(capsys, "runs", folder, "--output", table, "--overwrite")
    assert code == 0, err
    assert table.read_text().startswith("run,state,engine,train.learning_rate,eval_accuracy,")
    for option, message in (
        (("--where", "steps>1000"), "--where: none of the 2 runs"),
        (("--where", "seed"), "--where: received 'seed', expected a name, one of"),
        (("--columns", "eval_accurcy"), "--columns: received 'eval_accurcy', no setting or result of these runs (did"),
        (("--html", tmp_path / "none" / "board.html"), "--output: there is no folder"),
        (("--csv", tmp_path), "--output: cannot write"),
    ):
        code, _, err = call(capsys, "runs", folder, *option)
        assert code == 2
        assert message in err


def copied(folder: Path, target: Path, seed: int, accuracy: float) -> None:
    """Writes the records of a run as those of another seed."""
    target.mkdir()
    noted = json.loads((folder / "run.json").read_text())
    noted["result"]["eval_accuracy"] = accuracy
    (target / "run.json").write_text(json.dumps(sealed(noted)))
    settings = (folder / "config.yaml").read_text()
    (target / "config.yaml").write_text(re.sub(r"^seed: .*$", f"seed: {seed}", settings, flags=re.MULTILINE))


def test_the_spread_over_seeds_is_shown(folder, capsys, tmp_path):
    for seed, accuracy in enumerate((0.5, 0.75, 1.0)):
        copied(folder / "one", tmp_path / f"seed{seed}", seed, accuracy)
    copied(folder / "below" / "other", tmp_path / "other", 1, 0.25)
    _, out, _ = call(capsys, "runs", tmp_path)
    (line,) = [line for line in out.splitlines() if "differ only" in line]
    assert line == "3 runs that differ only in the seed: eval_accuracy 0.75 ± 0.25 (seed0, seed1, seed2)"
    _, out, _ = call(capsys, "runs", folder)
    assert "differ only" not in out


def test_an_unfinished_run_says_so(folder, capsys, tmp_path):
    noted = json.loads((folder / "one" / "run.json").read_text())
    del noted["result"]
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "run.json").write_text(json.dumps(sealed(noted)))
    (tmp_path / "begun" / "config.yaml").write_text((folder / "one" / "config.yaml").read_text())
    _, out, _ = call(capsys, "runs", tmp_path)
    assert "not finished" in out
    code, _, err = call(capsys, "reproduce", tmp_path / "begun")
    assert (code, "not finished" in err) == (2, True)


def test_a_difference_is_named_by_its_key(folder, capsys):
    code, out, _ = call(capsys, "diff", folder / "one", folder / "below" / "other")
    assert code == 0
    settings = out.split("results")[0].splitlines()
    assert settings[0].strip() == "settings"
    assert {line.split()[0] for line in settings[2:] if line.strip()} == {"train.learning_rate", "engine"}
    assert "train_seconds" not in out
    _, out, _ = call(capsys, "diff", folder / "one", folder / "one")
    assert out.strip() == "no differences in settings, data, versions, machines or results"
    code, _, err = call(capsys, "diff", folder / "one", folder)
    assert (code, "not a run, missing run.json" in err) == (2, True)


@pytest.mark.parametrize(
    "content", ["[1, 2]", '{"result": [1], "num_rows": {}}', "7", '{"num_rows": 3, "hardware": 1}']
)
def test_facts_that_the_toolkit_did_not_write_are_a_message(content, capsys, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(content)
    (tmp_path / "run" / "config.yaml").write_text("seed: 1\n")
    for words in (["runs", tmp_path], ["diff", tmp_path / "run", tmp_path / "run"]):
        code, _, err = call(capsys, *words)
        assert (code, "run.json" in err) == (2, True)


FACTS = {
    "recipe": "a.py", "engine": "loop", "num_rows": {}, "data_fingerprints": {}, "versions": {}, "hardware": {},
    "num_processes": 1, "git": None,
}  # fmt: skip
RESULT = {"steps": 1, "train_seconds": 1.0, "train_loss": 0.5}


def write_run(folder: Path, settings: str = "seed: 1\n", **more) -> None:
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(sealed(FACTS | more)))
    (folder / "config.yaml").write_text(settings)


MERGED = "".join(f"b{i}: &a{i + 1} {{x: *a{i}, y: *a{i}}}\n" for i in range(40))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (f"a: &a0 {{x: 1}}\n{MERGED}", "more than 100,000 values"),
        ("a: &a {x: *a}\n", "refers to itself"),
        (f"a: {'[' * 5000}\n", "nested too deeply"),
        (f"seed: 0x{'f' * 5000}\n", "not a valid int"),
        ("# " + "a" * 2**22, "larger than 4,194,304 bytes"),
        (None, "not a regular file"),
    ],
)
def test_settings_that_would_hang_or_fail_are_a_message(settings, message, capsys, tmp_path):
    write_run(tmp_path / "run", settings or "")
    if settings is None:
        if not hasattr(os, "mkfifo"):
            pytest.skip("this system has no named pipes")
        (tmp_path / "run" / "config.yaml").unlink()
        os.mkfifo(tmp_path / "run" / "config.yaml")
    for words, expected in (
        (["runs", tmp_path], 2),
        (["diff", *[tmp_path / "run"] * 2], 2),
        (["verify", tmp_path / "run"], 1),
    ):
        code, _, err = call(capsys, *words)
        assert (code, "config.yaml" in err, message in err) == (expected, True, True), err


@pytest.mark.parametrize(
    "result", [{}, RESULT | {"steps": None}, RESULT | {"train_seconds": 10**400}, RESULT | {"train_loss": "0.5"}]
)
def test_results_that_the_toolkit_did_not_write_are_a_message(result, capsys, tmp_path):
    write_run(tmp_path / "run", result=result)
    code, _, err = call(capsys, "runs", tmp_path)
    assert (code, "run.json" in err) == (2, True)
    assert "Traceback" not in err


def test_facts_that_are_nested_too_deeply_are_a_message(capsys, tmp_path):
    write_run(tmp_path / "run")
    for content in ("[" * 200_000, '{"a":' * 500 + "1" + "}" * 500):
        (tmp_path / "run" / "run.json").write_text(content)
        code, _, err = call(capsys, "runs", tmp_path)
        assert (code, "run.json cannot be read (ValueError: nested too deeply)" in err) == (2, True)


def test_names_in_a_run_are_shown_as_they_are(capsys, tmp_path):
    nasty, shown = "[/b][red]\x1b]0;", "[/b][red]\\x1b]0;"
    one, other = tmp_path / "[b]1", tmp_path / "[b]2"
    for number, folder in enumerate((one, other)):
        write_run(folder, f"seed: {number}\n", recipe="[u]\x1b.py", result=RESULT | {nasty: number},
                  metric_for_best_model=nasty, versions={nasty: number})  # fmt: skip
    assert call(capsys, "runs", one)[0] == 0
    code, listed, err = call(capsys, "runs", tmp_path)
    assert code == 0, err
    assert all(text in listed for text in ("[b]1", "[u]\\x1b", f"{shown} 0.5 ± 0.7071")), listed
    code, compared, err = call(capsys, "diff", one, other)
    assert code == 0, err
    assert compared.count(shown) == 2, compared
    assert "\x1b" not in listed + compared


def test_figures_too_large_to_average_and_runs_without_a_seed_are_listed(capsys, tmp_path):
    for number in (1, 2):
        write_run(tmp_path / f"run{number}", f"seed: {number}\n", result=RESULT | {"train_loss": 1.7e308})
        write_run(tmp_path / f"seedless{number}", "train: {}\n", result=RESULT)
    code, out, err = call(capsys, "runs", tmp_path, "--sort", "train_loss")
    assert code == 0, err
    assert len(out.splitlines()) == 5
    assert "differ only" not in out


def test_links_to_folders_around_a_run_are_followed_once(capsys, tmp_path):
    write_run(tmp_path / "run")
    for name in "abcd":
        (tmp_path / name).mkdir()
        for link in "xyz":
            (tmp_path / name / link).symlink_to(tmp_path, target_is_directory=True)
    code, out, _ = call(capsys, "runs", tmp_path)
    assert (code, len(out.splitlines())) == (0, 2)


def change_facts(run, **changes) -> None:
    noted = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(sealed(noted | changes)))


@pytest.mark.slow
def test_a_run_is_reproduced_to_the_last_bit_or_not(folder, capfd, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")  # a launcher's wish is not part of the old run
    monkeypatch.chdir(folder)  # paths in its configuration are relative to another folder
    code, out, err = call(capfd, "reproduce", "one", "--output", "again")
    assert code == 0, err
    assert "are bit-identical" in out
    assert "warning: the code differs" not in out
    assert (folder / "again" / "run.json").is_file()

    weights = folder / "one" / "model" / "model.safetensors"
    tensors = load_file(weights)
    tensors["classifier.bias"] = tensors["classifier.bias"] + 1
    save_file(tensors, weights)
    code_of_then = {"commit": "0" * 40, "changed_files": 1, "diff": "uncommitted.diff", "diff_sha256": "ab" * 32}
    files = digests(folder / "one", MODEL)
    change_facts(folder / "one", git=code_of_then, working_directory="/gone", files=files)
    trust_run(folder / "one", json.loads((folder / "one" / "run.json").read_text()))
    monkeypatch.chdir(ROOT)
    code, out, err = call(capfd, "reproduce", folder / "one", "--output", tmp_path / "other")
    assert code == 1
    assert "not reproduced: model.safetensors: classifier.bias differs by up to 1" in err
    assert "/gone, where the run was started, no longer exists" in out
    for text in (out.split("\n")[0], err):
        assert (
            f"the code differs; the run's was commit {'0' * 40} with the uncommitted changes in {folder}/one/" in text
        )
        assert f"git -C {ROOT} apply {folder}/one/uncommitted.diff" in text
    _, out, _ = call(capfd, "diff", folder / "one", tmp_path / "other")
    assert "abababababab" in out


def test_on_another_number_of_processes_all_likely_causes_are_named(folder, capfd, tmp_path, monkeypatch):
    def again(recipe, record, new, own, processes):
        shutil.copytree(record.folder, new)
        tensors = load_file(new / "model/model.safetensors")
        save_file(
            tensors | {"classifier.bias": tensors["classifier.bias"] + difference}, new / "model/model.safetensors"
        )

    monkeypatch.setattr("toolkit.commands.runs._train", again)
    difference = 1e-3
    arguments = ("reproduce", folder / "below/other", "--processes", 2, "--output")
    code, _, err = call(capfd, *arguments, tmp_path / "far")
    assert (code, "a parameter without effect on the loss" in err, "dropout" in err) == (1, True, True)
    difference = 1e-6
    assert call(capfd, *arguments, tmp_path / "near")[0] == 0


@pytest.fixture
def started(monkeypatch):
    """What would be started to repeat a run: the program, and its settings."""
    calls: list[tuple[list[str], dict]] = []
    monkeypatch.setattr(
        "toolkit.lab.jobs.jobs.run_processes", lambda program, **settings: calls.append((program, settings)) or 7
    )
    return calls


def foreign(folder: Path, run: Path, settings: str = "", **facts) -> Path:
    """Returns a copy of a run as somebody else could send it."""
    shutil.copytree(folder / "below" / "other", run)  # the engine is `trainer`
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("callbacks: []", settings) if settings else text)
    change_facts(run, **facts)
    return run


@pytest.mark.parametrize("option", [(), ("--trust-run",)])
def test_a_run_of_somebody_else_executes_nothing_unless_it_is_trusted(folder, capfd, tmp_path, started, option):
    evil = foreign(folder, tmp_path / "archive" / "run", "callbacks: [evil.Callback]",
                   working_directory=str(tmp_path / "archive"))  # fmt: skip
    code, _, err = call(capfd, "reproduce", evil, *option)
    if not option:
        assert (code, started) == (2, [])
        assert "this account has not started this run" in err
        assert "trainer.callbacks=['evil.Callback']); if you trust it, add --trust-run" in err
        return
    ((program, settings),) = started
    assert settings["folder"] == tmp_path / "archive"
    assert "trainer.callbacks=[]" not in program


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"num_processes": 10**6}, "run.json: num_processes: received 1000000; this account has not started this run"),
        ({"num_processes": 0}, "run.json: num_processes: received 0, expected an integer above 0"),
        ({"hardware": {"threads": 10**6}}, "run.json: hardware.threads: received 1000000; this account"),
        ({"hardware": {"threads": "2 3"}}, "run.json: hardware.threads: received '2 3', expected an integer"),
    ],
)
def test_a_run_of_somebody_else_cannot_start_any_number_of_processes(folder, capfd, tmp_path, started, facts, message):
    code, _, err = call(capfd, "reproduce", foreign(folder, tmp_path / "run", **facts))
    assert (code, started) == (2, [])
    assert message in err


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({}, "the model is damaged: model/model.safetensors is missing"),
        ({"files": {}}, "has no *.safetensors with which the new parameters could be compared; restore the model"),
    ],
)
def test_a_run_without_its_parameters_is_not_called_reproduced(folder, capfd, tmp_path, started, facts, message):
    run = foreign(folder, tmp_path / "run", **facts)
    (run / "model" / "model.safetensors").unlink()
    code, _, err = call(capfd, "reproduce", run)
    assert (code, started) == (2, [])
    assert message in err


def test_a_file_of_parameters_that_only_one_run_has_is_a_difference(folder, capfd, tmp_path, monkeypatch):
    run, again = foreign(folder, tmp_path / "run", files={}), tmp_path / "again"

    def trained(program: object, **settings: object) -> int:
        shutil.copytree(run, again)
        shutil.copy(run / "model" / "model.safetensors", again / "model" / "model-2.safetensors")
        return 0

    monkeypatch.setattr("toolkit.lab.jobs.jobs.run_processes", trained)
    code, _, err = call(capfd, "reproduce", run, "--output", again)
    assert code == 1
    assert "not reproduced: only one of the two runs has model/model-2.safetensors" in err


def test_the_folder_of_the_user_is_meant_by_a_tilde(folder, capfd, monkeypatch, started):
    monkeypatch.setenv("HOME", str(folder))
    assert call(capfd, "runs", "~")[0] == 0
    assert call(capfd, "diff", "~/one", "~/below/other")[0] == 0
    call(capfd, "reproduce", "~/one", "--output", "~/again", "--recipe", "~/none.py")
    call(capfd, "reproduce", "~/one", "--output", "~/again")
    ((program, _),) = started  # a recipe that does not exist is refused
    assert f"output_dir={folder / 'again'}" in program
    rows = ROOT / "recipes/data/reviews/validation.csv"
    assert call(capfd, "evaluate", "~/one", "--data", rows)[0] == 0


def test_a_comparison_is_written_to_the_folder_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    parser = argparse.ArgumentParser()
    compare.add_compare(parser)
    config = ROOT / "recipes/configs/reviews/smoke.yaml"
    words = ("reviews", "--config", config, "--switch", "train.optim=sgd", "--output", "~/compared")
    arguments = parser.parse_args([*map(str, words)])
    arguments.command = ["toolkit", "compare"]
    assert options.request(arguments, "compare").output == tmp_path / "compared"


def test_the_folder_of_somebody_elses_run_is_not_entered(folder, capfd, tmp_path, monkeypatch, started):
    archive = tmp_path / "archive"
    same = foreign(folder, archive / "run", working_directory=str(archive))  # whose modules could replace libraries
    monkeypatch.chdir(archive)
    _, out, _ = call(capfd, "reproduce", same)
    ((program, settings),) = started
    assert settings["environ"]["PYTHONSAFEPATH"] == "1"
    assert {"trainer.callbacks=[]", "model.trust_remote_code=false"} <= set(program)
    assert f"; relative paths are resolved in {archive}" in out
    monkeypatch.chdir(tmp_path)
    call(capfd, "reproduce", same)
    assert started[1][1]["folder"] == tmp_path

    call(capfd, "reproduce", folder / "below" / "other")  # which this account has started
    program, settings = started[2]
    assert (settings["folder"], "PYTHONSAFEPATH" in settings["environ"]) == (ROOT, False)
    assert "trainer.callbacks=[]" not in program


def test_a_recipe_is_run_where_it_is_known(folder, capfd, tmp_path, started):
    copied = tmp_path / "archive" / "reviews.py"  # git would execute what a configuration beside it names
    copied.parent.mkdir()
    shutil.copy(ROOT / "recipes" / "reviews.py", copied)
    run = foreign(folder, tmp_path / "archive" / "run", recipe=str(copied))
    call(capfd, "reproduce", run)
    assert str(ROOT / "recipes" / "reviews.py") in started[0][0]
    own = copied.with_name("own.py")
    own.write_text("TASK = None\n")
    trust(own)
    change_facts(run, recipe=str(own))
    code, _, err = call(capfd, "reproduce", run)
    assert (code, f"name its recipe {own} with --recipe" in err) == (2, True)
    assert len(started) == 1


def test_the_changes_of_a_checkout_are_kept_with_a_run(tmp_path, monkeypatch):
    diffs = iter([b"changes", b"x" * (facts.MOST_DIFF_BYTES + 1), b"", None])
    monkeypatch.setattr(facts, "checkout", lambda folder: Checkout("abc", 2, ["new.py"], next(diffs)))
    noted = facts.note_code(tmp_path, tmp_path)
    assert noted is not None
    assert (noted["diff"], noted["untracked"]) == ("uncommitted.diff", ["new.py"])
    assert (tmp_path / "uncommitted.diff").read_bytes() == b"changes"
    too_large, none = (facts.note_code(tmp_path, tmp_path), facts.note_code(tmp_path, tmp_path))
    assert too_large is not None
    assert none is not None
    assert (too_large["diff"], none["diff"], none["diff_sha256"]) == (None, None, None)
    assert too_large["diff_sha256"]
    assert (facts.note_code(tmp_path, tmp_path) or {})["diff_sha256"] == "unknown"
    assert list(tmp_path.iterdir()) == []
