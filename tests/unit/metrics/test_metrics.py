from __future__ import annotations

import subprocess
import sys

import datasets
import numpy as np
import pytest
import sacrebleu
from sklearn import metrics as sklearn_metrics

from toolkit.metrics.adapter import Adapter
from toolkit.metrics.classification import CLASSIFICATION, PER_CLASS, classification_scores
from toolkit.metrics.entities import ENTITIES, PER_ENTITY, entities, entity_quality, entity_scores, num_entities
from toolkit.metrics.generation import (
    ROUGE,
    TRANSLATION,
    rouge_l,
    rouge_quality,
    rouge_scores,
    signatures,
    translation_scores,
)
from toolkit.metrics.likelihood import LIKELIHOOD, likelihood_scores
from toolkit.metrics.multi_label import MULTI_LABEL, PER_LABEL, multi_label_scores
from toolkit.metrics.regression import PER_TARGET, REGRESSION, regression_scores
from toolkit.metrics.retrieval import CORRELATION, RETRIEVAL, correlations, retrieval_scores
from toolkit.metrics.score import per_class_scores, without_classes
from toolkit.metrics.squad import SQUAD, exact_match, f1, normalize_answer, squad_scores

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


def test_squad_gives_fractions() -> None:
    result = squad_scores(["the cat", "big dog", "dog"], [["cat"], ["dog"], ["x"]])
    assert result == pytest.approx({"exact_match": 1 / 3, "f1": (1 + 2 / 3 + 0) / 3})


def test_squad_reports_unanswerable_questions_apart() -> None:
    result = squad_scores(["", "big dog", "", "x"], [[], ["dog"], ["cat"], []])
    assert result == pytest.approx(
        {"exact_match": 1 / 4, "f1": (1 + 2 / 3) / 4, "no_answer_f1": 1 / 2, "has_answer_exact_match": 0.0,
         "has_answer_f1": 1 / 3}
    )  # fmt: skip


def test_squad_without_any_answerable_question() -> None:
    assert squad_scores(["", ""], [[], []]) == {"exact_match": 1.0, "f1": 1.0, "no_answer_f1": 1.0}


def test_squad_rejects_another_number_of_predictions() -> None:
    with pytest.raises(ValueError, match="received 1 predictions for 2 questions"):
        squad_scores([""], [[], []])


@pytest.mark.parametrize("classes", [[0, 1, 2], [0, 2], [1]], ids=["all", "one absent", "a single class"])
def test_classification_equals_scikit_learn(classes: list[int]) -> None:
    rng = np.random.default_rng(len(classes))
    gold, predicted = rng.choice(classes, 50), rng.choice(classes, 50)
    result = classification_scores(predicted, gold, LABELS)

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
    result = classification_scores([0, 0, 1, 1], [0, 1, 1, 1], ["no", "yes"])
    assert result["accuracy"] == 0.75
    assert result["precision/no"] == 0.5
    assert result["recall/no"] == 1.0
    assert result["recall/yes"] == pytest.approx(2 / 3)
    assert result["f1_macro"] == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert result["mcc"] == pytest.approx((1 * 2 - 1 * 0) / np.sqrt(2 * 1 * 3 * 2))


@pytest.mark.parametrize("wrong", [-1, 3])
def test_classification_rejects_ids_outside_the_labels(wrong: int) -> None:
    with pytest.raises(ValueError, match=r"class ids must be 0 to 2 \(3 labels\)"):
        classification_scores([0, wrong], [0, 1], LABELS)


def test_classification_rejects_repeated_labels() -> None:
    with pytest.raises(ValueError, match="labels must be different names"):
        classification_scores([0], [0], ["a", "a"])


def test_an_evaluate_metric_gives_the_same_and_writes_no_file(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("evaluate.config.HF_METRICS_CACHE", str(tmp_path / "cache"))
    features = datasets.Features(predictions=datasets.Value("int64"), references=datasets.Value("int64"))
    both = [Adapter(classification_scores, features) for _ in range(2)]  # two at the same time need no lock either
    for metric in both:
        metric.add_batch(predictions=[0, 2], references=[1, 2])
        metric.add(prediction=1, reference=1)
    expected = classification_scores([0, 2, 1], [1, 2, 1], LABELS)
    assert [metric.compute(labels=LABELS) for metric in both] == [expected, expected]
    assert both[0].compute(predictions=[0], references=[0], labels=LABELS)["accuracy"] == 1.0
    assert list(tmp_path.iterdir()) == []


def test_importing_the_functions_is_cheap() -> None:
    names = ("classification", "entities", "generation", "intervals", "likelihood", "multi_label", "regression",
             "retrieval", "score", "squad", "transcription")  # fmt: skip
    heavy = {"evaluate", "datasets", "torch", "sklearn", "sacrebleu", "rouge_score"}
    code = f"import sys, {', '.join(f'toolkit.metrics.{name}' for name in names)}; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"


def test_the_declared_scores_are_those_that_are_returned() -> None:
    columns, names = np.array([[0.0, 1.0], [1.0, 0.0]]), ["a", "b"]
    returned = {
        (*CLASSIFICATION, *per_class_scores(PER_CLASS, names)): classification_scores([0, 1], [0, 1], names),
        (*MULTI_LABEL, *per_class_scores(PER_LABEL, names)): multi_label_scores(columns, columns, names),
        RETRIEVAL: retrieval_scores([[1]]),
        CORRELATION: correlations([1, 2], [1, 2]),
        (*REGRESSION, *per_class_scores(PER_TARGET, names)): regression_scores(columns, columns, names),
        SQUAD: squad_scores(["a"], [["a"]]),
        TRANSLATION: translation_scores(["a"], ["a"], "13a"),
        ROUGE: rouge_scores(["a"], ["a"], "english"),
        (*ENTITIES, *per_class_scores(PER_ENTITY, ["PER"])): entity_scores([["O"]], [["B-PER"]], ["PER"]),
        LIKELIHOOD: likelihood_scores(1.0, 1, 1, None),
    }
    for scores, values in returned.items():
        assert {score.name for score in scores} == values.keys()


def test_scores_per_class_are_left_out_by_declaration_not_by_spelling() -> None:
    figures = {"eval_f1": 1, "eval_f1/a": 2, "test_f1/a": 3, "f1/a": 4, "eval_time/step": 5}
    assert without_classes(figures, per_class_scores(["f1"], ["a"])) == {"eval_f1": 1, "eval_time/step": 5}


@pytest.mark.parametrize("tokenize", ["13a", "intl", "char", "zh", "none"])
def test_bleu_and_chrf_are_sacrebleus(tokenize: str) -> None:
    texts = ["Die Kuh steht auf der Wiese.", "", "Wo ist der Eimer ?", "他在花园里。"]
    golds = ["Die Kuh steht allein auf der Wiese.", "Das Brot ist warm.", "Wo ist der Eimer?", "他们在花园里。"]
    expected = {
        "bleu": sacrebleu.corpus_bleu(texts, [golds], tokenize=tokenize).score,
        "chrf": sacrebleu.corpus_chrf(texts, [golds]).score,
    }
    assert translation_scores(texts, golds, tokenize) == expected
    assert 0 < expected["bleu"] < 100


def test_signatures_say_how_scores_were_computed() -> None:
    version = sacrebleu.__version__
    assert signatures("intl") == {
        "bleu": f"nrefs:1|case:mixed|eff:no|tok:intl|smooth:exp|version:{version}",
        "chrf": f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{version}",
    }


def test_rouge_is_that_of_rouge_score() -> None:
    from rouge_score.rouge_scorer import RougeScorer

    texts = ["The cows are standing.\nThey eat.", "", "Rain"]
    golds = ["A cow stands and eats.\nRain falls.", "Something", "Rain"]
    names = [score.name for score in ROUGE]
    each = [RougeScorer(names, use_stemmer=True).score(g, t) for t, g in zip(texts, golds, strict=True)]
    expected = {name: np.mean([scores[name].fmeasure for scores in each]) for name in names}
    assert rouge_scores(texts, golds, "english") == pytest.approx(expected)
    assert rouge_l(texts[0], golds[0], "english") == pytest.approx(each[0]["rougeL"].fmeasure)
    assert each[0]["rouge1"].fmeasure > RougeScorer(["rouge1"]).score(golds[0], texts[0])["rouge1"].fmeasure


def test_rouge_of_other_scripts_needs_their_letters() -> None:
    assert rouge_scores(["Корова пасётся"], ["Корова спит"], "english")["rouge1"] == 0.0
    assert rouge_scores(["Корова пасётся"], ["корова, спит"], "unicode")["rouge1"] == 0.5
    assert rouge_l("Die Kühe", "Die Kähe", "english") > rouge_l("Die Kühe", "Die Kähe", "unicode") == 0.5


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("O B-PER I-PER O B-LOC", [("PER", 1, 3), ("LOC", 4, 5)]),
        ("B-PER B-PER I-PER", [("PER", 0, 1), ("PER", 1, 3)]),
        ("I-PER I-PER O I-LOC", [("PER", 0, 2), ("LOC", 3, 4)]),  # IOB1
        ("B-PER I-LOC I-PER", [("PER", 0, 1), ("LOC", 1, 2), ("PER", 2, 3)]),
        ("B-PER O I-PER", [("PER", 0, 1), ("PER", 2, 3)]),
        ("B-geo-loc I-geo-loc", [("geo-loc", 0, 2)]),
        ("O O", []),
    ],
)
def test_entities_are_read_as_conlleval_reads_them(tags: str, found: list) -> None:
    assert entities(tags.split()) == found


def test_entity_scores_are_those_of_seqeval() -> None:
    """The expected values were computed by seqeval 1.2.2."""
    gold = [
        "I-PER B-PER B-LOC O O I-LOC O I-PER", "I-LOC O I-LOC B-PER O O B-LOC B-LOC",
        "O B-PER O I-LOC B-LOC O I-LOC O", "B-PER I-LOC O I-LOC I-LOC B-LOC O B-PER",
        "O I-LOC B-PER I-PER B-LOC B-PER I-LOC O",
    ]  # fmt: skip
    predicted = [
        "I-PER B-PER B-LOC O O I-LOC O I-PER", "I-LOC O I-LOC B-PER B-LOC O B-LOC B-LOC",
        "B-PER B-PER O I-LOC B-LOC O I-LOC O", "B-PER I-LOC O B-LOC I-LOC B-LOC I-LOC I-PER",
        "O I-LOC B-PER O I-PER B-PER I-LOC O",
    ]  # fmt: skip
    references = [row.split() for row in gold]
    assert entity_scores([row.split() for row in predicted], references, ["LOC", "PER"]) == pytest.approx({
        "precision": 0.8076923076923077, "recall": 0.875, "f1": 0.84, "f1_macro": 0.8333333333333334, "accuracy": 0.825,
        "precision/LOC": 0.8666666666666667, "recall/LOC": 0.8666666666666667, "f1/LOC": 0.8666666666666667,
        "precision/PER": 0.7272727272727273, "recall/PER": 0.8888888888888888, "f1/PER": 0.8,
    })  # fmt: skip
    assert num_entities(references, ["LOC", "PER", "ORG"]) == [15, 9, 0]


def test_intervals_of_rouge_and_entities_hold_the_scores() -> None:
    texts, golds = ["a b c", "d e", "f"] * 10, ["a b", "d e", "g"] * 10
    scores, quality = rouge_scores(texts, golds, "english"), rouge_quality(texts, golds, "english")
    assert quality.intervals.keys() == scores.keys()
    tags, truth = [["B-X", "O"], ["O", "O"], ["B-X", "I-X"]] * 10, [["B-X", "O"], ["B-X", "O"], ["B-X", "I-X"]] * 10
    scores, found = entity_scores(tags, truth, ["X"]), entity_quality(tags, truth)
    assert found.intervals.keys() == {"precision", "recall", "f1", "accuracy"}
    for name, (low, high) in found.intervals.items():
        assert low <= scores[name] <= high
    assert found.intervals["recall"].low < scores["recall"] < found.intervals["recall"].high


def test_undefined_entity_scores_are_zero_and_lengths_must_agree() -> None:
    assert set(entity_scores([["O"]], [["O"]], ["PER"]).values()) == {0.0, 1.0}
    with pytest.raises(ValueError, match=r"shorter|longer"):
        entity_scores([["O"]], [["O", "O"]], [])
