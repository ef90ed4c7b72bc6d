"""Which settings of a finished run may be changed when it reads other rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from toolkit.base.errors import ConfigError
from toolkit.config.messages import join
from toolkit.config.sections import DataConfig
from toolkit.data.readers.raw import Reading

READING = ("columns", *(field.name for field in fields(Reading) if field.name in vars(DataConfig())))
"""Settings of the section `data` that may be different for other files."""
POLICY = ("bad_rows", "max_bad_rows")
"""Further ones, which have an effect where rows that cannot be used may be skipped."""


def refuse_other_settings(overrides: Sequence[str], known: Sequence[str]) -> None:
    """Refuses overrides of settings that cannot be changed, or have no effect.

    Args:
        overrides: `section.key=value` strings.
        known: settings of the section `data` that may be changed.

    Raises:
        ConfigError: naming each of them.
    """
    keys = [override.partition("=")[0] for override in overrides]
    names = join([f"data.{name}" for name in known], "and")
    others = f"a finished run is used as it was trained; only {names} can be changed, because they concern reading"
    policy = "no rows are skipped here: predict writes why a row has no prediction (or refuses it: --bad-rows error)"
    why = {f"data.{name}": policy for name in POLICY}
    if wrong := [key for key in keys if key.split(".")[:2] not in [["data", name] for name in known]]:
        raise ConfigError([f"{key}: {why.get(key, others)}" for key in wrong])
