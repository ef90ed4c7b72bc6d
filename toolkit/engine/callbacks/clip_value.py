"""Clipping of the gradient by value: each element is limited by itself."""

from __future__ import annotations

from toolkit.api.training import Callback, TrainingContext
from toolkit.distributed.window import clip_values


class ClippedValues(Callback):
    """Limits each element of the gradient of a step, which is exchanged and clipped by its norm already."""

    def __init__(self, context: TrainingContext) -> None:
        limit = context.run.cfg.train.max_grad_value
        assert limit is not None
        self.context, self.limit = context, limit

    def before_update(self) -> None:
        """Limits the gradient; elements do not depend on how it is split over processes."""
        clip_values(self.context.bare_model.parameters(), self.limit)
