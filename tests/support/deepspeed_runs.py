"""Runs with DeepSpeed's ZeRO: `accelerate launch deepspeed_runs.py OUTPUT_DIR NAME...`.

A name is that of a run in `split_runs.RUNS` or below, on one process, or `STRATEGY:RUN`; `NAME<-OTHER` resumes the
checkpoint of another name under it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from finishing import finish
from runs import SGD, few_rows, train
from split_runs import ACCUMULATION, ADAMW, ROWS, RUN, RUNS

SAVED_STEP = 2
OWN = {
    # DeepSpeed computes padding, so the run that it is compared with does too: both then round alike.
    "bf16": ("reviews", *SGD, "train.mixed_precision=bf16", "train.unpadded=false"),
    "momentum": ("reviews", *SGD, "train.optim_args={momentum: 0.9}"),
    "decay": ("reviews", *ADAMW, "train.layerwise_lr_decay=0.9", "train.weight_decay=0.1"),
    "budget": ("reviews", *SGD, "train.max_tokens_per_batch=150"),
    "freeze": ("reviews", *SGD, "model.freeze=backbone"),
    "packed": ("language_modeling/smoke_chat", *SGD, "train.unpadded=packed"),
    "preference": ("preference/smoke", *SGD, "eval.eval_on_start=false"),
    "window": ("embeddings/smoke", *SGD),
    "trainer-reviews": (*RUNS["reviews"], "engine=trainer"),
    "trainer-translation": (*RUNS["translation"], "engine=trainer"),
}
ALL = RUNS | OWN
STRATEGIES = {
    "ddp": (),
    **{f"stage{n}": (f"parallel.zero_stage={n}", "parallel.backend=deepspeed") for n in (1, 2, 3)},
    **{
        f"stage{n}-offload": (f"parallel.zero_stage={n}", "parallel.backend=deepspeed", "parallel.offload=true")
        for n in (1, 2, 3)
    },
}
"""Settings of each strategy."""


def folder_of(output: Path, name: str) -> Path:
    """Returns the folder of a run."""
    return output / name.replace(":", "-of-").replace("<-", "-after-")


def main(output: Path, *names: str) -> None:
    """Trains runs, each with windows of `ROWS` rows."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    for name in names:
        trained, _, saved = name.partition("<-")
        strategy, _, run = trained.rpartition(":")
        recipe, *settings = ALL[run]
        settings += STRATEGIES[strategy] if strategy else ()
        settings.append(f"train.per_device_train_batch_size={ROWS // ACCUMULATION // processes}")
        settings.append(f"train.gradient_accumulation_steps={ACCUMULATION}")
        if saved:
            settings.append(f"checkpoint.resume={folder_of(output, saved)}/checkpoints/step-{SAVED_STEP}")
        sharded = strategy == "stage3" and not saved
        settings.append(f"checkpoint.format={'sharded' if sharded else 'full'}")
        settings.append("checkpoint.save_total_limit=null")
        train(recipe, folder_of(output, name), *RUN, few_rows(recipe, 37), *settings)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
    finish()
