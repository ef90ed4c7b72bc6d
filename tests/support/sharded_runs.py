"""Runs of one process and of FSDP2 on two, in three precisions: `accelerate launch sharded_runs.py FOLDER NAME...`.

A name is `RUN/PRECISION` on one process, `RUN/PRECISION/STRATEGY` on several.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from finishing import finish
from runs import SGD, SMALL, few_rows, train
from split_runs import ACCUMULATION, ADAMW, ROWS, RUN, RUNS

LLAMA = ("language_modeling", "model.from_config={model_type: llama, vocab_size: 500, hidden_size: 256, "
         "num_hidden_layers: 6, num_attention_heads: 4, num_key_value_heads: 4, intermediate_size: 1024, "
         "max_position_embeddings: 64, tie_word_embeddings: true}")  # fmt: skip
MODELS = {**{name: RUNS[name] for name in ("translation", "vit")}, "llama": LLAMA,
          "whisper": ("speech_recognition/smoke_whisper",)}  # fmt: skip
STRATEGIES = {
    "ddp": (),
    "fsdp": ("parallel.fsdp=2",),
    "window": ("parallel.fsdp=2", "parallel.gradient_sync=window"),
    "recomputed": ("parallel.fsdp=2", "train.activation_checkpointing=full"),
    "hsdp": ("parallel.fsdp=2", "parallel.replicas=2"),
}
SHORT = ("train.max_steps=5", "checkpoint.save_steps=null", "eval.eval_steps=null", "train.unpadded=false")


def main(output: Path, *names: str) -> None:
    """Trains runs with windows of `ROWS` rows."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    for name in names:
        model, precision, *strategy = name.split("/")
        recipe, *own = MODELS[model]
        own = [each for each in own if not each.startswith(("train.optim", "train.learning_rate", "checkpoint"))]
        rows = f"train.per_device_train_batch_size={ROWS // ACCUMULATION // processes}"
        split = (rows, f"train.gradient_accumulation_steps={ACCUMULATION}", "train.global_batch_size=null")
        settings = [f"train.mixed_precision={'bf16' if precision == 'bf16' else 'no'}", "tracking.count_memory=true"]
        sizes = SMALL if any("from_config={" in each for each in own) or model == "whisper" else None
        settings += SGD if precision == "float64" else ADAMW  # which divides rounding by itself
        settings += STRATEGIES[strategy[0]] if strategy else ()
        folder = output / name.replace("/", "-of-")
        given = (*RUN, *own, *SHORT, few_rows(recipe, 60), *split, *settings)
        train(recipe, folder, *given, double=precision == "float64", sizes=sizes)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
    finish()
