"""Where the files of a run's model are: under the name in the settings, or in the folder of `toolkit fetch`."""

from __future__ import annotations

from dataclasses import replace

from toolkit.base.errors import InputError
from toolkit.base.offline import MODEL, read_fetched
from toolkit.config.sections import Config, ModelConfig


def source_of(cfg: Config) -> ModelConfig:
    """Returns the settings of the model with the name under which its files are to be read.

    That is a folder of `offline_dir`, if this has the model. The settings themselves keep the name, so that a run is
    the same one wherever its files come from.

    Raises:
        InputError: if `offline_dir` cannot be used.
    """
    model = cfg.model
    if cfg.offline_dir is None or model.name_or_path is None:
        return model
    found = read_fetched(cfg.offline_dir).find(MODEL, model.name_or_path, model.revision)
    return model if found is None else replace(model, name_or_path=str(found), revision=None)


def source_of_finished(cfg: Config) -> ModelConfig:
    """Returns what `source_of` does for a run that has ended, whose fetched folder may be gone."""
    try:
        return source_of(cfg)
    except InputError:
        return cfg.model
