"""One file per modality, each with the same functions.

`load_processor(source, model, options)` and `new_processor(texts, config, options)` give a processor,
`check_model(config, options)` and `configure(config, processor, new)` bring it and the model's configuration together,
`auto_model(config)` names the class that classifies. `feature()` is the type of a row's value, `check(value, options)`
refuses those that cannot be used and `shown(value)` names them; `preprocess(values, processor, options)` turns them
into feature columns and `collate(features, processor, options, random)` feature rows into tensors. `options` are the
task's.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def load(name: str) -> ModuleType:
    """Imports a modality by its name, for instance `text`."""
    return import_module(f"toolkit.modalities.{name}")
