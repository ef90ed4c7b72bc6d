"""Checks settings against the number of steps, which is known once the rows are read."""

from __future__ import annotations

from toolkit.api.run import Checkpoint
from toolkit.api.state import Milestones
from toolkit.base.errors import ConfigError
from toolkit.config.sections import Config
from toolkit.models.parts import step_of
from toolkit.optim.schedules import has_epochs, in_steps, warmup_steps


def refuse_wrong_steps(cfg: Config, milestones: Milestones, resume: Checkpoint | None) -> None:
    """Refuses settings that do not fit the number of steps, before the model is built.

    Args:
        cfg: resolved configuration.
        milestones: when the run ends.
        resume: the checkpoint to resume from, or None.

    Raises:
        ConfigError: if the run would end before its checkpoint, its warm-up or a moment of `model.unfreeze`; lists all
            problems.
    """
    total = milestones.total_steps
    problems = [
        f"model.unfreeze.{moment}: that is after step {step}, and this run ends with step {total}; name an earlier "
        "moment, or train longer"
        for moment in cfg.model.unfreeze
        if (step := step_of(moment, milestones.steps_per_epoch)) >= total
    ]
    if (
        has_epochs(cfg.train)
        and (warmup := warmup_steps(in_steps(cfg.train, milestones.steps_per_epoch), total)) > total
    ):
        problems.append(
            f"train.warmup_steps: {cfg.train.warmup_steps} are {warmup} steps, and this run ends with step {total}; "
            "set it to less, or train longer"
        )
    if resume is not None and resume.step > total:
        problems.append(
            f"train.max_steps, train.num_train_epochs: the checkpoint is already at step {resume.step}, and this run "
            f"would end at {total}; train longer, or set checkpoint.resume to none"
        )
    if problems:
        raise ConfigError(problems)
