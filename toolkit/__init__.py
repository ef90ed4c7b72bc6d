"""Fine-tunes Hugging Face models from one YAML file. See docs/python.md for the Python interface.

result = toolkit.train("recipes/reviews.py", "my_reviews.yaml", ["train.learning_rate=2.0e-5"])
toolkit.load(result.output_dir).predict([{"text": "A fine pair of boots."}])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from toolkit.base.version import __version__ as __version__

if TYPE_CHECKING:
    from toolkit.base.console import log_to_console as log_to_console
    from toolkit.base.errors import CheckpointError as CheckpointError
    from toolkit.base.errors import ConfigError as ConfigError
    from toolkit.base.errors import DataError as DataError
    from toolkit.base.errors import InputError as InputError
    from toolkit.base.errors import Interrupted as Interrupted
    from toolkit.base.errors import RunError as RunError
    from toolkit.base.errors import ToolkitError as ToolkitError
    from toolkit.deploy.trained import TrainedRun as TrainedRun
    from toolkit.deploy.trained import load as load
    from toolkit.main import TrainResult as TrainResult
    from toolkit.main import train as train

_PUBLIC = {
    "train": "toolkit.main",
    "TrainResult": "toolkit.main",
    "load": "toolkit.deploy.trained",
    "TrainedRun": "toolkit.deploy.trained",
    "log_to_console": "toolkit.base.console",
    "ToolkitError": "toolkit.base.errors",
    "InputError": "toolkit.base.errors",
    "ConfigError": "toolkit.base.errors",
    "DataError": "toolkit.base.errors",
    "CheckpointError": "toolkit.base.errors",
    "RunError": "toolkit.base.errors",
    "Interrupted": "toolkit.base.errors",
}
"""Public names and their modules, which are imported on first use because most of them import torch."""

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
