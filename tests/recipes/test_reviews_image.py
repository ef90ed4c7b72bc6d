"""Reviews of images: bad files, augmentation by row, models, and commands on finished runs."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from image_files import encoded, noise
from PIL import Image
from runs import ROOT, SGD, assert_same_weights, assert_splits_agree, lines, predictions, train, weights
from safetensors.torch import load_file
from tolerances import float32_tolerance

from toolkit.api.batch import BadRow
from toolkit.api.random import RowRandom
from toolkit.base.errors import ConfigError, DataError
from toolkit.commands.cli import main as toolkit_command
from toolkit.config.sections import ModelConfig
from toolkit.modalities import image
from toolkit.modalities.options import ImageOptions
from toolkit.models.load import build_model, load_model_config

FEW = ("train.max_steps=2", "data.max_eval_samples=9")
AUGMENTATION = ImageOptions(random_crop=0.5, horizontal_flip=0.5, color_jitter=0.3, random_erasing=0.5)


def reference(content: bytes, name: str = "x.png") -> dict:
    return {"path": None, "bytes": content, "name": name}


WIDE = encoded(noise(100, 200))


def test_the_pixel_limit_is_known_without_decoding(monkeypatch):
    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", lambda self: pytest.fail("was decoded"))
    with pytest.raises(BadRow, match="200x100 pixels"):
        image.decode(reference(WIDE), 19_999)


def test_pictures_are_upright_and_in_the_model_s_channels():
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned
    turned = image.decode(reference(encoded(noise(10, 20, 3), "JPEG", exif=exif)), 10**6)
    assert turned.size == (10, 20)
    deep = Image.fromarray(np.full((4, 4), 40_000, dtype=np.uint16))
    assert np.asarray(image.as_channels(deep, 1)).tolist() == [[156] * 4] * 4
    for mode in ("1", "L", "P", "RGBA", "CMYK"):
        picture = noise(8, 8, 3).convert(mode)
        assert [image.as_channels(picture, channels).mode for channels in (1, 3)] == ["L", "RGB"]


def test_transparent_and_animated_pictures_are_seen_without_a_warning():
    palette = noise(8, 8, 3).convert("P")
    for channels in (1, 3):
        for transparency in (3, bytes(range(256))):
            seen = image.decode(reference(encoded(palette, transparency=transparency)), 10**6)
            np.testing.assert_array_equal(
                image.as_channels(seen, channels), image.as_channels(palette.convert("RGB"), channels)
            )
    first = noise(8, 8)
    moving = encoded(first, "GIF", save_all=True, append_images=[noise(8, 8, seed=1)])
    np.testing.assert_array_equal(image.as_channels(image.decode(reference(moving), 10**6), 1), first)


@pytest.mark.parametrize(
    "picture",
    [
        Image.fromarray(np.full((4, 4), 0.5, np.float32)),
        Image.fromarray(np.full((4, 4), 70_000, np.int32)),
        noise(4, 4, 3).convert("LAB"),
    ],
)
def test_pixels_of_which_nobody_says_what_white_is_are_rejected(picture):
    with pytest.raises(BadRow, match=r"x\.tif: unsupported pixel mode '(F|I|LAB)'"):
        image.decode(reference(encoded(picture, "TIFF"), "x.tif"), 10**6)


def test_what_is_drawn_depends_on_seed_epoch_and_row_only():
    processor = image.new_processor(iter(()), load_model_config(small("convnext")), options())
    features = [{"file": reference(encoded(noise(30, 30, 3, seed=i))), "row_id": i} for i in range(6)]

    def pixels(rows, seed=1, epoch=0):
        return image.collate([features[i] for i in rows], processor, options(AUGMENTATION), RowRandom(seed, epoch))[
            "pixel_values"
        ]

    together = pixels(range(6))
    assert torch.equal(together, torch.cat([pixels([i]) for i in range(6)]))
    assert torch.equal(together[[4, 1]], pixels([4, 1]))
    for other in (pixels(range(6), seed=2), pixels(range(6), epoch=1)):
        assert all(not torch.equal(one, two) for one, two in zip(together, other, strict=True))
    plain = image.collate(features, processor, options(), RowRandom(1, 0))["pixel_values"]
    assert torch.equal(pixels(range(6), epoch=-1), plain)  # evaluation
    assert not torch.equal(together, plain)


@pytest.mark.parametrize(
    "setting", [{"random_crop": 0.3}, {"horizontal_flip": 1.0}, {"color_jitter": 0.5}, {"random_erasing": 1.0}]
)
def test_each_setting_changes_pictures(setting):
    processor = image.new_processor(iter(()), load_model_config(small("convnext")), options())
    features = [{"file": reference(encoded(noise(32, 32, 3))), "row_id": 3}]
    plain, varied = (
        image.collate(features, processor, options(ImageOptions(**part)), RowRandom(0, 0))["pixel_values"]
        for part in ({}, setting)
    )
    assert plain.shape == varied.shape == (1, 3, 32, 32)
    changed = (plain != varied).any(dim=1).float().mean()
    if "random_erasing" in setting:
        assert 0.01 < changed < 0.4
        assert ((varied == 0).all(dim=1) & (plain != varied).any(dim=1)).any()
    elif "horizontal_flip" in setting:
        assert torch.equal(varied, plain.flip(-1))
    else:
        assert changed > 0.5


def options(picture: ImageOptions | None = None) -> SimpleNamespace:
    return SimpleNamespace(image=picture or ImageOptions())


def small(kind: str, channels: int = 3) -> ModelConfig:
    sizes = {
        "convnext": {"image_size": 32, "patch_size": 4, "hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
        "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
        "vit": {"image_size": 32, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                "intermediate_size": 16},
    }  # fmt: skip
    return ModelConfig(from_config={"model_type": kind, "num_channels": channels} | sizes[kind])


@pytest.mark.parametrize("kind", ["convnext", "resnet", "vit"])
@pytest.mark.parametrize("channels", [1, 3])
def test_new_models_see_grey_and_coloured_pictures_and_use_all_their_weights(kind, channels):
    config = load_model_config(small(kind, channels))
    wanted = options(ImageOptions(size=32))
    assert image.check_model(config, wanted) == []
    processor = image.new_processor(iter(()), config, wanted)
    inputs = image.collate([{"file": reference(WIDE), "row_id": 0}] * 2, processor, wanted, RowRandom(0, 0))
    assert inputs["pixel_values"].shape == (2, channels, 32, 32)
    model = build_model(small(kind, channels), config, image.auto_model(config), 0)
    model(**inputs).logits.sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("kind", ["convnext", "resnet", "vit"])
def test_a_pretrained_model_keeps_its_weights_and_its_processor_but_gets_a_head_of_its_own(kind, tmp_path):
    from transformers import (
        AutoConfig,
        AutoModelForImageClassification,
        ConvNextImageProcessorPil,
        ViTImageProcessorPil,
    )

    fields = small(kind).from_config
    config = AutoConfig.for_model(fields["model_type"], **{k: v for k, v in fields.items() if k != "model_type"})
    config.num_labels = 7
    torch.manual_seed(3)
    AutoModelForImageClassification.from_config(config).save_pretrained(tmp_path / "hub")
    made = ViTImageProcessorPil if kind == "vit" else ConvNextImageProcessorPil
    size = {"height": 32, "width": 32} if kind == "vit" else {"shortest_edge": 48}
    made(size=size, image_mean=[0.4] * 3).save_pretrained(tmp_path / "hub")
    train("reviews/smoke_image", tmp_path / "run", f"model.name_or_path={tmp_path / 'hub'}", "model.from_config=null",
          "train.max_steps=1", "train.learning_rate=1e-9", *(() if kind == "vit" else ("task.image.size=32",)),
          "train.weight_decay=0")  # fmt: skip
    before, after = load_file(tmp_path / "hub" / "model.safetensors"), weights(tmp_path / "run")
    head = {name for name in after if name.startswith("classifier")}
    assert head
    assert all(before[name].shape != after[name].shape for name in head)
    trained = [name for name in after.keys() - head if "running" not in name and "num_batches" not in name]
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in trained)
    processor = json.loads((tmp_path / "run" / "model" / "preprocessor_config.json").read_text())
    assert processor["image_mean"] == [0.4] * 3
    assert processor["size"] == (size if kind == "vit" else {"shortest_edge": 32})


@pytest.mark.parametrize("kind", ["convnext", "vit"])
def test_every_split_of_a_window_trains_a_vision_model_alike(kind, tmp_path):
    fields = small(kind).from_config | ({"hidden_dropout_prob": 0.0} if kind == "vit" else {})
    common = (f"model.from_config={json.dumps(fields)}", *SGD, "train.learning_rate=0.05", "train.num_train_epochs=1",
              "data.max_train_samples=13", "eval.eval_steps=null", "data.max_eval_samples=3")  # fmt: skip
    assert_splits_agree("reviews/smoke_image", tmp_path, *common)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("vit", ("task.image.size=64",), "has image_size 32; set that instead"),
        ("vit", ("model.config_overrides.num_channels=2",), "num_channels 2"),
        ("bert", (), "does not take images"),
    ],
)
def test_models_that_do_not_fit_are_rejected(kind, changes, message, tmp_path):
    fields = {"model_type": "bert"} if kind == "bert" else small(kind).from_config
    with pytest.raises(ConfigError, match=message):
        train("reviews/smoke_image", tmp_path / "run", f"model.from_config={json.dumps(fields)}", *changes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("task.max_length=64",), "task.max_length: has no effect with task.modality 'image'"),
        (("task.audio.max_seconds=3",), "task.audio: has no effect with task.modality 'image'"),
        (("task.modality=text",), "task.image: has no effect with task.modality 'text'"),
        (("task.problem_type=regression", "task.focal_gamma=2"), "no effect with task.problem_type 'regression'"),
        (("data.columns.text=review",), "data.columns.text: not read with these task settings"),
        (("task.image.sise=3",), "did you mean task.image.size?"),
        (("task.image=3",), "this is a section; set one of its keys (task.image.key=value)"),
        (("task.image.size=big",), "task.image.size: received 'big' (text), expected a whole number"),
        (("task.image.random_crop=2",), "task.image.random_crop: received 2, must be at most 1"),
    ],
)
def test_settings_that_would_be_ignored_or_are_wrong_are_errors(settings, message, tmp_path):
    with pytest.raises(ConfigError) as refused:
        train("reviews/smoke_image", tmp_path / "run", *settings)
    assert message in str(refused.value)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reviews") / "run"
    train("reviews/smoke_image", folder, "train.max_steps=3", "eval.eval_steps=2", "train.dataloader_num_workers=2")
    return folder


@pytest.mark.slow
def test_workers_change_nothing(finished, tmp_path):
    train("reviews/smoke_image", tmp_path / "run", "train.max_steps=3", "eval.eval_steps=2")
    assert_same_weights(tmp_path / "run", finished)
    assert predictions(tmp_path / "run") == predictions(finished)


WARNING = "results of this model depend on the batch size and the number of processes: batch normalisation"


@pytest.mark.parametrize("kind", ["resnet", "convnext"])
def test_a_model_that_depends_on_the_batch_is_warned_of_at_the_start(kind, tmp_path, capsys):
    fields = json.dumps(small(kind).from_config)
    train("reviews/smoke_image", tmp_path / "run", "train.max_steps=1", f"model.from_config={fields}")
    assert (WARNING in capsys.readouterr().out) == (kind == "resnet")


def test_a_report_shows_classes_and_confusion(finished):
    report = (finished / "report.md").read_text()
    assert "| label | precision | recall | f1 | rows |" in report
    assert "| true class | fruit | leaf | tool |" in report


def test_a_report_shows_pictures_that_can_still_be_read(finished):
    report = (finished / "report.html").read_text()
    shown = re.findall(r'<img src="data:image/jpeg;base64,([^"]*)" alt="">fruit/', report)
    assert len(shown) > 3
    with Image.open(io.BytesIO(base64.b64decode(shown[0]))) as picture:
        assert max(picture.size) <= image.THUMBNAIL
    options = SimpleNamespace(image=ImageOptions())
    assert image.thumbnail({"path": "gone.png", "bytes": None, "name": "gone.png"}, options) is None


def test_a_pipeline_answers_as_the_run_did(finished):
    from transformers import pipeline

    assert 'pipeline("image-classification"' in (finished / "model" / "README.md").read_text()
    classify = pipeline("image-classification", str(finished / "model"))
    for record in predictions(finished)[:5]:
        (answer, *_) = classify(str(ROOT / "recipes/data/images/validation" / record["image"]))
        assert answer["label"] == record["prediction"]
        assert answer["score"] == pytest.approx(record["scores"][record["prediction"]], abs=float32_tolerance())


def test_new_pictures_are_predicted_from_a_list_of_paths_or_a_folder(finished, tmp_path):
    images = ROOT / "recipes/data/images/validation"
    records = predictions(finished)
    with (tmp_path / "new.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image"])
        writer.writerows([images / record["image"]] for record in records)
    for source in (tmp_path / "new.csv", images):
        with pytest.raises(SystemExit) as ended:
            toolkit_command(
                [
                    "predict",
                    str(finished),
                    "--input",
                    str(source),
                    "--output",
                    str(tmp_path / "out.jsonl"),
                    "--overwrite",
                ]
            )
        assert not ended.value.code
        found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert [record["prediction"] for record in found[: len(records)]] == [r["prediction"] for r in records]


def test_a_folder_without_classes_and_single_pictures_are_predicted(finished, tmp_path, capsys):
    (tmp_path / "new" / "2026").mkdir(parents=True)
    for number, place in enumerate(("a.PNG", "2026/b.png", "2026/broken.png")):
        (tmp_path / "new" / place).write_bytes(encoded(noise(20, 20, seed=number)) if number < 2 else b"no picture")
    output = tmp_path / "answers.csv"
    with pytest.raises(SystemExit) as ended:
        toolkit_command(["predict", str(finished), "--input", str(tmp_path / "new"), "--output", str(output)])
    assert not ended.value.code
    with output.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["image"], row["prediction"] != "") for row in rows] == [
        ("2026/b.png", True), ("2026/broken.png", False), ("a.PNG", True)
    ]  # fmt: skip
    assert "not an image" in rows[1]["error"]
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        toolkit_command(["predict", str(finished), "--input", str(tmp_path / "new" / "a.PNG")])
    assert not ended.value.code
    assert f"prediction: {rows[2]['prediction']}\n" in capsys.readouterr().out


def test_pictures_inside_a_table_as_on_the_hub(tmp_path):
    import datasets

    rows = [{"image": {"bytes": encoded(noise(20, 20, seed=i)), "path": None}, "label": i % 2} for i in range(24)]
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["cat", "dog"]))
    table = datasets.Dataset.from_list(rows, features=features)
    table.to_parquet(str(tmp_path / "rows.parquet"))
    train("reviews/smoke_image", tmp_path / "run", f"data.train_file={tmp_path / 'rows.parquet'}", *FEW,
          "data.validation_file=null", "model.from_config.num_channels=1")  # fmt: skip
    assert {record["label"] for record in predictions(tmp_path / "run")} == {"cat", "dog"}


def test_a_picture_that_breaks_after_its_check_is_named(tmp_path):
    processor = image.new_processor(iter(()), load_model_config(small("vit")), options())
    row = {"file": {"path": str(tmp_path / "gone.png"), "bytes": None, "name": "gone.png"}, "row_id": 0}
    with pytest.raises(DataError, match=r"gone\.png.*rerun"):
        image.collate([row], processor, options(), RowRandom(0, 0))


@pytest.mark.parametrize(
    ("settings", "metrics"),
    [
        (("task.problem_type=multi_label_classification",), {"eval_f1_micro", "eval_f1_macro", "eval_subset_accuracy"}),
        (("task.problem_type=regression",), {"eval_mse", "eval_mae", "eval_r2", "eval_pearson"}),
    ],
)
def test_other_heads_train_and_score(settings, metrics, tmp_path):
    labels = {"multi": ["red;big", ";", "big"], "regression": ["-100", "2.5", "7"]}
    kind = "regression" if "regression" in settings[0] else "multi"
    with (tmp_path / "rows.csv").open("w") as file:
        file.write("image,label\n")
        for i in range(24):
            (tmp_path / f"{i}.png").write_bytes(encoded(noise(16, 16, 3, seed=i)))
            file.write(f"{i}.png,{labels[kind][i % 3]}\n")
    extra = (*settings, *(('task.label_separator=";"',) if kind == "multi" else ()))
    extra = tuple(part.replace('"', "") for part in extra)
    train("reviews/smoke_image", tmp_path / "run", *extra, *FEW, f"data.train_file={tmp_path / 'rows.csv'}",
          "data.validation_file=null", "data.validation_split=0.25")  # fmt: skip
    assert metrics <= lines(tmp_path / "run", "eval_loss")[-1].keys()
    # An item is a row x target.
    assert lines(tmp_path / "run", "loss")[0]["num_items"] == 16 * (2 if kind == "multi" else 1)
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert config["problem_type"] == settings[0].split("=")[1]
    for record in predictions(tmp_path / "run"):
        assert isinstance(record["prediction"], float if kind == "regression" else list)
