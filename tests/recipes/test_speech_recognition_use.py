"""Use of finished speech recognition: predict, serve, demo, exports, pipelines; long recordings and times of words."""

from __future__ import annotations

import csv
import json
import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import soundfile
import soxr
import transformers
from commands import run_command
from exports import code_lines, exported, exported_as, script_answers, toolkit_answers, write_rows
from fastapi.testclient import TestClient
from runs import ROOT, shipped, train

import toolkit
from toolkit.api.batch import BadRow
from toolkit.base.errors import ConfigError
from toolkit.deploy.serving.app import build
from toolkit.deploy.serving.requests import Limits
from toolkit.modalities import speech as modality

RATE, SECONDS, CLIPS = 8000, 1.2, 20
SILENT = round(0.4 * RATE)
"""Samples of silence before the speech of a clip, and after it."""
FEW = ("train.max_steps=2", "checkpoint.save_steps=null", "eval.eval_steps=null")

MOONSHINE = {
    "model_type": "moonshine", "hidden_size": 48, "intermediate_size": 96, "vocab_size": 300,
    "encoder_num_hidden_layers": 2, "encoder_num_attention_heads": 2, "encoder_num_key_value_heads": 2,
    "decoder_num_hidden_layers": 2, "decoder_num_attention_heads": 2, "decoder_num_key_value_heads": 2,
}  # fmt: skip
BERT = {
    "model_type": "wav2vec2-bert", "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 96, "conv_depthwise_kernel_size": 3, "layerdrop": 0.0, "mask_time_prob": 0.0,
    "conformer_conv_dropout": 0.0,
    **{f"{part}_dropout": 0.0 for part in ("hidden", "activation", "attention", "feat_proj", "final")},
}  # fmt: skip
HEARTS = {
    "ctc": ("ctc", 250, "4.0e-3"),
    "whisper": ("whisper", 150, "3.0e-3"),
    "moonshine": ("whisper", 80, "3.0e-3", f"model.from_config={json.dumps(MOONSHINE)}", "task.language=null"),
    "wav2vec2-bert": ("ctc", 150, "5.0e-3", f"model.from_config={json.dumps(BERT)}"),
}
"""Smoke configuration, epochs, learning rate and further settings with which a model learns clips by heart."""


def clips(folder: Path) -> list[dict[str, str]]:
    """Writes clips with speech in their middle third, and returns their rows: two words each, none of them twice."""
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    words = [one + other for one in syllables for other in syllables]
    np.random.default_rng(1).shuffle(words)
    files = sorted((ROOT / "recipes/data/audio/train").rglob("*.flac"))[::4]
    rows = []
    for number, file in enumerate(files[:CLIPS]):
        samples, rate = soundfile.read(file)
        assert rate == RATE
        clip = np.zeros(round(SECONDS * RATE))
        speech = samples[:SILENT] - samples[:SILENT].mean()  # so that silence stays 0 when clips are normalised
        clip[SILENT : SILENT + len(speech)] = speech
        soundfile.write(folder / f"clip{number}.wav", clip, RATE, subtype="FLOAT")
        rows.append({"audio": f"clip{number}.wav", "text": " ".join(words[2 * number : 2 * number + 2])})
    write_rows(folder / "clips.csv", rows)
    return rows


def joined(folder: Path, rows: list[dict[str, str]], count: int, step: float) -> list[str]:
    """Writes `long.wav`, a recording with a clip every `step` seconds, and returns their transcripts."""
    samples = np.zeros(round(((count - 1) * step + SECONDS) * RATE))
    for number in range(count):
        clip, _ = soundfile.read(folder / rows[number % len(rows)]["audio"])
        first = round(number * step * RATE)
        samples[first : first + len(clip)] += clip
    soundfile.write(folder / "long.wav", samples, RATE, subtype="FLOAT")
    return [rows[number % len(rows)]["text"] for number in range(count)]


def settings(folder: Path, *more: str) -> tuple[str, ...]:
    file = folder / "clips.csv"
    sizes = ("train.gradient_accumulation_steps=1", "train.per_device_train_batch_size=5", "train.global_batch_size=5")
    files = (f"data.train_file={file}", f"data.validation_file={file}", "checkpoint.save_steps=null")
    return (*files, f"task.audio.max_seconds={SECONDS}", *sizes, "eval.eval_steps=null", *more)


def by_heart(kind: str, folder: Path) -> SimpleNamespace:
    """Returns a model that knows clips by heart: its folder, their rows, and whether it is CTC."""
    rows, (config, epochs, rate, *more) = clips(folder), HEARTS[kind]
    more += [f"train.num_train_epochs={epochs}", f"train.learning_rate={rate}"]
    train(f"speech_recognition/smoke_{config}", folder / "run", *settings(folder, *more), sizes=())
    return SimpleNamespace(folder=folder, run=folder / "run", rows=rows, ctc=config == "ctc", kind=kind)


@pytest.fixture(scope="module", params=["ctc", "whisper"])
def heart(request, tmp_path_factory) -> SimpleNamespace:
    return by_heart(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module", params=["moonshine", "wav2vec2-bert"])
def other_heart(request, tmp_path_factory) -> SimpleNamespace:
    return by_heart(request.param, tmp_path_factory.mktemp(request.param))


def pipeline_of(heart: SimpleNamespace) -> Any:
    return transformers.pipeline("automatic-speech-recognition", str(heart.run / "model"), device="cpu")


def heard(pipe: Any, file: Path, **settings: Any) -> dict[str, Any]:
    samples, rate = soundfile.read(file)
    wanted = pipe.feature_extractor.sampling_rate
    wave = soxr.resample(samples, rate, wanted).astype(np.float32)
    return pipe({"raw": wave, "sampling_rate": wanted}, **settings)


@pytest.mark.slow
def test_clips_known_by_heart_are_transcribed_by_predict_serve_zip_and_pipeline(heart, tmp_path):
    texts, folder = [row["text"] for row in heart.rows], heart.folder
    answers = toolkit_answers(heart.run, folder / "clips.csv")
    assert [row["prediction"] for row in answers] == texts
    assert all(0.5 < float(row["confidence"]) <= 1 for row in answers)
    zipped = exported(heart.run, tmp_path)
    assert code_lines(zipped) <= 60
    assert [row["prediction"] for row in script_answers(zipped, folder / "clips.csv")] == texts
    pipe = pipeline_of(heart)
    assert [heard(pipe, folder / row["audio"])["text"].strip() for row in heart.rows] == texts
    card = (heart.run / "model/README.md").read_text()
    assert 'pipeline("automatic-speech-recognition"' in card
    assert "pipeline_tag: automatic-speech-recognition" in card
    assert "wer" in card
    with TestClient(build(toolkit.load(heart.run), "the run", Limits())) as server:
        files = [("audio", (row["audio"], (folder / row["audio"]).read_bytes())) for row in heart.rows]
        found = server.post("/predict", files=files).json()["predictions"]
        assert [each["prediction"] for each in found] == texts
        broken = server.post("/predict", files=[*files[:1], ("audio", ("x.wav", b"RIFF of nothing"))])
        assert broken.status_code == 422
        assert [(each["row"], each["column"]) for each in broken.json()["problems"]] == [(2, "audio")]
        assert "cannot be decoded" in broken.text


@pytest.mark.slow
def test_five_minutes_are_transcribed_with_the_words_of_their_parts(heart, tmp_path):
    # A clip in each part: tiny models know no other input. CTC writes no space where it was taught none.
    words = joined(heart.folder, heart.rows, round(300 / SECONDS), SECONDS)
    run = toolkit.load(heart.run, overrides=["task.stride_length_s=0"])
    ((record,), (short,)) = (run.predict([{"audio": str(heart.folder / name)}]) for name in ("long.wav", "clip0.wav"))
    blank = "" if heart.ctc else " "
    assert record["prediction"].replace(" ", blank) == blank.join(words).replace(" ", blank)
    assert short["prediction"] == words[0]
    assert 0 < record["confidence"] <= 1
    with TestClient(build(run, "the run", Limits())) as server:  # in memory: the parts have their own samples
        content = (heart.folder / "long.wav").read_bytes()
        (found,) = server.post("/predict", files=[("audio", ("long.wav", content))]).json()["predictions"]
    assert found["prediction"] == record["prediction"]


@pytest.mark.slow
def test_other_models_transcribe_long_recordings_with_the_words_of_their_parts(other_heart, tmp_path):
    folder, rows = other_heart.folder, other_heart.rows
    words = joined(folder, rows, 25, SECONDS)
    table = write_rows(folder / "all.csv", [{"audio": "long.wav"}, *({"audio": row["audio"]} for row in rows)])
    output = folder / "answers.csv"
    assert run_command("predict", other_heart.run, "--input", table, "--output", output, "task.stride_length_s=0") == 0
    with output.open() as file:
        long, *short = [row["prediction"] for row in csv.DictReader(file)]
    assert short == [row["text"] for row in rows]
    blank = "" if other_heart.ctc else " "
    assert long.replace(" ", blank) == blank.join(words).replace(" ", blank)

    joined(folder, rows, 12, 0.7)  # cut in the middle of words
    table = write_rows(folder / "one.csv", [{"audio": "long.wav"}])
    (answer,) = [row["prediction"] for row in toolkit_answers(other_heart.run, table)]
    (found,) = script_answers(exported(other_heart.run, tmp_path), table)
    assert found["prediction"] == answer
    if other_heart.ctc:  # of encoder-decoders, the pipeline joins only Whisper's parts, and repeats what others share
        assert heard(pipeline_of(other_heart), folder / "long.wav", chunk_length_s=SECONDS)["text"].strip() == answer


@pytest.mark.slow
def test_long_recordings_are_transcribed_alike_by_predict_script_graph_and_pipeline(heart, tmp_path, capsys):
    joined(heart.folder, heart.rows, 12, 0.7)  # cut in the middle of words
    table = write_rows(heart.folder / "two.csv", [{"audio": "long.wav"}, {"audio": "clip3.wav"}])
    capsys.readouterr()
    answers = [row["prediction"] for row in toolkit_answers(heart.run, table)]
    assert "cuts of longer recordings into parts of 1.2 s" in capsys.readouterr().out
    pipe = pipeline_of(heart)
    assert heard(pipe, heart.folder / "long.wav", chunk_length_s=SECONDS)["text"].strip() == answers[0]
    folders = [exported(heart.run, tmp_path)]
    for name in ("onnx", "torch_export"):
        folder, parity = exported_as(heart.run, name, tmp_path)
        assert parity["metric_change"] == 0
        folders.append(folder)
    for folder in folders:
        assert [row["prediction"] for row in script_answers(folder, table)] == answers


@pytest.mark.slow
def test_words_have_times_of_frames_as_in_the_pipeline(heart):
    if not heart.ctc:
        pytest.skip("it has no alignment_heads, see below")
    joined(heart.folder, heart.rows, 4, 0.8)
    table = write_rows(heart.folder / "long.csv", [{"audio": "long.wav"}, {"audio": "clip0.wav"}])
    output = heart.folder / "times.csv"
    assert run_command("predict", heart.run, "--input", table, "--output", output, "task.word_times=true") == 0
    with output.open() as file:
        rows = list(csv.DictReader(file))
    expected = heard(pipeline_of(heart), heart.folder / "long.wav", chunk_length_s=SECONDS, return_timestamps="word")
    words = json.loads(rows[0]["words"])
    assert [each["word"] for each in words] == rows[0]["prediction"].split()
    times = np.array([each["timestamp"] for each in expected["chunks"]])
    assert np.allclose([(each["start"], each["end"]) for each in words], times, atol=1e-5)
    assert all(one["end"] <= other["start"] for one, other in pairwise(words))


@pytest.mark.slow
def test_words_of_an_encoder_decoder_have_times_where_it_attends(tmp_path):
    rows = clips(tmp_path)
    train("speech_recognition/smoke_whisper", tmp_path / "first", *settings(tmp_path, *FEW[:1]), sizes=())
    model = transformers.AutoModelForSpeechSeq2Seq.from_pretrained(tmp_path / "first/model")
    model.generation_config.alignment_heads = [[0, 0], [1, 1]]
    model.save_pretrained(tmp_path / "published")
    for part in (transformers.AutoFeatureExtractor, transformers.AutoTokenizer):
        part.from_pretrained(tmp_path / "first/model").save_pretrained(tmp_path / "published")
    more = ("train.num_train_epochs=60", "train.learning_rate=3.0e-3", "task.word_times=true")
    source = (f"model.name_or_path={tmp_path / 'published'}", "model.from_config=null")
    train("speech_recognition/smoke_whisper", tmp_path / "run", *settings(tmp_path, *more, *source), sizes=())
    joined(tmp_path, rows, 4, 0.8)
    run = toolkit.load(tmp_path / "run", per_device_eval_batch_size=3)
    (record, *short) = run.predict([{"audio": str(tmp_path / name)} for name in ("long.wav", "clip0.wav", "clip1.wav")])
    assert " ".join(each["word"] for each in record["words"]) == record["prediction"]
    assert max(each["end"] for each in record["words"]) > SECONDS  # of the recording, not of its parts
    for row, one in zip(rows, short, strict=False):
        assert [each["word"] for each in one["words"]] == one["prediction"].split()
        assert all(0 <= each["start"] <= each["end"] <= SECONDS + 0.02 for each in one["words"])
        (alone,) = run.predict([{"audio": str(tmp_path / row["audio"])}])
        assert alone["words"] == one["words"]  # whatever else is in the batch


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("kind", "setting", "problem"),
    [
        ("whisper", "task.word_times=true", "task.word_times: received true, but this whisper has no alignment_heads"),
        ("whisper", "task.generation={top_q: 1}", "task.generation.top_q: transformers has no such setting"),
        ("ctc", "task.num_beams=2", "task.num_beams: has no effect on a wav2vec2"),
    ],
)
def test_answers_that_a_model_cannot_give_are_rejected_before_its_weights_are_read(
    kind, setting, problem, tmp_path, monkeypatch, capsys
):
    clips(tmp_path)
    name, rows = f"speech_recognition/smoke_{kind}", settings(tmp_path, *FEW[:1])
    train(name, tmp_path / "run", *rows, sizes=())
    for place in ("toolkit.deploy.trained.build_model", "toolkit.run.build_for"):
        monkeypatch.setattr(place, Mock(side_effect=AssertionError("the weights are read")))
    assert run_command("predict", tmp_path / "run", "--input", tmp_path / "clips.csv", setting) == 2
    assert problem in capsys.readouterr().err
    with pytest.raises(ConfigError, match=re.escape(problem)):
        train(name, tmp_path / "other", *rows, setting, sizes=())
    assert run_command("validate", "speech_recognition", "--config", f"smoke_{kind}", setting) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("total", [50, 4000, 9600, 9601, 30_000, 123_456])
@pytest.mark.parametrize(("stride", "hop"), [(1600, 80), (80, 80), (0, 80), (1, 1), (0, 1)])
def test_parts_keep_every_frame_once(total, stride, hop):
    spans = shipped(ROOT / "recipes/speech_recognition.py").__init__.__globals__["spans"]
    parts = spans(total, 9600, stride, 2000, hop)
    kept = [(begin // hop + left, begin // hop + min(stop, (end - begin) // hop)) for begin, end, left, stop in parts]
    assert [first for first, _ in kept] == [0, *(stop for _, stop in kept[:-1])]
    assert kept[-1][1] == pytest.approx(total // hop, abs=1)
    assert all(end - begin >= min(total, 2000) for begin, end, *_ in parts)
    assert parts[-1][1] == total


def test_long_recordings_are_rejected_only_with_a_transcript(tmp_path):
    soundfile.write(tmp_path / "long.wav", 0.1 * np.ones(5 * RATE), RATE)
    file = {"path": str(tmp_path / "long.wav"), "bytes": None, "name": "long.wav"}
    options = SimpleNamespace(audio=SimpleNamespace(min_seconds=0.25, max_seconds=3.0))
    with pytest.raises(BadRow, match=r"long.wav: lasts 5 s, above task.audio.max_seconds=3"):
        modality.check(file, options)
    assert modality.check(file, options, labelled=False)["frames"] == 5 * RATE


@pytest.mark.parametrize(
    ("chunk", "stride", "message"),
    [
        ("40", "null", "task.chunk_length_s: received 40, must be at most task.audio.max_seconds=30"),
        ("10", "5", "task.stride_length_s: received 5, must be less than half of a part of 10 s"),
        ("null", "15", "task.stride_length_s: received 15, must be less than half of a part of 30 s"),
    ],
)
def test_parts_that_cannot_be_are_rejected(chunk, stride, message, tmp_path):
    changed = (f"task.chunk_length_s={chunk}", f"task.stride_length_s={stride}")
    with pytest.raises(ConfigError) as raised:
        train("speech_recognition/smoke_ctc", tmp_path / "run", *changed)
    assert message in str(raised.value)


@pytest.mark.slow
def test_the_new_base_of_adapters_and_a_merged_model_generate_as_the_run(tmp_path):
    clips(tmp_path)
    lora = ("model.peft.method=lora", "model.peft.target_modules=[q_proj, v_proj]", "task.num_beams=2")
    train("speech_recognition/smoke_whisper", tmp_path / "run", *settings(tmp_path, *FEW[:1], *lora), sizes=())
    exported_as(tmp_path / "run", "merged", tmp_path)
    for folder in (tmp_path / "run/model/base", tmp_path / "merged of run"):
        found = transformers.GenerationConfig.from_pretrained(folder)
        assert (found.language, found.task, found.num_beams, found.is_multilingual) == ("en", "transcribe", 2, True)
        assert found.task_to_id.keys() == {"transcribe", "translate"}
        assert found.lang_to_id["<|en|>"] == found.decoder_start_token_id + 1
        assert found.max_new_tokens == 16 - 3
        assert found.no_timestamps_token_id
        assert None not in (found.eos_token_id, found.pad_token_id)
