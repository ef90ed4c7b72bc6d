"""Runs in which something is drawn at random, by configuration."""

from __future__ import annotations

from stopping import DROPOUT, WINDOWS

DROP_PATH = ("model.config_overrides.drop_path_rate=0.2", *WINDOWS)


RANDOM = {
    "reviews": DROPOUT,
    "qa": DROPOUT,
    "translation": ("model.config_overrides.dropout_rate=0.1", "task.label_smoothing_factor=0.1", *WINDOWS),
    "language_modeling": ("model.config_overrides.attention_dropout=0.1", *WINDOWS),
    "language_modeling/smoke_masked": ("model.config_overrides.hidden_dropout_prob=0.1", *WINDOWS),
    "reviews/smoke_image": DROP_PATH,
    "reviews/smoke_audio": DROP_PATH,
}
"""What draws random numbers in each task's model; masks and augmentation do beside it."""
