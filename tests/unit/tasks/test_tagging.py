"""Token classification: tags, windows in which each token is labelled once, and entities from predictions."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import transformers
from seq2seq_models import VOCAB

from toolkit.api.batch import IGNORE_INDEX, BadRow
from toolkit.base.errors import InputError
from toolkit.modalities import text
from toolkit.tasks.tagging import check_tags, check_tokens, encode_words, labels_of, listed, tag_names, tagged

ROWS = [
    ["Anna", "Berg", "drove", "to", "Kiel", "."],
    ["unbelievably", "long", "words", "need", "unbelievably", "many", "subwords", ",", "don't", "they", "?"] * 3,
    ["Ünïcödé"],
]


def new_tokenizer():
    options = SimpleNamespace(limits={"input": "max_length"}, max_length=64)
    return text.new_processor(iter(["Anna Berg drove to"] * 3), SimpleNamespace(vocab_size=300), options)


def sentencepiece():
    return transformers.NllbTokenizer(vocab=VOCAB, merges=[("▁", "a"), ("▁", "b")])


def test_tokens_are_lists_or_text_with_blanks():
    assert check_tokens(["Anna ", "Berg"], "tokens") == check_tokens("Anna  Berg", "tokens") == ["Anna", "Berg"]
    assert check_tokens("['Anna', 'Berg']", "tokens") == check_tokens('["Anna", "Berg"]', "tokens") == ["Anna", "Berg"]
    assert check_tokens("[ Anna ]", "tokens") == ["[", "Anna", "]"]
    for value in ([], "", 3, None):
        with pytest.raises(BadRow, match=r"column 'tokens' holds .*, expected a list of texts"):
            check_tokens(value, "tokens")
    for value in (["a", " "], ["a", 3]):
        with pytest.raises(BadRow, match="column 'tags': entry 2 is "):
            check_tokens(value, "tags")


def test_all_schemes_of_tags_become_iob2():
    tokens = ["a", "b", "c", "d"]
    for scheme in ("B-X I-X O B-Y", "B-X E-X O S-Y", "B-X L-X O U-Y"):
        assert check_tags(scheme.split(), tokens, None) == ["B-X", "I-X", "O", "B-Y"]


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        (["O"], "there are 1 tags for 2 tokens"),
        (["O", "PER"], "tag 2 is 'PER', expected O, B-<type> or I-<type>"),
        (["B-", "O"], "tag 1 is 'B-'"),
        (["O", "B-ORG"], "tag 2 is 'B-ORG', but the entity types are LOC, PER"),
    ],
)
def test_wrong_tags_are_named(tags, message):
    with pytest.raises(BadRow, match=message):
        check_tags(tags, ["a", "b"], ["LOC", "PER"])


@pytest.mark.parametrize("make", [new_tokenizer, sentencepiece])
@pytest.mark.parametrize(("max_length", "stride"), [(12, 0), (12, 4), (16, 13), (512, 100)])
def test_each_word_is_labelled_once_at_its_first_subword(make, max_length, stride):
    tokenizer = make()
    windows = encode_words(ROWS, tokenizer, max_length, stride)
    assert max(windows["length"]) <= max_length
    found = {(row, word) for row, words in zip(windows["example"], windows["words"], strict=True) for word in words}
    counted = [
        (row, w) for row, words in zip(windows["example"], windows["words"], strict=True) for w in words if w >= 0
    ]
    assert len(counted) == len(found - {(row, -1) for row in range(len(ROWS))}) == sum(map(len, ROWS))
    for row, (words, ids) in zip(
        windows["example"], zip(windows["words"], windows["input_ids"], strict=True), strict=True
    ):
        for place, word in enumerate(words):
            if word >= 0:  # the first subword begins with the word's first letter, as far as the vocabulary has it
                piece = tokenizer.decode(ids[place]).strip()
                assert ROWS[row][word].lower().startswith(piece.lower()) or set(piece) & {"�", "<", "/"} or piece == ""


def test_a_word_of_two_windows_is_labelled_where_it_has_more_context():
    words = [f"w{i}" for i in range(9)]
    tokenizer = new_tokenizer()
    whole = encode_words([words], tokenizer, 512, 0)
    size = whole["length"][0]
    windows = encode_words([words], tokenizer, size - 1, size - 6)
    assert len(windows["example"]) >= 2
    first, last = windows["words"][0], windows["words"][-1]
    kept = [word for word in first if word >= 0]
    assert kept == list(range(len(kept)))
    assert [word for word in last if word >= 0][-1] == 8
    edge = [place for place, word in enumerate(first) if word >= 0][-1]
    assert edge < len(first) - 2  # words at the window's end are left to the next one


def test_labels_follow_the_words():
    windows = {"example": [0, 1, 1], "words": [[-1, 0, -1], [-1, 0], [1, -1]]}
    assert labels_of(windows, [[4], None]) == [[-100, 4, -100], [IGNORE_INDEX] * 2, [IGNORE_INDEX] * 2]


def test_a_stride_without_room_is_rejected():
    with pytest.raises(InputError, match=r"task\.stride: received 10, but windows hold 10 tokens"):
        encode_words(ROWS, new_tokenizer(), 12, 10)


def test_predictions_become_entities_with_scores():
    names = tag_names(["LOC", "PER"])
    assert names == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    features = {"example": [0, 0], "words": [[-1, 0, 1], [2, -1, 4]]}  # word 3 has no subword
    predictions = {
        "classes": np.array([[0, 3, 4], [0, 0, 1]]), "scores": np.array([[0.1, 0.75, 0.25], [0.5, 0.1, 0.625]])
    }  # fmt: skip
    rows = [{"tokens": ["Anna", "Berg", "in", "\u200b", "Kiel"], "tags": None}]
    (record,) = tagged(predictions, features, rows, names)
    assert record["prediction"] == ["B-PER", "I-PER", "O", "O", "B-LOC"]
    assert record["entities"] == [
        {"type": "PER", "text": "Anna Berg", "start": 0, "end": 2, "score": 0.5},
        {"type": "LOC", "text": "Kiel", "start": 4, "end": 5, "score": 0.625},
    ]
    assert listed(record["tokens"], record["prediction"]) == "Anna Berg (PER), Kiel (LOC)"
    assert listed(["a"], ["O"]) == "no entity"
