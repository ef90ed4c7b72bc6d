"""Runs on pipelines to compare with one process: `accelerate launch pipeline_runs.py OUTPUT_DIR`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from finishing import finish
from runs import SGD, train

RUN = (
    *SGD,
    "data.max_train_samples=21",  # windows of 8 rows, of which the last has empty micro-batches
    "data.max_eval_samples=11",
    "train.num_train_epochs=1",
    "train.max_grad_norm=0.1",
    # Pipelines compute padding. The gradient of a key's bias is rounding alone, which Adam would make visible.
    "train.unpadded=false",
    "eval.eval_steps=2",
    "checkpoint.save_steps=2",
)
ADAM = ("train.optim=adamw_torch", "train.learning_rate=0.01", "train.weight_decay=0.1")
FOUR_LAYERS = "model.from_config.num_hidden_layers=4"
EVERYWHERE: dict[str, tuple[str, ...]] = {
    "reviews": ("reviews", FOUR_LAYERS, *ADAM),
    "tied": ("language_modeling", "data.max_train_samples=12", "train.max_steps=3"),
}
"""Runs for every number of processes, by name: the configuration, and settings."""
OTHERS: dict[str, tuple[str, ...]] = {
    "qa": ("qa", "train.max_steps=3"),
    "masked": ("language_modeling/smoke_masked", "data.max_train_samples=12", "train.max_steps=3"),
    "vit": ("reviews/smoke_image", "model.from_config={model_type: vit, image_size: 32, patch_size: 8, hidden_size: 32,"
            " num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 48, hidden_dropout_prob: 0.0}"),
    "gpt2": ("language_modeling", "model.from_config={model_type: gpt2, vocab_size: 400, n_embd: 32, n_layer: 2, "
             "n_head: 2, n_positions: 64, resid_pdrop: 0.0, embd_pdrop: 0.0, attn_pdrop: 0.0}", "train.max_steps=3"),
    "deep": ("language_modeling", FOUR_LAYERS, "data.max_train_samples=12", "train.max_steps=3"),
    "three": ("reviews", "train.gradient_accumulation_steps=3", *ADAM),
    "lora": ("reviews", "model.peft.method=lora", *ADAM),
    "ema": ("reviews", "train.ema_decay=0.5", *ADAM),
    "frozen": ("reviews", "model.freeze=backbone", *ADAM),
    "gradual": ("reviews", "model.freeze=backbone", "model.unfreeze.step_2=[bert.encoder.layer.*]", *ADAM),
    "recomputed": ("reviews", FOUR_LAYERS, "train.activation_checkpointing=every_2_layers"),
    "rates": ("reviews", "train.layerwise_lr_decay=0.5", "train.head_learning_rate=0.2", *ADAM),
    "muon": ("reviews", "train.optim=muon", "train.learning_rate=0.01"),
    "adafactor": ("reviews", "train.optim=adafactor", "train.learning_rate=0.01"),
    "best": ("reviews", *ADAM, "checkpoint.load_best_model_at_end=true", "eval.eval_steps=1",
             "checkpoint.save_steps=1"),
}  # fmt: skip
ZERO_BUBBLE = "parallel.schedule=zero_bubble"
ZERO_BUBBLE_TOO = ("qa", "vit", "gpt2", "lora", "gradual", "three")
"""Runs of `OTHERS` that differ in what the separate passes for weights compute."""
SHARDED = ("parallel.fsdp=2",)
DROPOUT = ("reviews", "model.from_config.hidden_dropout_prob=0.5", *ADAM)


def split(replicas: int) -> tuple[str, ...]:
    """Returns the settings for windows of 8 rows in 4 micro-batches of each replica."""
    return (f"train.per_device_train_batch_size={2 // replicas}", "train.gradient_accumulation_steps=4")


def placed(world: int) -> tuple[str, ...]:
    """Returns the settings for one process, or for a pipeline of 2 on 8 with ZeRO-1 and split layers."""
    if world == 8:
        return (*split(2), "parallel.pipeline=2", "parallel.tensor=2", "parallel.zero_stage=1")
    return split(1) if world == 1 else (*split(world // 2), "parallel.pipeline=2")


def main(output: Path, world: int) -> None:
    """Trains all runs for this number of processes."""
    if world == 8:
        start(output / f"reviews-{world}", EVERYWHERE["reviews"], world)
        resume(output, "reviews", world)
        return
    for name, run in (EVERYWHERE | OTHERS if world < 4 else EVERYWHERE).items():
        start(output / f"{name}-{world}", run, world)
    if world == 1:
        return
    resume(output, "reviews", world, *(SHARDED if world == 4 else ()))
    start(output / f"tied-zero_bubble-{world}", EVERYWHERE["tied"], world, ZERO_BUBBLE)
    start(output / f"reviews-trainer-{world}", EVERYWHERE["reviews"], world, "engine=trainer")
    resume(output, "tied", world)
    if world == 4:
        for name in ("tied", "frozen", "gpt2"):
            start(output / f"{name}-sharded-{world}", (EVERYWHERE | OTHERS)[name], world, *SHARDED)
        kept = ("parallel.schedule=interleaved_1f1b", "parallel.reshard_after_forward=false", *SHARDED)
        start(output / f"reviews-kept-{world}", EVERYWHERE["reviews"], world, "parallel.gradient_sync=window", *kept)
        start(output / f"deep-{world}", OTHERS["deep"], world, *split(1), "parallel.pipeline=4", ZERO_BUBBLE)
        return
    start(output / f"tied-trainer-{world}", EVERYWHERE["tied"], world, "engine=trainer")
    for schedule in ("gpipe", "interleaved_1f1b", "zero_bubble"):
        start(output / f"reviews-{schedule}-{world}", EVERYWHERE["reviews"], world, f"parallel.schedule={schedule}")
    for schedule in ("gpipe", "1f1b", "zero_bubble"):
        start(output / f"dropout-{schedule}-{world}", DROPOUT, world, f"parallel.schedule={schedule}")
    for name in ZERO_BUBBLE_TOO:
        start(output / f"{name}-zero_bubble-{world}", OTHERS[name], world, ZERO_BUBBLE)


def start(folder: Path, run: tuple[str, ...], world: int, *more: str) -> None:
    """Trains a run in a new folder."""
    config, *settings = run
    train(config, folder, *RUN, *placed(world), *settings, *more, double=True)


def without_last_step(output: Path, name: str, begun: int, ended: int) -> None:
    """Copies a run of `begun` processes, to be resumed by `ended` processes from its checkpoint of step 2."""
    folder = output / f"{name}-from{begun}-{ended}"
    shutil.copytree(output / f"{name}-{begun}", folder)
    shutil.rmtree(folder / "checkpoints" / "step-3")


def resume(output: Path, name: str, world: int, *more: str) -> None:
    """Resumes the copies of a run of other numbers of processes."""
    for folder in sorted(output.glob(f"{name}-from*-{world}")):
        start(folder, EVERYWHERE[name], world, "checkpoint.resume=auto", *more)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(os.environ.get("WORLD_SIZE", "1")))
    finish()
