"""Runs with split layers to compare with one process: `accelerate launch tensor_runs.py OUTPUT_DIR`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from runs import SGD, train
from stopping import DROPOUT, StoppedError, stopper

MESHES = {
    1: {"one": ()},
    2: {"tensor": ("parallel.tensor=2",)},
    4: {
        "replicas-tensor": ("parallel.tensor=2", "parallel.replicas=2"),
        "fsdp-tensor": ("parallel.tensor=2", "parallel.fsdp=2"),
    },
}
"""Settings of each mesh, by number of processes."""
ADAMW = ("train.optim=adamw_torch", "train.learning_rate=1.0e-2", "train.lr_scheduler_type=constant",
         "train.warmup_steps=0", "train.weight_decay=0.1")  # fmt: skip
WINDOWS = ("data.max_train_samples=37", "data.max_eval_samples=11", "train.num_train_epochs=1", "eval.eval_steps=2",
           "train.gradient_accumulation_steps=3", "train.max_grad_norm=0.5", "checkpoint.save_steps=null")  # fmt: skip
"""Windows of 12 rows, of which the last one has fewer."""
GPT2 = ("model.from_config={model_type: gpt2, vocab_size: 400, n_embd: 32, n_layer: 2, n_head: 2, n_positions: 64, "
        "embd_pdrop: 0.0, attn_pdrop: 0.0, resid_pdrop: 0.0}",)  # fmt: skip
VIT = ("model.from_config={model_type: vit, image_size: 32, patch_size: 8, hidden_size: 32, num_hidden_layers: 2, "
       "num_attention_heads: 2, intermediate_size: 48}",)  # fmt: skip
RUNS = {
    "reviews": ("reviews", ADAMW),
    "language_modeling": ("language_modeling", SGD),
    "translation": ("translation", ADAMW),
    "gpt2": ("language_modeling", (*ADAMW, "train.optim=adamw_torch_fused", *GPT2)),
    "adafactor": ("language_modeling", ("train.optim=adafactor", "train.learning_rate=1.0e-2")),
    "image": ("reviews/smoke_image", (*ADAMW, *VIT)),
}
SEEDED = (*DROPOUT, "model.from_config.attention_probs_dropout_prob=0.2")


def main(output: Path, world: int) -> None:
    """Trains all runs for this number of processes."""
    for mesh, sizes in MESHES[world].items():
        batch = f"train.per_device_train_batch_size={2 if world == 4 else 4}"
        for name, (config, settings) in RUNS.items():
            small = ("tracking.logging_steps=1",) if "model_type" in str(settings) else None
            train(config, output / f"{mesh}-{name}", *WINDOWS, *settings, *sizes, batch, double=True, sizes=small)
        if world == 2:
            trainer = ("engine=trainer", batch, *sizes)
            for name in ("reviews", "translation"):
                config, settings = RUNS[name]
                train(config, output / f"trainer-{name}", *WINDOWS, *settings, *trainer, double=True)
            resumed(output, *sizes)


def resumed(output: Path, *sizes: str) -> None:
    """Trains a run with dropout once to its end and once with a stop."""
    train("reviews", output / "through", *SEEDED, *sizes)
    with pytest.MonkeyPatch.context() as patch:
        stopper(patch)(6)
        with pytest.raises(StoppedError):
            train("reviews", output / "resumed", *SEEDED, *sizes)
    train("reviews", output / "resumed", *SEEDED, *sizes, "checkpoint.resume=auto")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(os.environ.get("WORLD_SIZE", "1")))
