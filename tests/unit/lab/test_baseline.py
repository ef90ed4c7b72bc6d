"""`toolkit baseline`: answers without training, whose scores are those of their definitions."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from browser import needs_browser, open_page
from runs import ROOT, TINY
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, f1_score, mean_squared_error

from toolkit.commands.cli import main
from toolkit.metrics.entities import entity_scores
from toolkit.metrics.generation import rouge_scores, translation_scores
from toolkit.tasks.baselines import LINEAR, first_sentences, usual_sentences

pytestmark = pytest.mark.usefixtures("forked_trials")

DATA = ROOT / "recipes/data"


def baseline(recipe: str, folder: Path, *arguments: str) -> dict:
    with pytest.raises(SystemExit) as ended:
        main(["baseline", recipe, "--config", "smoke", "--output", str(folder), *arguments])
    assert ended.value.code == 0
    found = json.loads((folder / "baseline.json").read_text())
    return {each["name"]: each["scores"] for each in found["baselines"]}


def rows_of(file: Path) -> tuple[list[str], list[str]]:
    with file.open() as opened:
        rows = list(csv.DictReader(opened))
    return [row["text"] for row in rows], [row["label"] for row in rows]


def words(train: list[str], texts: list[str]):
    vectorizer = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b").fit(train)
    return vectorizer.transform(train), vectorizer.transform(texts)


@needs_browser
@pytest.mark.slow
def test_reviews_have_a_constant_answer_a_linear_model_and_the_model_itself(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "temporary").mkdir()
    scores = baseline("reviews", tmp_path / "out", *TINY[:-1], "train.warmup_steps=9", "eval.eval_on_start=true")
    (texts, labels), (held, true) = (rows_of(DATA / f"reviews/{name}.csv") for name in ("train", "validation"))
    constant, linear, model = scores
    most = max(sorted(set(labels)), key=labels.count)
    assert constant == f"always {most!r}"
    assert scores[constant]["eval_accuracy"] == pytest.approx(true.count(most) / len(true))
    features, new = words(texts, held)
    predicted = LogisticRegression(max_iter=1000).fit(features, labels).predict(new)
    assert linear == LINEAR
    assert scores[linear]["eval_accuracy"] == pytest.approx(accuracy_score(true, predicted))
    assert model == "the model, not trained"
    assert scores[model]["eval_loss"] == pytest.approx(np.log(2), abs=0.1)
    table = capsys.readouterr().out.split("written to")[0]
    assert max(map(len, table.splitlines())) <= 80
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert names == {f"baseline.{kind}" for kind in ("html", "json", "md")}
    assert not list((tmp_path / "temporary").iterdir())
    for width in (1280, 400):
        assert LINEAR in open_page(tmp_path / "out/baseline.html", width=width)[0]


@pytest.mark.slow
def test_several_labels_and_numbers_have_linear_models_too(tmp_path):
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(["red", "big", "old", "wet", "the", "a"], 6)) for _ in range(120)]
    tags = [",".join(name for name in ("red", "big") if name in text) or "," for text in texts]
    numbers = [text.count("old") - 0.5 * text.count("wet") for text in texts]
    for name, values in (("tags", tags), ("numbers", numbers)):
        for part, rows in (("train", slice(80)), ("validation", slice(80, None))):
            with (tmp_path / f"{name}-{part}.csv").open("w", newline="") as opened:
                pairs = zip(texts[rows], values[rows], strict=True)
                csv.writer(opened).writerows([("text", "label"), *pairs])
    files = {name: [f"data.{part}_file={tmp_path / name}-{part}.csv" for part in ("train", "validation")]
             for name in ("tags", "numbers")}  # fmt: skip
    features, new = words(texts[:80], texts[80:])
    scores = baseline("reviews", tmp_path / "a", "--no-model", *files["tags"],
                      "task.problem_type=multi_label_classification")  # fmt: skip
    true = np.array([[name in text for name in ("big", "red")] for text in texts])
    predicted = [LogisticRegression(max_iter=1000).fit(features, true[:80, i]).predict(new) for i in (0, 1)]
    expected = f1_score(true[80:], np.stack(predicted, axis=1), average="micro")
    assert scores[LINEAR]["eval_f1_micro"] == pytest.approx(expected)
    assert len(scores) == 2
    scores = baseline("reviews", tmp_path / "b", "--no-model", *files["numbers"], "task.problem_type=regression")
    predicted = Ridge().fit(features, numbers[:80]).predict(new)
    assert scores[LINEAR]["eval_mse"] == pytest.approx(mean_squared_error(numbers[80:], predicted))
    mean = np.full(40, np.mean(numbers[:80]))
    assert scores["the mean of the training rows"]["eval_mse"] == pytest.approx(mean_squared_error(numbers[80:], mean))


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.slow
def test_generated_text_is_compared_with_its_source(tmp_path):
    rows = lines(DATA / "translation/validation.jsonl")
    pairs = [(row["translation"]["en"], row["translation"]["de"]) for row in rows]
    scores = baseline("translation", tmp_path / "a", "--no-model")
    sources, targets = zip(*pairs, strict=True)
    expected = translation_scores(sources, targets, "13a")
    assert scores["copy of the source"]["eval_bleu"] == pytest.approx(expected["bleu"])
    train, rows = (lines(DATA / f"summarization/{name}.jsonl") for name in ("train", "validation"))
    count = usual_sentences([row["summary"] for row in train])
    ((name, found),) = baseline("summarization", tmp_path / "b", "--no-model").items()
    assert name == ("the first sentence" if count == 1 else f"the first {count} sentences")
    leads = [first_sentences(row["document"], count) for row in rows]
    expected = rouge_scores(leads, [row["summary"] for row in rows], "english")
    assert found["eval_rougeL"] == pytest.approx(expected["rougeL"])


def test_sentences_end_with_their_marks():
    assert first_sentences("It rained. Did it? Yes!", 2) == "It rained. Did it?"
    assert first_sentences("No end", 3) == "No end"
    assert usual_sentences(["One. Two.", "One.", "One. Two. Three."]) == 2


@pytest.mark.slow
def test_words_have_their_most_frequent_tags(tmp_path):
    rows = [("Anna B-PER\nsat O", 3), ("Anna O\nran O", 1), ("in O\nKiel B-LOC", 2)]
    (tmp_path / "train.conll").write_text("\n\n".join(text for text, times in rows for _ in range(times)) + "\n")
    (tmp_path / "validation.conll").write_text("Anna B-PER\nin O\nKiel B-LOC\n\nBonn B-LOC\n")
    scores = baseline("token_classification", tmp_path / "out", "--no-model", *(
        f"data.{name}_file={tmp_path / name}.conll" for name in ("train", "validation")))  # fmt: skip
    expected = entity_scores([["B-PER", "O", "B-LOC"], ["O"]], [["B-PER", "O", "B-LOC"], ["B-LOC"]], ["LOC", "PER"])
    assert scores["the most frequent tag of each word"]["eval_f1"] == pytest.approx(expected["f1"])


@pytest.mark.parametrize(
    ("recipe", "more", "message"),
    [
        ("qa", ["--no-model"], "--no-model: this task has no baseline but its model"),
        ("reviews", ["data.validation_file=null", "data.validation_split=0", "eval.eval_steps=null", "--no-model"],
         "there are no validation or test rows to score"),
    ],
)  # fmt: skip
def test_what_cannot_be_scored_is_rejected(recipe, more, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["baseline", recipe, "--config", "smoke", "--output", str(tmp_path / "out"), *more])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
