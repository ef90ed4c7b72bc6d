"""Certificate `resume`: a killed and resumed run ends like an uninterrupted one (contract C3)."""

from __future__ import annotations

from pathlib import Path

from toolkit.base.run_folder import RunFolder
from toolkit.lab.certify.certificate import FAILED, OK, OPEN, Certificate
from toolkit.lab.certify.engines import CAUSES
from toolkit.lab.certify.trace import first_difference, read_trace, weight_difference
from toolkit.lab.certify.trainings import Experiment, Training, error_of

resume_promise = "A run that is killed and resumed ends like one that was never interrupted."


def resume_trainings(experiment: Experiment) -> list[Training]:
    """Returns an uninterrupted run, one that is killed, and one that resumes it."""
    loop = {"engine": "loop"}
    # The kill could come before a checkpoint written in the background is complete: the resumed step would vary.
    killed = loop | {"checkpoint.async_save": False}
    return [
        Training("loop-1", loop),
        Training("killed", killed, killed=True),
        Training("resumed", killed | {"checkpoint.resume": "auto"}, resumes="killed"),
    ]


def resume_judge(folder: Path, experiment: Experiment) -> Certificate:
    """Compares the steps before the kill and after the resume, and the final parameters and optimizer states."""
    name = "resume"
    if error := error_of(folder, "loop-1", "killed", "resumed"):
        return Certificate(name, resume_promise, FAILED, [], [error])
    whole, before, after = (read_trace(folder, name) for name in ("loop-1", "killed", "resumed"))
    killed, start = before[-1]["step"], after[0]["step"] if after else len(whole) + 1
    figures = {"killed_at": killed, "resumed_at": start - 1, "steps": len(whole)}
    if start == 1:
        reason = f"the run was killed at step {killed}, before its first checkpoint; increase --rows or --kill-at"
        return Certificate(name, resume_promise, OPEN, [], [reason], figures)
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
    return Certificate(name, resume_promise, FAILED if problems else OK, [] if problems else found, problems, figures)
