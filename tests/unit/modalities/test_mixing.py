"""MixUp and CutMix: the papers' mixtures, and the same ones for every split of a window."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from runs import ROOT, assert_splits_agree, lines, train
from torch.nn.functional import cross_entropy

from toolkit.api.random import RowRandom
from toolkit.modalities.mixing import mixed
from toolkit.modalities.options import ImageOptions
from toolkit.recipe import load_task_type

ONE, OTHER = torch.zeros(3, 20, 30), torch.ones(3, 20, 30)
FEW = ("data.max_train_samples=16", "data.max_eval_samples=4", "train.max_steps=3", "train.optim=sgd",
       "eval.eval_steps=null", "checkpoint.save_steps=null")  # fmt: skip


def test_mixup_is_a_mean_with_a_share_from_beta():
    shares = []
    for seed in range(2000):
        image, share = mixed(ONE, OTHER, ImageOptions(mixup_alpha=0.4), np.random.default_rng(seed))
        assert torch.allclose(image, torch.full_like(image, 1 - share))
        shares.append(share)
    assert np.mean(shares) == pytest.approx(0.5, abs=0.03)
    assert np.var(shares) == pytest.approx(1 / (4 * (2 * 0.4 + 1)), rel=0.1)  # of Beta(a, a)


def test_cutmix_is_a_rectangle_whose_area_is_the_share():
    for seed in range(300):
        image, share = mixed(ONE, OTHER, ImageOptions(cutmix_alpha=1.0), np.random.default_rng(seed))
        assert set(image.unique().tolist()) <= {0.0, 1.0}
        assert share == pytest.approx(1 - float(image.mean()), abs=1e-6)
        rows, columns = image[0].any(1), image[0].any(0)
        assert int(image[0].sum()) == int(rows.sum()) * int(columns.sum())
    assert ONE.sum() == 0


def test_both_are_chosen_by_chance_and_do_not_change_each_other():
    both = ImageOptions(mixup_alpha=0.4, cutmix_alpha=1.0)
    kinds = []
    for seed in range(400):
        image, share = mixed(ONE, OTHER, both, np.random.default_rng(seed))
        is_mean = torch.allclose(image, image.mean().expand_as(image))
        kinds.append(is_mean)
        if is_mean and 0 < share < 1:
            assert share == mixed(ONE, OTHER, ImageOptions(mixup_alpha=0.4), np.random.default_rng(seed))[1]
    assert 0.4 < np.mean(kinds) < 0.65


def test_partners_depend_on_seed_epoch_and_row_alone():
    random = RowRandom(1, 2)
    partners = [random.partner(row, 1000) for row in range(200)]
    assert partners == [RowRandom(1, 2).partner(row, 1000) for row in range(200)]
    assert partners != [RowRandom(1, 3).partner(row, 1000) for row in range(200)]
    assert len(set(partners)) > 150
    assert max(partners) < 1000


def test_the_loss_is_that_of_both_labels_by_their_share(tmp_path):
    from types import SimpleNamespace

    kind = load_task_type(ROOT / "recipes" / "reviews.py")
    options = kind.Options(modality="image", labels=["a", "b", "c"], image=ImageOptions(mixup_alpha=0.3))
    task = kind(SimpleNamespace(task=options, data=SimpleNamespace(columns={})))
    assert task.mixes
    logits = torch.randn(4, 3, dtype=torch.float64)
    one, other = torch.tensor([0, 1, 2, 0]), torch.tensor([1, 1, 0, 2])
    pixels = {"pixel_values": torch.rand(4, 3, 8, 8)}
    batch, random = {"inputs": pixels, "labels": one}, RowRandom(0, 0)
    made = task.mix(batch, {"inputs": pixels, "labels": other}, [5, 6, 7, 8], random)
    shares = made["extra"]["shares"]
    expected = (shares * cross_entropy(logits, one, reduction="none")
                + (1 - shares) * cross_entropy(logits, other, reduction="none")).sum()  # fmt: skip
    assert float(task.loss_sum(SimpleNamespace(logits=logits), made)) == pytest.approx(float(expected), rel=1e-12)
    assert float(task.count_items(made)) == pytest.approx(4.0)


@pytest.mark.slow
def test_mixtures_are_the_same_for_every_split_engine_and_resume(tmp_path):
    mix = (*FEW, "task.image.mixup_alpha=0.4", "task.image.cutmix_alpha=1.0", "task.image.horizontal_flip=0.5")
    assert_splits_agree("reviews/smoke_image", tmp_path, *mix)
    split = ("train.per_device_train_batch_size=4", "train.gradient_accumulation_steps=2")
    train("reviews/smoke_image", tmp_path / "trainer", *mix, *split, "engine=trainer", double=True)
    for one, other in zip(lines(tmp_path / "8x1", "loss"), lines(tmp_path / "trainer", "loss"), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-9)
    train("reviews/smoke_image", tmp_path / "plain", *FEW, *split, double=True)
    assert lines(tmp_path / "plain", "loss")[0]["loss"] != lines(tmp_path / "trainer", "loss")[0]["loss"]
