"""What the Trainer scripts have in common: options, arguments of the Trainer by variant, timing by step."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from pairs import Clock, report
from transformers import Trainer, TrainerCallback, TrainingArguments

VARIANTS = ("defaults", "tuned")


def read_arguments(description: str | None, **further: Any) -> argparse.Namespace:
    """Reads the options of a script.

    Args:
        description: the script's docstring.
        **further: more options, with their defaults.
    """
    parser = argparse.ArgumentParser(description=description)
    for name in ("model", "train_file", "output_dir"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--variant", choices=VARIANTS, default="defaults")
    parser.add_argument("--precision", choices=("no", "bf16"), default="no")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--warm_up", type=int, default=2, help="steps that are not counted, at least 1")
    parser.add_argument("--losses", action="store_true", help="report the loss of every step")
    for name, default in further.items():
        if isinstance(default, bool):
            parser.add_argument(f"--{name}", action="store_true")
        else:
            parser.add_argument(f"--{name}", type=type(default), default=default)
    return parser.parse_args()


def training_arguments(options: argparse.Namespace, **further: Any) -> dict[str, Any]:
    """Returns arguments of the Trainer: the library's defaults, but for what the comparison fixes on all sides.

    Fixed are batch size, one epoch, the order of the file, and that nothing is evaluated, saved or tracked. The tuned
    variant names the fused optimizer, which is the library's default on this version.
    """
    tuned = {"optim": "adamw_torch_fused"} if options.variant == "tuned" else {}
    return {
        "output_dir": options.output_dir,
        "per_device_train_batch_size": options.batch_size,
        "num_train_epochs": 1,
        "train_sampling_strategy": "sequential",
        "bf16": options.precision == "bf16",
        "eval_strategy": "no",
        "save_strategy": "no",
        "logging_steps": 1 if options.losses else 500,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": not torch.cuda.is_available(),
        **tuned,
        **further,
    }


class Steps(TrainerCallback):
    """Times each step."""

    def __init__(self) -> None:
        self.clock = Clock()

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, **rest: Any) -> None:
        """Notes a step."""
        self.clock.tick()


def train_and_report(trainer: Trainer, options: argparse.Namespace) -> None:
    """Trains and prints the seconds of the steps after the warm-up, and the losses where wanted."""
    steps = Steps()
    trainer.add_callback(steps)
    trainer.train()
    measured = steps.clock.steps(options.warm_up - 1)
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    report({"seconds": sum(measured), "steps": len(measured), "losses": losses if options.losses else []})
