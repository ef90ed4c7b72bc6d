"""Computes small models with positions split over processes, beside whole ones.

`accelerate launch context_models.py FOLDER` writes what the main process saw to FOLDER/results.json.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers
from accelerate import Accelerator
from finishing import finish
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy

from toolkit.distributed import context
from toolkit.distributed.context import MODELS, Context
from toolkit.tasks.tokens import labelled_positions

VOCAB = 23
TEXT = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 12, "max_position_embeddings": 20, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2}  # fmt: skip
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 4}
ENCODERS = ("bert", "camembert", "distilbert", "electra", "modernbert", "roberta", "xlm-roberta")
SIZES: dict[str, dict[str, Any]] = {
    **{kind: TEXT if kind in ENCODERS else GROUPED for kind in MODELS},
    "gpt_neox": TEXT,
    "phi": TEXT,
    **{kind: {**TEXT, "pad_token_id": 1} for kind in ("camembert", "roberta", "xlm-roberta")},
    "distilbert": {"vocab_size": VOCAB, "dim": 8, "n_layers": 1, "n_heads": 4, "hidden_dim": 12},
    "electra": {**TEXT, "embedding_size": 6},
    "gpt2": {"vocab_size": VOCAB, "n_embd": 8, "n_layer": 2, "n_head": 4, "n_inner": 12, "pad_token_id": 0},
    "mistral": {**GROUPED, "sliding_window": 3},
    "modernbert": {**TEXT, "local_attention": 4, "global_attn_every_n_layers": 2, "cls_token_id": 1,
                   "sep_token_id": 2},
    "qwen2": {**GROUPED, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
}  # fmt: skip
LENGTHS = ((7, 3, 4), (8, 8, 8), (5, 5, 2), (2, 2, 2))
"""Lengths of a batch's rows: padded or not, and not always divisible by the number of processes."""


def build(kind: str, head: str, **settings: Any) -> nn.Module:
    """Returns a model in float64 and training mode, the same on every process, without dropout unless set."""
    torch.manual_seed(0)
    sizes = SIZES[kind] | {"num_labels": 2 if head == "QuestionAnswering" else 3} | settings
    model = getattr(transformers, f"AutoModelFor{head}").from_config(transformers.AutoConfig.for_model(kind, **sizes))
    for module in model.modules():
        if isinstance(module, nn.Dropout) and not settings:
            module.p = 0.0
        if not settings and hasattr(module, "attention_dropout") and isinstance(module.attention_dropout, float):
            module.attention_dropout = 0.0
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(0.15 / parameter.data.std())  # so that attention matters
    return model.double().train()


def batch(model: Any, head: str, lengths: tuple[int, ...]) -> dict[str, Any]:
    """Returns a batch with right padding and its labels."""
    torch.manual_seed(1)
    ids = torch.randint(3, VOCAB, (len(lengths), max(lengths)))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    labels = torch.where(mask, ids % 3 if head == "TokenClassification" else ids, -100)
    found: dict[str, Any] = {"inputs": {"input_ids": torch.where(mask, ids, model.config.pad_token_id or 0),
                                        "attention_mask": mask.long()}}  # fmt: skip
    if head == "SequenceClassification":
        labels = torch.tensor([0, 1, 2])
    elif head == "QuestionAnswering":
        labels = torch.tensor([[0, 1], [1, 1], [1, 0]])
    return found | {"labels": labels, "labelled": labelled_positions(labels)}


def loss_of(model: nn.Module, given: dict[str, Any]) -> Tensor:
    """Returns the summed loss."""
    output, labels = model(**given["inputs"]), given["labels"]
    if hasattr(output, "start_logits"):
        ends = zip((output.start_logits, output.end_logits), labels.unbind(1), strict=True)
        return sum(cross_entropy(logits, each, reduction="sum") for logits, each in ends)
    return cross_entropy(output.logits.flatten(0, -2), labels.flatten(), reduction="sum")


def difference(mesh: Any, kind: str, head: str, lengths: tuple[int, ...]) -> dict[str, float]:
    """Returns how far loss, gradients (relative to the greatest) and evaluation are from those of the whole model."""
    one = build(kind, head)
    split, by_token = copy.deepcopy(one), head in ("CausalLM", "MaskedLM", "TokenClassification")
    given, positions = batch(one, head, lengths), Context(split, mesh)
    expected = loss_of(one, given)
    expected.backward()
    with positions.splitting(by_token):
        found = loss_of(split, positions.own(given, by_token))
        found.backward()
    total = found.detach().clone()
    positions.sum(total, split)
    pairs = [(own.grad, other.grad) for own, other in zip(one.parameters(), split.parameters(), strict=True)]
    assert all((own is None) == (other is None) for own, other in pairs), (kind, head)
    largest = max(float(own.abs().max()) for own, _ in pairs if own is not None)
    with torch.no_grad():
        evaluated = [model(**given["inputs"])[0] for model in (one, split)]
    return {
        "loss": abs(float(total - expected.detach())),
        "gradient": max(float((own - other).abs().max()) for own, other in pairs if own is not None) / largest,
        "evaluated": float((evaluated[0] - evaluated[1]).abs().max()),
    }


def heads(kind: str) -> list[str]:
    """Returns the heads of a model type that are compared."""
    further = ["TokenClassification", "SequenceClassification"] if kind in (*ENCODERS, "gpt2", "llama") else []
    return ["MaskedLM" if kind in ENCODERS else "CausalLM", *further, *(["QuestionAnswering"] * (kind == "bert"))]


def dropped(mesh: Any, kind: str, **rates: float) -> dict[str, float]:
    """Returns the slope of the loss in some direction by its gradient, and by losses with the same dropout."""
    head = heads(kind)[0]
    model = build(kind, head, **rates)
    positions, given, seed = Context(model, mesh), batch(model, head, LENGTHS[0]), 7 + mesh.get_local_rank()

    def loss(move: float = 0.0) -> Tensor:
        with torch.no_grad():
            for parameter, direction in zip(model.parameters(), directions, strict=True):
                parameter += move * direction
        torch.manual_seed(seed)
        with positions.splitting(by_token=True):
            return loss_of(model, positions.own(given, by_token=True))

    torch.manual_seed(5)
    directions = [torch.randn_like(parameter) for parameter in model.parameters()]
    found = loss()
    found.backward()
    positions.sum(found.detach(), model)
    slope = sum(float((p.grad * d).sum()) for p, d in zip(model.parameters(), directions, strict=True))
    step, values = 1e-6, []
    for move in (step, -2 * step):
        values.append(loss(move).detach())
        dist.all_reduce(values[-1])
    return {"slope": slope, "difference": float(values[0] - values[1]) / (2 * step)}


def main(folder: Path) -> None:
    """Compares every model type, with attention in one block and in several."""
    Accelerator(cpu=True)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("context",))["context"]
    found: dict[str, Any] = {}
    for kind in sorted(MODELS):
        for head in heads(kind):
            for number, lengths in enumerate(LENGTHS):
                with patch.object(context, "SCORES", 2**20 if number % 2 else 24):
                    found[f"{kind}:{head}:{number}"] = difference(mesh, kind, head, lengths)
    found["dropout"] = [
        dropped(mesh, "gpt2", attn_pdrop=0.5, resid_pdrop=0.0, embd_pdrop=0.0),
        dropped(mesh, "bert", attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.0),
    ]
    if dist.get_rank() == 0:
        (folder / "results.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    finish()
