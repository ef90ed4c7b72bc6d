"""Answers without a neural network."""

from __future__ import annotations

from datasets import Dataset

from toolkit.metrics.transcription import transcription_scores
from toolkit.tasks.baselines import frequent_text


def test_the_most_frequent_text_answers_every_row() -> None:
    train, held = ["a b", "c", "c", "a b", "d"], ["c", "c d e"]
    ((name, scores),) = frequent_text(
        "text", Dataset.from_dict({"text": train}), {"test": Dataset.from_dict({"text": held})}, transcription_scores
    )
    assert name == "always 'a b'"  # the first of equally frequent ones
    assert scores == {"test": transcription_scores(["a b", "a b"], held)}
    assert scores["test"]["wer"] == 5 / 4
