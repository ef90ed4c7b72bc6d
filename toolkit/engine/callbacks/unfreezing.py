"""Gradual unfreezing: trains parts of a frozen model from a later step on (Howard and Ruder 2018, arXiv 1801.06146)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.api.training import Callback, Training
from toolkit.base.console import say
from toolkit.models.parts import later_parameters, step_of


class Unfreezing(Callback):
    """Keeps parameters frozen until their step has been trained. The step alone determines which are frozen.

    On one process, their gradients are disabled, which also saves computing them. Several processes exchange the
    gradients of a fixed set of parameters, so there the gradients are removed after the exchange: they change neither
    the norm nor, because the optimizer skips these parameters, momentum and weight decay.
    """

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        run, self.parameters = training.run, dict(training.bare_model.named_parameters())
        complete = run.strategy.outline or run.model
        self.sizes = {name: parameter.numel() for name, parameter in complete.named_parameters()}
        self.several = run.mesh.data_size > 1
        self.since: dict[str, int] = {}
        self.frozen: set[str] = set()
        for moment, names in later_parameters(complete, run.cfg.model).items():
            step = step_of(moment, training.milestones.steps_per_epoch)
            self.since |= {name: min(step, self.since.get(name, step)) for name in names}
        self._apply()

    def after_gradient(self) -> None:
        """Removes the gradients of frozen parameters, so that they change neither the norm nor the parameters."""
        for name in self.frozen:
            self.parameters[name].grad = None

    def after_update(self) -> None:
        """Unfreezes the parameters that are due after this step."""
        step = self.training.state.step
        if due := [name for name, since in self.since.items() if since == step]:
            count = sum(self.sizes[name] for name in due)
            say(f"after step {step}: {count:,} more parameters are trained")
            self._apply()

    def finish(self) -> None:
        """Enables the gradients of all parameters that the run trains at any time."""
        self._apply(everything=True)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns nothing, because the step determines the state."""
        return {}, {}

    def restore(self, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Unfreezes the parameters that were due before the resumed step."""
        self._apply()

    def _apply(self, everything: bool = False) -> None:
        step, own = self.training.state.step, self.since.keys() & self.parameters.keys()  # others: of other stages
        frozen = set() if everything else {name for name in own if step < self.since[name]}
        if self.several:
            self.frozen = frozen
        else:
            for name in own:
                self.parameters[name].requires_grad_(name not in frozen)
