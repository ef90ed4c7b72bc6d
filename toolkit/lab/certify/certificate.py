"""Certificates: the results of checking promises, and their files."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar

from toolkit.base.console import PLAIN_WIDTH
from toolkit.base.version import __version__
from toolkit.document.blocks import Block, Code, Page, Section, Table, Text
from toolkit.lab.tool import Report, Request
from toolkit.report.runs import config_hash
from toolkit.system.environment import versions

OK, FAILED, OPEN = "ok", "FAILED", "open"
"""Verdicts; `open` means that this model or these rows allow neither of the others."""


@dataclass(frozen=True)
class Certificate:
    """The result of checking one promise."""

    name: str  # name on the command line
    promise: str  # the promise, as one sentence
    verdict: str  # `OK`, `FAILED` or `OPEN`
    found: Sequence[str]  # what was measured, as sentences
    # what is wrong and where to look, as sentences; for `OPEN`, why the promise could not be checked
    problems: Sequence[str] = ()
    figures: dict[str, Any] = field(default_factory=dict)  # the measurements as JSON values


NAME_COLUMN = 12


def lines(certificate: Certificate) -> list[str]:
    """Returns the lines of a certificate for a terminal."""
    head = f"{certificate.name:{NAME_COLUMN}}{certificate.verdict:8}"
    indent = " " * len(head)
    wrapped = textwrap.wrap(head + certificate.promise, PLAIN_WIDTH, subsequent_indent=indent)
    for sentence in [*certificate.found, *certificate.problems]:
        wrapped += textwrap.wrap(sentence, PLAIN_WIDTH, initial_indent=f"{indent}- ", subsequent_indent=f"{indent}  ")
    return wrapped


@dataclass(frozen=True)
class Certificates(Report):
    """The certificates of a configuration."""

    FILE: ClassVar[str] = "certificate"

    config_hash: str  # digest of the settings
    written: str  # when they were written
    passed: bool  # whether no promise is broken
    recipe: str
    config: str
    overrides: Sequence[str]  # the user's overrides
    rows: int  # number of training rows
    seconds: float  # time of all trainings
    versions: Mapping[str, Any]
    certificates: Sequence[Certificate]
    command: str  # the command line, which is not in the JSON

    @staticmethod
    def of(found: Sequence[Certificate], request: Request, rows: int, seconds: float) -> Certificates:
        """Returns the certificates of a request."""
        return Certificates(
            config_hash=config_hash(request.cfg), written=datetime.now(UTC).isoformat("T", "seconds"),
            passed=all(certificate.verdict != FAILED for certificate in found), recipe=str(request.recipe),
            config=str(request.config), overrides=request.overrides, rows=rows, seconds=round(seconds, 1),
            versions=versions(), certificates=found, command=request.command,
        )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """Returns the content of the JSON file."""
        return {name: value for name, value in super().as_json().items() if name != "command"}

    def page(self) -> Page:
        """Returns the page: the verdicts, then what each certificate found."""
        lead = (
            f"Written {self.written} by finetune-toolkit {__version__}, for the configuration {self.config_hash}, on "
            f"{self.rows} training rows, on the CPU, in float32."
        )
        rows = [[each.name, each.verdict, each.promise] for each in self.certificates]
        return Page(f"Certificate of {self.config}", lead, [
            Section("Certificates", [Table(["certificate", "verdict", "promise"], rows, stacked=True)]),
            *(Section(f"{each.name}: {each.verdict}", [Text(said) for said in (*each.found, *each.problems)])
              for each in self.certificates),
        ])  # fmt: skip

    def on_terminal(self) -> list[Block]:
        """Returns the certificates, one below the other."""
        return [Code("\n".join(line for each in self.certificates for line in lines(each)))]
