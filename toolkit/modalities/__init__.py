"""One file per modality, each with the same functions.

`load_processor(source, model)` and `new_processor(texts, config, options)` give a processor, `check_model(config,
options)` and `configure(config, processor, new)` bring it and the model's configuration together, `preprocess` turns
rows into feature columns and `collate` feature rows into padded tensors.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def load(name: str) -> ModuleType:
    """Imports a modality by its name, for instance `text`."""
    return import_module(f"toolkit.modalities.{name}")
