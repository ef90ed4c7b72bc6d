"""Runs of one process and of FSDP2 on two, in three precisions: `accelerate launch sharded_runs.py FOLDER NAME...`.

A name is `RUN/PRECISION` on one process, `RUN/PRECISION/STRATEGY` on several.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")

from finishing import finish
from runs import SGD, SMALL, few_rows, train
from split_runs import ACCUMULATION, ADAMW, ROWS, RUN, RUNS

LLAMA = ("language_modeling", "model.from_config={model_type: llama, vocab_size: 500, hidden_size: 256, "
         "num_hidden_layers: 6, num_attention_heads: 4, num_key_value_heads: 4, intermediate_size: 1024, "
         "max_position_embeddings: 64, tie_word_embeddings: true}")  # fmt: skip
UNTIED = (LLAMA[0], LLAMA[1].replace("embeddings: true", "embeddings: false"))
MODELS = {**{name: RUNS[name] for name in ("translation", "vit")}, "llama": LLAMA, "untied": UNTIED,
          "lora": (*UNTIED, "model.peft.method=lora", "model.peft.target_modules=[q_proj,lm_head]"),
          "wide": (LLAMA[0], "model.from_config={model_type: llama, vocab_size: 6000, hidden_size: 32, "
                   "num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64, tie_word_embeddings: true}"),
          "frozen": (*LLAMA, "model.freeze=[model.embed_tokens.*]"),
          "whisper": ("speech_recognition/smoke_whisper",)}  # fmt: skip
SHARING = ("tensor", "context", "pipeline")
"""Dimensions whose processes read the same rows."""
STRATEGIES = {
    "ddp": (),
    "fsdp": ("parallel.fsdp=2",),
    "window": ("parallel.fsdp=2", "parallel.gradient_sync=window"),
    "recomputed": ("parallel.fsdp=2", "train.activation_checkpointing=full"),
    "segments": ("parallel.fsdp=2", "train.activation_checkpointing=segments"),
    "nested": ("parallel.fsdp=2", "train.activation_checkpointing=nested_segments"),
    "chunked": ("parallel.fsdp=2", "train.chunked_loss=true"),
    "tensor": ("parallel.tensor=2",),
    "tensor_chunked": ("parallel.tensor=2", "train.chunked_loss=true"),
    "hsdp_all": (
        "parallel.fsdp=2",
        "parallel.replicas=2",
        "train.chunked_loss=true",
        "train.activation_checkpointing=nested_segments",
    ),
    "fsdp_tensor_all": (
        "parallel.fsdp=2",
        "parallel.tensor=2",
        "train.chunked_loss=true",
        "train.activation_checkpointing=segments",
    ),
    "hsdp": ("parallel.fsdp=2", "parallel.replicas=2"),
    **{f"fsdp_{name}": ("parallel.fsdp=2", f"parallel.{name}=2") for name in SHARING},
}
SHORT = ("train.max_steps=5", "checkpoint.save_steps=null", "eval.eval_steps=null", "train.unpadded=false")


def main(output: Path, *names: str) -> None:
    """Trains runs with windows of `ROWS` rows."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    for name in names:
        model, precision, *strategy = name.split("/")
        recipe, *own = MODELS[model]
        own = [each for each in own if not each.startswith(("train.optim", "train.learning_rate", "checkpoint"))]
        parallel = STRATEGIES[strategy[0]] if strategy else ()
        data_size = processes // (2 if any(f"parallel.{name}=2" in parallel for name in SHARING) else 1)
        rows = f"train.per_device_train_batch_size={ROWS // ACCUMULATION // data_size}"
        split = (rows, f"train.gradient_accumulation_steps={ACCUMULATION}", "train.global_batch_size=null")
        settings = [f"train.mixed_precision={'bf16' if precision == 'bf16' else 'no'}", "tracking.count_memory=true"]
        sizes = SMALL if any("from_config={" in each for each in own) or model == "whisper" else None
        settings += SGD if precision == "float64" else ADAMW  # which divides rounding by itself
        folder = output / name.replace("/", "-of-")
        given = (*RUN, *own, *SHORT, few_rows(recipe, 60), *split, *settings, *parallel)
        with patch("toolkit.models.chunked.CHUNK", 64):
            train(recipe, folder, *given, double=precision == "float64", sizes=sizes)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
    finish()
