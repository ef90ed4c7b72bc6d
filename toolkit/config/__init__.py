"""Settings: their declaration (`sections`), how they are read (`load`) and described (`describe`)."""

from toolkit.config.keys import dump_config, flatten
from toolkit.config.load import Draft, Loaded, load_config, read_config
from toolkit.config.sections import (
    STRICT,
    CheckpointConfig,
    Config,
    DataConfig,
    EvalConfig,
    ModelConfig,
    TrackingConfig,
    TrainConfig,
)

__all__ = [
    "STRICT",
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "Draft",
    "EvalConfig",
    "Loaded",
    "ModelConfig",
    "TrackingConfig",
    "TrainConfig",
    "dump_config",
    "flatten",
    "load_config",
    "read_config",
]
