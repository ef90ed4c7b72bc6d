"""Windows of long texts have all their tokens, or nothing is encoded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
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


TEMPLATES = [("$A", "$A ? $B:1 ?:1"), ("$A:2 ?", "?:2 $A:3 ?:2 $B:2 ?:1"), ("? $A:1", "? $A ? ? $B ?")]


@pytest.mark.parametrize(("single", "pair"), TEMPLATES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_texts_that_repeat_are_encoded_once_and_their_windows_are_those_of_the_tokenizer(
    tokenizer, single, pair, side, monkeypatch
):
    template = processors.TemplateProcessing(single=single, pair=pair, special_tokens=[("?", 0)])
    tokenizer.backend_tokenizer.post_processor, tokenizer.truncation_side = template, side
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    texts = ["a", "b c", "a", "x"], ["a b c d e f g h i", "i", "a b c d e f g h i", "h g f e d"]
    options = {"truncation": "only_second", "max_length": 8, "stride": 1}
    expected = tokenizer(*texts, return_overflowing_tokens=True, return_offsets_mapping=True, **options)
    encoded, call = [], PreTrainedTokenizerFast.__call__

    def noted(self, given, **more):
        encoded.append(given)
        return call(self, given, **more)

    monkeypatch.setattr(PreTrainedTokenizerFast, "__call__", noted)
    found = encode_with_overflow(tokenizer, *texts, **options)
    assert encoded == [["a", "b c", "x"], ["a b c d e f g h i", "i", "h g f e d"]]
    assert dict(found) == dict(expected)
    assert len(found["input_ids"]) > len(texts[0])
    second = [[side == 1 for side in each.sequence_ids] for each in found.encodings]
    assert second == [[side == 1 for side in each.sequence_ids] for each in expected.encodings]


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
