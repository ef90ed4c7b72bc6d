"""Runs whose model is split over processes: `accelerate launch split_runs.py OUTPUT_DIR STRATEGY:RUN...`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")

from runs import SGD, SMALL, train

from toolkit.models.trainable import make_trainable

RUN = (
    *("data.max_train_samples=37", "data.max_eval_samples=5", "train.num_train_epochs=1"),
    *("checkpoint.save_steps=2", "eval.eval_steps=2"),
    *("train.lr_scheduler_type=constant", "train.warmup_steps=0", "train.max_grad_norm=0.3"),
)
"""37 rows in windows of 12, the last of which is short; gradients are clipped; the evaluation is uneven."""
ROWS = 12
ACCUMULATION = 3
ADAMW = ("train.optim=adamw_torch", "train.learning_rate=0.001")

GPT2 = ("model.from_config={model_type: gpt2, vocab_size: 400, n_embd: 32, n_layer: 2, n_head: 2, n_positions: 64, "
        "embd_pdrop: 0.0, attn_pdrop: 0.0, resid_pdrop: 0.0}",)  # fmt: skip
VIT = ("model.from_config={model_type: vit, image_size: 32, patch_size: 8, hidden_size: 32, num_hidden_layers: 2, "
       "num_attention_heads: 2, intermediate_size: 48}",)  # fmt: skip

RUNS: dict[str, tuple[str, ...]] = {
    "reviews": ("reviews", *ADAMW),
    "qa": ("qa", *SGD),
    "translation": ("translation", *SGD),
    "language_modeling": ("language_modeling", *SGD),
    "uneven": ("language_modeling", *ADAMW, "model.from_config.vocab_size=401"),
    "masked": ("language_modeling/smoke_masked", *SGD),
    "image": ("reviews/smoke_image", *SGD),
    "vit": ("reviews/smoke_image", *SGD, *VIT),
    "gpt2": ("language_modeling", *SGD, *GPT2, "checkpoint.format=sharded", "checkpoint.load_best_model_at_end=true"),
    "audio": ("reviews/smoke_audio", *SGD),
    "trainer-reviews": ("reviews", *ADAMW, "engine=trainer"),
    "trainer-translation": ("translation", *SGD, "engine=trainer"),
    "adafactor": ("reviews", "train.optim=adafactor", "train.learning_rate=0.01"),
    "muon": ("reviews", "train.optim=muon", "train.learning_rate=0.01"),
    "schedule_free": ("reviews", "train.optim=schedule_free_adamw", "train.learning_rate=0.001"),
    "fused": ("reviews", "train.optim=adamw_torch_fused", "train.learning_rate=0.001"),
    "ema": ("reviews", *ADAMW, "train.ema_decay=0.5"),
    "lora": ("reviews", *SGD, "model.peft.method=lora"),
    "unfreeze": ("reviews", *SGD, "model.freeze=backbone", "model.unfreeze.step_2=[bert.encoder.layer.1.*]"),
    "recompute": ("language_modeling", *SGD, "train.activation_checkpointing=full"),
    "best": ("reviews", *SGD, "checkpoint.load_best_model_at_end=true", "eval.metric_for_best_model=loss"),
    "few": ("reviews", *SGD, "data.max_train_samples=5"),
}
"""Recipe and settings of each run; `max_grad_norm` is below the norm of every step."""
STRATEGIES: dict[str, tuple[int, tuple[str, ...]]] = {
    "fsdp": (2, ("parallel.fsdp=2",)),
    "zero2": (2, ("parallel.zero_stage=2",)),
    "zero1": (2, ("parallel.zero_stage=1",)),
    "tensor": (1, ("parallel.tensor=2",)),
    "hsdp": (4, ("parallel.fsdp=2", "parallel.replicas=2")),
    "fsdp-tensor": (2, ("parallel.fsdp=2", "parallel.tensor=2")),
    "replicas-tensor": (2, ("parallel.replicas=2", "parallel.tensor=2")),
}
"""Number of data ranks and settings of each strategy."""


def main(output: Path, *names: str) -> None:
    """Trains runs: `RUN` on one process, `STRATEGY:RUN` on several; writes which models this process built on meta."""
    on_meta: dict[str, bool] = {}
    for name in names:
        strategy, _, run = name.rpartition(":")
        data_size, parallel = STRATEGIES[strategy] if strategy else (1, ())
        rows = f"train.per_device_train_batch_size={ROWS // ACCUMULATION // data_size}"
        split = (rows, f"train.gradient_accumulation_steps={ACCUMULATION}")
        recipe, *settings = RUNS[run]
        sizes = SMALL if {*GPT2, *VIT} & {*settings} else None
        folder = output / name.replace(":", "-of-")

        def noting(model: Any, *arguments: Any, name: str = name) -> Any:
            on_meta[name] = next(model.parameters()).is_meta
            return make_trainable(model, *arguments)

        with patch("toolkit.run.make_trainable", noting):
            train(recipe, folder, *RUN, *split, *settings, *parallel, double=True, sizes=sizes)
    (output / f"on_meta-{os.environ.get('RANK', 'one')}.json").write_text(json.dumps(on_meta))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
