"""Imports objects by name, when they are needed.

A choice among names is a dict literal at the top of a module. If importing every choice would be slow or would need
optional libraries, its values are full dotted names instead of objects:

    ENGINES = {"loop": "toolkit.engine.loop.fit", "trainer": "toolkit.engine.trainer.fit"}
    fit = import_object(ENGINES[cfg.engine])

A value may also be a tuple or a dataclass that holds such a name. tests/unit/base/test_importing.py finds these tables
by their form and resolves every name.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def import_object(name: str) -> Any:
    """Imports an object by its full name.

    Args:
        name: `package.module.Name`, or `package.module` for the module itself.

    Returns:
        The object.

    Raises:
        ImportError: if the name is not dotted or does not exist. Errors that the module raises on import are not
            caught.
    """
    module, _, attribute = name.rpartition(".")
    if not module:
        raise ImportError(f"expected package.module.Name, received {name!r}")
    parent = import_module(module)
    try:
        return getattr(parent, attribute)
    except AttributeError:
        return import_module(name)  # a module, or an error that says which one is missing
