"""`train.pad_to_multiple_of`: batches of few shapes, and the same training."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from runs import SGD, assert_close, train, weights
from tolerances import FLOAT64

from toolkit.api.training import Callback
from toolkit.base.errors import ConfigError
from toolkit.config.sections import TrainConfig
from toolkit.data.batching.budget import padding_to
from toolkit.modalities import text

FEW = ("train.max_steps=3", "data.max_train_samples=24", "data.validation_file=null", "eval.eval_steps=null",
       "checkpoint.save_steps=null", "train.per_device_train_batch_size=4")  # fmt: skip


class Shapes(Callback):
    """Notes the lengths of the inputs of micro-batches."""

    def __init__(self):
        self.lengths: set[int] = set()

    def after_step(self, record):
        for batch in self.training.window:
            names = [name for name in batch["inputs"] if name.endswith("input_ids")]
            self.lengths |= {batch["inputs"][name].shape[1] for name in names}


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    "config",
    ["reviews", "qa", "token_classification", "translation", "language_modeling", "language_modeling/smoke_masked"],
)
def test_batches_have_few_shapes_and_training_stays_the_same(config, tmp_path):
    shapes = Shapes(), Shapes()
    for name, multiple, observer in (("plain", "null", shapes[0]), ("padded", "8", shapes[1])):
        settings = (*FEW, *SGD, "train.unpadded=false", f"train.pad_to_multiple_of={multiple}")
        train(config, tmp_path / name, *settings, double=True, observer=observer)
    full = config in ("qa", "language_modeling", "language_modeling/smoke_masked")  # windows and blocks of one length
    assert any(length % 8 for length in shapes[0].lengths) is not full
    assert not any(length % 8 for length in shapes[1].lengths)
    one, other = ({k: v.tolist() for k, v in weights(tmp_path / name).items()} for name in ("plain", "padded"))
    assert_close(one, other, FLOAT64)


@pytest.mark.parametrize(
    ("config", "overrides", "message"),
    [
        (
            "reviews",
            ("task.max_length=60", "model.from_config.max_position_embeddings=60"),
            "becomes 64 tokens, but this",
        ),
        ("reviews/smoke_image", (), "only batches of text are padded so; remove it"),
    ],
)
def test_what_cannot_be_padded_is_rejected(config, overrides, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        train(config, tmp_path / "run", *overrides, "train.pad_to_multiple_of=16")


@pytest.mark.parametrize("multiple", [None, 8])
@pytest.mark.parametrize("columns", [("input_ids",), ("input_ids", "attention_mask", "token_type_ids")])
@pytest.mark.parametrize("segments", [0, 2])
def test_a_batch_is_what_the_tokenizers_own_padding_gives(segments, columns, multiple):
    options = SimpleNamespace(limits={"input": "max_length"}, max_length=32)
    config = SimpleNamespace(vocab_size=300, type_vocab_size=segments)
    tokenizer = text.new_processor(iter(["a few words"]), config, options)
    tokenizer._pad_token_type_id = 1
    rows = [{name: list(range(length)) for name in columns} for length in (5, 11, 0)]
    expected = tokenizer.pad(rows, padding_side="right", pad_to_multiple_of=multiple, return_tensors="pt")
    padded = text.pad(rows, padding_to(tokenizer, TrainConfig(pad_to_multiple_of=multiple)))
    torch.testing.assert_close(padded, dict(expected), rtol=0, atol=0)
    assert list(padded) == list(expected)  # the first is the model's main input
