"""Checks which settings changed between a run and its resume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from toolkit.base.errors import CheckpointError

FREE = (
    "output_dir",
    "engine",
    "trainer.callbacks",
    "train.max_steps",
    "train.num_train_epochs",
    "train.max_time",
    "train.dataloader_*",
    "train.ddp_timeout",
    "eval.*",
    "checkpoint.*",
    "tracking.*",
    # Paths may change as long as the content is the same, which the training fingerprint verifies.
    "data.train_file",
    "data.validation_file",
    "data.test_file",
    "data.fingerprint.validation",
    "data.fingerprint.test",
    "data.preprocessing_num_workers",
    "data.max_eval_samples",
    "versions.*",
)
"""Settings that may change when a run is resumed (`*` matches anything); all others must be the same."""


def changed_settings(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Compares the settings of a run with those of its resume.

    Args:
        saved: values by dotted key, as read from JSON: the resolved configuration, `num_processes`,
            `data.fingerprint.<split>`, `versions.<package>`.
        current: the same for this run.

    Returns:
        One message for each setting that differs and is not in `FREE`, sorted by key.
    """
    now = json.loads(json.dumps(dict(current)))  # tuples become lists, as in the saved JSON
    return [
        f"{key}: the run was started {_with(saved, key)}, now {_shown(now, key)}"
        for key in sorted({*saved, *now})
        if not any(fnmatchcase(key, pattern) for pattern in FREE)
        and (key in saved, saved.get(key)) != (key in now, now.get(key))
    ]


def refuse_changes(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Refuses a resume with changed settings; arguments are those of `changed_settings`.

    Raises:
        CheckpointError: if settings that must not change have changed; lists all of them.
    """
    changes = changed_settings(saved, current)
    if changes:
        title = "cannot resume with different settings:"
        advice = "Restore the previous values, or start a new run in another output_dir."
        raise CheckpointError("\n".join([title, *(f"  - {change}" for change in changes), advice]))


def _with(settings: Mapping[str, Any], key: str) -> str:
    return f"with {_shown(settings, key)}" if key in settings else "without it"


def _shown(settings: Mapping[str, Any], key: str) -> str:
    return json.dumps(settings[key], ensure_ascii=False) if key in settings else "it is not set"
