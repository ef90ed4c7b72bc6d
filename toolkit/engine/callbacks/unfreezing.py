"""Gradual unfreezing (Howard and Ruder 2018, arXiv 1801.06146): parts of a frozen model are trained later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from toolkit.api.callback import Callback, TrainingContext
from toolkit.base.console import say
from toolkit.base.errors import ConfigError
from toolkit.models.freezing import later_parameters


class Unfreezing(Callback):
    """Keeps parameters as they are until their step has been trained; which they are follows from the step alone.

    One process switches their gradients off, which also saves the work of computing them. Several exchange the
    gradients of a set of parameters that was fixed before: there they become zeros, which neither the exchange nor
    the norm minds, and are taken away before the update, so that the optimizer leaves these parameters alone.

    Raises:
        ConfigError: if the run ends before something would be unfrozen.
    """

    def __init__(self, context: TrainingContext) -> None:
        self.context = context
        run, self.parameters = context.run, dict(context.bare_model.named_parameters())
        self.several = run.mesh.data_size > 1
        self.since: dict[str, int] = {}
        self.hooks: dict[str, Any] = {}
        problems = []
        for moment, names in later_parameters(run.model, run.cfg.model).items():
            unit, _, number = moment.partition("_")
            step = int(number) * (context.milestones.steps_per_epoch if unit == "epoch" else 1)
            if step >= context.milestones.total_steps:
                what = f"that is after step {step}, and this run ends with step {context.milestones.total_steps}"
                problems.append(f"model.unfreeze.{moment}: {what}; give an earlier moment, or train longer")
            self.since |= {name: min(step, self.since.get(name, step)) for name in names}
        if problems:
            raise ConfigError(problems)
        self._apply()

    def before_update(self) -> None:
        """Takes gradients of zeros away, lest momentum or weight decay should move what is frozen."""
        for name in self.hooks:
            self.parameters[name].grad = None

    def after_update(self) -> None:
        """Unfreezes what is due after this step."""
        step = self.context.state.step
        if due := [name for name, since in self.since.items() if since == step]:
            count = sum(self.parameters[name].numel() for name in due)
            say(f"after step {step}: {count:,} more parameters are trained")
            self._apply()

    def finish(self) -> None:
        """Gives all of them their gradients back: they are what the run could train."""
        self._apply(everything=True)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns nothing: the step says all."""
        return {}, {}

    def restore(self, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Unfreezes what was due before."""
        self._apply()

    def _apply(self, everything: bool = False) -> None:
        for name, since in self.since.items():
            frozen = self.context.state.step < since and not everything
            if not self.several:
                self.parameters[name].requires_grad_(not frozen)
            elif frozen and name not in self.hooks:
                self.hooks[name] = self.parameters[name].register_hook(torch.zeros_like)
            elif not frozen and name in self.hooks:
                self.hooks.pop(name).remove()
