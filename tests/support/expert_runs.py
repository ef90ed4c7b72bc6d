"""Runs of mixtures of experts: `accelerate launch expert_runs.py FOLDER NAME...`.

A name is `RUN` on one process, `STRATEGY:RUN` or `STRATEGY:RUN:trainer` on several, in folders with `-of-` for colons.
`STRATEGY:RUN:FOLDER` goes on from step 2 of the run in that folder.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")

from finishing import finish
from runs import SGD, SMALL, few_rows, train
from split_runs import ACCUMULATION, ADAMW, ROWS, RUN
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter

SIZES = (
    "vocab_size: 400, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 2, "
    "intermediate_size: 48, num_experts_per_tok: 2, max_position_embeddings: 128, attention_dropout: 0.0"
)
OWN = {
    "mixtral": "num_local_experts: 4",
    "qwen2_moe": "num_experts: 4, moe_intermediate_size: 24, shared_expert_intermediate_size: 24",
    "qwen3_moe": "num_experts: 4, moe_intermediate_size: 24",
}
BALANCED = "output_router_logits: true, router_aux_loss_coef: 0.5"


def model(kind: str, *more: str) -> str:
    """Returns the setting of a small new model."""
    return "model.from_config={" + ", ".join([f"model_type: {kind}", SIZES, OWN[kind], *more]) + "}"


RUNS: dict[str, tuple[str, ...]] = {
    "mixtral": ("language_modeling", *SGD, model("mixtral", BALANCED), "train.unpadded=false"),
    "qwen2": ("language_modeling", *ADAMW, model("qwen2_moe")),
    "qwen3": ("language_modeling/smoke_chat", *SGD, model("qwen3_moe", BALANCED), "eval.generate=true"),
    "classifier": ("reviews", *ADAMW, model("mixtral", BALANCED, "pad_token_id: 0")),
    "few": ("language_modeling", *SGD, model("qwen3_moe"), "data.max_train_samples=2"),
    "budget": ("language_modeling/smoke_chat", *SGD, model("qwen3_moe", BALANCED),
               "train.max_tokens_per_batch=64"),
    "lora": ("language_modeling", *SGD, model("qwen3_moe"), "model.peft.method=lora",
             "model.peft.target_modules=[q_proj, v_proj]"),
    "recompute": ("language_modeling", *SGD, model("mixtral", BALANCED), "train.activation_checkpointing=full"),
    "adafactor": ("language_modeling", model("qwen3_moe"), "train.optim=adafactor", "train.learning_rate=0.01"),
    "ema": ("language_modeling", *ADAMW, model("qwen3_moe"), "train.ema_decay=0.5", "checkpoint.format=sharded",
            "checkpoint.load_best_model_at_end=true"),
    "one_sided": ("language_modeling", *ADAMW, model("mixtral")),
    "frozen": ("language_modeling", *SGD, model("mixtral"),
               "model.freeze=['*embed*', '*self_attn*', '*norm*', '*gate.weight']"),
    "frozen_experts": ("language_modeling", *SGD, model("mixtral"), "model.freeze=['*experts*']"),
    "float32": ("language_modeling", *ADAMW, model("qwen3_moe", BALANCED)),
    "bf16": ("language_modeling", *ADAMW, model("qwen3_moe", BALANCED), "train.mixed_precision=bf16"),
}  # fmt: skip
ONE_SIDED = ("one_sided", "frozen")
"""Runs whose tokens all choose the experts of the first process."""
SINGLE = ("float32", "bf16")
"""Runs that are not in float64."""
STRATEGIES: dict[str, tuple[str, ...]] = {
    "ddp": (),
    "expert": ("parallel.expert=2",),
    "fsdp": ("parallel.fsdp=2",),
    "expert-replicas": ("parallel.expert=2", "parallel.replicas=4"),
    "expert-fsdp": ("parallel.expert=2", "parallel.fsdp=2"),
    "expert-hsdp": ("parallel.expert=2", "parallel.fsdp=2", "parallel.replicas=2"),
}


def one_sided(router: Any, hidden_states: Any, forward: Any = MixtralTopKRouter.forward) -> tuple[Any, ...]:
    """Routes as `MixtralTopKRouter`, but to the first two of four experts."""
    logits, weights, chosen = forward(router, hidden_states)
    return logits, weights, chosen % 2


def main(output: Path, *names: str) -> None:
    """Trains runs by name."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    for name in names:
        strategy, run, more = [*name.split(":"), ""][:3] if ":" in name else ("", name, "")
        recipe, *settings = RUNS[run]
        rows = f"train.per_device_train_batch_size={ROWS // ACCUMULATION // processes}"
        split = (rows, f"train.gradient_accumulation_steps={ACCUMULATION}")
        if more == "trainer":
            settings.append("engine=trainer")
        elif more:
            settings.append(f"checkpoint.resume={output / more / 'checkpoints' / 'step-2'}")
        given = (*RUN, few_rows(recipe, 37), *split, *settings, *STRATEGIES.get(strategy, ()))
        with patch.object(MixtralTopKRouter, "forward", one_sided) if run in ONE_SIDED else nullcontext():
            train(recipe, output / name.replace(":", "-of-"), *given, double=run not in SINGLE, sizes=SMALL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
    finish()
