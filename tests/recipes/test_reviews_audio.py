"""Reviews of recordings: bad files, formats, crops by row, and every kind of model."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from audio_files import encoded, tone
from runs import SGD, assert_same_weights, assert_splits_agree, predictions, train, weights
from tolerances import float32_tolerance

from toolkit.api.batch import BadRow
from toolkit.api.random import RowRandom
from toolkit.base.errors import DataError, InputError
from toolkit.config.sections import ModelConfig
from toolkit.modalities import audio
from toolkit.modalities.audio_files import missing_share
from toolkit.modalities.options import AudioOptions
from toolkit.models.load import build_model, load_model_config, unused_parameter_problems

FEW = ("train.max_steps=2", "data.max_eval_samples=9")


def reference(content: bytes, name: str = "x.wav") -> dict:
    return {"path": None, "bytes": content, "name": name}


def options(**settings) -> SimpleNamespace:
    return SimpleNamespace(audio=AudioOptions(**settings))


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG", "MP3"])
@pytest.mark.parametrize(("rate", "channels"), [(8000, 1), (48000, 2)])
def test_every_format_rate_and_number_of_channels_sounds_alike(form, rate, channels):
    file = audio.check(reference(encoded(tone(1.0, rate, channels), rate, form)), options())
    assert (file["rate"], file["frames"]) == (rate, pytest.approx(rate, abs=0.1 * rate))
    heard = audio.read(file, 16000, AudioOptions(), None)
    assert heard.dtype == np.float32
    assert len(heard) == pytest.approx(16000, abs=1600)
    middle = heard[4000:12000]
    assert np.argmax(np.abs(np.fft.rfft(middle))) == pytest.approx(220, abs=1)  # 440 Hz in half a second
    assert np.abs(middle).max() == pytest.approx(0.5, abs=0.05)


def test_96_khz_stereo_becomes_one_channel_at_the_model_s_rate():
    samples = np.stack([tone(0.5, 96000)[:, 0], np.zeros(48000)], axis=1)
    file = audio.check(reference(encoded(samples, 96000)), options())
    heard = audio.read(file, 16000, AudioOptions(), None)
    assert heard.shape == (8000,)
    assert np.abs(heard[2000:6000]).max() == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("form", ["WAV", "MP3"])
def test_a_recording_that_lost_its_very_end_is_heard_to_there(form):
    content = encoded(tone(2.0), form=form)
    file = audio.check(reference(content[: -len(content) // 50]), options())
    assert 30_000 < file["frames"] < 32_000
    assert len(audio.read(file, 16000, AudioOptions(max_seconds=1.9), None)) == pytest.approx(30_400, abs=400)


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG", "MP3"])
def test_half_a_recording_is_rejected(form):
    content = encoded(tone(20.0), form=form)  # several pages of an Ogg file: half of one cannot be decoded anyway
    with pytest.raises(BadRow, match=r"x.wav: (truncated after|cannot be decoded)"):
        audio.check(reference(content[: len(content) // 2]), options())


@pytest.mark.parametrize(("form", "magic", "order"), [("WAV", b"RIFX", "BIG"), ("RF64", b"RF64", "FILE")])
def test_half_a_wav_of_the_other_kinds_is_rejected(form, magic, order):
    content = encoded(tone(4.0), form=form, endian=order)
    assert content.startswith(magic)
    assert audio.check(reference(content), options())["frames"] == 64000
    with pytest.raises(BadRow, match=r"x.wav: truncated after .* of 4 s"):
        audio.check(reference(content[: len(content) // 2]), options())


@pytest.mark.parametrize("form", ["AIFF", "AU", "W64"])
def test_a_format_whose_end_cannot_be_known_is_rejected(form):
    with pytest.raises(BadRow, match=r"x\.wav: .*WAV or FLAC"):
        audio.check(reference(encoded(tone(1.0), form=form)), options())


def test_a_size_that_is_nearly_endless_is_no_whole_file():
    content = bytearray(encoded(tone(0.5), form="RF64"))
    place = content.index(b"ds64") + 16
    content[place : place + 8] = (2**64 - 2).to_bytes(8, "little")
    share = missing_share(io.BytesIO(content))
    assert share is not None
    assert 0.999 < share < 1


@pytest.mark.parametrize("promised", [0, 2**32 - 1])
def test_a_wav_that_was_written_to_a_pipe_has_no_length_of_its_own(promised):
    content = bytearray(encoded(tone(1.0)))
    place = content.index(b"data") + 4
    content[place : place + 4] = promised.to_bytes(4, "little")
    assert missing_share(io.BytesIO(content)) == 0.0


def test_a_wav_that_promises_more_than_it_has_is_rejected():
    content = bytearray(encoded(tone(1.0)))
    place = content.index(b"data") + 4
    content[place : place + 4] = (2**31).to_bytes(4, "little")
    with pytest.raises(BadRow, match=r"x.wav: truncated after 1 of 67108.9 s"):
        audio.check(reference(bytes(content)), options())


def test_crops_depend_on_seed_epoch_and_row_and_are_the_centre_in_evaluation():
    ramp = np.linspace(-0.9, 0.9, 16000)
    extractor = audio.new_processor(iter(()), load_model_config(small("wav2vec2")), options())
    extractor.do_normalize = False
    file = audio.check(reference(encoded(ramp, subtype="FLOAT")), options())
    features = [{"file": file, "row_id": i} for i in range(4)]

    def heard(rows, seed=0, epoch=0, **settings):
        part = options(max_seconds=0.5, **settings)
        return audio.collate([features[i] for i in rows], extractor, part, RowRandom(seed, epoch))["input_values"]

    together = heard(range(4))
    assert together.shape == (4, 8000)
    assert len(set(together[:, 0].tolist())) == 4
    assert torch.equal(together[[2, 0]], heard([2, 0]))
    assert not torch.equal(together, heard(range(4), seed=1))
    assert not torch.equal(together, heard(range(4), epoch=1))
    centre = heard(range(4), epoch=-1)
    assert centre[:, 0].tolist() == pytest.approx([ramp[4000]] * 4, abs=1e-6)
    assert torch.equal(heard(range(4), crop="center"), centre)


SPEECH = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
          "conv_dim": [8, 8], "conv_kernel": [400, 2], "conv_stride": [160, 2], "num_feat_extract_layers": 2,
          "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 8,
          "mask_time_prob": 0.0, "layerdrop": 0.0, "feat_extract_norm": "layer", "do_stable_layer_norm": True,
          "hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "feat_proj_dropout": 0.0,
          "final_dropout": 0.0}  # fmt: skip
MODELS = {
    "wav2vec2": SPEECH,
    "hubert": SPEECH,
    "wavlm": SPEECH,
    "audio-spectrogram-transformer": {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "max_length": 98,
        "num_mel_bins": 32,
    },
    "whisper": {
        "d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_layers": 1,
        "decoder_attention_heads": 2, "decoder_ffn_dim": 16, "num_mel_bins": 20, "classifier_proj_size": 8,
        "vocab_size": 51865,
    },
    "convnext": {
        "num_channels": 1, "patch_size": 4, "hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2,
    },
}  # fmt: skip
SHAPES = {
    "wav2vec2": (2, 16000),
    "audio-spectrogram-transformer": (2, 98, 32),
    "whisper": (2, 20, 100),
    "convnext": (2, 1, 64, 98),
}


def test_short_clips_stand_in_the_middle_of_silence():
    file = audio.check(reference(encoded(tone(0.5))), options())
    clip = audio.read(file, 16000, AudioOptions(), None)
    for length in (20_000, len(clip), 5_000):
        padded = audio.read(file, 16000, AudioOptions(), None, length)
        before = max(0, length - len(clip)) // 2
        assert (padded.shape, padded.dtype) == ((length,), np.float32)
        assert np.array_equal(padded[before : before + len(clip)], clip[:length])
        assert not padded[:before].any()
        assert not padded[before + len(clip) :].any()


def small(kind: str, **changes) -> ModelConfig:
    return ModelConfig(from_config={"model_type": kind} | MODELS[kind] | changes)


@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")  # WavLM's own
@pytest.mark.parametrize("kind", MODELS)
def test_every_kind_of_model_hears_the_clips_and_uses_all_its_weights(kind, tmp_path):
    part = options(max_seconds=1.0)
    config = load_model_config(small(kind))
    assert audio.check_model(config, part) == []
    audio.new_processor(iter(()), config, part).save_pretrained(tmp_path)
    extractor = audio.load_processor(str(tmp_path), small(kind), part)
    audio.configure(config, extractor, new=True)
    files = [audio.check(reference(encoded(tone(seconds))), part) for seconds in (0.25, 1.7)]
    features = [{"file": file, "row_id": i} for i, file in enumerate(files)]
    inputs = audio.collate(features, extractor, part, RowRandom(0, 0))
    (values,) = (value for name, value in inputs.items() if name != "attention_mask")
    assert values.shape == SHAPES.get(kind, SHAPES["wav2vec2"])
    assert values.dtype == torch.float32
    assert all(torch.isfinite(value).all() for value in inputs.values())
    assert all(value.is_contiguous() for value in inputs.values())
    model = build_model(small(kind), config, audio.auto_model(config), 0)
    # Rows do not see each other: what one is heard as does not depend on the padding that another one needs.
    model.eval()
    alone = audio.collate(features[:1], extractor, part, RowRandom(0, 0))
    tolerance = float32_tolerance(terms=2000)  # of the spectrogram, or of a convolution
    torch.testing.assert_close(model(**inputs).logits[:1], model(**alone).logits, atol=tolerance, rtol=tolerance)
    model.train()
    model(**inputs).logits.sum().backward()
    assert [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None] == []


def test_whisper_s_positions_are_cut_to_the_clips_and_stay_the_same(tmp_path):
    from transformers import AutoModelForAudioClassification, WhisperFeatureExtractor

    config = load_model_config(small("whisper"))
    whole = AutoModelForAudioClassification.from_config(config)
    whole.save_pretrained(tmp_path)
    WhisperFeatureExtractor(20).save_pretrained(tmp_path)
    model = ModelConfig(name_or_path=str(tmp_path))
    part = options(max_seconds=1.5)
    config = load_model_config(model)
    extractor = audio.load_processor(str(tmp_path), model, part)
    audio.configure(config, extractor, new=False)
    cut = build_model(model, config, audio.auto_model(config), 0)
    assert cut.encoder.embed_positions.weight.shape == (100, 16)
    torch.testing.assert_close(cut.encoder.embed_positions.weight, whole.encoder.embed_positions.weight[:100])
    clip = audio.check(reference(encoded(tone(1.2))), part)
    inputs = audio.collate([{"file": clip, "row_id": 0}], extractor, part, RowRandom(0, 0))
    assert inputs["input_features"].shape == (1, 20, 200)
    assert cut(**inputs).logits.shape == (1, 2)


@pytest.mark.parametrize(
    ("kind", "changes", "settings", "message"),
    [
        ("whisper", {}, {"max_seconds": 31.0}, "supports at most 30 s"),
        ("audio-spectrogram-transformer", {}, {"max_seconds": 2.0}, "its max_length: 98 frames"),
        ("wav2vec2", {}, {"num_mel_bins": 32}, "no effect with a model of type wav2vec2"),
        ("convnext", {"num_channels": 3}, {}, "a log-mel spectrogram has 1"),
        ("wav2vec2", {"mask_time_prob": 0.05, "mask_time_length": 20}, {}, "mask_time_prob to 0"),
        ("wav2vec2", {"mask_time_prob": 0.05}, {"min_seconds": 0.3, "speed": 0.4}, "set it to at least 0.308 s"),
        ("wav2vec2", {}, {"min_seconds": 3.0, "max_seconds": 2.0}, "must be at most 2"),
        ("wav2vec2", {}, {"min_seconds": 0.034}, "min_seconds: received 0.034, but this wav2vec2 needs at least"),
        ("audio-spectrogram-transformer", {}, {"min_seconds": 0.02, "max_seconds": 0.5}, "needs at least 400 samples"),
        ("convnext", {}, {"min_seconds": 0.01, "max_seconds": 0.02}, "max_seconds: received 0.02, but"),
    ],
)
def test_models_and_lengths_that_do_not_fit_are_rejected(kind, changes, settings, message):
    problems = audio.check_model(load_model_config(small(kind, **changes)), options(**settings))
    assert len(problems) == 1
    assert message in problems[0]


def test_other_models_and_rates_are_rejected(tmp_path):
    problems = audio.check_model(load_model_config(ModelConfig(from_config={"model_type": "bert"})), options())
    assert "the model is bert; expected one of" in problems[0]
    audio.new_processor(iter(()), load_model_config(small("wav2vec2")), options()).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="16000 samples per second"):
        audio.load_processor(str(tmp_path), ModelConfig(name_or_path=str(tmp_path)), options(sampling_rate=8000))


def test_layers_left_out_at_random_need_ddp_s_consent():
    assert unused_parameter_problems(load_model_config(small("wav2vec2"))) == []
    (problem,) = unused_parameter_problems(load_model_config(small("wav2vec2", layerdrop=0.1)))
    assert "model.config_overrides.layerdrop=0" in problem


def from_config(kind: str) -> str:
    return f"model.from_config={json.dumps(small(kind).from_config)}"


SPEECH_RUN = (
    from_config("wav2vec2"), "task.audio.num_mel_bins=64", "task.audio.sampling_rate=16000",
    "task.audio.min_seconds=0.25",
)  # fmt: skip


def test_every_split_of_a_window_trains_a_speech_model_alike(tmp_path):
    common = (*SPEECH_RUN, *SGD, "data.max_train_samples=13", "train.num_train_epochs=1", "eval.eval_steps=null")
    assert_splits_agree("reviews/smoke_audio", tmp_path, *common)


@pytest.mark.parametrize("norm", ["group", "layer"])
def test_group_normalisation_over_time_is_warned_of_at_the_start(norm, tmp_path, capsys):
    fields = small("wav2vec2", feat_extract_norm=norm, do_stable_layer_norm=norm == "layer").from_config
    train("reviews/smoke_audio", tmp_path / "run", *SPEECH_RUN[1:], f"model.from_config={json.dumps(fields)}",
          "train.max_steps=1")  # fmt: skip
    assert ("number of processes: group normalisation over time" in capsys.readouterr().out) == (norm == "group")


@pytest.mark.parametrize("kind", ["wav2vec2", "whisper"])
def test_a_pretrained_model_is_loaded_and_trained(kind, tmp_path):
    from transformers import AutoModelForAudioClassification

    config = load_model_config(small(kind))
    config.num_labels = 7
    model = AutoModelForAudioClassification.from_config(config)
    model.save_pretrained(tmp_path / "hub")
    audio.new_processor(iter(()), config, options(max_seconds=30.0)).save_pretrained(tmp_path / "hub")
    train("reviews/smoke_audio", tmp_path / "run", f"model.name_or_path={tmp_path / 'hub'}", "model.from_config=null",
          *SPEECH_RUN[1:], "task.audio.max_seconds=1", "train.learning_rate=1e-9", *FEW)  # fmt: skip
    before, after = model.state_dict(), weights(tmp_path / "run")
    assert after["classifier.weight"].shape == (4, 8)
    same = [name for name in after if not name.startswith("classifier") and "embed_positions" not in name]
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in same)
    assert (after.get("encoder.embed_positions.weight", torch.zeros(50)).shape[0]) == 50


@pytest.mark.slow
def test_workers_change_nothing(tmp_path):
    few = ("train.max_steps=3", "eval.eval_steps=2")
    train("reviews/smoke_audio", tmp_path / "none", *few)
    train("reviews/smoke_audio", tmp_path / "two", *few, "train.dataloader_num_workers=2")
    assert_same_weights(tmp_path / "none", tmp_path / "two")
    assert predictions(tmp_path / "none") == predictions(tmp_path / "two")
    assert "pipeline(" not in (tmp_path / "none" / "model" / "README.md").read_text()  # none makes log-mel pictures


def test_a_pipeline_answers_as_the_run_did(tmp_path):
    from runs import ROOT
    from transformers import pipeline

    train("reviews/smoke_audio", tmp_path / "run", *SPEECH_RUN, *FEW)
    classify = pipeline("audio-classification", str(tmp_path / "run" / "model"))
    for record in predictions(tmp_path / "run")[:3]:
        path = ROOT / "recipes/data/audio/validation" / record["audio"]
        samples = audio.read(
            audio.check({"path": str(path), "bytes": None, "name": ""}, options()),
            16000,
            AudioOptions(max_seconds=0.4),
            None,
        )
        (answer, *_) = classify({"raw": samples, "sampling_rate": 16000})
        assert answer["label"] == record["prediction"]
        assert answer["score"] == pytest.approx(record["scores"][record["prediction"]], abs=float32_tolerance())


def test_a_recording_that_changes_after_its_check_is_named(tmp_path):
    path = tmp_path / "x.wav"
    path.write_bytes(encoded(tone(1.0)))
    file = audio.check({"path": str(path), "bytes": None, "name": "x.wav"}, options())
    path.write_bytes(encoded(tone(0.5)))
    with pytest.raises(DataError, match=r"x\.wav: .*rerun"):
        audio.read(file, 16000, AudioOptions(), None)
    with pytest.raises(BadRow, match="cannot be decoded"):
        audio.check({"path": str(tmp_path), "bytes": None, "name": "folder"}, options())
