"""The first act of a run: its output folder is made, locked, and searched for a checkpoint to resume from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.api.run import Checkpoint
from toolkit.base.console import say
from toolkit.base.files import remove_leftovers
from toolkit.base.run_folder import RunFolder
from toolkit.checkpoint.lock import OutputLock
from toolkit.checkpoint.probe import probe
from toolkit.checkpoint.resume import decide_resume
from toolkit.checkpoint.store import NOTHING
from toolkit.config.sections import Config
from toolkit.distributed.collectives import on_main
from toolkit.distributed.signals import STOP_DEADLINE_SECONDS
from toolkit.tracking.jsonl import bring_metrics

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(frozen=True)
class Claimed:
    """An output folder that this run alone writes into.

    Args:
        output_dir: the folder, writable.
        resume: the checkpoint to resume from, or None.
    """

    output_dir: Path
    resume: Checkpoint | None


@contextmanager
def claim(cfg: Config, accelerator: Accelerator, skip: Mapping[Path, str] = NOTHING) -> Iterator[Claimed]:
    """Holds the output folder for this run, and decides which checkpoint the run resumes from.

    Args:
        cfg: resolved configuration.
        accelerator: the main process claims the folder for all.
        skip: folders of checkpoints that are known to be damaged, and why.

    Raises:
        CheckpointError: if the folder cannot be written, is in use, or holds something that would be mixed up.
    """
    output_dir = Path(cfg.output_dir)
    held = ExitStack()

    def take() -> Checkpoint | None:
        probe(output_dir)
        held.enter_context(OutputLock(output_dir, patience_seconds=STOP_DEADLINE_SECONDS + 5))
        checkpoint, messages = decide_resume(output_dir, cfg.checkpoint.resume, skip)
        remove_leftovers(output_dir)
        for message in messages:
            say(message)
        if checkpoint is not None:
            bring_metrics(RunFolder(checkpoint.path.parents[1]).metrics, RunFolder(output_dir).metrics)
        return checkpoint

    with held:
        checkpoint = on_main(accelerator, take)
        if checkpoint is not None:
            say(f"resuming from {checkpoint.path}")
        yield Claimed(output_dir, checkpoint)
