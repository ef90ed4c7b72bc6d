"""Callbacks that a configuration can name in `trainer.callbacks`."""

from __future__ import annotations

from functools import partial

from transformers import EarlyStoppingCallback, TrainerCallback

EVENTS: list[tuple[str, int]] = []
"""Events that `Recorder` received, with the step."""

patient = partial(EarlyStoppingCallback, early_stopping_patience=2)


class Recorder(TrainerCallback):
    """Records events, and requests a log, an evaluation and a checkpoint that are not scheduled."""

    def on_train_begin(self, args, state, control, model, optimizer, processing_class, **more):
        assert None not in (model, optimizer, processing_class)
        EVENTS.append(("begin", state.global_step))

    def on_step_end(self, args, state, control, **more):
        if state.global_step == 3:
            control.should_log = control.should_evaluate = control.should_save = True

    def on_log(self, args, state, control, logs, **more):
        if "loss" in logs:
            assert logs["num_items"] > 0
            EVENTS.append(("log", state.global_step))

    def on_evaluate(self, args, state, control, metrics, **more):
        assert "eval_accuracy" in metrics
        EVENTS.append(("evaluate", state.global_step))

    def on_save(self, args, state, control, **more):
        EVENTS.append(("save", state.global_step))

    def on_train_end(self, args, state, control, **more):
        EVENTS.append(("end", state.global_step))


def not_a_callback() -> int:
    """Returns a number, which is not a callback."""
    return 1
