"""Trains small models of architectures with a tensor plan, split over two processes, beside an unsplit copy.

`accelerate launch tensor_models.py FOLDER` writes what the main process saw to FOLDER/results.json.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers
from accelerate import Accelerator
from accelerate.utils import gather_object
from finishing import finish
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.functional import cross_entropy

from toolkit.base.errors import RunError
from toolkit.base.shards import full, local_bytes
from toolkit.distributed.exchange import Wire, average_gradients
from toolkit.distributed.placement import Delivery
from toolkit.distributed.tensor.layers import check_equal_gradients, complete_gradients, split_layers
from toolkit.distributed.tensor.plans import HEAD_NORM, LIBRARY_PLANS, PLANS
from toolkit.distributed.tensor.sequence import UNFIT, of_tokens
from toolkit.distributed.tensor.vocabulary import SplitLogits
from toolkit.distributed.window import clip_split

CPU = torch.device("cpu")
VOCAB, BIG_NORM, SMALL_NORM = 23, 1e9, 0.1
TEXT = {"vocab_size": VOCAB, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 4,
        "intermediate_size": 12, "max_position_embeddings": 20, "pad_token_id": 0}  # fmt: skip
CODER = {"vocab_size": VOCAB, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 12, "decoder_ffn_dim": 12, "pad_token_id": 0,
         "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": 2,
         "decoder_vocab_size": VOCAB, "max_position_embeddings": 20}  # fmt: skip
SPEECH = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 12, "conv_dim": [8],
          "conv_stride": [5], "conv_kernel": [10], "num_feat_extract_layers": 1, "num_conv_pos_embedding_groups": 2,
          "num_conv_pos_embeddings": 4, "classifier_proj_size": 4, "mask_time_prob": 0.0, "layerdrop": 0.0}  # fmt: skip
WHISPER = {**CODER, "num_mel_bins": 4, "max_source_positions": 6, "classifier_proj_size": 4}
T5 = {"vocab_size": VOCAB, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 4,
      "decoder_start_token_id": 0}  # fmt: skip
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 4, "bos_token_id": 1, "eos_token_id": 2}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("MaskedLM", TEXT),
    "roberta": ("SequenceClassification", TEXT),
    "xlm-roberta": ("TokenClassification", TEXT),
    "electra": ("TokenClassification", {**TEXT, "embedding_size": 6}),
    "distilbert": ("MaskedLM", {"vocab_size": VOCAB, "dim": 8, "n_layers": 1, "n_heads": 4, "hidden_dim": 12}),
    "vit": ("ImageClassification", {**TEXT, "image_size": 8, "patch_size": 4}),
    "t5": ("Seq2SeqLM", {**T5, "feed_forward_proj": "gated-gelu"}),
    "t5-plain": ("Seq2SeqLM", {**T5, "d_kv": 2}),
    "t5-untied": ("Seq2SeqLM", {**T5, "tie_word_embeddings": False}),
    "bart": ("Seq2SeqLM", CODER),
    "marian": ("Seq2SeqLM", CODER),
    "mbart": ("Seq2SeqLM", CODER),
    "whisper": ("AudioClassification", WHISPER),
    "whisper-seq2seq": ("SpeechSeq2Seq", WHISPER),
    "gpt2": ("CausalLM", {"vocab_size": VOCAB, "n_embd": 8, "n_layer": 1, "n_head": 4, "n_inner": 12}),
    "wav2vec2": ("AudioClassification", SPEECH),
    "hubert": ("AudioClassification", SPEECH),
    **dict.fromkeys(LIBRARY_PLANS, ("CausalLM", GROUPED)),
    "llama-classification": ("SequenceClassification", GROUPED),
}  # fmt: skip
"""Task and configuration of each model; `model_type` may be followed by a dash and a word."""
OF_TOKENS = [name for name in MODELS if name not in UNFIT]
"""Models whose tokens can be split between split layers (sequence parallelism)."""
# The bias of keys has no gradient but rounding, which AdamW would divide by its size.
OPTIMIZERS = {
    "adamw": lambda weights: torch.optim.AdamW(weights, 0.1, eps=1e-6),
    "sgd": lambda p: torch.optim.SGD(p, 0.5),
}


def build(name: str, **settings: Any) -> nn.Module:
    """Returns a model in float64 and training mode, the same on every process, without dropout unless set."""
    torch.manual_seed(0)
    task, sizes = MODELS[name]
    kind = name if name in (*PLANS, *LIBRARY_PLANS) else name.split("-")[0]
    config = transformers.AutoConfig.for_model(kind, **{**sizes, "num_labels": 3, **settings})
    for field, value in config.to_dict().items():
        if ("drop" in field) and isinstance(value, float) and field not in settings:
            setattr(config, field, 0.0)
    model = getattr(transformers, f"AutoModelFor{task}").from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(0.15 / parameter.data.std())  # so that attention matters
    return model.double().train()


def batches(name: str) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """Yields the two micro-batches of a window: inputs of uneven lengths with padding, and labels."""
    task, _ = MODELS[name]
    torch.manual_seed(1)
    for length in (7, 5):
        ids = torch.randint(3, VOCAB, (3, length))
        mask = torch.arange(length) < torch.tensor([[length], [3], [4]])
        text = {"input_ids": ids * mask, "attention_mask": mask.long()}
        if task == "ImageClassification":
            yield {"pixel_values": torch.randn(3, 3, 8, 8).double()}, torch.randint(3, (3,))
        elif name.startswith("whisper"):
            inputs = {"input_features": torch.randn(3, 4, 12).double()}
            speech = {"decoder_input_ids": ids} if task == "SpeechSeq2Seq" else {}
            yield inputs | speech, ids if speech else torch.randint(3, (3,))
        elif task == "AudioClassification":
            sound = torch.arange(20 * length) < 20 * torch.tensor([[length], [3], [4]])
            values = torch.randn(3, 20 * length).double() * sound
            yield {"input_values": values, "attention_mask": sound.long()}, torch.randint(3, (3,))
        elif task == "SequenceClassification":
            yield text, torch.randint(3, (3,))
        elif task == "Seq2SeqLM":
            yield {**text, "decoder_input_ids": ids[:, :4]}, ids[:, 1:5] * mask[:, 1:5]
        else:
            yield text, (ids % 3 if task == "TokenClassification" else ids) * mask


def step(
    model: nn.Module, optimizer: torch.optim.Optimizer, name: str, max_norm: float, tokens_of: Any = None
) -> list[float]:
    """Makes one update of two micro-batches; returns their losses and the gradient's norm before clipping.

    If the model's tokens are split, `tokens_of` is the mesh of the processes.
    """
    optimizer.zero_grad()
    losses = []
    for inputs, labels in batches(name):
        logits = model(**inputs).logits
        ignored = 0 if labels.dim() > 1 else -100
        flat = logits.flatten(0, -2), labels.flatten()
        loss = cross_entropy(*flat, ignore_index=ignored, reduction="sum", label_smoothing=0.1) / 9
        loss.backward()
        losses.append(float(loss.detach()))
    complete_gradients(model.parameters())
    if tokens_of is not None:
        average_gradients(Wire(tokens_of.get_group()), [*of_tokens(model)], 1.0)
    norm = clip_split(model.parameters(), max_norm)
    optimizer.step()
    return [*losses, norm]


def difference(name: str, mesh: Any, optimizer: str = "adamw", sequence: bool = False) -> dict[str, Any]:
    """Returns the greatest differences of a split model from its unsplit copy, in updates with and without clipping."""
    model = build(name)
    split = copy.deepcopy(model)
    split_layers(split, mesh, Delivery(CPU), sequence=sequence)
    tokens_of = mesh if sequence else None
    makers = [OPTIMIZERS[optimizer](each.parameters()) for each in (model, split)]
    with patch.object(SplitLogits, "complete", side_effect=AssertionError("the loss must not gather logits")):
        pairs = [
            pair
            for norm in (SMALL_NORM, BIG_NORM, SMALL_NORM)
            for pair in zip(
                step(model, makers[0], name, norm), step(split, makers[1], name, norm, tokens_of), strict=True
            )
        ]
    check_equal_gradients(split, mesh)
    complete = {key: full(value) for key, value in split.state_dict().items()}
    whole = model.state_dict()
    return {
        "names": complete.keys() == whole.keys(),
        "steps": max(abs(one - other) / max(1, abs(one)) for one, other in pairs),
        "parameters": max(float((complete[key] - value).abs().max()) for key, value in whole.items()),
        "moved": max(float((value - build(name).state_dict()[key]).abs().max()) for key, value in whole.items()),
        "vocabulary": vocabulary_share(split),
        "evaluated": float((logits_of(split, name) - logits_of(model, name)).abs().max()),
        "share": sum(map(local_bytes, split.parameters())) / sum(map(local_bytes, model.parameters())),
    }


def vocabulary_share(model: nn.Module) -> float | None:
    """Returns the share of its input embeddings and output head that this process has; None without a head."""
    head = model.get_output_embeddings()
    if head is None:
        return None
    held = [*head.parameters(), *model.get_input_embeddings().parameters()]
    return sum(map(local_bytes, held)) / sum(parameter.nbytes for parameter in held)


@torch.no_grad()
def logits_of(model: nn.Module, name: str) -> Tensor:
    """Returns the logits in evaluation, as one ordinary tensor."""
    logits = model(**next(batches(name))[0]).logits
    assert type(logits) is Tensor
    return logits


def other_losses(mesh: Any) -> float:
    """Returns the greatest difference of losses and gradients of split logits from those of complete ones."""
    worst = 0.0
    weight = torch.linspace(1, 2, VOCAB).double()
    for compute in (
        lambda logits, labels: cross_entropy(logits, labels),
        lambda logits, labels: cross_entropy(logits, labels, reduction="none").square().sum(),
        lambda logits, labels: cross_entropy(logits.view(-1, VOCAB), labels.view(-1), weight),
        lambda logits, labels: cross_entropy(5 * (weight + logits / 5).tanh()[:-1], labels[:-1]),
        lambda logits, labels: logits.softmax(-1).square().sum() + logits[:, 3:7].sum() + logits[labels > 0].sum(),
    ):
        torch.manual_seed(2)
        complete = (3 * torch.randn(6, VOCAB).double()).requires_grad_()
        labels = torch.tensor([0, 22, -100, 11, 12, 5])
        own = distribute_tensor(complete.detach(), mesh, [Shard(1)]).to_local().requires_grad_()
        losses = compute(complete, labels), compute(SplitLogits(own, mesh, VOCAB), labels)
        for loss in losses:
            loss.backward()
        expected = distribute_tensor(complete.grad, mesh, [Shard(1)]).to_local()
        worst = max(worst, float((losses[0] - losses[1]).detach().abs()), float((own.grad - expected).abs().max()))
    return worst


def dropout_masks(mesh: Any, sequence: bool = False) -> dict[str, Any]:
    """Returns how the masks of two processes agree, by number of dimensions: 4 in attention, 3 outside.

    With `sequence`, those of split tokens only.
    """
    model = build("bert", hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3, attn_implementation="eager")
    split_layers(model, mesh, Delivery(CPU), sequence=sequence)
    masks: dict[int, list[Tensor]] = {3: [], 4: []}
    dropout = torch.nn.functional.dropout

    def recorded(values: Tensor, *arguments: Any, **more: Any) -> Tensor:
        mask = dropout(torch.ones_like(values), *arguments, **more) > 0
        if not sequence:
            masks[values.dim()].append(mask)
        elif values.dim() == 3 and values.shape[1] < 7:  # 4 tokens, or 3
            masks[3].append(mask[:, :3])
        return values * mask

    inputs, _ = next(batches("bert"))  # it seeds the random numbers, so once
    with patch("torch.nn.functional.dropout", recorded):
        for _ in range(20):
            model(**inputs)
    flat = {dims: torch.cat([mask.flatten() for mask in found]) for dims, found in masks.items() if found}
    both = gather_object([flat])
    return {
        str(dims): {
            "elements": mask.numel(),
            "kept": float(mask.double().mean()),
            "agreeing": float((both[0][dims] == both[1][dims]).double().mean()),
        }
        for dims, mask in flat.items()
    }


def recomputed_gradients(mesh: Any, sequence: bool = False) -> bool:
    """Returns whether activation checkpointing repeats the masks: gradients are equal bit for bit."""
    model = build("bart", dropout=0.3, attention_dropout=0.3, activation_dropout=0.3)
    split_layers(model, mesh, Delivery(CPU), sequence=sequence)
    gradients = []
    for recompute in (False, True):
        if recompute:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.zero_grad()
        torch.manual_seed(3)
        inputs, _ = next(batches("bart"))
        model(**inputs, use_cache=False).logits.square().sum().backward()
        gradients.append([full(parameter.grad) for parameter in model.parameters() if parameter.grad is not None])
    return all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def frozen_stay_frozen(mesh: Any) -> bool:
    """Returns whether the same parameters are trained after the split as before."""
    model = build("qwen3")
    for i, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(i % 2 == 0)
    before = [parameter.requires_grad for parameter in model.parameters()]
    split_layers(model, mesh, Delivery(CPU))
    return before == [parameter.requires_grad for parameter in model.parameters()]


def wrong_plan(mesh: Any) -> str:
    """Returns the error of a plan that does not sum the gradients of norms that each process applies to its heads."""
    model = build("qwen3")
    styles = {name: style for name, style in model.config.base_model_tp_plan.items() if style != HEAD_NORM}
    with patch.object(type(model.config), "base_model_tp_plan", styles):
        split_layers(model, mesh, Delivery(CPU))
    inputs, _ = next(batches("qwen3"))
    model(**inputs).logits.square().sum().backward()
    try:
        check_equal_gradients(model, mesh)
    except RunError as error:
        return str(error)
    return ""


def main(folder: Path) -> None:
    """Compares all models, and writes the results."""
    accelerator = Accelerator(cpu=True)
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))["tensor"]
    results: dict[str, Any] = {}
    # Gemma's norms convert to float32, whose roundings differ as soon as two computations differ in their 16th digit.
    with patch.object(Tensor, "float", Tensor.double):
        for i, name in enumerate(MODELS):
            results[name] = difference(name, mesh, [*OPTIMIZERS][i % 2])
            if name in OF_TOKENS:
                results[f"{name}, tokens"] = difference(name, mesh, [*OPTIMIZERS][i % 2], sequence=True)
    results["masks of tokens"] = dropout_masks(mesh, sequence=True)
    results["recomputed tokens"] = recomputed_gradients(mesh, sequence=True)
    results |= {"masks": dropout_masks(mesh), "recomputed": recomputed_gradients(mesh)}
    results |= {"losses": other_losses(mesh), "frozen": frozen_stay_frozen(mesh), "wrong": wrong_plan(mesh)}
    if accelerator.is_main_process:
        (folder / "results.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    finish()
