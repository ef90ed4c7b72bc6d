"""What models take: one file per modality (text, seq2seq, image, audio), and helpers of single tasks beside them.

Each modality has the same functions. `load_processor(source, model, options)` and
`new_processor(texts, config, options)` give a processor, of the class named `AUTO_PROCESSOR`;
`check_model(config, options)` and `configure(config, processor, new)` bring it and the model's configuration together;
`preprocess` turns rows into feature columns and `collate` feature rows into tensors. `options` are the task's.

Those whose rows are classified (text, image, audio) also say which class does it, `auto_model(config)`, what a row's
value is, `feature()`, refuse those that cannot be used, `check(value, options)`, and name them, `shown(value)`.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def load(name: str) -> ModuleType:
    """Imports a modality by its name, for instance `text`."""
    return import_module(f"toolkit.modalities.{name}")
