"""Speech recognition: training of both kinds of models at every split, vocabularies, and rows that do not fit."""

from __future__ import annotations

import json
from inspect import getmodule

import pytest
import torch
from audio_files import encoded, tone
from datasets import Dataset
from runs import (
    FLOAT64,
    ROOT,
    SGD,
    assert_close,
    assert_same_weights,
    assert_splits_agree,
    predictions,
    shipped,
    train,
    weights,
)
from stopping import StoppedError, stopper

from toolkit.api.batch import IGNORE_INDEX
from toolkit.api.random import RowRandom
from toolkit.base.errors import ConfigError, DataError, InputError
from toolkit.data.table import FILE, NUMBER
from toolkit.deploy.trained import load

RECIPE = getmodule(shipped("speech_recognition"))
CTC, WHISPER = "speech_recognition/smoke_ctc", "speech_recognition/smoke_whisper"
KINDS = pytest.mark.parametrize("config", [CTC, WHISPER])
FEW = ("train.max_steps=2", "eval.eval_steps=null", "data.max_eval_samples=5", "checkpoint.save_steps=null")
SHORT = (*SGD, *FEW[1:], "train.learning_rate=0.01", "data.max_train_samples=13", "train.num_train_epochs=1")
ENCODER = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "layerdrop": 0.0,
    "conv_dim": [8, 8], "conv_kernel": [10, 8], "conv_stride": [10, 8], "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0,
}  # fmt: skip
BERT = {
    "model_type": "wav2vec2-bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16, "feature_projection_input_dim": 80, "conv_depthwise_kernel_size": 3, "layerdrop": 0.0,
    "mask_time_prob": 0.0, "hidden_dropout": 0.0, "activation_dropout": 0.0, "attention_dropout": 0.0,
    "feat_proj_dropout": 0.0, "final_dropout": 0.0, "conformer_conv_dropout": 0.0,
}  # fmt: skip


def recordings(folder, texts, **more):
    """Writes recordings of a second with these transcripts and further columns, and returns their settings."""
    folder.mkdir(exist_ok=True)
    rows = [{"audio": f"{place}.wav", "text": words} for place, words in enumerate(texts)]
    for place, row in enumerate(rows):
        (folder / row["audio"]).write_bytes(encoded(tone(1.0, 8000), 8000))
        row |= {name: values[place] for name, values in more.items()}
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"data.train_file={folder}/rows.jsonl", f"data.validation_file={folder}/rows.jsonl"


def pretrained(folder):
    return f"model.name_or_path={folder}", "model.from_config=null"


@pytest.fixture(scope="module")
def recogniser(tmp_path_factory):
    """A run of a small wav2vec 2.0."""
    folder = tmp_path_factory.mktemp("recogniser") / "run"
    train(CTC, folder, *FEW)
    return folder


@pytest.mark.fast(1)
@KINDS
def test_every_split_of_a_window_is_the_same_update(config, tmp_path):
    assert_splits_agree(config, tmp_path, *SHORT)


@KINDS
@pytest.mark.fast(1)
def test_both_engines_train_alike(config, tmp_path):
    for engine in ("loop", "trainer"):
        train(config, tmp_path / engine, *SHORT, f"engine={engine}")
    assert_same_weights(tmp_path / "loop", tmp_path / "trainer")


@pytest.mark.parametrize(
    ("config", "switch"),
    [
        (CTC, "train.unpadded=true"),  # Whisper's rows have one length
        (CTC, "train.activation_checkpointing=full"),
        (WHISPER, "train.max_tokens_per_batch=20000"),
        (CTC, "train.max_tokens_per_batch=20000"),
        (WHISPER, "train.activation_checkpointing=full"),
    ],
)
@pytest.mark.fast(1)
def test_switches_of_speed_and_memory_change_nothing(config, switch, tmp_path):
    padded = "train.unpadded=false"
    for name, switches in (("plain", [padded]), ("switched", [padded, switch])):
        train(config, tmp_path / name, *SHORT, *switches, double=True)
    one, other = weights(tmp_path / "plain"), weights(tmp_path / "switched")
    assert_close({k: v.tolist() for k, v in one.items()}, {k: v.tolist() for k, v in other.items()}, FLOAT64)


@KINDS
def test_the_loss_is_that_of_transformers_summed(config, tmp_path):
    train(config, tmp_path / "run", *FEW)
    run, file = load(tmp_path / "run"), ROOT / "recipes/data/audio/validation"
    clips = {file / "ewa/flora-0.flac": "ewa", file / "aiya/georg-1.flac": "aiya", file / "auwa/hanna-2.flac": "auwa"}
    rows = [
        run.task.check_row({"audio": {"path": str(path), "bytes": None, "name": path.name}, "text": words}, True)
        | {NUMBER: place, FILE: None}
        for place, (path, words) in enumerate(clips.items())
    ]
    features = run.preprocessed(Dataset.from_list(rows), labelled=True).features
    batch, model = run.task.collate(list(features), run.processor, RowRandom(0, -1)), run.bare_model.eval()
    with torch.no_grad():
        ours = run.task.loss_sum(run.task.forward(model, batch), batch)
        model.config.ctc_loss_reduction = "sum"
        theirs = model(**batch["inputs"], labels=batch["labels"]).loss
    items = 1 if config == CTC else run.task.count_items(batch)
    assert float(ours) == pytest.approx(float(theirs * items), rel=1e-6)


def test_a_row_without_labels_has_no_ctc_loss():
    logits = torch.randn(2, 9, 5, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[1, 2, 2], [IGNORE_INDEX] * 3])
    losses = RECIPE.ctc_losses(logits, labels, torch.tensor([9, 9]), blank=0)
    losses.sum().backward()
    assert losses[0] > 0
    assert losses[1] == 0
    assert logits.grad[1].abs().max() == 0


def test_transcripts_that_do_not_fit_are_bad_rows_with_the_reason(tmp_path):
    files = recordings(tmp_path / "data", [*["one two"] * 9, "word " * 30])  # 1 s has 98 frames
    with pytest.raises(DataError, match="more frames than their recording has: 10"):
        train(CTC, tmp_path / "run", *FEW, *files)
    train(CTC, tmp_path / "run", *FEW, *files, "data.bad_rows=skip", "data.max_bad_rows=0.2")
    assert len(predictions(tmp_path / "run")) == 5
    with pytest.raises(DataError, match=r"max_target_length=16 labels: 10"):
        train(WHISPER, tmp_path / "other", *FEW, *files)


@pytest.mark.slow
def test_a_pretrained_encoder_without_vocabulary_gets_that_of_the_transcripts(recogniser, tmp_path, monkeypatch):
    from transformers import Wav2Vec2FeatureExtractor, Wav2Vec2Model

    Wav2Vec2Model.from_pretrained(recogniser / "model").save_pretrained(tmp_path / "encoder")
    Wav2Vec2FeatureExtractor(sampling_rate=8000, return_attention_mask=True).save_pretrained(tmp_path / "encoder")
    files = recordings(tmp_path / "data", ["wöchentlich zwölf Möwen"] * 8)
    settings = (*FEW, *files, *pretrained(tmp_path / "encoder"), "checkpoint.save_steps=1", "train.max_steps=4")
    train(CTC, tmp_path / "run", *settings)
    assert weights(tmp_path / "run")["lm_head.weight"].shape[0] == 3 + len(set("wöchentlichzwölfMöwen"))
    stop_before = stopper(monkeypatch)
    stop_before(3)
    with pytest.raises(StoppedError):
        train(CTC, tmp_path / "other", *settings)
    stop_before(None)
    train(CTC, tmp_path / "other", *settings, "checkpoint.resume=auto")
    assert_same_weights(tmp_path / "run", tmp_path / "other")
    assert predictions(tmp_path / "run") == predictions(tmp_path / "other")


@pytest.mark.slow
def test_the_adapters_of_the_language_are_loaded_and_only_they_and_the_head_are_trained(recogniser, tmp_path, capsys):
    from safetensors.torch import save_file
    from transformers import AutoConfig, Wav2Vec2CTCTokenizer, Wav2Vec2ForCTC

    mms, special = tmp_path / "mms", ["<pad>", "<s>", "</s>", "<unk>", "|"]
    letters = {"eng": "abc", "fra": "aeiuwy"}
    tokens = {name: {each: place for place, each in enumerate([*special, *own])} for name, own in letters.items()}
    config = AutoConfig.from_pretrained(recogniser / "model", adapter_attn_dim=4, vocab_size=8)
    model = Wav2Vec2ForCTC(config)
    model.save_pretrained(mms)
    (mms / "vocab.json").write_text(json.dumps(tokens))
    load(recogniser).processor.feature_extractor.save_pretrained(mms)
    Wav2Vec2CTCTokenizer(str(mms / "vocab.json"), target_lang="eng").save_pretrained(mms)
    model.lm_head = torch.nn.Linear(model.lm_head.in_features, 11)
    model.init_adapter_layers()
    adapters = {name: each.detach().clone() for name, each in model._get_adapters().items()}
    save_file(adapters, mms / "adapter.fra.safetensors")

    frozen = "feature_* encoder.pos* encoder.layer_norm* *attention* *feed* *layers*layer_norm*"
    freeze = f"model.freeze=[{','.join(f'wav2vec2.{each}' for each in frozen.split())}]"
    settings = (*FEW, *pretrained(mms), "task.language=fra", "train.learning_rate=1.0e-9", freeze)
    train(CTC, tmp_path / "run", *settings)
    found = weights(tmp_path / "run")
    assert f"training {sum(each.numel() for each in adapters.values()):,} of" in capsys.readouterr().out
    for name, each in adapters.items():
        torch.testing.assert_close(found[name], each, rtol=0, atol=1e-7)
    assert any(not torch.equal(found[name], each) for name, each in adapters.items())
    assert predictions(tmp_path / "run")
    train(CTC, tmp_path / "again", *FEW, *pretrained(tmp_path / "run" / "model"), "task.language=fra")
    (mms / "vocab.json").write_text(json.dumps(tokens | {"swe": tokens["fra"]}))
    with pytest.raises(InputError, match=r"adapter\.swe"):
        train(CTC, tmp_path / "other", *settings, "task.language=swe")


def test_characters_outside_the_vocabulary_are_counted_and_named(recogniser, tmp_path, capsys):
    files = recordings(tmp_path / "data", ["aiya 7", "ewa 7"] * 4)
    train(CTC, tmp_path / "run", *FEW, *files, *pretrained(recogniser / "model"))
    said = " ".join(capsys.readouterr().out.split())
    assert "train: 8 of 44 characters unknown to the vocabulary (18.2%): '7' (8)" in said


@pytest.mark.parametrize(
    ("settings", "words", "expected"),
    [
        ({"normalize": "basic"}, "Hello, World! It's 5 %", "hello world it s 5"),
        ({"normalize": "whisper"}, "Mr. Brown won't pay twenty-one dollars", "mister brown will not pay $21"),
        ({"case": "upper", "punctuation": "remove"}, "It's  well-known: 'yes'.", "IT'S WELL KNOWN YES"),
        ({}, " two\n lines ", "two lines"),
    ],
)
def test_normalised_transcripts(settings, words, expected):
    values = {"normalize": "none", "case": "keep", "punctuation": "keep"} | settings
    assert RECIPE.normaliser(values["normalize"], True, values["case"], values["punctuation"])(words) == expected


@pytest.mark.parametrize(
    ("language", "problem"), [("null", "this model is told the language"), ("klingon", "received 'klingon'")]
)
def test_a_multilingual_model_needs_a_language_that_it_knows(language, problem, tmp_path):
    with pytest.raises(ConfigError, match=rf"task\.language: {problem}"):
        train(WHISPER, tmp_path / "run", *FEW, f"task.language={language}")


def test_rows_of_several_languages_begin_with_their_own(tmp_path):
    files = recordings(tmp_path / "data", ["ja"] * 8, lang=["de", "French"] * 4)
    train(WHISPER, tmp_path / "run", *FEW, *files, "task.language=null", "data.columns.language=lang")
    assert {record["language"] for record in predictions(tmp_path / "run")} == {"de", "French"}
    tokenizer = load(tmp_path / "run").processor.tokenizer
    tokens = tokenizer.convert_ids_to_tokens(RECIPE.prefix(tokenizer, 5, "German", "transcribe")[1:])
    assert tokens == ["<|de|>", "<|transcribe|>", "<|notimestamps|>"]


@pytest.mark.parametrize(
    "kind", ["hubert", "wavlm", "data2vec-audio", "sew", "sew-d", "unispeech", "unispeech-sat", "wav2vec2-conformer"]
)
@pytest.mark.fast(2)
def test_other_encoders_train(kind, tmp_path):
    fields = {name: value for name, value in ENCODER.items() if (kind, name) != ("sew-d", "layerdrop")}
    train(CTC, tmp_path / "run", *FEW, f"model.from_config={json.dumps(fields | {'model_type': kind})}")
    assert all(record["reference"] for record in predictions(tmp_path / "run"))


DECODERS = {
    "moonshine": {
        "hidden_size": 16, "intermediate_size": 16, "encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1,
        "encoder_num_attention_heads": 2, "decoder_num_attention_heads": 2, "encoder_num_key_value_heads": 2,
        "decoder_num_key_value_heads": 2, "vocab_size": 300,
    },
    "speech_to_text": {
        "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16,
        "decoder_attention_heads": 2, "decoder_ffn_dim": 16, "conv_channels": 16, "vocab_size": 300,
        "max_target_positions": 448, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
    },
}  # fmt: skip


@pytest.mark.parametrize(("kind", "reason"), [("moonshine", "group normalisation"), ("speech_to_text", "convolutions")])
@pytest.mark.fast(1)
def test_other_encoder_decoders_train_and_warn_that_padding_counts(kind, reason, tmp_path, capsys):
    model = f"model.from_config={json.dumps({'model_type': kind, **DECODERS[kind]})}"
    train(WHISPER, tmp_path / "run", *FEW, model, "task.language=null", "task.max_target_length=20", double=True)
    said = capsys.readouterr().out
    assert "depend on the batch size and the number of processes" in said
    assert reason in said
    assert all(record["reference"] for record in predictions(tmp_path / "run"))


@pytest.mark.slow
def test_wav2vec2_bert_reads_spectrograms_and_masks_each_row_by_its_own_numbers(tmp_path):
    model = (f"model.from_config={json.dumps(BERT)}", "task.audio.sampling_rate=16000")
    assert_splits_agree(CTC, tmp_path, *SHORT, *model, "task.audio.time_masks=2", "task.audio.frequency_masks=1")
    train(CTC, tmp_path / "none", *SHORT, *model, double=True)
    ours, without = weights(tmp_path / "8x1"), weights(tmp_path / "none")
    assert any(not torch.equal(ours[name], without[name]) for name in ours)
