"""Encoder-decoders: tokenizers, decoder inputs, generation."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import transformers
from seq2seq_models import VOCAB, nllb, small
from transformers.models.m2m_100.modeling_m2m_100 import shift_tokens_right
from transformers.models.mbart.modeling_mbart import shift_tokens_right as wrap_last_token

from toolkit.base.errors import InputError
from toolkit.modalities import seq2seq

PAIRS = (["a b a", "b"], ["b", "a a b b"])
LIMITS = {"source": "max_source_length", "target": "max_target_length", "generated": "val_max_target_length"}
TEXTS = ["Die Kühe gehen HEIM.", "  Zwei  Blanks\tund\nmehr ", "«Ökonomie» — 20 €", "日本語 🐄", "can't , won't ."]


def mbart():
    return transformers.MBartTokenizer(vocab=[(token, -float(i)) for token, i in VOCAB.items()])


def mbart50():
    return transformers.MBart50Tokenizer(vocab=[(token, -float(i)) for token, i in VOCAB.items()])


def new_tokenizer(texts=TEXTS, vocab_size=400):
    options = SimpleNamespace(max_source_length=32, max_target_length=48, limits=LIMITS)
    return seq2seq.new_processor(iter(texts), SimpleNamespace(vocab_size=vocab_size), options)


def encode(tokenizer, source=None, target=None):
    with seq2seq.languages(tokenizer, source, target):
        columns = seq2seq.encode_pairs(*PAIRS, tokenizer, 16, 16)
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize("text", TEXTS)
def test_a_new_tokenizer_gives_back_exactly_the_text(text):
    tokenizer = new_tokenizer()
    ids = tokenizer(text)["input_ids"]
    assert ids[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)


def test_a_new_tokenizer_is_the_same_every_time_and_within_its_size():
    one, other = new_tokenizer(TEXTS * 3, 300), new_tokenizer(TEXTS * 3, 300)
    assert one.get_vocab() == other.get_vocab()
    assert len(one) == 300


@pytest.mark.parametrize("model_type", ["t5", "bart", "marian", "mbart"])
def test_the_loss_is_that_of_the_model_given_labels(model_type):
    """Checks that the decoder inputs equal those that each model derives from its labels."""
    tokenizer = new_tokenizer()
    config = small(model_type, len(tokenizer))
    seq2seq.configure(config, tokenizer, new=True)
    config.decoder_start_token_id = tokenizer.eos_token_id if model_type == "mbart" else config.decoder_start_token_id
    torch.manual_seed(0)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config).eval()
    assert model.config.vocab_size == len(tokenizer)
    inputs, labels = seq2seq.pad_pairs(encode(tokenizer), tokenizer, config.decoder_start_token_id)
    with torch.no_grad():
        logits = model(**inputs).logits
        theirs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], labels=labels).loss
    ours = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("make", "source", "target", "first", "start"),
    [
        (nllb, "eng_Latn", "deu_Latn", "deu_Latn", "</s>"),
        (mbart50, "en_XX", "de_DE", "de_DE", "</s>"),
        (mbart, "en_XX", "de_DE", None, "de_DE"),
    ],
)
def test_languages_stand_where_each_model_wants_them(make, source, target, first, start):
    tokenizer = make()
    token = tokenizer.convert_tokens_to_ids
    features = encode(tokenizer, source, target)
    assert token(source) in features[0]["input_ids"]
    assert token(target) in features[0]["labels"]
    from_language, forced = seq2seq.language_ids(tokenizer, source, target)
    assert forced == (token(first) if first else None)
    assert from_language == (None if start == "</s>" else token(start))
    inputs, labels = seq2seq.pad_pairs(features, tokenizer, token(start))
    expected = (
        shift_tokens_right(labels, tokenizer.pad_token_id, token("</s>"))
        if make is nllb
        else wrap_last_token(labels, tokenizer.pad_token_id)
    )
    assert inputs["decoder_input_ids"].tolist() == expected.tolist()


@pytest.mark.parametrize("make", [nllb, mbart, mbart50])
def test_languages_are_put_back(make):
    tokenizer = make()
    before = tokenizer("a b")["input_ids"], tokenizer.src_lang, tokenizer.tgt_lang
    codes = ("fra_Latn", "deu_Latn") if make is nllb else ("fr_XX", "de_DE")
    encode(tokenizer, *codes)
    assert before == (tokenizer("a b")["input_ids"], tokenizer.src_lang, tokenizer.tgt_lang)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (None, None, "task.source_lang: received None"),
        ("eng_Latn", "deu", r"task.target_lang: received 'deu', .* for example deu_Latn"),
        ("<pad>", "deu_Latn", "task.source_lang: received '<pad>'"),
    ],
)
def test_a_language_that_the_tokenizer_does_not_have_is_an_error(source, target, message):
    with pytest.raises(InputError, match=message):
        encode(nllb(), source, target)


def test_tokenizers_without_languages_need_none():
    assert seq2seq.language_ids(new_tokenizer(), "en", "de") == (None, None)
    assert len(encode(new_tokenizer(), "en", "de")) == 2


def test_both_sides_are_cut_to_their_limits_and_counted():
    tokenizer = new_tokenizer()
    columns = seq2seq.encode_pairs(["Die Kühe gehen HEIM." * 3, "a"], ["a", "b c d e f g h"], tokenizer, 12, 5)
    assert columns["truncated_source"] == [True, False]
    assert columns["truncated_target"] == [False, True]
    assert [len(ids) for ids in columns["input_ids"]] == [12, 2]
    assert [len(ids) for ids in columns["labels"]] == [2, 5]
    assert columns["length"] == [14, 7]
    assert columns["input_ids"][0][-1] == columns["labels"][1][-1] == tokenizer.eos_token_id
    assert tokenizer.backend_tokenizer.truncation is None


def test_rows_without_targets_have_a_decoder_input():
    tokenizer = new_tokenizer()
    columns = seq2seq.encode_pairs(["a", "b c"], None, tokenizer, 8, 8)
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    inputs, labels = seq2seq.pad_pairs(rows, tokenizer, 1)
    assert labels.tolist() == [[-100], [-100]]
    assert inputs["decoder_input_ids"].tolist() == [[1], [1]]


@pytest.mark.parametrize("model_type", ["t5", "bart", "marian"])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_generation_is_the_models_own_whatever_the_batch(model_type, num_beams):
    tokenizer = new_tokenizer()
    config = small(model_type, len(tokenizer))
    seq2seq.configure(config, tokenizer, new=True)
    torch.manual_seed(1)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config).eval()
    model.generation_config.do_sample = True  # a checkpoint may say so; evaluation does not follow it
    settings = {"max_new_tokens": 7, "num_beams": num_beams, "forced_bos_token_id": None}
    features = encode(tokenizer)
    inputs, _ = seq2seq.pad_pairs(features, tokenizer, 1)
    with torch.no_grad():
        together = seq2seq.generate(model, model(**inputs), inputs, **settings)
        plain = model.generate(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=7,
            num_beams=num_beams, do_sample=False,
        )  # fmt: skip
        assert together.tolist() == plain[:, 1:].tolist()
        assert together.dtype == torch.int32
        for row, ids in zip(features, together, strict=True):
            alone, _ = seq2seq.pad_pairs([row], tokenizer, 1)
            generated = seq2seq.generate(model, model(**alone), alone, **settings)
            assert seq2seq.decode(generated, tokenizer) == seq2seq.decode(ids[None], tokenizer)


@pytest.mark.parametrize("model_type", ["t5", "bart", "marian", "mbart"])
def test_generation_of_a_new_model_ends_where_the_model_ends_a_text(model_type):
    tokenizer = new_tokenizer()
    config = small(model_type, len(tokenizer))
    seq2seq.configure(config, tokenizer, new=True)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config).eval()
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id

    def be_sure_of_the_end(module, inputs, outputs):
        outputs.logits = torch.zeros_like(outputs.logits)
        outputs.logits[..., tokenizer.eos_token_id] = 9.0

    inputs, _ = seq2seq.pad_pairs(encode(tokenizer), tokenizer, 1)
    with torch.no_grad():
        outputs = model(**inputs)
        model.register_forward_hook(be_sure_of_the_end)
        generated = seq2seq.generate(model, outputs, inputs, max_new_tokens=20, num_beams=2, forced_bos_token_id=None)
    assert (generated == tokenizer.eos_token_id).any(dim=1).all()
    assert generated.shape[1] < 20


def test_decoding_leaves_out_what_fills_up():
    tokenizer = new_tokenizer()
    ids = tokenizer("HEIM")["input_ids"]
    assert seq2seq.decode(torch.tensor([[*ids, 0, -100], [2, 0, 0, 0, -100, -100][: len(ids) + 2]]), tokenizer) == [
        "HEIM",
        "",
    ]


def test_models_that_do_not_fit_are_rejected():
    options = SimpleNamespace(max_source_length=200, max_target_length=64, val_max_target_length=None, limits=LIMITS)
    (message,) = seq2seq.check_model(transformers.BertConfig(), options)
    assert "received a bert" in message
    assert "encoder-decoder" in message
    (message,) = seq2seq.check_model(small("bart", max_position_embeddings=128), options)
    assert message == "task.max_source_length: received 200, but this bart supports at most 128 tokens"
    assert seq2seq.check_model(small("t5"), options) == []
