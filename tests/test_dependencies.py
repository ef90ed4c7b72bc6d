"""An audit of the dependencies from files, without a network: pins, licences, and versions known to be bad."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from typing import Any

import pytest
from launching import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from ruamel.yaml import YAML

AUDIT: dict[str, Any] = YAML(typ="safe").load(ROOT / "tests" / "dependencies.yaml")
PINS = {
    canonicalize_name(pin.name): pin
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if (text := line.partition("#")[0].strip())
    for pin in [Requirement(text)]
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ALLOWED = re.compile("|".join(f"(?:{licence})" for licence in AUDIT["licences"]))


def licences(found: importlib.metadata.Distribution) -> list[str]:
    """Returns the licences of a package, each alone: its SPDX expression, or else its classifiers or its own words."""
    data = found.metadata
    if expression := data.get("License-Expression"):
        return [part for part in re.split(r" AND | WITH |[()]", expression) if part.strip()]
    named = [
        each.rpartition("::")[2].strip() for each in data.get_all("Classifier") or [] if each.startswith("License")
    ]
    return named or re.split(r" AND ", (data.get("License") or "none is given").splitlines()[0])


def is_allowed(licence: str) -> bool:
    """Whether one of several alternatives is allowed."""
    return any(ALLOWED.fullmatch(each.strip()) for each in licence.split(" OR "))


def test_every_pin_is_one_version_of_a_release() -> None:
    assert len(PINS) > 50
    wrong = [name for name, pin in PINS.items() if [each.operator for each in pin.specifier] != ["=="] or pin.url]
    assert wrong == []


def test_no_pin_and_no_allowed_minimum_is_known_to_be_bad() -> None:
    bad = [(Requirement(f"{each['package']}{each['versions']}"), each["reason"]) for each in AUDIT["known_bad"]]
    found = [
        f"{name}=={version}: {reason}"
        for requirement, reason in bad
        for name, pin in PINS.items()
        for version in [next(iter(pin.specifier)).version]
        if name == canonicalize_name(requirement.name) and requirement.specifier.contains(version, prereleases=True)
    ]
    assert found == []


@pytest.mark.parametrize("name", sorted(PINS))
def test_the_licence_of_a_dependency_is_one_of_the_known(name: str) -> None:
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("not installed here: it belongs to another environment or platform")
    if name not in AUDIT["exceptions"]:
        assert [each for each in licences(distribution) if not is_allowed(each)] == []


def test_every_exception_is_needed_and_every_bad_version_is_of_a_dependency() -> None:
    known = {canonicalize_name(each["package"]) for each in AUDIT["known_bad"]} | set(AUDIT["exceptions"])
    direct = {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]}
    assert direct <= set(PINS)
    assert known - set(PINS) == set()
