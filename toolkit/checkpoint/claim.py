"""Creates and locks a run's output folder and finds the checkpoint to resume from."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.api.run import Checkpoint
from toolkit.base.console import say
from toolkit.base.files import remove_leftovers
from toolkit.base.run_folder import RunFolder
from toolkit.checkpoint.output_folder import OutputLock, in_use
from toolkit.checkpoint.probe import probe, require_shared
from toolkit.checkpoint.resume import decide_resume
from toolkit.checkpoint.store import NOTHING, sweep
from toolkit.config.sections import Config
from toolkit.distributed.collectives import on_main
from toolkit.distributed.stop import STOP_DEADLINE_SECONDS
from toolkit.tracking.jsonl import bring_metrics

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(frozen=True)
class Claimed:
    """An output folder that is locked by this run.

    Args:
        output_dir: the folder, writable.
        resume: the checkpoint to resume from, or None.
    """

    output_dir: Path
    resume: Checkpoint | None


@contextmanager
def claim(
    cfg: Config, accelerator: Accelerator, skip: Mapping[Path, str] = NOTHING, again: bool = False
) -> Iterator[Claimed]:
    """Locks the output folder for this run and selects the checkpoint to resume from.

    Args:
        cfg: resolved configuration.
        accelerator: the run's; the main process claims the folder for all processes.
        skip: folders of damaged checkpoints, and what is wrong with each.
        again: whether this run has been in the folder before and goes back to its newest checkpoint.

    Yields:
        The folder, locked until the block ends, and the checkpoint.

    Raises:
        CheckpointError: if the folder cannot be written, is in use, or holds another run, or if a rank does not see it.
    """
    output_dir = Path(cfg.output_dir)
    held = ExitStack()

    def take() -> Checkpoint | None:
        with suppress(OSError):  # which `probe` explains
            if in_use(output_dir) is None:  # a folder of others is refused before anything is written into it
                decide_resume(output_dir, cfg.checkpoint.resume, skip, again)
        probe(output_dir)
        held.enter_context(OutputLock(output_dir, patience_seconds=STOP_DEADLINE_SECONDS + 5))
        files = RunFolder(output_dir)
        # Each session makes it anew, and the last one moves it into the model.
        held.callback(shutil.rmtree, files.base, ignore_errors=True)
        checkpoint, messages = decide_resume(output_dir, cfg.checkpoint.resume, skip, again)
        for folder in (output_dir, files.model, files.snapshots):
            remove_leftovers(folder)
        with suppress(OSError):  # the first save tries again, with a message
            sweep(files.checkpoints)
        for message in messages:
            say(message)
        if checkpoint is not None:
            bring_metrics(RunFolder(checkpoint.path.parents[1]).metrics, files.metrics)
        return checkpoint

    with held:
        checkpoint = on_main(accelerator, take)
        if accelerator.num_processes > 1:
            require_shared(accelerator, output_dir)
        if checkpoint is not None:
            say(f"resuming from {checkpoint.path}")
        yield Claimed(output_dir, checkpoint)
