"""The cross entropy in chunks is that of whole logits, with its gradients, for every kind of head."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from runs import assert_close, lines, predictions, train, weights
from tolerances import FLOAT64
from torch import nn
from torch.nn.functional import cross_entropy

from toolkit.api.batch import IGNORE_INDEX, logits_at_labels
from toolkit.base.errors import ConfigError
from toolkit.models import chunked
from toolkit.models.chunked import Deferred, chunk_head
from toolkit.models.parts import head_at_labels
from toolkit.tasks.tokens import are_correct, labelled_positions, token_losses

CLASSES, SIZE = 37, 12


class Small(nn.Module):
    """A language model of embeddings and a head, and what models do with their logits."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(CLASSES, SIZE)
        self.head = nn.Linear(SIZE, CLASSES, bias=kind == "bias")
        self.kind = kind
        self.register_buffer("more", torch.randn(1, CLASSES))
        if kind == "tied":
            self.head.weight = self.embeddings.weight
        if kind == "frozen":
            self.head.requires_grad_(False)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.embeddings(ids).tanh())
        if self.kind == "capped":
            return torch.tanh(logits / 3.0) * 3.0
        return logits + self.more if self.kind == "shifted" else logits * 0.5 if self.kind == "scaled" else logits


def passes(kind: str, whole: bool, reduction: str, smoothing: float, labels: torch.Tensor):
    torch.manual_seed(0)
    model = Small(kind).double()
    head_at_labels(model)
    if not whole:
        chunk_head(model)
    ids = torch.randint(CLASSES, labels.shape, generator=torch.Generator().manual_seed(1))
    positions = labelled_positions(labels)
    with logits_at_labels({"inputs": {}, "labels": labels, "labelled": positions}):
        logits = model(ids)
    assert isinstance(logits, Deferred) != whole
    losses = token_losses(logits, labels, reduction, smoothing, positions)
    weights = torch.linspace(0.5, 2, losses.numel(), dtype=torch.float64).view_as(losses)
    (losses * weights).sum().backward()
    with torch.no_grad(), logits_at_labels({"inputs": {}, "labels": labels, "labelled": positions}):
        again = model(ids)
        evaluated = token_losses(again, labels, "none", smoothing, positions)
        correct = are_correct(again, labels, positions)
    return losses, [each.grad for each in model.parameters()], evaluated, correct


@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize("kind", ["plain", "bias", "tied", "frozen", "capped", "shifted", "scaled"])
def test_losses_and_gradients_are_those_of_whole_logits(kind, reduction, monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK", 5)
    labels = torch.randint(CLASSES, (3, 9), generator=torch.Generator().manual_seed(2))
    labels[:, :2] = labels[1] = IGNORE_INDEX
    for given, smoothing in ((labels, 0.0), (labels, 0.1), (labels.abs() % CLASSES, 0.0)):
        own, plain = (passes(kind, whole, reduction, smoothing, given) for whole in (False, True))
        torch.testing.assert_close(own[0], plain[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(own[2], plain[2], rtol=0, atol=1e-12)
        assert torch.equal(own[3], plain[3])
        for one, other in zip(own[1], plain[1], strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_what_is_not_deferred_computes_the_logits():
    torch.manual_seed(0)
    model = Small("plain").double()
    labels = torch.zeros(2, 3, dtype=torch.int64)
    ids = torch.arange(6).view(2, 3)
    expected = model(ids)
    chunk_head(model)
    assert torch.equal(model(ids), expected)  # outside of such passes
    with logits_at_labels({"inputs": {}, "labels": labels, "labelled": torch.arange(6)}):
        found = model(ids)
    assert isinstance(found, Deferred)
    assert found.shape == expected.shape
    assert torch.allclose(found[0, 1:], expected[0, 1:])
    assert torch.allclose(found.softmax(-1), expected.softmax(-1))
    assert torch.allclose(torch.log_softmax(found, -1), expected.log_softmax(-1))
    flat = cross_entropy(found.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(flat, cross_entropy(expected.flatten(0, 1), labels.flatten()))


RUNS = {
    "language_modeling": (),
    "translation": ("eval.eval_steps=null",),
    "preference": (),
    "language_modeling/smoke_chat": (),
    "language_modeling/smoke_masked": (),
}


def trained(folder: Path, name: str, chunks: bool, *more: str) -> Path:
    run = folder / f"{name.replace('/', '-')}-{chunks}-{len(more)}"
    sgd = ("train.optim=sgd", "train.learning_rate=0.1", "train.max_steps=3", "checkpoint.save_steps=null")
    train(name, run, *sgd, *RUNS[name], *more, f"train.chunked_loss={str(chunks).lower()}", double=True)
    return run


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", RUNS)
def test_a_training_is_the_same(name, tmp_path, monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK", 7)
    one, other = (trained(tmp_path, name, chunks) for chunks in (True, False))
    assert json.loads((one / "run.json").read_text())["resolved"]["train.chunked_loss"] is True
    assert_close(lines(one, "loss"), lines(other, "loss"), FLOAT64)
    assert_close(*({key: value.tolist() for key, value in weights(run).items()} for run in (one, other)), FLOAT64)
    assert_close(predictions(one), predictions(other), FLOAT64)


@pytest.mark.slow
@pytest.mark.parametrize("more", [("model.peft.method=lora",), ("train.unpadded=true",), ("engine=trainer",)])
def test_a_training_is_the_same_with(more, tmp_path, monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK", 7)
    one, other = (trained(tmp_path, "language_modeling", chunks, *more) for chunks in (True, False))
    assert_close(lines(one, "loss"), lines(other, "loss"), FLOAT64)
    assert_close(predictions(one), predictions(other), FLOAT64)


def test_large_vocabularies_are_chunked_and_split_models_are_not(tmp_path):
    from types import SimpleNamespace

    from toolkit.recipe import load_settings, load_task_type, validate

    recipe = load_task_type("recipes/language_modeling.py")
    config = Path("recipes/configs/language_modeling/smoke.yaml")
    small, large = (SimpleNamespace(get_text_config=lambda n=n: SimpleNamespace(vocab_size=n)) for n in (500, 32_000))
    cfg = load_settings(recipe, config, []).config
    assert chunked.is_chosen(cfg, large)
    assert not chunked.is_chosen(cfg, small)
    for setting in ("train.torch_compile=true", "train.ddp_find_unused_parameters=true"):
        assert not chunked.is_chosen(load_settings(recipe, config, [setting]).config, large)
        with pytest.raises(ConfigError, match=r"train\.chunked_loss"):
            validate(recipe, config, [setting, "train.chunked_loss=true"]).raise_problems()
