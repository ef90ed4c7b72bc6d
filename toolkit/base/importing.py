"""Objects by their dotted names."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import TrainerCallback


def _callback(name: str) -> TrainerCallback:
    """Imports `package.module.Name`: a callback class, anything else that returns a callback, or a callback.

    Raises:
        TypeError: if it is none of these.
    """
    from transformers import TrainerCallback

    module, _, attribute = name.rpartition(".")
    if not module:
        raise TypeError("expected package.module.Name")
    found = getattr(import_module(module), attribute)
    made = found if isinstance(found, TrainerCallback) else found()
    if not isinstance(made, TrainerCallback):
        raise TypeError(f"it makes a {type(made).__name__}, not a TrainerCallback")
    return made
