"""The reviews recipe with a fault on one rank: `accelerate launch failing_rank.py FAULT RANK <recipe's arguments>`."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor

from toolkit import run
from toolkit.checkpoint import writing
from toolkit.data import tokenise as tokenising
from toolkit.engine import evaluation
from toolkit.engine.training import Session
from toolkit.main import main
from toolkit.recipe import load_task_type
from toolkit.tracking.tensorboard import TensorBoard

FAULT_STEP = 3


def note(output_dir: Path) -> None:
    (output_dir / "failed_at").write_text(str(time.time()))


def kill_this_process(output_dir: Path) -> NoReturn:
    note(output_dir)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL cannot be handled")


def error() -> None:
    """Raises an error after the gradient of a step, which the other ranks do not see."""

    def check_update(self, grad_norm):
        if self.state.step + 1 == FAULT_STEP:
            note(Path(self.run.output_dir))
            raise ValueError("a fault on one rank")

    Session.check_update = check_update


def kill() -> None:
    """Kills the process before it computes its gradient, for which the other ranks wait."""
    compute = Session.window_gradient

    def window_gradient(self, batches, scale):
        if self.state.step + 1 == FAULT_STEP:
            kill_this_process(Path(self.run.output_dir))
        return compute(self, batches, scale)

    Session.window_gradient = window_gradient


def kill_in_save() -> None:
    """Kills the process when it has written the first tensor of its part of a checkpoint."""
    write_file = writing.write_file

    def write_some(path, entries, tensors, metadata):
        def some() -> Iterator[Tensor]:
            yield from list(tensors)[:1]
            kill_this_process(path.parents[3])

        return write_file(path, entries, some() if f"step-{FAULT_STEP}" in str(path) else tensors, metadata)

    writing.write_file = write_some


def full_disk() -> None:
    """Fails the first tensor file of the checkpoint after `FAULT_STEP`, in the thread that writes it."""
    write_file = writing.write_file

    def fails(path, *given):
        if f"step-{FAULT_STEP + 1}" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return write_file(path, *given)

    writing.write_file = fails


def slow() -> None:
    """Makes a step take longer than the 10 s after which a rank under torchrun no longer waits for the others."""
    compute = Session.window_gradient

    def window_gradient(self, batches, scale):
        if self.state.step + 1 == FAULT_STEP:
            note(Path(self.run.output_dir))
            time.sleep(12)
        return compute(self, batches, scale)

    Session.window_gradient = window_gradient


def stop() -> None:
    """Stops the process before it computes its gradient, for which the other ranks wait."""
    _before_gradient(lambda: os.kill(os.getpid(), signal.SIGSTOP))


def stop_in_evaluation() -> None:
    """Stops the process when it has predicted its part of the validation rows."""
    gather = evaluation.gather

    def stopped(*arguments: Any) -> Any:
        (output_dir,) = [word.partition("=")[2] for word in sys.argv if word.startswith("output_dir=")]
        note(Path(output_dir))
        os.kill(os.getpid(), signal.SIGSTOP)
        return gather(*arguments)

    evaluation.gather = stopped


def sleep() -> None:
    """Makes the process wait for something before it computes its gradient."""
    _before_gradient(lambda: time.sleep(60))


def compute() -> None:
    """Makes the process compute for 6 s before its gradient."""

    def loop() -> None:
        until = time.monotonic() + 6
        while time.monotonic() < until:
            pass

    _before_gradient(loop)


def compute_for_ever() -> None:
    """Makes the process compute for longer than any collective waits."""

    def loop() -> None:
        while True:
            pass

    _before_gradient(loop)


def stop_preparation() -> None:
    """Stops the processes that prepare rows for this one, as soon as they have some."""
    tokenise = tokenising.tokenise

    def armed(rows: Any, task: Any, *arguments: Any, **settings: Any) -> Any:
        (output_dir,) = [word.partition("=")[2] for word in sys.argv if word.startswith("output_dir=")]
        note(Path(output_dir))
        rank, preprocess = os.getpid(), type(task).preprocess

        def stopped(self, *given: Any) -> Any:
            if os.getpid() != rank:
                os.kill(os.getpid(), signal.SIGSTOP)
            return preprocess(self, *given)

        type(task).preprocess = stopped
        return tokenise(rows, task, *arguments, **settings)

    tokenising.tokenise = armed


def compute_without_threads() -> None:
    """Makes the process compute for some seconds in a call that lets no other Python thread run."""
    _before_gradient(lambda: sum(range(400_000_000)))


def _before_gradient(fault: Callable[[], object]) -> None:
    window_gradient = Session.window_gradient

    def faulty(self, batches, scale):
        if self.state.step + 1 == FAULT_STEP:
            note(Path(self.run.output_dir))
            fault()
        return window_gradient(self, batches, scale)

    Session.window_gradient = faulty


def slow_work() -> None:
    """Makes what one process does for all take longer than the time limit of collectives."""
    for module, name in ((tokenising, "tokenise"), (writing, "finish_checkpoint"), (run, "write_results")):
        setattr(module, name, _delayed(getattr(module, name)))


def slow_tracker() -> None:
    """Makes a tracker's server answer after more than the time limit of collectives."""
    for name in ("__init__", "numbers", "finish"):
        setattr(TensorBoard, name, _delayed(getattr(TensorBoard, name)))


def _delayed(function: Callable[..., Any]) -> Callable[..., Any]:
    def delayed(*arguments: Any, **settings: Any) -> Any:
        time.sleep(4)
        return function(*arguments, **settings)

    return delayed


def elsewhere() -> None:
    """Moves the process to a folder of its own, as on a machine that does not share the folder of the others."""
    Path("elsewhere").mkdir()
    os.chdir("elsewhere")


FAULTS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        *(error, kill, kill_in_save, full_disk, slow, slow_work, slow_tracker, elsewhere),
        *(stop, stop_in_evaluation, sleep, compute, compute_for_ever, compute_without_threads, stop_preparation),
    )
}

if __name__ == "__main__":
    fault, rank, *arguments = sys.argv[1:]
    if os.environ["RANK"] == rank:
        FAULTS[fault]()
    recipe = Path(__file__).resolve().parents[2] / "recipes" / "reviews.py"
    sys.argv = [str(recipe), *arguments]
    main(load_task_type(recipe))
