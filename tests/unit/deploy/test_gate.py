"""`toolkit evaluate NEW --against OLD`, and scores by slice."""

from __future__ import annotations

import csv
import json
import random
import re
import shutil

import numpy as np
import pytest
from commands import run_command
from runs import ROOT, SIZES, TINY, train

from toolkit.deploy.evaluate import Pair
from toolkit.metrics.intervals import Gain, holm
from toolkit.recipe import load_settings, load_task_type
from toolkit.report.subsets import Subsets, main_score
from toolkit.run import prepared_run

WORDS = {"en": ("good", "awful"), "fr": ("bon", "affreux"), "de": ("gut", "schlecht")}
LABELS = ("positive", "negative")
SETTINGS = (
    "data.max_eval_samples=null", "train.max_steps=40", "train.learning_rate=0.01",
    "train.per_device_train_batch_size=16",
    "train.gradient_accumulation_steps=1", "train.warmup_steps=0", "data.id_column=id",
)  # fmt: skip


def write_rows(path, count, flipped=(), seed=0):
    choose = random.Random(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text", "label", "language", "shop"])
        for number in range(count):
            language, label = choose.choice(list(WORDS)), choose.randrange(2)
            shown = LABELS[1 - label if language in flipped else label]
            words = ["the", WORDS[language][label], "thing", str(choose.randrange(9))]
            writer.writerow([f"r{number}", " ".join(words), shown, language, f"shop {number % 40}"])
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A good run, one whose training rows in French have the wrong labels, and rows to compare them on."""
    folder = tmp_path_factory.mktemp("gate")
    held = write_rows(folder / "held.csv", 150, seed=1)
    for name, flipped in (("old", ()), ("new", ("fr",))):
        rows = write_rows(folder / f"{name}.csv", 300, flipped)
        files = (f"data.train_file={rows}", f"data.validation_file={held}")
        train("reviews", folder / name, *SETTINGS, *files, "eval.slices=[language, shop]")
    return folder


@pytest.mark.slow
def test_damage_in_a_slice_ends_with_1_and_its_name(runs, capsys):
    output = runs / "gate"
    given = ("evaluate", runs / "new", "--against", runs / "old", "--data", runs / "held.csv", "--output", output)
    assert run_command(*given, "--slices", "language,shop", "--margin", "0.05") == 1
    shown = capsys.readouterr().out
    assert "Worse by more than 0.05: all rows, language=fr, shop=(40 rarer values)." in shown
    found = json.loads((output / "gate.json").read_text())
    by_name = {each["rows of"]: each for each in found["results"]}
    assert by_name["language=en"]["verdict"] == "not proven worse"
    assert by_name["language=fr"]["gain"] == by_name["language=fr"]["new"] - by_name["language=fr"]["old"] < -0.9
    assert by_name["shop=(40 rarer values)"]["rows"] == by_name["all rows"]["rows"] == 150
    page = (output / "gate.md").read_text()
    assert f"{by_name['language=fr']['rows']} rows got worse" in page
    assert "bon" in page
    assert "If the true loss is" in page
    assert (output / "gate.html").is_file()
    # The other way round, the damage is gone; the same folder is written again.
    assert run_command(*given[:1], runs / "old", *given[2:3], runs / "new", *given[4:]) == 0
    assert json.loads((output / "gate.json").read_text())["results"][0]["gain"] > 0


def test_equal_models_pass(runs, tmp_path):
    shutil.copytree(runs / "old", tmp_path / "copy")
    given = ("evaluate", tmp_path / "copy", "--against", runs / "old", "--data", runs / "held.csv")
    assert run_command(*given, "--slices", "language", "--margin", "0") == 0
    assert (tmp_path / "copy-against-old/gate.html").is_file()


def test_slices_are_in_report_predictions_and_evaluate(runs, capsys):
    report = (runs / "new/report.md").read_text()
    assert "## Slices (validation)" in report
    assert "The worst: language=fr: 0" in report
    first = json.loads((runs / "new/predictions.jsonl").read_text().splitlines()[0])
    assert first["slices"] == {"language": first["slices"]["language"], "shop": "shop 0"}
    assert first["id"] == "r0"
    assert run_command("evaluate", runs / "new", "--data", runs / "held.csv", "--slices", "language") == 0
    assert "language=fr" in capsys.readouterr().out


def test_few_rows_have_no_verdict(runs, tmp_path, capsys):
    few = write_rows(tmp_path / "few.csv", 8)
    assert run_command("evaluate", runs / "new", "--data", few, "--slices", "language") == 0
    assert "No value has 10 rows." in capsys.readouterr().out
    given = ("evaluate", runs / "new", "--against", runs / "old", "--data", few, "--output", tmp_path / "gate")
    assert run_command(*given) == 0
    (found,) = json.loads((tmp_path / "gate/gate.json").read_text())["results"]
    assert (found["verdict"], found["95 % from"]) == ("few rows", None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--slices", "langage"), "--slices: .* has no column 'langage'.*did you mean 'language'"),
        (("--against", "{old}", "--margin", "-1"), "--margin"),
        (("--margin", "0.1"), "--margin: has no effect without --against"),
        (("--against", "{new}"), "is RUN itself"),
        (("--against", "{old}", "--overwrite"), "--overwrite: has no effect with --against"),
    ],
)
def test_wrong_options_are_messages(runs, change, message, capsys):
    given = [each.format(old=runs / "old", new=runs / "new") for each in change]
    assert run_command("evaluate", runs / "new", "--data", runs / "held.csv", *given) == 2
    assert re.search(message, " ".join(capsys.readouterr().err.split()))


def test_runs_of_different_labels_are_not_compared(runs, tmp_path, capsys):
    rows = write_rows(tmp_path / "other.csv", 40)
    rows.write_text(rows.read_text().replace("positive", "fine"))
    settings = ("train.max_steps=1", "data.validation_split=0.2", "eval.slices=[language]", "data.validation_file=null")
    train("reviews", tmp_path / "other", *SETTINGS, *settings, f"data.train_file={rows}")
    given = ("evaluate", tmp_path / "other", "--against", runs / "old", "--data", rows)
    assert run_command(*given) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "--against: the runs differ in labels: fine only in RUN, positive only in OLD" in shown
    assert not (tmp_path / "other-against-old").exists()


def test_a_column_that_evaluated_rows_lack_is_named_before_a_model_is_built(runs, tmp_path, capsys):
    plain = tmp_path / "plain.csv"
    plain.write_text("id,text,label\n1,good,positive\n2,awful,negative\n")
    files = {"train": runs / "held.csv", "validation": plain}

    def validate(*settings):
        given = [f"data.{name}_file={file}" for name, file in files.items()]
        return run_command(
            "validate", "reviews", "--config", "smoke", *given, *settings, f"output_dir={tmp_path / 'x'}"
        )

    assert validate("eval.slices=[shop]") == 2
    assert "eval.slices or --slices" in capsys.readouterr().err
    files = {"train": plain, "validation": runs / "held.csv"}  # no training row is evaluated
    assert validate("eval.slices=[shop]") == 0, capsys.readouterr().err
    assert run_command("validate", "language_modeling", "--config", "smoke", "eval.slices=[shop]") == 2
    assert "a block of this task spans several rows" in " ".join(capsys.readouterr().err.split())


def test_equal_models_pass_in_19_of_20_repetitions_with_slices():
    """Right answers of two models that are equally good, in ten slices: no loss at all is allowed."""
    generator, passed = np.random.default_rng(3), 0
    for _ in range(400):
        gains = []
        for _ in range(10):
            old, new = generator.random((2, 60)) < 0.8
            gains.append(Gain.of_counts(int((new & ~old).sum()), int((old & ~new).sum()), 60))
        passed += all(interval.high >= 0 for interval in holm(gains, 0.0))
    assert passed >= 0.95 * 400


def test_intervals_of_counts_cover_the_truth():
    generator, covered = np.random.default_rng(5), 0
    for _ in range(1000):
        better, worse, _ = generator.multinomial(80, [0.03, 0.10, 0.87])
        low, high = Gain.of_counts(int(better), int(worse), 80).interval()
        covered += low <= -0.07 <= high
    assert covered >= 940


def pair_of(config, settings, tmp_path, monkeypatch, answers):
    """Returns a pair whose old and new answers to a recipe's validation rows are made from these rows."""
    monkeypatch.chdir(ROOT)
    recipe, file = ROOT / f"recipes/{config}.py", ROOT / f"recipes/configs/{config}/smoke.yaml"
    task_type = load_task_type(recipe)
    cfg = load_settings(task_type, file, [*settings, f"output_dir={tmp_path / 'run'}"]).config
    with prepared_run(cfg, task_type(cfg), recipe) as job:
        data = job.data.evals["validation"]
        old, new = (Subsets(job.task, each, data) for each in answers(job, data))
        return Pair(main_score(cfg, job.task), old, new), Pair(main_score(cfg, job.task), old, old)


def judged(pair, margin=0.0):
    (found,) = pair.results((), margin)
    return found["verdict"], found["gain"]


@pytest.mark.slow
def test_regression_is_compared_by_bootstrap_and_its_error_is_better_if_smaller(tmp_path, monkeypatch):
    for name in ("train", "validation"):
        rows = [{"text": f"row {number}", "label": number / 7} for number in range(60)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def answers(job, data):
        truth, noise = np.array(data.rows["label"]).reshape(-1, 1).astype(float), np.random.default_rng(0)
        small, large = (truth + scale * noise.normal(size=truth.shape) for scale in (0.2, 0.8))
        return {"scores": small}, {"scores": large}

    files = [f"data.{name}_file={tmp_path / name}.jsonl" for name in ("train", "validation")]
    settings = [*TINY, *files, "task.problem_type=regression", "data.max_eval_samples=null"]
    pair, same = pair_of("reviews", settings, tmp_path, monkeypatch, answers)
    assert pair.score.greater_is_better is False
    assert not pair.counts
    verdict, gain = judged(pair)
    assert verdict == "worse"
    assert gain < 0
    assert judged(pair, margin=5.0)[0] == judged(same)[0] == "not proven worse"


@pytest.mark.slow
def test_translation_is_compared_by_bootstrap_of_its_corpus_score(tmp_path, monkeypatch):
    def answers(job, data):
        texts = list(data.rows["target"])
        for damaged in (0, len(texts) // 2):
            given = ["no"] * damaged + texts[damaged:]
            ids = job.processor(text_target=given, padding=True, return_tensors="np")["input_ids"]
            one = np.ones(len(texts), dtype=np.int32)
            yield {"ids": ids, "tokens": one, "correct": one}

    few = ("data.max_eval_samples=10",)  # each of hundreds of samples is scored
    pair, same = pair_of("translation", (*SIZES["translation"], *few), tmp_path, monkeypatch, answers)
    verdict, gain = judged(pair, margin=1.0)
    assert verdict == "worse"
    assert gain < -10
    assert judged(same) == ("not proven worse", 0.0)


@pytest.mark.slow
def test_language_models_are_compared_by_their_blocks_and_perplexity(tmp_path, capsys):
    for name, steps in (("old", 30), ("new", 1)):
        train("language_modeling", tmp_path / name, f"train.max_steps={steps}", "train.learning_rate=0.003")
    given = ("evaluate", tmp_path / "new", "--against", tmp_path / "old")
    rows = ("--data", ROOT / "recipes/data/language_modeling/validation.txt")
    assert run_command(*given, *rows, "--margin", "5") == 1
    shown = capsys.readouterr().out
    assert "perplexity (smaller is better)" in shown
    assert "Worse by more than 5: all rows." in shown
    assert run_command(*given, *rows, "--slices", "shop") == 2
    assert "--slices: a block of this task spans several rows" in " ".join(capsys.readouterr().err.split())


def test_holm_corrects_less_after_each_loss():
    lost, doubtful = Gain.of_counts(0, 60, 100), Gain.of_counts(3, 11, 100)
    assert doubtful.interval().high < 0 < doubtful.interval(2).high
    assert holm([doubtful, lost], 0.0) == [doubtful.interval(), lost.interval(2)]
    assert holm([doubtful, doubtful], 0.0) == [doubtful.interval(2)] * 2
