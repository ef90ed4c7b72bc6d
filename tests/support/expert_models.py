"""Outputs and gradients of mixtures whose experts two processes share, against complete ones: `FOLDER`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from finishing import finish
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoConfig, AutoModelForCausalLM

from toolkit.base.shards import full
from toolkit.distributed.experts import split_experts
from toolkit.distributed.placement import Delivery
from toolkit.distributed.routing import BALANCED
from toolkit.models.build import in_float64

KINDS = (*BALANCED, "deepseek_v3", "glm4_moe", "gpt_oss")
SIZES = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
    "head_dim": 4, "intermediate_size": 24, "moe_intermediate_size": 24, "shared_intermediate_size": 24,
    "num_experts": 4, "num_local_experts": 4, "moe_num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_k": 2, "shared_expert_intermediate_size": 24, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "q_lora_rank": None, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 8,
    "pad_token_id": 0, "attention_dropout": 0.0,
}  # fmt: skip


def mixture(kind: str, **more: Any) -> Any:
    """Returns a small model whose routers prefer some experts."""
    config = AutoConfig.for_model(kind)
    for name, value in (SIZES | more).items():
        if hasattr(config, name):
            setattr(config, name, value)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3 if parameter.dim() > 1 else 1.0)
    return model


def outputs_and_gradients(model: Any, ids: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the logits of this process's rows, and gradients of the rows of all processes."""
    logits = model(input_ids=ids, use_cache=False).logits
    logits.square().sum().backward()
    return logits.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def compared(kind: str) -> dict[str, float]:
    """Returns the greatest differences of logits and of the experts' gradients, relative to the largest element."""
    mesh = init_device_mesh("cpu", (2,))
    ids = torch.randint(1, 40, (2, 7), generator=torch.Generator().manual_seed(dist.get_rank()))
    complete, split = in_float64(mixture(kind)), in_float64(mixture(kind))
    names = {name for name, p in split.named_parameters()}
    experts = split_experts(split, mesh, Delivery(torch.device("cpu")))
    assert {name for name, p in split.named_parameters()} == names
    of_experts = [name for name, p in split.named_parameters() if p in experts]
    (logits, gradients), (found, own) = outputs_and_gradients(complete, ids), outputs_and_gradients(split, ids)
    differences = []
    for name in of_experts:
        dist.all_reduce(gradients[name])
        differences.append(float((gradients[name] - full(own[name])).abs().max() / gradients[name].abs().max()))
    return {"logits": float((logits - found).abs().max() / logits.abs().max()), "gradients": max(differences)}


if __name__ == "__main__":
    dist.init_process_group("gloo")
    results = {kind: compared(kind) for kind in KINDS}
    if dist.get_rank() == 0:
        (Path(sys.argv[1]) / "results.json").write_text(json.dumps(results))
    dist.destroy_process_group()
    finish()
