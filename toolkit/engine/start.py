"""Evaluates a model before its first step: `eval.eval_on_start`."""

from __future__ import annotations

from toolkit.engine.training import Session


def evaluate_start(session: Session) -> None:
    """Evaluates the validation rows with `eval.eval_on_start`, unless the run goes on from a later step.

    No callback hears of it, and it selects no best model. Every rank must call it.

    Raises:
        Interrupted: on every rank, if any rank received a stop signal; the next session evaluates again.
    """
    state = session.state
    if not session.run.cfg.eval.eval_on_start or state.step > 0:
        return
    with session.abandoned_if_stopped():
        result = session.evaluator.evaluate("validation")
    if result is not None:
        state.start_scores = dict(result.metrics)
        scores = {f"eval_{name}": value for name, value in result.metrics.items()}
        session.tracker.log({"step": 0, "epoch": 0.0, **scores})
