"""Settings: their declaration (`sections`), how they are read (`load`) and described (`describe`)."""

from toolkit.config.keys import dump_config, flatten
from toolkit.config.load import Draft, Loaded, load_config, read_config
from toolkit.config.sections import STRICT, Config, TrainConfig

__all__ = ["STRICT", "Config", "Draft", "Loaded", "TrainConfig", "dump_config", "flatten", "load_config", "read_config"]
