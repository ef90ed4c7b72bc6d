"""resume: a killed run ends like one that was not (contract C3)."""

from __future__ import annotations

from pathlib import Path

from toolkit.base.run_folder import RunFolder
from toolkit.lab.certify.certificate import FAILED, OK, OPEN, Certificate
from toolkit.lab.certify.engines import CAUSES
from toolkit.lab.certify.jobs import Cut, Job, error_of
from toolkit.lab.certify.trace import first_difference, read_trace, weight_difference

PROMISE = "A run that is killed and resumed ends like one that was never interrupted."


def jobs(cut: Cut) -> list[Job]:
    """Returns a whole run, one that is killed, and what goes on from that."""
    loop = {"engine": "loop"}
    return [
        Job("loop-1", loop),
        Job("killed", loop, killed=True),
        Job("resumed", loop | {"checkpoint.resume": "auto"}, goes_on="killed"),
    ]


def judge(folder: Path, cut: Cut) -> Certificate:
    """Compares the steps after the resume, and what both ended with."""
    name = "resume"
    if error := error_of(folder, "loop-1", "killed", "resumed"):
        return Certificate(name, PROMISE, FAILED, [], [error])
    whole, before, after = (read_trace(folder, job) for job in ("loop-1", "killed", "resumed"))
    killed, start = before[-1]["step"], after[0]["step"] if after else len(whole) + 1
    figures = {"killed_at": killed, "resumed_at": start - 1, "steps": len(whole)}
    if start == 1:
        reason = (
            f"the run was killed at step {killed}, before its first checkpoint; give more --rows or a later --kill-at"
        )
        return Certificate(name, PROMISE, OPEN, [], [reason], figures)
    last = RunFolder(Path()).checkpoint(whole[-1]["step"])
    differences = [
        first_difference(whole[: len(before)], before, CAUSES),
        first_difference(whole[start - 1 :], after, CAUSES),
        weight_difference(folder / "loop-1", folder / "killed", str(last.model)),
        weight_difference(folder / "loop-1", folder / "killed", str(last.optimizer)),
    ]
    when = ("before the kill", f"after the resume at step {start - 1}", "at the end", "at the end")
    problems = [f"{when}: {difference}" for when, difference in zip(when, differences, strict=True) if difference][:1]
    found = [
        f"killed with SIGKILL at the end of step {killed}, resumed from step {start - 1}: rows, rates, random numbers, "
        f"losses, and in the end parameters and optimizer agree to the last bit with {len(whole)} uninterrupted steps"
    ]
    return Certificate(name, PROMISE, FAILED if problems else OK, [] if problems else found, problems, figures)
