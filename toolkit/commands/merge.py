"""Merge a run's adapters into its model: `toolkit merge RUN [--output-dir DIR] [--data FILE]`."""

from __future__ import annotations

import argparse

from toolkit.base.files import expanded
from toolkit.base.run_folder import RunFolder
from toolkit.commands import _options
from toolkit.deploy.merge import (
    TOLERANCE,
    batch_of,
    logits_of,
    refuse_unmergeable,
    reloaded,
    rows_file,
    write_merged,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run, the output folder, and the rows to verify the model on."""
    _options.add(parser, "run")
    _options.add(parser, "--output-dir", default_text="RUN/merged")
    _options.add(parser, "--data", default_text="some of the run's rows, to verify the merged model")
    _options.add(parser, "--recipe", default_text="that of the run")
    _options.add(parser, "--trust-remote-code")


def work(arguments: argparse.Namespace) -> None:
    """Writes a merged model that transformers can load, and verifies its outputs.

    Raises:
        InputError: if the run cannot be merged, or the folder cannot be written.
        RunError: if the outputs of the merged model differ.
    """
    from dataclasses import replace

    from toolkit.base.console import quiet_libraries, say
    from toolkit.base.errors import RunError
    from toolkit.deploy.trained import open_run, read_settings
    from toolkit.distributed.launch import build_accelerator

    folder = expanded(arguments.run)
    cfg, task = read_settings(folder, arguments.recipe)
    output = _options.output_folder(arguments.output_dir or RunFolder(folder).merged)
    refuse_unmergeable(cfg)
    file = rows_file(cfg, arguments.data)
    cfg = replace(
        cfg,
        model=replace(cfg.model, trust_remote_code=arguments.trust_remote_code),
        train=replace(cfg.train, mixed_precision="no"),
        tracking=replace(cfg.tracking, report_to=[]),
    )
    quiet_libraries()
    run = open_run(folder, cfg, task, build_accelerator(cfg))
    batch = batch_of(run, file)
    before = logits_of(run.model, batch)
    write_merged(run, output)
    after = logits_of(reloaded(run, output), batch)
    difference = float((after - before).abs().max() / before.abs().max().clamp(min=1e-12))
    rows = len(batch["row_ids"])
    say(f"largest difference of logits on {rows} rows, relative to the largest logit: {difference:.1e}")
    if not difference <= TOLERANCE:
        raise RunError(f"the merged model in {output} differs in its outputs from the adapters; do not use it")
    say(f"merged into {output}; transformers loads it without peft")
