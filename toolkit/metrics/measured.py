"""What the toolkit measures of every training: two runs that are otherwise equal differ in these figures."""

from __future__ import annotations

from toolkit.metrics.score import Score

MEASURED: dict[str, Score] = {
    score.name: score
    for score in (
        Score("train_seconds", greater_is_better=False, unit="s"),
        Score("train_items_per_second", unit="1/s"),
        Score("peak_memory_bytes", greater_is_better=False, unit="B"),
        Score("optimizer_state_bytes", greater_is_better=False, unit="B"),
        Score("exchange_bytes", greater_is_better=False, unit="B"),
    )
}
"""By name, as `metrics.jsonl` and the results in `run.json` have them."""
