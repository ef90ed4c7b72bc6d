"""Logits at labelled positions only: the same loss, gradients and predictions, with less memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from runs import SGD, assert_close, lines, predictions, train, weights
from tolerances import FLOAT64
from torch import Tensor, nn

import toolkit
from toolkit.api.batch import IGNORE_INDEX, Batch, logits_at_labels
from toolkit.models.parts import head_at_labels
from toolkit.tasks.blocks import sums_of_parts
from toolkit.tasks.tokens import are_correct, labelled_positions, token_losses

VOCAB = 40
TEXT = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 24, "max_position_embeddings": 20, "pad_token_id": 0}  # fmt: skip
CODER = {"vocab_size": VOCAB, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
         "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "pad_token_id": 0,
         "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": 2,
         "decoder_vocab_size": VOCAB, "max_position_embeddings": 20}  # fmt: skip
T5 = {"vocab_size": VOCAB, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2,
      "decoder_start_token_id": 0}  # fmt: skip
GROUPED = {**TEXT, "num_key_value_heads": 1, "head_dim": 8, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = {"vocab_size": VOCAB, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 20}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("CausalLM", GPT2),
    "opt": ("CausalLM", {**TEXT, "ffn_dim": 24, "word_embed_proj_dim": 16}),
    "gpt_neox": ("CausalLM", TEXT),
    "bloom": ("CausalLM", {"vocab_size": VOCAB, "hidden_size": 16, "n_layer": 1, "n_head": 2, "pad_token_id": 0}),
    "llama": ("CausalLM", GROUPED),
    "qwen2": ("CausalLM", {**GROUPED, "tie_word_embeddings": True}),
    "gemma2": ("CausalLM", {**GROUPED, "final_logit_softcapping": 0.5, "query_pre_attn_scalar": 8}),
    "cohere": ("CausalLM", {**GROUPED, "logit_scale": 0.3}),
    "granite": ("CausalLM", {**GROUPED, "logits_scaling": 3.0}),
    "bert": ("MaskedLM", TEXT),
    "roberta": ("MaskedLM", TEXT),
    "distilbert": ("MaskedLM", {"vocab_size": VOCAB, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24}),
    "albert": ("MaskedLM", {**TEXT, "embedding_size": 8}),
    "electra": ("MaskedLM", {**TEXT, "embedding_size": 8}),
    "deberta-v2": ("MaskedLM", TEXT),
    "modernbert": ("MaskedLM", {**TEXT, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
                                "sep_token_id": 2}),
    "t5": ("Seq2SeqLM", T5),
    "mt5": ("Seq2SeqLM", {**T5, "tie_word_embeddings": False}),
    "bart": ("Seq2SeqLM", CODER),
    "marian": ("Seq2SeqLM", CODER),
    "mbart": ("Seq2SeqLM", CODER),
    "m2m_100": ("Seq2SeqLM", CODER),
    "pegasus": ("Seq2SeqLM", CODER),
    # Its logits are no output of a module, so all of them are computed.
    "mobilebert": ("MaskedLM", {**TEXT, "embedding_size": 8, "intra_bottleneck_size": 16}),
}  # fmt: skip
EVERYWHERE = {"mobilebert"}


def built(kind: str) -> nn.Module:
    import transformers

    head, fields = FAMILIES[kind]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **fields)
    model: nn.Module = getattr(transformers, f"AutoModelFor{head}").from_config(config, attn_implementation="eager")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if isinstance(tensor, nn.Parameter) or name == "final_logits_bias":  # which starts as 0
            torch.nn.init.normal_(tensor, std=0.3)
    return model.double().eval()


def batch_of(kind: str, rows: int = 3) -> Batch:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, VOCAB, (rows, 9), generator=generator)
    labels = torch.randint(3, VOCAB, (rows, 9), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < 0.6] = IGNORE_INDEX
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if FAMILIES[kind][0] == "Seq2SeqLM":
        inputs["decoder_input_ids"] = ids.flip(1)
    return {"inputs": inputs, "labels": labels, "labelled": labelled_positions(labels)}


def measured(model: nn.Module, batch: Batch, smoothing: float = 0.0) -> tuple[tuple[int, ...], Tensor, Tensor, Any]:
    """Returns the shape of the logits, the loss, which tokens are right, and all gradients by name."""
    model.zero_grad()
    with logits_at_labels(batch):
        logits = model(**batch["inputs"]).logits
    labels, labelled = batch["labels"], batch["labelled"]
    loss = token_losses(logits, labels, label_smoothing=smoothing, labelled=labelled)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return tuple(logits.shape), loss.detach(), are_correct(logits, labels, labelled), gradients


@pytest.mark.fast(10)
@pytest.mark.parametrize("kind", FAMILIES)
def test_loss_and_gradients_are_those_of_all_logits(kind):
    model, batch = built(kind), batch_of(kind)
    shape, loss, correct, gradients = measured(model, batch)
    assert shape == (3, 9, VOCAB)
    head_at_labels(model)
    some_shape, some_loss, some_correct, some_gradients = measured(model, batch)
    expected = (3, 9, VOCAB) if kind in EVERYWHERE else (1, len(batch["labelled"]), VOCAB)
    assert some_shape == expected
    torch.testing.assert_close(some_loss, loss, rtol=1e-12, atol=1e-12)
    assert torch.equal(some_correct, correct)
    assert gradients.keys() == some_gradients.keys()
    for name, gradient in gradients.items():
        largest = gradient.abs().max()
        assert (some_gradients[name] - gradient).abs().max() <= 1e-12 * max(1.0, largest), name


def test_other_passes_have_all_logits():
    model, batch = built("gpt2"), batch_of("gpt2")
    expected = model(**batch["inputs"]).logits
    head_at_labels(model)
    assert torch.equal(model(**batch["inputs"]).logits, expected)
    del batch["labelled"]
    with logits_at_labels(batch):
        assert torch.equal(model(**batch["inputs"]).logits, expected)
    ids = batch["inputs"]["input_ids"][:, :3]
    assert model.generate(ids, max_new_tokens=2, do_sample=False, pad_token_id=0).shape == (3, 5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_one_row_no_label_and_labels_everywhere(smoothing):
    model = built("bert")
    head_at_labels(model)
    one, nothing, everything = batch_of("bert", rows=1), batch_of("bert"), batch_of("bert")
    nothing["labels"] = torch.full_like(nothing["labels"], IGNORE_INDEX)
    everything["labels"] = everything["inputs"]["input_ids"]
    for batch in (nothing, everything):
        batch["labelled"] = labelled_positions(batch["labels"])
    for batch, shape in ((one, (1, len(one["labelled"]))), (nothing, (1, 0)), (everything, (3, 9))):
        found, loss, correct, gradients = measured(model, batch, smoothing)
        assert found == (*shape, VOCAB)
        logits = model(**batch["inputs"]).logits
        torch.testing.assert_close(loss, token_losses(logits, batch["labels"], label_smoothing=smoothing))
        assert torch.equal(correct, logits.argmax(-1) == batch["labels"])
        assert all(gradient.isfinite().all() for gradient in gradients.values())
    assert float(measured(model, nothing)[1]) == 0.0


def test_a_stand_in_row_counts_nothing():
    """The labels of a stand-in row are ignored after its positions were noted."""
    model, batch = built("bert"), batch_of("bert")
    head_at_labels(model)
    batch["labels"] = torch.full_like(batch["labels"], IGNORE_INDEX)
    shape, loss, correct, gradients = measured(model, batch)
    assert shape[1] == len(batch["labelled"]) > 0
    assert (float(loss), int(correct.sum())) == (0.0, 0)
    assert not any(gradient.any() for gradient in gradients.values())


def test_sums_of_parts_are_those_of_all_logits():
    batch = batch_of("gpt2")
    labels, labelled = batch["labels"], batch["labelled"]
    logits = torch.randn(3, 9, VOCAB, dtype=torch.float64)
    logits.scatter_(-1, labels.clamp(min=0)[..., None], 9.0)  # most are right
    parts = torch.arange(9).expand(3, 9) // 4
    whole = sums_of_parts(logits, labels, parts)
    some = sums_of_parts(logits.flatten(0, 1)[labelled][None], labels, parts, labelled)
    for name, values in whole.items():
        torch.testing.assert_close(some[name], values, rtol=1e-12, atol=1e-12)
    assert int(whole["correct"].sum()) > 0


class Kept:
    """Adds up the bytes that a forward pass keeps for the backward pass, each storage once."""

    def __enter__(self):
        self.sizes: dict[int, int] = {}
        self.tensors: list[Tensor] = []
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda tensor: tensor)
        self.hooks.__enter__()
        return self

    def pack(self, tensor: Tensor) -> Tensor:
        self.tensors.append(tensor)
        self.sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    def __exit__(self, *error):
        self.hooks.__exit__(*error)


def test_memory_falls_with_the_share_of_labels():
    model, batch = built("bert"), batch_of("bert")

    def kept() -> int:
        with Kept() as measured, logits_at_labels(batch):
            logits = model(**batch["inputs"]).logits
            token_losses(logits, batch["labels"], labelled=batch["labelled"])
        return sum(measured.sizes.values())

    before = kept()
    head_at_labels(model)
    fewer = batch["labels"].numel() - len(batch["labelled"])
    assert before - kept() >= fewer * VOCAB * 8  # the logits of the others


def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.models.build.head_at_labels", lambda model: None)


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("language_modeling/smoke_masked", ()),
        ("language_modeling", ("task.packing=false",)),
        ("translation", ("task.label_smoothing_factor=0.1",)),
        ("summarization", ()),
    ],
    ids=["masked", "causal", "translation", "summarization"],
)
def test_runs_end_the_same(task, settings, tmp_path, monkeypatch):
    settings = (*SGD, *settings, "train.max_steps=3", "train.learning_rate=0.1")
    train(task, tmp_path / "some", *settings, double=True)
    everywhere(monkeypatch)
    train(task, tmp_path / "all", *settings, double=True)
    assert_close(lines(tmp_path / "some"), lines(tmp_path / "all"), FLOAT64)
    one, other = weights(tmp_path / "some"), weights(tmp_path / "all")
    assert_close({k: v.tolist() for k, v in one.items()}, {k: v.tolist() for k, v in other.items()}, FLOAT64)
    assert json.dumps(predictions(tmp_path / "some"))[:200] == json.dumps(predictions(tmp_path / "all"))[:200]


TEXTS = [{"text": "The river comes down from the hills in three small streams."}, {"text": "Eggs are cheap."}]
CHAT = [
    {"messages": [{"role": "user", "content": each["text"]}, {"role": "assistant", "content": "So I have heard."}]}
    for each in TEXTS
]
PAIRS = [{"source": each["text"], "target": "Der Fluss. " * number} for number, each in enumerate(TEXTS, start=1)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "rows", "unlabelled", "settings"),
    [
        ("language_modeling", TEXTS, TEXTS, ("task.packing=false",)),
        ("language_modeling/smoke_masked", TEXTS, TEXTS, ()),
        ("language_modeling/smoke_chat", CHAT, [{"messages": row["messages"][:1]} for row in CHAT], ()),
        ("translation", PAIRS, [{"source": row["source"]} for row in PAIRS], ("task.num_beams=1",)),
    ],
    ids=["causal", "masked", "chat", "translation"],
)
def test_finished_runs_evaluate_and_predict_with_them(task, rows, unlabelled, settings, tmp_path, monkeypatch):
    train(task, tmp_path, *settings, "train.max_steps=1", "eval.eval_steps=null", "checkpoint.save_steps=null")

    def first_pass(rows, scored):
        """Returns at how many positions the head was computed first, and what came out."""
        run, places = toolkit.load(tmp_path), []
        head = run.accelerator.unwrap_model(run.model).get_output_embeddings()
        head.register_forward_hook(lambda module, arguments, output: places.append(output.shape[:2].numel()))
        found = run.evaluate(rows) if scored else run.predict(rows)
        return places[0], found

    some = first_pass(rows, True), first_pass(unlabelled, False)
    monkeypatch.setattr("toolkit.deploy.trained.head_at_labels", lambda model: None)
    every = first_pass(rows, True), first_pass(unlabelled, False)
    for (few, found), (many, expected) in zip(some, every, strict=True):
        assert few < many
        assert_close(found, expected, 1e-5)
    if rows is not TEXTS:
        assert some[1][0] == 0  # nothing is labelled
