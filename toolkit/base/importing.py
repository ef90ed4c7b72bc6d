"""Objects that are chosen by name and imported only when they are needed.

A choice among names is a plain dict literal at the top of a module. Where importing every choice would be slow, or
would need libraries that are optional, its values hold full dotted names instead of the objects:

    ENGINES = {"loop": "toolkit.engine.loop.fit", "trainer": "toolkit.engine.trainer.fit"}
    fit = import_object(ENGINES[cfg.engine])

A value may also be a tuple or a dataclass with such a name in it. tests/unit/base/test_importing.py finds these tables
by their form, wherever they are, and resolves every name.
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
        ImportError: if the name is not dotted, or nothing of this name is there; any error that the module raises when
            it is imported is passed on.
    """
    module, _, attribute = name.rpartition(".")
    if not module:
        raise ImportError(f"expected package.module.Name, received {name!r}")
    parent = import_module(module)
    try:
        return getattr(parent, attribute)
    except AttributeError:
        return import_module(name)  # a module, or an error that says which one is missing
