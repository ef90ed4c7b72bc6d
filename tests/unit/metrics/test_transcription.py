"""Error rates, counts and alignments of transcripts equal jiwer's in all digits."""

from __future__ import annotations

import random
import time

import jiwer
import numpy as np
import pytest

from toolkit.metrics.transcription import (
    TRANSCRIPTION,
    alignment,
    frequent_errors,
    transcription_error,
    transcription_quality,
    transcription_scores,
)

KINDS = {"equal": "equal", "substitute": "substitution", "insert": "insertion", "delete": "deletion"}


def pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Returns transcripts and references of few and many different words, close to each other and far apart."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        words = [f"w{number}" for number in range(draw.choice((1, 2, 3, 5, 20)))]
        reference = [draw.choice(words) for _ in range(draw.randrange(draw.choice((4, 12, 40, 150))))]
        kept = (word for word in reference if draw.random() > 0.2)
        heard = [draw.choice(words) if draw.random() < 0.2 else word for word in kept]
        for _ in range(draw.randrange(4)):
            heard.insert(draw.randrange(len(heard) + 1), draw.choice(words))
        found.append((" ".join(heard if draw.random() < 0.8 else reversed(heard)), " ".join(reference)))
    return found


def jiwers(prediction: str, reference: str) -> list[tuple[str, str, str]]:
    """Returns jiwer's alignment in the form of `alignment`."""
    output = jiwer.process_words([reference], [prediction])
    (heard,), (expected,) = output.hypotheses, output.references
    found = []
    for part in output.alignments[0]:
        right, left = range(part.ref_start_idx, part.ref_end_idx), range(part.hyp_start_idx, part.hyp_end_idx)
        for place in range(max(len(right), len(left))):
            one, other = (left and heard[left[place]]) or "", (right and expected[right[place]]) or ""
            found.append((KINDS[part.type], one, other))
    return found


def test_alignments_and_rates_of_any_words_are_those_of_jiwer() -> None:
    for prediction, reference in pairs(3000, 1):
        assert alignment(prediction, reference) == jiwers(prediction, reference), (prediction, reference)
        scores = transcription_scores([prediction], [reference])
        assert scores["wer"] == jiwer.wer([reference], [prediction])
        assert scores["cer"] == jiwer.cer([reference], [prediction])


def test_rates_of_a_set_are_those_of_jiwer() -> None:
    predictions, references = zip(*pairs(500, 2), strict=True)
    found, output = transcription_scores(predictions, references), jiwer.process_words([*references], [*predictions])
    words = output.hits + output.substitutions + output.deletions
    assert [*found] == [score.name for score in TRANSCRIPTION]
    assert not any(score.greater_is_better for score in TRANSCRIPTION)
    assert found == {
        "wer": output.wer,
        "cer": jiwer.cer([*references], [*predictions]),
        **{name: getattr(output, name) / words for name in ("substitutions", "insertions", "deletions")},
    }


@pytest.mark.parametrize(
    ("prediction", "reference"),
    [
        ("", ""),
        ("", "one two"),
        ("one two", ""),  # jiwer counts the words that were inserted
        ("  one \n\n two\t \tthree ", "one two three"),
        ("one\ttwo", "one two"),  # a single tab is part of a word
        ("one two", "one\u3000two"),  # and so is an ideographic space
        ("   ", " \n "),
        ("cafe\u0301 na\u00efve", "caf\u00e9 nai\u0308ve"),  # characters are code points
        ("\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea", "\U0001f468 \U0001f1e9"),
        ("今日は", "今日わ"),
        ("One, two.", "one two"),
    ],
)
def test_unusual_texts_are_scored_as_jiwer_does(prediction: str, reference: str) -> None:
    scores = transcription_scores([prediction], [reference])
    assert (scores["wer"], scores["cer"]) == (
        jiwer.wer([reference], [prediction]),
        jiwer.cer([reference], [prediction]),
    )
    assert alignment(prediction, reference) == jiwers(prediction, reference)
    among = transcription_scores([prediction, "a b"], [reference, "a c"])
    assert among["wer"] == jiwer.wer([reference, "a c"], [prediction, "a b"])
    assert among["cer"] == jiwer.cer([reference, "a c"], [prediction, "a b"])


def test_both_sides_have_the_same_number_of_texts() -> None:
    with pytest.raises(ValueError, match="argument 2 is longer"):
        transcription_scores(["one"], ["one", "two"])


def test_errors_count_words_and_then_characters() -> None:
    assert transcription_error("one too three", "one two three four") == (2.0, 6.0)  # w to o, and " four"
    assert transcription_error("one  two", "one two") == (0.0, 1.0)
    assert transcription_error(" one two ", "one two") is None


def test_frequent_errors_are_counted_by_kind() -> None:
    heard = ["too plus one", "too one uh", "two uh", "uh nine"]
    expected = ["two plus one", "two one", "two one", "five"]
    assert frequent_errors(heard, expected, most=2) == [
        ("substitution", "too", "two", 2),
        ("substitution", "uh", "one", 1),
        ("insertion", "uh", "", 2),
    ]


def test_intervals_are_those_of_drawn_utterances() -> None:
    predictions, references = zip(*pairs(60, 3), strict=True)
    intervals = transcription_quality(predictions, references).intervals
    draw, drawn = np.random.default_rng(0), []
    for _ in range(300):
        chosen = draw.integers(60, size=60)
        drawn.append(jiwer.wer([references[i] for i in chosen], [predictions[i] for i in chosen]))
    assert intervals["wer"] == pytest.approx(np.quantile(drawn, (0.025, 0.975)), rel=0.1)
    assert [*intervals] == [score.name for score in TRANSCRIPTION]
    assert not transcription_quality(predictions[:9], references[:9]).intervals


def test_long_recordings_and_large_sets_are_scored_in_seconds() -> None:
    draw = random.Random(4)
    words = [f"{number:06}" for number in range(1500)]
    begun = time.process_time()
    reference = [draw.choice(words) for _ in range(4000)]
    heard = [word for word in reference if draw.random() > 0.1]
    found = transcription_scores([" ".join(heard)], [" ".join(reference)])
    assert found["wer"] == found["deletions"] == (4000 - len(heard)) / 4000
    lines = [" ".join(draw.choices(words, k=30)) for _ in range(500)]
    changed = [line.replace("7", "8") for line in lines]
    assert transcription_scores(changed, lines)["cer"] == jiwer.cer(lines, changed)
    assert time.process_time() - begun < 10
