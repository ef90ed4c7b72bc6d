from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import sacrebleu
from sklearn import metrics as sklearn_metrics

from toolkit.metrics.answers import exact_match, f1, normalize_answer
from toolkit.metrics.classification import Classification
from toolkit.metrics.squad import Squad
from toolkit.metrics.translation import Translation, signatures

LABELS = ["negative", "neutral", "positive"]


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("The  Cat", "cat"),
        ("a\tcat\nand an owl", "cat and owl"),
        ("theatre, anthem: area!", "theatre anthem area"),  # articles only as whole words
        ("U.S.A.", "usa"),  # punctuation goes before articles: nothing is left to be one
        ("it's 3-4", "its 34"),
        ("ÉCOLE “A”", "école “ ”"),  # only ASCII punctuation goes, as in the official script
        ("ein Straße", "ein straße"),
        ("The a an", ""),
        (" ", ""),
    ],
)
def test_normalize_answer(text: str, normalized: str) -> None:
    assert normalize_answer(text) == normalized


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "overlap"),
    [
        ("Denver Broncos", ["Denver Broncos"], 1, 1),
        ("the denver broncos!", ["Denver Broncos"], 1, 1),
        ("Broncos", ["Denver Broncos"], 0, 2 / 3),  # P 1, R 1/2
        ("Denver Broncos of the NFL", ["Denver Broncos"], 0, 2 / 3),  # P 2/4, R 1
        ("Broncos Denver", ["Denver Broncos"], 0, 1),  # F1 does not see the order
        ("red red blue", ["red blue blue"], 0, 2 / 3),  # counted with repetition: red, blue
        ("red red", ["red"], 0, 2 / 3),  # P 1/2, R 1
        ("Carolina", ["Denver Broncos"], 0, 0),
        ("in 1999", ["1999", "the year 1999"], 0, 2 / 3),  # 1999: P 1/2, R 1; year 1999: 1/2
        ("1999", ["the year 1999", "1999"], 1, 1),
        ("45%", ["45 %"], 1, 1),  # the sign goes, and the blank before it
        ("15-25 inches", ["1525 inches"], 1, 1),
        ("", ["1999"], 0, 0),
        ("", [], 1, 1),
        ("1999", [], 0, 0),
        ("The", [], 1, 1),  # nothing is left of it
        ("", ["the", "cat"], 0, 0),  # a gold answer of which nothing is left does not count,
        ("", ["the"], 1, 1),  # and without another one the question has no answer
        ("École normale", ["école Normale"], 1, 1),
        ("Zürich", ["Zurich"], 0, 0),
        ("東京 都", ["東京"], 0, 2 / 3),
    ],
)
def test_exact_match_and_f1_on_hand_computed_cases(
    prediction: str, answers: list[str], exact: float, overlap: float
) -> None:
    assert exact_match(prediction, answers) == exact
    assert f1(prediction, answers) == pytest.approx(overlap)


def references(**golds: list[str]) -> list[dict]:
    return [{"id": key, "answers": {"text": texts, "answer_start": [0] * len(texts)}} for key, texts in golds.items()]


def predictions(**texts: str) -> list[dict]:
    return [{"id": key, "prediction_text": text} for key, text in texts.items()]


def test_squad_matches_by_id_and_gives_fractions() -> None:
    result = Squad().compute(
        predictions=predictions(c="dog", a="the cat", b="big dog"), references=references(a=["cat"], b=["dog"], c=["x"])
    )
    assert result == pytest.approx({"exact_match": 1 / 3, "f1": (1 + 2 / 3 + 0) / 3})


def test_squad_reports_unanswerable_questions_apart() -> None:
    result = Squad().compute(
        predictions=predictions(a="", b="big dog", c="", d="x"), references=references(a=[], b=["dog"], c=["cat"], d=[])
    )
    assert result == pytest.approx(
        {"exact_match": 1 / 4, "f1": (1 + 2 / 3) / 4, "no_answer_f1": 1 / 2, "has_answer_exact_match": 0.0,
         "has_answer_f1": 1 / 3}
    )  # fmt: skip


def test_squad_without_any_answerable_question() -> None:
    result = Squad().compute(predictions=predictions(a="", b=""), references=references(a=[], b=[]))
    assert result == {"exact_match": 1.0, "f1": 1.0, "no_answer_f1": 1.0}


def test_squad_can_be_computed_again_after_an_error() -> None:
    metric = Squad()
    with pytest.raises(ValueError, match=r"1 ids \(the first is 'b'\) without a prediction.*'x'\) without a reference"):
        metric.compute(predictions=predictions(a="", x=""), references=references(a=[], b=[]))
    assert metric.compute(predictions=predictions(a=""), references=references(a=[]))["f1"] == 1.0


@pytest.mark.parametrize("side", ["predictions", "references"])
def test_squad_refuses_a_repeated_id(side: str) -> None:
    sides = {"predictions": predictions(a="", b=""), "references": references(a=[], b=[])}
    sides[side][1]["id"] = "a"
    with pytest.raises(ValueError, match=f"{side}: id 'a' is there more than once"):
        Squad().compute(**sides)


@pytest.mark.parametrize("classes", [[0, 1, 2], [0, 2], [1]], ids=["all", "one absent", "a single class"])
def test_classification_equals_scikit_learn(classes: list[int]) -> None:
    rng = np.random.default_rng(len(classes))
    gold, predicted = rng.choice(classes, 50), rng.choice(classes, 50)
    result = Classification().compute(predictions=predicted, references=gold, labels=LABELS)

    options = {"labels": [0, 1, 2], "zero_division": 0}
    scores = {
        "precision": sklearn_metrics.precision_score,
        "recall": sklearn_metrics.recall_score,
        "f1": sklearn_metrics.f1_score,
    }
    expected = {"accuracy": sklearn_metrics.accuracy_score(gold, predicted)}
    expected["mcc"] = 0.0 if len(classes) == 1 else sklearn_metrics.matthews_corrcoef(gold, predicted)
    for name, score in scores.items():
        expected[f"{name}_macro"] = score(gold, predicted, average="macro", **options)
        per_class = score(gold, predicted, average=None, **options)
        expected |= {f"{name}/{label}": per_class[i] for i, label in enumerate(LABELS)}
    assert result == pytest.approx(expected)
    assert {type(value) for value in result.values()} == {float}


def test_classification_on_a_hand_computed_case() -> None:
    result = Classification().compute(predictions=[0, 0, 1, 1], references=[0, 1, 1, 1], labels=["no", "yes"])
    assert result["accuracy"] == 0.75
    assert result["precision/no"] == 0.5
    assert result["recall/no"] == 1.0
    assert result["recall/yes"] == pytest.approx(2 / 3)
    assert result["f1_macro"] == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert result["mcc"] == pytest.approx((1 * 2 - 1 * 0) / np.sqrt(2 * 1 * 3 * 2))


@pytest.mark.parametrize("wrong", [-1, 3])
def test_classification_refuses_ids_outside_the_labels(wrong: int) -> None:
    with pytest.raises(ValueError, match=r"class ids must be 0 to 2 \(3 labels\)"):
        Classification().compute(predictions=[0, wrong], references=[0, 1], labels=LABELS)


def test_classification_refuses_repeated_labels() -> None:
    with pytest.raises(ValueError, match="labels must be different names"):
        Classification().compute(predictions=[0], references=[0], labels=["a", "a"])


def test_metrics_write_no_file(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("evaluate.config.HF_METRICS_CACHE", str(tmp_path / "cache"))
    first, second = Squad(), Squad()  # two at the same time want no lock either
    for metric in (first, second):
        metric.add_batch(predictions=predictions(a=""), references=references(a=[]))
    assert first.compute() == second.compute()
    Classification().compute(predictions=[0], references=[1], labels=LABELS)
    assert list(tmp_path.iterdir()) == []


def test_the_functions_need_nothing_heavy() -> None:
    code = "import sys, toolkit.metrics.answers; sys.exit(bool({'evaluate', 'datasets', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("tokenize", ["13a", "intl", "char", "zh", "none"])
def test_bleu_and_chrf_are_sacrebleus(tokenize: str) -> None:
    texts = ["Die Kuh steht auf der Wiese.", "", "Wo ist der Eimer ?", "他在花园里。"]
    golds = ["Die Kuh steht allein auf der Wiese.", "Das Brot ist warm.", "Wo ist der Eimer?", "他们在花园里。"]
    expected = {
        "bleu": sacrebleu.corpus_bleu(texts, [golds], tokenize=tokenize).score,
        "chrf": sacrebleu.corpus_chrf(texts, [golds]).score,
    }
    assert Translation().compute(predictions=texts, references=golds, tokenize=tokenize) == expected
    assert 0 < expected["bleu"] < 100


def test_signatures_say_how_scores_were_computed() -> None:
    version = sacrebleu.__version__
    assert signatures("intl") == {
        "bleu": f"nrefs:1|case:mixed|eff:no|tok:intl|smooth:exp|version:{version}",
        "chrf": f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{version}",
    }
