"""Reads YAML into plain values, remembers the line of each, and limits what a file may expand to."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.scanner import Scanner

from toolkit.base.errors import ConfigError
from toolkit.base.files import MOST_LEVELS
from toolkit.base.files import read_file as read_regular
from toolkit.config.messages import Key, join, nearest_key, show, show_typed


class ShallowScanner(Scanner):
    """The scanner of YAML, which rejects brackets in more than `MOST_LEVELS` levels when it comes to the first of them.

    It looks ahead for as long as a bracket may begin a key, with work for each open bracket: seconds for 2,000 of them.
    """

    def fetch_flow_collection_start(self, TokenClass: Any, to_push: str) -> None:  # noqa: N803 - the library's name
        """Opens a bracket. Raises MarkedYAMLError if too many are open."""
        if self.flow_level >= MOST_LEVELS:
            raise MarkedYAMLError(problem="nested too deeply", problem_mark=self.reader.get_mark())
        super().fetch_flow_collection_start(TokenClass, to_push)


Origin = Literal["default", "file", "override", "launcher"]

_CORE = "tag:yaml.org,2002:"
_MERGE = _CORE + "merge"
_SCALAR_TAGS = {_CORE + name for name in ("null", "bool", "int", "float", "str", "timestamp")}
_KEY_TAGS = {_CORE + "str", _CORE + "int"}
_UNUSABLE = object()
MAX_VALUES = 100_000
"""Most values of a file."""
MOST_BYTES = 2**22
"""Largest size of a file."""


class Source(NamedTuple):
    """Where a value came from: its kind, and the place as messages name it."""

    origin: Origin
    place: str


@dataclass
class Settings:
    """The raw values of a run, the source of each, and the problems found in them."""

    default: Source  # the source of all values that were not given
    values: dict[str, Any] = field(default_factory=dict)  # plain (JSON) values as a nested mapping
    sources: dict[Key, Source] = field(default_factory=dict)  # the source of each given key
    problems: list[str] = field(default_factory=list)  # messages so far
    reported: set[Key] = field(default_factory=set)  # keys that the messages are about

    def source(self, key: Key) -> Source:
        """Returns the source of a key, or of the nearest mapping around it."""
        prefixes = (key[:length] for length in range(len(key), 0, -1))
        return next((self.sources[prefix] for prefix in prefixes if prefix in self.sources), self.default)

    def origin(self, key: Key) -> Origin:
        """Returns where the value of a setting came from; the section alone does not count."""
        prefixes = (key[:length] for length in range(len(key), min(len(key), 2) - 1, -1))
        return next((self.sources[prefix].origin for prefix in prefixes if prefix in self.sources), "default")

    def report(self, key: Key, message: str, source: Source | None = None) -> None:
        """Adds a problem: the place (of `source`, or of the key), the dotted key and the message."""
        self.reported.add(key)
        place = (source or self.source(key)).place
        self.problems.append(": ".join(part for part in (place, ".".join(key), message) if part))

    def report_unknown(self, key: Key, known: Sequence[Key], source: Source | None = None) -> None:
        """Reports an unknown key, with the key that was probably meant or the list of known keys."""
        if meant := nearest_key(key, known):
            self.reported.add(meant)  # do not report the setting that was meant as missing, too
            hint = f"did you mean {'.'.join(meant)}?"
        else:
            group = max((key[:size] for size in range(len(key)) if key[:size] in known), key=len, default=())
            siblings = [other[-1] for other in known if other[:-1] == group]
            hint = f"{'.'.join(group) or 'the file'} can have {join(siblings, 'and')}"
            if len(key) > 1 and not group:
                hint = f"there is no section {key[0]}"
        self.report(key, f"unknown key ({hint})", source)

    def get(self, key: Key) -> Any:
        """Returns a value, or None if there is none."""
        value: Any = self.values
        for part in key:
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def set(self, key: Key, value: Any, source: Source) -> None:
        """Sets a value and creates missing parents; a parent that is not a mapping is kept, to be reported."""
        parent = self.values
        for part in key[:-1]:
            if parent.get(part) is None:
                parent[part] = {}
            if not isinstance(parent[part], dict):
                return
            parent = parent[part]
        parent[key[-1]] = value
        self.sources = {other: known for other, known in self.sources.items() if other[: len(key)] != key}
        self.sources[key] = source

    def parse(self, text: str, key: Key, source: Source | None = None) -> tuple[bool, Any]:
        """Reads one YAML 1.2 document as the value of `key`, () for a file; errors are added to the problems.

        `source` is that of all values in it; None means each value's line in the file. Returns whether there is a
        usable value, and the value.
        """
        try:
            yaml = YAML(typ="safe", pure=True)
            yaml.Scanner = ShallowScanner
            yaml.composer.warn_double_anchors = False  # YAML allows them
            root = yaml.compose(text)
            value = None if root is None else _Reader(self, source).read(root, key)
        except (YAMLError, RecursionError) as error:
            position, message = _syntax(error, text)
            place = source.place if source else self.default.place + position
            self.problems.append(f"{place}: not valid YAML: {message}")
            self.reported.add(key)
            return False, None
        return value is not _UNUSABLE, value


def read_file(file: Path) -> Settings:
    """Reads a configuration file. Raises ConfigError if there is no such file or it does not hold one YAML mapping."""
    settings = Settings(Source("default", str(file)))
    try:
        text = read_regular(file, MOST_BYTES).decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(
            [f"{file}:{line}: not UTF-8 text (byte 0x{error.object[error.start]:02x}); save the file as UTF-8"]
        ) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError([f"{file}: cannot be read: {reason} (tried {file.absolute()})"]) from error
    usable, values = settings.parse(text, ())
    if not usable:
        raise ConfigError(settings.problems)
    if values is None:
        raise ConfigError([f"{file}: the file is empty; it needs at least output_dir and the section model"])
    if not isinstance(values, dict):
        raise ConfigError([f"{file}: received {show_typed(values)}, expected a mapping of sections (model:, ...)"])
    settings.values = values
    return settings


def read_sections(sections: Mapping[str, Any]) -> Settings:
    """Reads a configuration that is given in Python, by the rules of a file; paths become text.

    Raises ConfigError if it holds what YAML cannot.
    """
    settings = Settings(Source("default", "config"))
    try:
        text = json.dumps(sections, default=_yaml_value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError([f"config: {error}"]) from error
    usable, settings.values = settings.parse(text, (), Source("file", "config"))  # JSON is YAML
    if not usable:
        raise ConfigError(settings.problems)
    return settings


def _yaml_value(value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        return value.item()
    raise TypeError(f"received {value!r} of type {type(value).__name__}; use text, numbers, lists and dictionaries")


class _Reader:
    """Turns a YAML node into plain values: what JSON has, and nothing else."""

    def __init__(self, settings: Settings, source: Source | None) -> None:
        self.settings = settings
        self.given = source
        self.constructor = YAML(typ="safe", pure=True).constructor
        self.open: list[Node] = []
        self.values = 0

    def read(self, node: Node, key: Key) -> Any:
        if self._too_many(key):
            return _UNUSABLE
        if any(node is outer for outer in self.open):
            return self._reject(key, "refers to itself")
        self.open.append(node)
        try:
            if isinstance(node, MappingNode) and node.tag == _CORE + "map":
                return self._mapping(node, key)
            if isinstance(node, SequenceNode) and node.tag == _CORE + "seq":
                items = [self.read(item, key) for item in node.value]
                return [item for item in items if item is not _UNUSABLE]
            if isinstance(node, ScalarNode) and node.tag in _SCALAR_TAGS:
                return self._scalar(node, key)
            tag = str(node.tag).replace(_CORE, "!!")
            return self._reject(key, f"the YAML tag {tag} is not allowed: use plain text, numbers, lists and mappings")
        finally:
            self.open.pop()

    def _too_many(self, key: Key) -> bool:
        """Counts a value; a few aliases of aliases can stand for billions."""
        self.values += 1
        if self.values == MAX_VALUES + 1:
            self._reject(key, f"the YAML has more than {MAX_VALUES:,} values, counting those of aliases (*name)")
        return self.values > MAX_VALUES

    def _mapping(self, node: MappingNode, key: Key) -> dict[str, Any]:
        pairs = self._pairs(node, key)
        result: dict[str, Any] = {}
        for name, (name_node, value_node) in pairs.items():
            inner = (*key, name)
            if name.startswith("x-") and len(inner) <= 2:
                continue  # the user's notes and anchors
            self.settings.sources[inner] = self._source(name_node)
            value = self.read(value_node, inner)
            if value is not _UNUSABLE:
                result[name] = value
        return result

    def _pairs(self, node: MappingNode, key: Key) -> dict[str, tuple[Node, Node]]:
        """Returns key and value node by name; the mapping's own keys win over merged ones (`<<`)."""
        own: dict[str, tuple[Node, Node]] = {}
        merged: dict[str, tuple[Node, Node]] = {}
        for name_node, value_node in node.value:
            if name_node.tag == _MERGE:
                parts = value_node.value if isinstance(value_node, SequenceNode) else [value_node]
                for part in parts:
                    if self._too_many(key):
                        break
                    if not isinstance(part, MappingNode) or any(part is outer for outer in self.open):
                        self._reject((*key, "<<"), "only another mapping can be merged here", name_node)
                    else:
                        merged = {**self._pairs(part, key), **merged}
                continue
            name = str(name_node.value) if isinstance(name_node, ScalarNode) else "?"
            if name_node.tag not in _KEY_TAGS or not is_text(name):
                self._reject((*key, show(name)), "a key must be text: put quotes around it", name_node)
            elif name in own:
                first = own[name][0].start_mark.line + 1
                self._reject((*key, name), f"given twice (first in line {first}): keep one", name_node)
            else:
                own[name] = (name_node, value_node)
        return {**merged, **own}

    def _scalar(self, node: ScalarNode, key: Key) -> Any:
        try:
            value = self.constructor.construct_object(node)
            float(value if isinstance(value, int) else 0)  # larger integers can be neither shown nor compared
        except (ValueError, LookupError, AttributeError, OverflowError):  # the resolver does not check explicit tags
            kind = str(node.tag).removeprefix(_CORE)
            return self._reject(key, f"received {show(node.value)}, not a valid {kind}; put quotes around text")
        if isinstance(value, float) and not math.isfinite(value):
            return self._reject(key, f"received {node.value}, expected a finite number")
        if not isinstance(value, str | int | float | None):
            wanted = "expected text, a number, true, false or null; put quotes around text"
            return self._reject(key, f"received {node.value} (a date), {wanted}")
        if isinstance(value, str) and not is_text(value):
            return self._reject(key, f"received {value!r}, which is not valid Unicode text without NUL characters")
        return value

    def _source(self, node: Node) -> Source:
        return self.given or Source("file", f"{self.settings.default.place}:{node.start_mark.line + 1}")

    def _reject(self, key: Key, message: str, at: Node | None = None) -> Any:
        self.settings.report(key, message, self.given if at is None else self._source(at))
        return _UNUSABLE


def is_text(value: str) -> bool:
    """Whether text can be written as UTF-8 and be part of a path: it has no lone surrogate and no NUL character."""
    return not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in value)


def _syntax(error: Exception, text: str) -> tuple[str, str]:
    """Returns the place (`:line:column`) and the message of a YAML error."""
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        shown = text.split("\n")[mark.line : mark.line + 1] if mark else []
        quote = "put quotes around text with braces" if re.search(r":\s+\{", "".join(shown)) else ""
        return place, ", ".join(part for part in (error.context, error.problem, quote) if part)
    if isinstance(error, RecursionError):
        return "", "nested too deeply"
    position = getattr(error, "position", 0)
    line = text.count("\n", 0, position) + 1
    return f":{line}", str(error).splitlines()[0]
