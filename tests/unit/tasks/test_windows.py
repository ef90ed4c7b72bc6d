from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from toolkit.api.batch import IGNORE_INDEX, BadRow
from toolkit.base.errors import InputError
from toolkit.tasks.spans import check_answer, encode_windows

CONTEXT = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu"
QUESTION = "which letter follows alpha"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
NAMES = ["input_ids", "token_type_ids", "attention_mask"]


def word_tokenizer(**options: Any) -> PreTrainedTokenizerFast:
    """Returns a tokenizer of words with BERT's pairs ([CLS] a [SEP] b [SEP]); like BERT it drops zero-width spaces."""
    vocab = {word: i for i, word in enumerate([*SPECIALS, *dict.fromkeys(f"{CONTEXT} {QUESTION}".split())])}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    backend.normalizer = normalizers.Replace("\u200b", "")
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]", model_input_names=NAMES, **options
    )


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a byte-level BPE that splits words and non-ASCII letters into several tokens, without special tokens."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet, special_tokens=[], show_progress=False)
    backend.train_from_iterator([CONTEXT] * 5, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def row(context: str, *answers: str, question: str = QUESTION) -> dict[str, Any]:
    starts = [context.index(text) for text in answers]
    return {"question": question, "context": context, "answers": {"text": list(answers), "answer_start": starts}}


def encode(
    rows: list[dict[str, Any]], tokenizer: Any, max_length: int = 12, doc_stride: int = 2, **options: Any
) -> Any:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    options = {"labelled": True} | options
    return encode_windows(columns, tokenizer=tokenizer, max_length=max_length, doc_stride=doc_stride, **options)


def labelled_texts(features: dict[str, list[Any]], contexts: list[str]) -> list[tuple[int, str]]:
    """Returns example and text of each window that contains the answer."""
    columns = (features[name] for name in ("example", "offsets", "start", "end"))
    return [
        (example, contexts[example][offsets[2 * start] : offsets[2 * end + 1]].strip())
        for example, offsets, start, end in zip(*columns, strict=True)
        if (start, end) != (0, 0)
    ]


def words_of(offsets: list[int]) -> list[str]:
    return [CONTEXT[start:end] for start, end in zip(offsets[::2], offsets[1::2], strict=True) if start >= 0]


def test_a_context_that_fits_is_one_window() -> None:
    features = encode([row(CONTEXT, "gamma delta")], word_tokenizer(), max_length=32)
    assert features["length"] == [4 + 12 + 3]
    assert features["input_ids"][0][:2] == [2, 16]
    assert features["attention_mask"] == [[1] * 19]
    assert features["token_type_ids"] == [[0] * 6 + [1] * 13]
    assert features["example"] == [0]
    assert features["offsets"][0][:12] == [-1] * 12
    assert features["offsets"][0][12:16] == [0, 5, 6, 10]
    assert features["offsets"][0][-2:] == [-1, -1]
    assert (features["start"], features["end"]) == ([8], [9])


def test_windows_overlap_and_cover_the_context() -> None:
    features = encode([row(CONTEXT, "alpha"), row(CONTEXT, "mu")], word_tokenizer())
    assert features["example"] == [0] * 4 + [1] * 4
    assert max(features["length"]) == 12
    words = [words_of(offsets) for offsets in features["offsets"][:4]]
    assert [word for window in [words[0], *(w[2:] for w in words[1:])] for word in window] == CONTEXT.split()
    assert all(left[-2:] == right[:2] for left, right in pairwise(words))
    assert features["start"] == [6, 0, 0, 0, 0, 0, 0, 8]


@pytest.mark.parametrize("max_length", [14, 20, 64])
@pytest.mark.parametrize("make", [word_tokenizer, byte_tokenizer])
def test_every_answer_is_recovered_from_its_labels(make: Any, max_length: int) -> None:
    context = CONTEXT.replace("eta theta", "êta ½½ thêta")
    words = context.split()
    answers = [" ".join(words[i : i + n]) for n in (1, 2) for i in range(len(words) - n + 1)]
    rows = [row(context, answer, question="which") for answer in answers]
    features = encode(rows, make(), max_length=max_length, doc_stride=9 if max_length > 14 else 6)
    found = labelled_texts(features, [context] * len(rows))
    if make is word_tokenizer:
        assert {example for example, _ in found} == set(range(len(rows)))
    assert found
    assert all(text == answers[example] for example, text in found)


def test_an_answer_longer_than_any_window_labels_none() -> None:
    features = encode([row(CONTEXT, CONTEXT)], word_tokenizer())
    assert set(features["start"]) == set(features["end"]) == {0}


def test_an_answer_cut_inside_a_word_is_the_whole_word() -> None:
    features = encode([row(CONTEXT, "silon ze")], word_tokenizer(), max_length=32)
    assert labelled_texts(features, [CONTEXT]) == [(0, "epsilon zeta")]


def test_characters_that_the_tokenizer_drops_do_not_lose_the_answer() -> None:
    context = f"\u200balpha beta\u200b {CONTEXT} mu\u200b"
    rows = [row(context, "\u200balpha"), row(context, "beta\u200b"), row(context, "mu\u200b")]
    found = labelled_texts(encode(rows, word_tokenizer()), [context] * 3)
    assert found == [(0, "alpha"), (1, "beta"), (2, "mu")]


def test_the_first_gold_answer_is_the_label() -> None:
    features = encode([row(CONTEXT, "delta", "beta")], word_tokenizer(), max_length=32)
    assert labelled_texts(features, [CONTEXT]) == [(0, "delta")]


def test_unanswerable_questions_point_at_the_first_token() -> None:
    features = encode([row(CONTEXT)], word_tokenizer())
    assert set(features["start"]) == set(features["end"]) == {0}


def test_unlabelled_rows_count_as_no_item() -> None:
    rows = [row(CONTEXT, "mu") | {"answers": None}, row(CONTEXT, "mu")]
    features = encode(rows, word_tokenizer(), labelled=False)
    assert set(features["start"]) == set(features["end"]) == {IGNORE_INDEX}


def test_a_tokenizer_that_pads_left_reads_the_context_first() -> None:
    features = encode([row(CONTEXT, "mu")], word_tokenizer(padding_side="left"))
    assert words_of(features["offsets"][0])[0] == "alpha"
    assert {i for flat in features["offsets"] for i, start in enumerate(flat[::2]) if start >= 0} == {1, 2, 3, 4, 5}
    assert labelled_texts(features, [CONTEXT]) == [(0, "mu")]


@pytest.mark.parametrize("make", [word_tokenizer, byte_tokenizer])
@pytest.mark.parametrize("question", ["alpha " * 500, "é" * 300, " " * 400 + "alpha", "", "   "])
@pytest.mark.parametrize(("max_length", "doc_stride"), [(12, 7), (12, 0), (40, 20)])
def test_no_question_keeps_the_context_out(make: Any, question: str, max_length: int, doc_stride: int) -> None:
    tokenizer = make()
    features = encode([row(CONTEXT, "mu", question=question)], tokenizer, max_length, doc_stride)
    assert max(features["length"]) <= max_length
    pairs = [pair for flat in features["offsets"] for pair in zip(flat[::2], flat[1::2], strict=True)]
    covered = {i for start, end in pairs for i in range(start, end)}
    assert {i for i, character in enumerate(CONTEXT) if character != " "} <= covered
    assert labelled_texts(features, [CONTEXT])[-1] == (0, "mu")


def test_leading_blanks_of_a_question_do_not_matter() -> None:
    rows = [row(CONTEXT, "mu"), row(CONTEXT, "mu", question=f" \n{QUESTION}")]
    features = encode(rows, byte_tokenizer(), max_length=200)
    assert "token_type_ids" not in features  # this tokenizer gives none
    assert features["input_ids"][0] == features["input_ids"][1]


@pytest.mark.parametrize(("max_length", "doc_stride"), [(12, 8), (3, 0), (12, 100)])
def test_lengths_that_leave_no_room_are_an_error(max_length: int, doc_stride: int) -> None:
    with pytest.raises(
        InputError, match=rf"task.max_length {max_length} leaves no room .*task.doc_stride {doc_stride}"
    ):
        encode([row(CONTEXT, "mu")], word_tokenizer(), max_length, doc_stride)


def test_a_tokenizer_without_offsets_is_an_error() -> None:
    with pytest.raises(InputError, match=r"SimpleNamespace cannot tell which characters .* fast tokenizer"):
        encode([row(CONTEXT, "mu")], SimpleNamespace(is_fast=False))


def test_the_tokenizer_is_left_as_it_was(tmp_path: Path) -> None:
    tokenizer = word_tokenizer()
    tokenizer.save_pretrained(tmp_path / "before")
    encode([row(CONTEXT, "mu")], tokenizer)
    tokenizer.save_pretrained(tmp_path / "after")
    before, after = ((tmp_path / name / "tokenizer.json").read_bytes() for name in ("before", "after"))
    assert before == after


@pytest.mark.parametrize(
    ("text", "start", "clean", "clean_start", "trimmed"),
    [
        ("45%", 3, "45%", 3, False),
        (" 45%", 2, "45%", 3, True),  # the start counts from the blank
        (" 45%", 3, "45%", 3, True),  # the start counts from the text
        ("45% ", 3, "45%", 3, True),  # the context has a full stop there
        (" 45% ", 2, "45%", 3, True),
        (" a", 10, "a", 10, True),  # both readings fit: the start as it is given
        (" b", 7, "b", 8, True),  # exactly there, blank and all
    ],
)
def test_check_answer_tolerates_blanks(text: str, start: int, clean: str, clean_start: int, trimmed: bool) -> None:
    context = "of 45%. b aaa"
    answers = {"text": [text], "answer_start": [start], "answer_id": [1]}
    expected = {"text": [clean], "answer_start": [clean_start]}
    assert check_answer({"context": context, "answers": answers}) == (expected, trimmed)


def test_check_answer_takes_no_and_several_answers() -> None:
    for texts in ([], ["beta", "mu"]):
        answers = row(CONTEXT, *texts)["answers"]
        assert check_answer({"context": CONTEXT, "answers": answers}) == (answers, False)


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"text": ["Beta"], "answer_start": [6]}, r"^answer 'Beta' is not at answer_start 6 \(there: 'beta'\)$"),
        ({"text": ["beta"], "answer_start": [7]}, r"answer 'beta' is not at answer_start 7 \(there: 'eta '\)"),
        ({"text": ["mu"], "answer_start": [65]}, r"answer 'mu' is not at answer_start 65 \(there: 'u'\)"),
        ({"text": ["alpha", "mu"], "answer_start": [0, 0]}, "answer 'mu' is not at answer_start 0"),
        ({"text": ["x" * 200], "answer_start": [0]}, r"answer 'x{70,80}\.\.\.' is not"),
        ({"text": ["beta"], "answer_start": [-60]}, r"from 0 to 65 .*, got -60$"),
        ({"text": ["beta"], "answer_start": [66]}, r"from 0 to 65 \(the context has 66 characters\), got 66$"),
        ({"text": ["beta"], "answer_start": [6.0]}, "must be a whole number .*, got 6.0"),
        ({"text": ["beta"], "answer_start": [True]}, "must be a whole number .*, got True"),
        ({"text": ["beta"], "answer_start": [None]}, "must be a whole number .*, got None"),
        ({"text": [" "], "answer_start": [5]}, "must be text that is not empty, got ' '"),
        ({"text": [45], "answer_start": [5]}, "must be text that is not empty, got 45"),
        ({"text": ["beta"], "answer_start": []}, "answers have 1 text but 0 answer_start entries"),
        ({"text": ["beta"]}, "must hold the lists text and answer_start, got {'text'"),
        ({"text": "beta", "answer_start": 6}, "must hold the lists text and answer_start"),
        ("beta", "must hold the lists text and answer_start, got 'beta'"),
        (None, "must hold the lists text and answer_start, got None"),
    ],
)
def test_check_answer_says_what_is_wrong(answers: Any, reason: str) -> None:
    with pytest.raises(BadRow, match=reason):
        check_answer({"context": CONTEXT, "answers": answers})


@pytest.mark.real
def test_answers_of_real_questions_are_where_they_should_be(real_data: Path) -> None:
    documents = json.loads((real_data / "agxqa" / "train.json").read_text(encoding="utf-8"))["data"]
    checked = [
        (paragraph["context"], question["answers"], check_answer({"context": paragraph["context"], "answers": answers}))
        for document in documents
        for paragraph in document["paragraphs"]
        for question in paragraph["qas"]
        for answers in [{key: [a[key] for a in question["answers"]] for key in ("text", "answer_start")}]
    ]
    assert len(checked) == 392
    assert sum(trimmed for _, _, (_, trimmed) in checked) == 38
    for context, given, (clean, _) in checked:
        assert clean["text"] == [answer["text"].strip() for answer in given]
        assert all(context.startswith(t, s) for t, s in zip(clean["text"], clean["answer_start"], strict=True))


def test_a_context_at_position_0_is_rejected() -> None:
    """XLNet's pairs are `a <sep> b <sep> <cls>`, with the context first."""
    tokenizer = word_tokenizer(padding_side="left")
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A [SEP] [CLS]:2", pair="$A [SEP] $B:1 [SEP]:1 [CLS]:2", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    with pytest.raises(InputError, match=r"puts the context first, with no token before it, so position 0"):
        encode([row(CONTEXT, "mu")], tokenizer)
