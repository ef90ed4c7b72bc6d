"""Perplexity, accuracy and bits per byte, compared with values computed by hand."""

from __future__ import annotations

import math

import pytest

from toolkit.metrics.likelihood import likelihood_scores, perplexity


def test_a_uniform_guess_has_the_perplexity_of_its_choices() -> None:
    # Eight tokens, each guessed among 256 equals, for a text of 16 bytes: 8 bits a token, 4 bits a byte.
    scores = likelihood_scores(loss_sum=8 * math.log(256), num_tokens=8, num_correct=2, num_bytes=16)
    assert scores == pytest.approx({"perplexity": 256, "token_accuracy": 0.25, "bits_per_byte": 4})


def test_without_bytes_there_are_no_bits_per_byte() -> None:
    assert likelihood_scores(0.0, 3, 3, None) == {"perplexity": 1.0, "token_accuracy": 1.0}


def test_nothing_predicted_is_not_a_number_and_too_much_is_infinite() -> None:
    assert all(math.isnan(value) for value in likelihood_scores(0.0, 0, 0, 0).values())
    assert perplexity(1e4) == math.inf
