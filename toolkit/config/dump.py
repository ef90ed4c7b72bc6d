"""Writes a configuration, or one value, as YAML 1.2."""

from __future__ import annotations

import dataclasses
import io
import json
from typing import Any

from ruamel.yaml import YAML

from toolkit.config.keys import _TOP, section_types
from toolkit.config.sections import Config

_LINE_BREAKS = frozenset("\x85\u2028\u2029")
"""Characters that ruamel.yaml folds into spaces unless it writes all text beyond ASCII in escapes."""


def dump_config(config: Config) -> str:
    """Returns the configuration as YAML, in block order; `load_config` reads it back as an equal configuration."""
    document: dict[str, Any] = {name: getattr(config, name) for name in _TOP}
    document |= {name: dataclasses.asdict(getattr(config, name)) for name in section_types(type(config.task))}
    return to_yaml(document, flow=False)


def to_yaml(value: Any, flow: bool = True) -> str:
    """Returns a plain value as YAML 1.2, on one line if `flow`."""
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.default_flow_style = flow
    yaml.sort_base_mapping_type_on_output = False
    yaml.width = 2**31  # no line is broken
    yaml.allow_unicode = _LINE_BREAKS.isdisjoint(json.dumps(value, ensure_ascii=False))
    stream = io.StringIO()
    yaml.dump(value, stream)
    text = stream.getvalue()
    return text.removesuffix("\n").removesuffix("\n...") if flow else text
