"""Figures measured in every training run; two otherwise equal runs may differ in these."""

from __future__ import annotations

from toolkit.metrics.score import Score
from toolkit.system.phases import OTHER, PHASES, PREFIX

MEASURED: dict[str, Score] = {
    score.name: score
    for score in (
        Score("train_seconds", greater_is_better=False, unit="s"),
        Score("train_items_per_second", unit="1/s"),
        Score("interval_items_per_second", unit="1/s"),
        Score("peak_memory_bytes", greater_is_better=False, unit="B"),
        Score("optimizer_state_bytes", greater_is_better=False, unit="B"),
        Score("exchange_bytes", greater_is_better=False, unit="B"),
        *(Score(f"{PREFIX}{phase}", greater_is_better=False, unit="s") for phase in (*PHASES, OTHER)),
        Score("run_seconds", greater_is_better=False, unit="s"),
        Score("energy_wh", greater_is_better=False, unit="Wh"),
        Score("co2_grams", greater_is_better=False, unit="g"),
        Score("cost", greater_is_better=False),
        Score("target_seconds", greater_is_better=False, unit="s"),
        Score("target_energy_wh", greater_is_better=False, unit="Wh"),
    )
}
"""The measured figures, by their names in `metrics.jsonl` and `run.json`."""
