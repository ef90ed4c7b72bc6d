"""Runs whose model is split over processes: `accelerate launch split_runs.py OUTPUT_DIR STRATEGY:RUN...`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")

from finishing import finish
from runs import SGD, SMALL, few_rows, train

from toolkit.models.build import make_trainable

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

SPEECH = ("model.from_config={model_type: wav2vec2, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, "
          "intermediate_size: 16, conv_dim: [8, 8], conv_kernel: [400, 2], conv_stride: [160, 2], "
          "num_feat_extract_layers: 2, num_conv_pos_embeddings: 8, num_conv_pos_embedding_groups: 2, "
          "classifier_proj_size: 8, mask_time_prob: 0.0, layerdrop: 0.0, feat_extract_norm: layer, "
          "do_stable_layer_norm: true, hidden_dropout: 0.0, attention_dropout: 0.0, activation_dropout: 0.0, "
          "feat_proj_dropout: 0.0, final_dropout: 0.0}",
          "task.audio.num_mel_bins=64", "task.audio.sampling_rate=16000", "task.audio.min_seconds=0.25")  # fmt: skip

TASKS: dict[str, tuple[str, ...]] = {
    "reviews": ("reviews", *ADAMW),
    "qa": ("qa", *SGD),
    "translation": ("translation", *SGD),
    "language_modeling": ("language_modeling", *SGD),
    "masked": ("language_modeling/smoke_masked", *SGD),
    "vit": ("reviews/smoke_image", *SGD, *VIT),
    "image": ("reviews/smoke_image", *SGD),
    "speech": ("reviews/smoke_audio", *SGD, *SPEECH),
    "moe": ("language_modeling/smoke_moe", *SGD, "model.from_config.router_aux_loss_coef=0.5"),
}
"""Recipe and settings of each task in the table of docs/parallel.md, which both engines train."""
FURTHER: dict[str, tuple[str, ...]] = {
    "gpt2": ("language_modeling", *SGD, *GPT2, "checkpoint.format=sharded", "checkpoint.load_best_model_at_end=true"),
    "uneven": ("language_modeling", *ADAMW, "model.from_config.vocab_size=401"),
    "audio": ("reviews/smoke_audio", *SGD),
    "adafactor": ("reviews", "train.optim=adafactor", "train.learning_rate=0.01"),
    "muon": ("reviews", "train.optim=muon", "train.learning_rate=0.01"),
    "schedule_free": ("reviews", "train.optim=schedule_free_adamw", "train.learning_rate=0.001"),
    "fused": ("reviews", "train.optim=adamw_torch_fused", "train.learning_rate=0.001"),
    "ema": ("reviews", *ADAMW, "train.ema_decay=0.5"),
    "lora": ("reviews", *SGD, "model.peft.method=lora"),
    "pissa": ("reviews", *SGD, "model.peft.method=lora", "model.peft.init_lora_weights=pissa"),
    "unfreeze": ("reviews", *SGD, "model.freeze=backbone", "model.unfreeze.step_2=[bert.encoder.layer.1.*]"),
    "recompute": ("language_modeling", *SGD, "train.activation_checkpointing=full"),
    "best": ("reviews", *SGD, "checkpoint.load_best_model_at_end=true", "eval.metric_for_best_model=loss"),
    "tags": ("token_classification", *SGD),
    "chat": ("language_modeling/smoke_chat", *SGD),
    "few": ("reviews", *SGD, "data.max_train_samples=5"),
    "clip_value": ("reviews", *SGD, "train.max_grad_norm=0", "train.max_grad_value=0.001"),
    "lars": ("reviews", "train.optim=lars", "train.learning_rate=0.5"),
    "adadelta": ("reviews", "train.optim=adadelta", "train.learning_rate=1.0"),
    "cycled": ("reviews", *ADAMW, "train.lr_scheduler_type=one_cycle", "train.lr_scheduler_kwargs.cycle_momentum=true"),
    "segments": ("language_modeling", *SGD, "train.activation_checkpointing=segments"),
    "nested": ("language_modeling", *SGD, "train.activation_checkpointing=nested_segments"),
    "chunked": ("language_modeling", *SGD, "train.chunked_loss=true", "model.from_config.vocab_size=401"),
    "selective": ("language_modeling", *SGD, "train.activation_checkpointing=selective"),
    "budget": ("language_modeling", *SGD, "train.max_tokens_per_batch=96"),
    "compressed": ("language_modeling", *SGD, "train.activation_compression=int8"),
    "mixed": ("reviews/smoke_image", *SGD, "task.image.mixup_alpha=0.4", "task.image.cutmix_alpha=1.0"),
    "masked_clips": ("reviews/smoke_audio", *SGD, "task.audio.time_masks=2", "task.audio.frequency_masks=2"),
}
RUNS = TASKS | FURTHER
"""Recipe and settings of each run; `max_grad_norm` is below the norm of every step."""
STRATEGIES: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "ddp": (2, 2, ()),
    "zero1": (2, 2, ("parallel.zero_stage=1",)),
    "zero2": (2, 2, ("parallel.zero_stage=2",)),
    "fsdp": (2, 2, ("parallel.fsdp=2",)),
    "hsdp": (4, 4, ("parallel.replicas=2", "parallel.fsdp=2")),
    "tensor": (2, 1, ("parallel.tensor=2",)),
    "replicas-tensor": (4, 2, ("parallel.replicas=2", "parallel.tensor=2")),
    "fsdp-tensor": (4, 2, ("parallel.fsdp=2", "parallel.tensor=2")),
    "context": (2, 1, ("parallel.context=2",)),
    "replicas-context": (4, 2, ("parallel.replicas=2", "parallel.context=2")),
    "fsdp-context": (4, 2, ("parallel.fsdp=2", "parallel.context=2")),
    "context-tensor": (4, 1, ("parallel.context=2", "parallel.tensor=2")),
    "pipeline": (2, 1, ("parallel.pipeline=2",)),
    "replicas-pipeline": (4, 2, ("parallel.replicas=2", "parallel.pipeline=2")),
    "tensor-pipeline": (4, 1, ("parallel.tensor=2", "parallel.pipeline=2")),
    "fsdp-pipeline": (4, 2, ("parallel.fsdp=2", "parallel.pipeline=2")),
    "3d": (8, 2, ("parallel.replicas=2", "parallel.tensor=2", "parallel.pipeline=2")),
    "zero1-tensor": (4, 2, ("parallel.replicas=2", "parallel.tensor=2", "parallel.zero_stage=1")),
    "sequence": (2, 1, ("parallel.tensor=2", "parallel.sequence=true")),
    "expert": (2, 2, ("parallel.expert=2",)),
    "fsdp-expert": (2, 2, ("parallel.fsdp=2", "parallel.expert=2")),
}
"""Number of processes, of data ranks, and settings of each strategy."""
ONLY = {
    "parallel.tensor=2": [task for task in TASKS if task not in ("image", "moe")],
    "parallel.sequence=true": [task for task in TASKS if task not in ("image", "speech", "moe")],
    "parallel.context=2": ["reviews", "qa", "language_modeling", "masked"],
    "parallel.pipeline=2": ["reviews", "qa", "language_modeling", "masked", "vit"],
    "parallel.expert=2": ["moe"],
}
"""Tasks whose architectures can be split so."""
CELLS = {
    strategy: [task for task in TASKS if all(task in ONLY.get(setting, TASKS) for setting in settings)]
    for strategy, (_, _, settings) in STRATEGIES.items()
}
"""The tasks that each strategy trains; the others are refused."""
ALSO = {
    "fsdp": [*FURTHER],
    "zero1": [run for run in FURTHER if run not in ("schedule_free", "segments", "nested", "chunked", "compressed")],
    "ddp": ["segments", "compressed", "mixed", "masked_clips", "chat", "audio"],
    "tensor": ["gpt2", "uneven", "adafactor", "recompute", "nested", "chunked", "ema", "fused", "few"],
    "fsdp-pipeline": ["uneven", "unfreeze"],
    "sequence": ["recompute", "nested", "few"],
    "zero1-tensor": ["gpt2", "adafactor"],
    **{mesh: ["gpt2", "uneven", "adafactor", "nested", "chunked"] for mesh in ("hsdp", "fsdp-tensor")},
    "replicas-tensor": ["gpt2", "uneven", "adafactor"],
    "context": [
        *(
            "gpt2",
            "uneven",
            "adafactor",
            "recompute",
            "selective",
            "nested",
            "lora",
            "ema",
            "tags",
            "chat",
            "few",
            "chunked",
        ),
        *("budget", "unfreeze"),
    ],
}
"""Further runs of strategies, with the loop."""
OF_OPTIMIZERS = ("uneven", "adafactor", "muon", "lars", "unfreeze", "cycled")
"""Further runs whose optimizer has something of its own to share out."""
ELSEWHERE = ("cycled", "mixed", "muon", "lars", "unfreeze", "chat", "adadelta", "masked_clips", "audio")
"""Further runs that FSDP trains only in the whole table: another strategy, or a run much like it, is in `COVER`."""
ENGINES = ("loop", "trainer")
COVER: dict[str, tuple[str, ...]] = {
    "ddp": ("reviews", "speech", "vit:trainer", *ALSO["ddp"]),
    "zero1": ("reviews", "masked", "image:trainer", "translation:trainer", *OF_OPTIMIZERS, "adadelta", "gpt2"),
    "zero2": ("reviews", "qa", "language_modeling:trainer"),
    "fsdp": (*CELLS["fsdp"], "reviews:trainer", "translation:trainer",
             *(run for run in ALSO["fsdp"] if run not in ELSEWHERE)),
    "hsdp": ("adafactor", "masked:trainer", "nested"),
    "tensor": (*CELLS["tensor"], "reviews:trainer", *ALSO["tensor"]),
    "replicas-tensor": ("uneven", "reviews:trainer"),
    "fsdp-tensor": ("gpt2", "translation:trainer", "nested", "chunked"),
    "context": (*CELLS["context"], "reviews:trainer", "masked:trainer", *ALSO["context"]),
    "replicas-context": ("qa", "language_modeling:trainer"),
    "fsdp-context": ("masked", "reviews:trainer"),
    "context-tensor": ("language_modeling", "qa:trainer"),
    "pipeline": ("reviews", "vit", "qa:trainer"),
    "replicas-pipeline": ("masked", "reviews:trainer"),
    "tensor-pipeline": ("language_modeling", "vit:trainer"),
    "fsdp-pipeline": ("uneven", "language_modeling", "unfreeze", "reviews:trainer"),
    "3d": ("qa", "reviews:trainer"),
    "zero1-tensor": ("adafactor", "gpt2", "reviews:trainer"),
    "sequence": ("reviews", "translation", "vit", "recompute", "nested", "few", "language_modeling:trainer"),
    "expert": ("moe", "moe:trainer"),
    "fsdp-expert": ("moe", "moe:trainer"),
}  # fmt: skip
"""The runs that are trained unless the whole table is asked for: both engines with every strategy, every task with
every kind of split, and every run of `FURTHER`. FSDP and split layers, which know each architecture, have all tasks;
copies and shared optimizers do not look into a model."""


def run_name(strategy: str, run: str, engine: str = "loop") -> str:
    """Returns the name of a run on several processes: `STRATEGY:RUN`, or `STRATEGY:RUN:trainer`."""
    return ":".join([strategy, run, *([engine] if engine != "loop" else [])])


def names_of(strategy: str, whole: bool = True) -> list[str]:
    """Returns the names of all runs of a strategy, or of those in `COVER` only."""
    if not whole:
        return [run_name(strategy, *run.split(":")) for run in COVER[strategy]]
    tasks = [run_name(strategy, task, engine) for engine in ENGINES for task in CELLS[strategy]]
    return [*tasks, *(run_name(strategy, run) for run in ALSO.get(strategy, ()))]


def main(output: Path, *names: str) -> None:
    """Trains runs by name: `RUN` on one process, others as `run_name` names them on several.

    Also writes which of their models this process built without weights.
    """
    on_meta: dict[str, bool] = {}
    for name in names:
        strategy, run, engine = name.split(":") if name.count(":") == 2 else (*name.rpartition(":")[::2], "loop")
        _, data_size, parallel = STRATEGIES.get(strategy, (1, 1, ()))
        rows = f"train.per_device_train_batch_size={ROWS // ACCUMULATION // data_size}"
        split = (rows, f"train.gradient_accumulation_steps={ACCUMULATION}", f"engine={engine}")
        recipe, *settings = RUNS[run]
        sizes = SMALL if {*GPT2, *VIT, *SPEECH} & {*settings} else None
        folder = output / name.replace(":", "-of-")

        def noting(model: Any, *arguments: Any, name: str = name) -> Any:
            on_meta[name] = next(model.parameters()).is_meta
            return make_trainable(model, *arguments)

        with patch("toolkit.run.make_trainable", noting):
            train(recipe, folder, *RUN, few_rows(recipe, 37), *split, *settings, *parallel, double=True, sizes=sizes)
    place = "-of-".join(os.environ.get(name, "one") for name in ("RANK", "WORLD_SIZE"))
    (output / f"on_meta-{place}.json").write_text(json.dumps(on_meta))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
    finish()
