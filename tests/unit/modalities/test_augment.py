"""Augmentation belongs to a row and an epoch, changes training rows only, and does what its settings say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from audio_files import encoded as sound
from image_files import encoded, noise
from PIL import Image
from runs import SGD, assert_same_weights, assert_splits_agree, lines, shipped, train
from transformers import ViTImageProcessorPil, Wav2Vec2FeatureExtractor

from toolkit.api.random import RowRandom
from toolkit.base.errors import CheckpointError, ConfigError
from toolkit.footprint.predict import collated
from toolkit.modalities import audio, image, text
from toolkit.modalities.options import AudioOptions, ImageOptions

Reviews = shipped(Path(__file__).parents[3] / "recipes" / "reviews.py")
FEW = ("train.max_steps=2", *SGD, "data.max_train_samples=16", "data.max_eval_samples=4", "eval.eval_steps=null",
       "checkpoint.save_steps=null")  # fmt: skip
ANY = np.random.default_rng


# Images


def pixels(picture: Image.Image) -> list[list[int]]:
    return np.asarray(picture).tolist()


GREY = Image.fromarray(np.array([[0, 40, 80], [120, 160, 200], [210, 230, 250]], dtype=np.uint8))
RGB = Image.merge("RGB", (GREY, GREY.transpose(Image.Transpose.FLIP_LEFT_RIGHT), GREY.point([7] * 256)))


@pytest.mark.parametrize("operation", image.OPERATIONS)
def test_operations_keep_mode_and_size_and_their_lowest_magnitude_changes_nothing(operation):
    for picture in (GREY, RGB, noise(1, 1), noise(1, 1, 3), noise(40, 21, 3)):
        for strength in (-1.0, -0.3, 0.0, 0.3, 1.0):
            made = image.changed(picture, operation, strength)
            assert (made.mode, made.size) == (picture.mode, picture.size)
            if operation == "identity" or (strength == 0 and operation not in ("autocontrast", "equalize", "solarize")):
                assert pixels(made) == pixels(picture)
        unsolarized = np.where(np.asarray(picture) == 255, 0, picture).tolist()
        assert pixels(image.changed(picture, "solarize", 0.0)) == unsolarized  # from 255 on


def test_operations_are_those_of_torchvision():
    change = image.changed
    assert pixels(change(GREY, "translate_x", 1.0)) == [[0, 0, 40], [0, 120, 160], [0, 210, 230]]  # int(1.36) pixels
    assert pixels(change(GREY, "translate_y", -1.0)) == [[120, 160, 200], [210, 230, 250], [0, 0, 0]]
    column = Image.fromarray(np.repeat(np.arange(10, dtype=np.uint8)[None] * 10 + 5, 10, axis=0))
    sheared = np.asarray(change(column, "shear_x", 1.0))  # row y shows what is 0.3 y to its right
    assert sheared[0].tolist() == np.asarray(column)[0].tolist()
    assert sheared[9, :7].tolist() == np.asarray(column)[9, 3:].tolist()
    assert sheared[9, 7:].tolist() == [0, 0, 0]
    assert np.array_equal(np.asarray(change(column.transpose(Image.Transpose.TRANSPOSE), "shear_y", 1.0)).T, sheared)
    dot = Image.fromarray(np.pad(np.full((1, 1), 255, np.uint8), ((20, 20), (40, 0))))  # right of the centre
    (y,), (x,) = np.nonzero(np.asarray(change(dot, "rotate", 1.0)))  # by 30 degrees against the clock
    assert (x - 20, 20 - y) == pytest.approx((20 * np.cos(np.pi / 6), 20 * np.sin(np.pi / 6)), abs=1)
    assert pixels(change(GREY, "brightness", -1.0)) == [[0, 4, 8], [12, 16, 20], [21, 23, 25]]  # x 0.1
    assert pixels(change(RGB, "color", -1.0))[0][2] == [30, 22, 23]  # of (80, 0, 7), whose grey value is 25
    assert np.ptp(np.asarray(change(GREY, "contrast", -1.0))) == pytest.approx(25, abs=1)
    assert np.ptp(np.asarray(change(GREY, "contrast", 0.5))) == 255
    blurred, sharp = (np.asarray(change(noise(9, 9), "sharpness", strength), dtype=float).std() for strength in (-1, 1))
    assert blurred < np.asarray(noise(9, 9)).std() < sharp
    assert pixels(change(GREY, "posterize", 1.0)) == [[0, 32, 80], [112, 160, 192], [208, 224, 240]]  # 4 bits
    assert pixels(change(GREY, "posterize", 0.3)) == (np.asarray(GREY) // 2 * 2).tolist()  # 7 bits
    assert pixels(change(GREY, "solarize", 0.3)) == [[0, 40, 80], [120, 160, 55], [45, 25, 5]]  # from 178.5 on
    assert pixels(change(GREY, "autocontrast", 0.3))[2][2] == 255
    assert pixels(change(noise(2, 2).point(lambda value: value // 9), "equalize", 0.3)) != pixels(noise(2, 2))
    level = Image.fromarray(np.array([[10, 10], [20, 30]], dtype=np.uint8))
    assert np.asarray(change(level, "equalize", 0.3)).max() >= np.asarray(level).max()


ROWS = [{"file": {"path": None, "bytes": encoded(noise(30, 26, *own, seed=i)), "name": "x"}, "row_id": i}
        for i, own in enumerate([(3,), (), (3,), ()])]  # fmt: skip


@pytest.mark.parametrize("channels", [1, 3])
def test_rand_augment_belongs_to_row_and_epoch_and_moves_no_other_draw(channels):
    processor = ViTImageProcessorPil(size={"height": 16, "width": 16}, image_mean=[0.5] * channels,
                                     image_std=[0.5] * channels)  # fmt: skip

    def made(rows, epoch=0, **settings):
        options = SimpleNamespace(image=ImageOptions(rand_augment=2, **settings))
        return image.collate([ROWS[i] for i in rows], processor, options, RowRandom(1, epoch))["pixel_values"]

    together = made(range(4))
    assert torch.equal(together[[2, 0]], torch.cat([made([2]), made([0])]))
    assert not torch.equal(together, made(range(4), epoch=1))
    plain = image.collate(ROWS, processor, SimpleNamespace(image=ImageOptions()), RowRandom(1, -1))["pixel_values"]
    assert torch.equal(made(range(4), epoch=-1), plain)
    drawn = [image.vary(noise(20, 20), ImageOptions(random_crop=0.3, rand_augment=n), ANY(7)).size for n in (0, 1, 3)]
    assert len(set(drawn)) == 1
    flipped = image.vary(noise(9, 9, 3), ImageOptions(horizontal_flip=1.0, rand_augment=1), ANY(3))
    mirror = noise(9, 9, 3).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    assert pixels(flipped) == pixels(image.vary(mirror, ImageOptions(rand_augment=1), ANY(3)))


def test_operations_and_directions_are_equally_frequent(monkeypatch):
    seen = []
    monkeypatch.setattr(image, "changed", lambda picture, *given: seen.append(given) or picture)
    for seed in range(1400):
        image.vary(GREY, ImageOptions(rand_augment=2, rand_augment_magnitude=12), ANY(seed))
    names, strengths = zip(*seen, strict=True)
    assert min(map(names.count, image.OPERATIONS)) > 150  # of 200 on average
    assert sorted(set(strengths)) == [-0.4, 0.4]
    assert np.mean(strengths) == pytest.approx(0, abs=0.03)


# Recordings


def clip(samples: np.ndarray, rate: int = 16000, number: int = 0) -> dict:
    file = {"path": None, "bytes": sound(samples, rate), "name": "x.wav"}
    return {"file": audio.check(file, SimpleNamespace(audio=AudioOptions())), "row_id": number}


TONE = np.sin(np.arange(16000) * 0.17)[:, None] * 0.3


@pytest.mark.parametrize(("rate", "snr"), [(16000, 5.0), (8000, 20.0), (44100, -10.0)])
def test_noise_has_the_ratio_that_was_drawn(rate, snr):
    row, options = clip(TONE, rate), AudioOptions(noise=1.0, noise_snr=snr)
    plain, ratios = audio.read(row["file"], 16000, options, None), []
    for number in range(60):
        added = audio.read(row["file"], 16000, options, RowRandom(3, 0).generator(number)) - plain
        ratios.append(10 * np.log10(np.square(plain).mean() / np.square(added).mean()))
        assert abs(np.corrcoef(added[1:], added[:-1])[0, 1]) < 0.05  # white
    assert snr - 0.3 <= min(ratios) < snr + 5
    assert 35 < max(ratios) <= 40.3
    assert np.mean(ratios) == pytest.approx((snr + 40) / 2, abs=4)


def test_noise_comes_before_padding_leaves_silence_and_does_not_move_other_draws():
    options = AudioOptions(noise=1.0, min_seconds=2.0, crop="center")
    heard = audio.read(clip(TONE)["file"], 16000, options, RowRandom(0, 0).generator(1))
    assert len(heard) == 32000
    assert (heard[:8000] == 0).all()
    assert (heard[24000:] == 0).all()
    silent = clip(np.zeros((16000, 1)))
    assert (audio.read(silent["file"], 16000, options, RowRandom(0, 0).generator(1)) == 0).all()
    random = AudioOptions(noise=0.5, max_seconds=0.3, speed=0.2)
    for number in range(8):
        noised, without = (audio.read(clip(TONE)["file"], 16000, each, RowRandom(0, 0).generator(number))
                           for each in (random, replace(random, noise=0.0)))  # fmt: skip
        assert len(noised) == len(without)
        assert np.corrcoef(noised, without)[0, 1] > 0.7  # the same crop at the same speed
    masked = audio.masked(TONE[:, 0], 0, None, AudioOptions(time_masks=3), RowRandom(0, 0).generator(2))
    generator = RowRandom(0, 0).generator(2)
    draws = [each.random() for each in generator.spawn(3)]
    assert len(set(draws)) == 3  # of both kinds of masks, and of noise
    assert (masked == 0).any()


def test_noise_belongs_to_row_and_epoch_and_is_not_kept():
    extractor, rows = Wav2Vec2FeatureExtractor(), [clip(TONE, number=i) for i in range(3)]
    options = SimpleNamespace(audio=AudioOptions(noise=1.0))

    def made(numbers, epoch=0):
        return audio.collate([rows[i] for i in numbers], extractor, options, RowRandom(5, epoch))["input_values"]

    assert torch.equal(made([0, 1, 2])[[2, 0]], made([2, 0]))
    assert not torch.equal(made([0]), made([1]))
    assert not torch.equal(made([0]), made([0], epoch=1))
    assert torch.equal(made([0], epoch=-1), made([1], epoch=-1))
    assert audio.decoded(rows[0], extractor, options, training=True) is None
    assert audio.decoded(rows[0], extractor, options, training=False) is not None
    half = [np.array_equal(*(audio.read(rows[0]["file"], 16000, AudioOptions(noise=part), RowRandom(0, 0).generator(n))
                             for part in (0.0, 0.3))) for n in range(200)]  # fmt: skip
    assert np.mean(half) == pytest.approx(0.7, abs=0.1)


# Texts

Group = type(Reviews.Options().augment)
WORDS = "the good film was not bad"


def changed(words: str = WORDS, seeds: int = 400, **settings) -> list[str]:
    return [text.augmented(words, Group(**settings), ANY(seed)) for seed in range(seeds)]


def test_words_are_left_out_and_one_stays():
    found = changed(random_deletion=0.25)
    assert np.mean([len(each.split()) for each in found]) == pytest.approx(4.5, abs=0.2)
    assert all(iter_contains(WORDS.split(), each.split()) for each in found)
    assert {len(each.split()) for each in changed(random_deletion=1.0)} == {1}
    assert set(changed(random_deletion=1.0)) == set(WORDS.split())
    assert set(changed("alone", random_deletion=1.0, random_swap=1.0)) == {"alone"}
    assert {text.augmented(each, Group(random_deletion=1.0), ANY(0)) for each in ("", " \n")} == {"", " \n"}


def iter_contains(whole: list[str], part: list[str]) -> bool:
    rest = iter(whole)
    return all(word in rest for word in part)


def test_words_change_places_and_blanks_stay():
    found = changed(" the  good\nfilm\twas ", random_swap=0.3)
    assert {tuple(sorted(each.split())) for each in found} == {("film", "good", "the", "was")}
    assert all([character for character in each if character.isspace()] == [*"   \n\t "] for each in found)
    moved = [sum(a != b for a, b in zip(each.split(), ["the", "good", "film", "was"], strict=True)) for each in found]
    assert 0.2 < np.mean([each > 0 for each in moved]) < 0.9
    assert set(changed("a b", random_swap=0.5)) == {"a b", "b a"}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "synonyms.txt"
    path.write_text("good,great, very fine\n\nfilm\tmovie\nGood, decent\nalone\n", encoding="utf-8")
    return str(path)


def test_words_are_replaced_by_their_synonyms(file):
    assert text.synonyms(file)["good"] == ["great", "very fine", "decent"]
    found = changed("Good films, (good) film. Film", synonym_replacement=1.0, synonyms_file=file)
    assert {each.split()[-2:][0] for each in found} == {"movie."}
    assert {each.split()[-1] for each in found} == {"Movie"}
    firsts = [each.partition(" films, ")[0] for each in found]
    assert set(firsts) == {"Great", "Very fine", "Decent"}
    assert min(map(firsts.count, set(firsts))) > 90  # of 133 on average
    assert {each[each.index("(") : each.index(")") + 1] for each in found} == {"(great)", "(very fine)", "(decent)"}
    rare = changed("good " * 10, synonym_replacement=0.2, synonyms_file=file)
    assert np.mean([each.split().count("good") for each in rare]) == pytest.approx(8, abs=0.2)


def test_one_setting_does_not_move_the_draws_of_another(file):
    for seed in range(50):
        options = Group(random_deletion=0.3)
        deleted = text.augmented("a b c d", options, ANY(seed))
        both = replace(options, synonym_replacement=1.0, synonyms_file=file)
        assert text.augmented("a b c d", both, ANY(seed)) == deleted


TRAINING = ["the good film was not bad at all", "a film", "bad, bad, bad and long and slow and bad again", "good"]


def prepared(options, seconds: list[str] | None = None):
    task = Reviews(SimpleNamespace(task=options, data=SimpleNamespace(columns={"text_pair": "x"} if seconds else {})))
    task.head.learn(["no", "yes"])
    tokenizer = text.train_tokenizer(iter(TRAINING * 3), 300, text.ENCODER, 12, text.MODEL_INPUTS)
    rows = {"text": TRAINING, "label": ["no", "yes"] * 2} | ({"text_pair": seconds} if seconds else {})
    columns = task.preprocess(rows, tokenizer, True)
    return task, tokenizer, [dict(zip(columns, each, strict=True)) | {"row_id": i}
                             for i, each in enumerate(zip(*columns.values(), strict=True))]  # fmt: skip


@pytest.mark.parametrize("seconds", [None, ["it", "was good", "a b c", "x"]], ids=["texts", "pairs"])
@pytest.mark.parametrize("truncation", ["longest_first", "only_first"])
def test_rows_are_augmented_in_training_within_their_prepared_length(file, seconds, truncation):
    group = Group(random_deletion=0.2, random_swap=0.2, synonym_replacement=0.5, synonyms_file=file)
    options = Reviews.Options(max_length=14, augment=group, truncation=truncation)
    task, tokenizer, rows = prepared(options, seconds)
    plain = prepared(Reviews.Options(max_length=14, truncation=truncation), seconds)[2]
    assert [{key: value for key, value in row.items() if key != text.TEXTS} for row in rows] == plain

    def made(numbers, epoch):
        inputs = task.collate([rows[i] for i in numbers], tokenizer, RowRandom(0, epoch))["inputs"]
        return [
            ids[mask.bool()].tolist() for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True)
        ]

    epochs = [made(range(4), epoch) for epoch in range(30)]
    for epoch, found in enumerate(epochs[:4]):
        assert made([2], epoch) + made([0, 1], epoch) == [found[2], *found[:2]]
    assert all(len(ids) <= row["length"] for found in epochs for ids, row in zip(found, rows, strict=True))
    assert all(
        ids[0] == tokenizer.cls_token_id and ids[-1] == tokenizer.sep_token_id for found in epochs for ids in found
    )
    assert all(len({tuple(found[i]) for found in epochs}) > 1 for i in range(4))
    assert made(range(4), -1) == [row["input_ids"] for row in rows]
    assert tokenizer.backend_tokenizer.truncation is None


def test_plans_of_memory_take_rows_that_are_not_shortened():
    task, tokenizer, rows = prepared(Reviews.Options(max_length=14, augment=Group(random_deletion=0.9)))
    features = SimpleNamespace(__getitems__=lambda numbers: [rows[i] for i in numbers])
    batch = collated(features, [0, 2], task, tokenizer, 0)
    assert batch["inputs"]["attention_mask"].sum(1).tolist() == [rows[0]["length"], rows[2]["length"]]


def test_predictions_need_neither_texts_nor_the_list(file):
    task, tokenizer, _ = prepared(Reviews.Options(augment=Group(random_deletion=0.2)))
    assert text.TEXTS not in task.preprocess({"text": ["x"], "label": [None]}, tokenizer, False)


# Runs


@pytest.mark.fast(1)
@pytest.mark.parametrize(("config", "settings"), [
    ("reviews", ["task.augment.random_deletion=0.3", "task.augment.random_swap=0.3", "train.unpadded=true"]),
    ("reviews/smoke_pair", ["task.augment.random_deletion=0.3", "train.unpadded=false"]),
    ("reviews/smoke_image", ["task.image.rand_augment=2"]),
    ("reviews/smoke_audio", ["task.audio.noise=0.7", "task.audio.time_masks=1"]),
    ("speech_recognition/smoke_ctc", ["task.audio.noise=0.7"]),
])  # fmt: skip
def test_augmented_rows_are_the_same_for_every_split_and_engine(config, settings, tmp_path):
    assert_splits_agree(config, tmp_path, *FEW, *settings)
    split = ("train.per_device_train_batch_size=4", "train.gradient_accumulation_steps=2")
    train(config, tmp_path / "trainer", *FEW, *settings, *split, "engine=trainer", double=True)
    train(config, tmp_path / "plain", *FEW, *split, double=True)
    losses, plain = (lines(tmp_path / name, "loss") for name in ("8x1", "plain"))
    for one, other in zip(losses, lines(tmp_path / "trainer", "loss"), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-9)
    assert {line["loss"] for line in losses}.isdisjoint(line["loss"] for line in plain)


@pytest.mark.slow
def test_a_resumed_run_and_a_budget_of_tokens_train_on_the_same_rows(file, tmp_path):
    settings = (*FEW[1:-1], "task.augment.random_deletion=0.3", "task.augment.synonym_replacement=0.5",
                "train.lr_scheduler_type=constant", "train.warmup_steps=0", "checkpoint.save_steps=2",
                "train.per_device_train_batch_size=4", "train.gradient_accumulation_steps=2")  # fmt: skip
    named = f"task.augment.synonyms_file={file}"
    train("reviews", tmp_path / "whole", *settings, named, "train.max_steps=4")
    train("reviews", tmp_path / "resumed", *settings, named, "train.max_steps=2")
    moved = tmp_path / "moved.txt"
    moved.write_bytes(Path(file).read_bytes())
    train("reviews", tmp_path / "resumed", *settings, f"task.augment.synonyms_file={moved}", "train.max_steps=4",
          "checkpoint.resume=auto")  # fmt: skip
    assert_same_weights(tmp_path / "whole", tmp_path / "resumed")
    other = tmp_path / "other.txt"
    other.write_text("bad,poor\n")
    with pytest.raises(CheckpointError, match=r"data\.fingerprint\.synonyms"):
        train("reviews", tmp_path / "resumed", *settings, f"task.augment.synonyms_file={other}", "train.max_steps=5",
              "checkpoint.resume=auto")  # fmt: skip
    train("reviews", tmp_path / "budget", *settings, named, "train.max_steps=4", "train.max_tokens_per_batch=96",
          double=True)  # fmt: skip
    train("reviews", tmp_path / "double", *settings, named, "train.max_steps=4", double=True)
    for one, two in zip(*(lines(tmp_path / name, "loss") for name in ("budget", "double")), strict=True):
        assert one["loss"] == pytest.approx(two["loss"], rel=1e-9)


@pytest.mark.parametrize(("content", "reason"), [
    (None, "No such file"), ("", "no line has two words"), ("one\n\ntwo\n", "no line has two words"),
    (b"\xff\xfe,a", "codec can't decode"),
])  # fmt: skip
def test_a_list_that_cannot_be_used_is_an_error_before_training(content, reason, tmp_path):
    path = tmp_path / "list.txt"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=rf"task\.augment\.synonyms_file: received '.*list\.txt'.*{reason}"):
        train("reviews", tmp_path / "run", f"task.augment.synonyms_file={path}", "task.augment.synonym_replacement=0.1")
    assert not (tmp_path / "run").exists()
