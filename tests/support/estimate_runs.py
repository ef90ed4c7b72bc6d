"""Runs of two steps whose memory and messages are counted: `accelerate launch estimate_runs.py FILE RUN...`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from finishing import finish
from runs import SMALL, TINY, train
from split_runs import GPT2, VIT

from toolkit.distributed.collectives import objects_of_all

STEPS = 2
SHORT = (
    *(f"train.max_steps={STEPS}", "data.validation_file=null", "eval.eval_steps=null", "checkpoint.save_steps=null"),
    *("train.per_device_train_batch_size=2", "train.gradient_accumulation_steps=2"),
)
MODELS = {
    "llama": ("language_modeling", TINY),
    "bert": ("language_modeling/smoke_masked", TINY),
    "gpt2": ("language_modeling", (*SMALL, *GPT2)),
    "vit": ("reviews/smoke_image", (*SMALL, *VIT)),
    "moe": ("language_modeling/smoke_moe", SMALL),
}
"""Recipe and sizes of models whose inputs all have the same length."""
STRATEGIES = {
    "ddp": (),
    "local_sgd": ("train.strategy=local_sgd", "train.local_sgd_steps=2"),
    "zero1": ("parallel.zero_stage=1",),
    "zero2": ("parallel.zero_stage=2",),
    "fsdp": ("parallel.fsdp=2",),
    "tensor": ("parallel.tensor=2",),
    "recomputed": ("parallel.tensor=2", "train.activation_checkpointing=full"),
    "gpipe": ("parallel.pipeline=2", "parallel.schedule=gpipe"),
    "1f1b": ("parallel.pipeline=2",),
    "expert": ("parallel.expert=2",),
    "fsdp-expert": ("parallel.expert=2", "parallel.fsdp=2"),
    "hsdp": ("parallel.replicas=2", "parallel.fsdp=2"),
    "replicas-tensor": ("parallel.replicas=2", "parallel.tensor=2"),
    "fsdp-tensor": ("parallel.fsdp=2", "parallel.tensor=2"),
    "replicas-pipeline": ("parallel.replicas=2", "parallel.pipeline=2"),
    "tensor-pipeline": ("parallel.tensor=2", "parallel.pipeline=2"),
    "replicas-tensor-pipeline": ("parallel.replicas=2", "parallel.tensor=2", "parallel.pipeline=2"),
}


def main(output: Path, *names: str) -> None:
    """Trains runs and writes the memory and the messages of every process, by the name of the run."""
    found = {}
    for name in names:
        model, _, strategy = name.partition(":")
        recipe, sizes = MODELS[model]
        folder = output.with_name(name.replace(":", "-"))
        result = train(recipe, folder, *SHORT, *STRATEGIES[strategy], sizes=sizes)
        found[name] = objects_of_all(asdict(result.memory) | dict(result.further))
    if os.environ["RANK"] == "0":
        output.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
    finish()
