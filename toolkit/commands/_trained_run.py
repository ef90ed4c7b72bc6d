"""What the commands about a finished run share: their arguments, and opening the run."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.commands import _options

if TYPE_CHECKING:
    from toolkit.deploy.trained import TrainedRun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run and how its rows are read."""
    _options.add(parser, "run")
    _options.add(parser, "--recipe")
    _options.add(parser, "--bad-rows", default_text="as the run")
    _options.add(parser, "--trust-remote-code")
    _options.add(parser, "--per-device-eval-batch-size", default_text="as the run")


def open_trained(arguments: argparse.Namespace) -> TrainedRun:
    """Opens the finished run that `add_arguments` was given."""
    from torch.cuda import is_available as cuda_available

    from toolkit.base.console import quiet_libraries
    from toolkit.base.processes import die_with_launcher
    from toolkit.deploy.trained import open_run, read_settings
    from toolkit.distributed.launch import build_accelerator

    die_with_launcher()
    cfg, task = read_settings(Path(arguments.run), arguments.recipe)
    precision = cfg.train.mixed_precision
    if precision == "fp8" or not cuda_available():  # what was trained elsewhere can be used here, too
        cfg = replace(
            cfg,
            model=replace(cfg.model, attn_implementation=None),
            train=replace(cfg.train, mixed_precision=precision if precision == "bf16" else "no", tf32=None),
        )
    rows = arguments.per_device_eval_batch_size
    cfg = replace(
        cfg,
        model=replace(cfg.model, trust_remote_code=arguments.trust_remote_code),
        eval=replace(cfg.eval, per_device_eval_batch_size=rows or cfg.eval.per_device_eval_batch_size),
        data=replace(cfg.data, bad_rows=arguments.bad_rows or cfg.data.bad_rows),
        tracking=replace(cfg.tracking, report_to=[]),
    )
    quiet_libraries()
    return open_run(Path(arguments.run), cfg, task, build_accelerator(cfg))
