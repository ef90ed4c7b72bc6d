"""Windows of long texts have all their tokens, or nothing is encoded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from toolkit.base.errors import InputError
from toolkit.modalities.text import encode_with_overflow, keeps_all_windows


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    words = {word: number for number, word in enumerate(["?", *"abcdefghi"])}
    made = Tokenizer(models.WordLevel(words, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="?")


def test_every_token_is_in_a_window_and_the_truncation_is_forgotten(tokenizer):
    found = encode_with_overflow(tokenizer, ["a b c d e f g", "h i"], truncation=True, max_length=3, stride=1)
    assert found["input_ids"] == [[1, 2, 3], [3, 4, 5], [5, 6, 7], [8, 9]]
    assert found["overflow_to_sample_mapping"] == [0, 0, 0, 1]
    assert len(tokenizer("a b c d e f g")["input_ids"]) == 7


def test_a_library_that_loses_windows_is_rejected(tokenizer, monkeypatch):
    class Loses:
        def __init__(self, model):
            pass

        def enable_truncation(self, length):
            pass

        def encode(self, text):
            return SimpleNamespace(overflowing=[text])

    monkeypatch.setattr(tokenizers, "Tokenizer", Loses)
    keeps_all_windows.cache_clear()
    try:
        with pytest.raises(InputError, match=r"pip install 'tokenizers!="):
            encode_with_overflow(tokenizer, ["a b"], truncation=True, max_length=3)
    finally:
        keeps_all_windows.cache_clear()
