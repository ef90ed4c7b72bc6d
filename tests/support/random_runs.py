"""Settings with which the models of the recipes draw random numbers."""

from __future__ import annotations

import pytest
from runs import few_rows
from stopping import DROPOUT, WINDOWS

DROP_PATH = ("model.config_overrides.drop_path_rate=0.2", *WINDOWS)

SEQ2SEQ = ("model.config_overrides.dropout_rate=0.1", "task.label_smoothing_factor=0.1", *WINDOWS)

RANDOM = {
    "reviews": DROPOUT,
    "qa": (*DROPOUT, few_rows("qa", 37)),
    "token_classification": DROPOUT,
    "translation": SEQ2SEQ,
    "language_modeling": ("model.config_overrides.attention_dropout=0.1", *WINDOWS,
                          few_rows("language_modeling", 37)),
    "language_modeling/smoke_masked": ("model.config_overrides.hidden_dropout_prob=0.1", *WINDOWS,
                                       few_rows("language_modeling/smoke_masked", 37)),
    "reviews/smoke_image": DROP_PATH,
    "reviews/smoke_audio": DROP_PATH,
}  # fmt: skip
"""Settings by configuration; masks and augmentation are random as well."""

FURTHER = {
    "summarization": SEQ2SEQ,
    "language_modeling/smoke_chat": ("model.config_overrides.attention_dropout=0.1", *WINDOWS),
}
"""Settings of configurations that share most of their code with one of those above; their tests are slow ones."""
ALL = RANDOM | FURTHER
EVERY = [*RANDOM, *(pytest.param(config, marks=pytest.mark.slow) for config in FURTHER)]
"""All configurations, as parameters of tests."""
