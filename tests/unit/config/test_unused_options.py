"""Options of a task that have no effect with another option are refused with the values that use them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolkit.config.problems import unused_options


@dataclass(frozen=True)
class Options:
    """Options that depend on `kind` and on `several`."""

    kind: str = "a"
    several: bool = False
    size: int = 1
    margin: float = 0.0


SIZE, MARGIN = {"size": ("b", "c")}, {"margin": (True,)}


def test_changed_options_without_effect_are_named() -> None:
    changed = Options(size=2, margin=0.5)
    assert unused_options(changed, "kind", SIZE) == [
        "task.size: has no effect with task.kind 'a'; set task.kind to 'b' or 'c', or remove it"
    ]
    assert unused_options(changed, "several", MARGIN) == [
        "task.margin: has no effect with task.several false; set task.several to true, or remove it"
    ]


def test_options_at_their_defaults_or_in_use_are_not() -> None:
    assert unused_options(Options(), "kind", SIZE) == []
    assert unused_options(replace(Options(), kind="c", size=2), "kind", SIZE) == []
