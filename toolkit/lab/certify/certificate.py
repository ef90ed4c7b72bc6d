"""A certificate: the result of checking one promise, and its files."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from toolkit.base.files import write_json, write_text
from toolkit.base.version import __version__
from toolkit.config.sections import Config
from toolkit.report.runs import config_hash
from toolkit.report.sections import CERTIFICATE
from toolkit.system.environment import versions

OK, FAILED, OPEN = "ok", "FAILED", "open"
"""Verdicts; `open` means that this model or these rows allow neither of the others."""


@dataclass(frozen=True)
class Certificate:
    """The result of checking one promise.

    Args:
        name: name on the command line.
        promise: the promise, as one sentence.
        verdict: `OK`, `FAILED` or `OPEN`.
        found: what was measured, as sentences.
        problems: what is wrong and where to look, as sentences; for `OPEN`, why the promise could not be checked.
        figures: the measurements as JSON values.
    """

    name: str
    promise: str
    verdict: str
    found: Sequence[str]
    problems: Sequence[str] = ()
    figures: dict[str, Any] = field(default_factory=dict)


WIDTH = 80
NAME_COLUMN = 12


def lines(certificate: Certificate) -> list[str]:
    """Returns the lines of a certificate for a terminal."""
    head = f"{certificate.name:{NAME_COLUMN}}{certificate.verdict:8}"
    indent = " " * len(head)
    wrapped = textwrap.wrap(head + certificate.promise, WIDTH, subsequent_indent=indent)
    for sentence in [*certificate.found, *certificate.problems]:
        wrapped += textwrap.wrap(sentence, WIDTH, initial_indent=f"{indent}- ", subsequent_indent=f"{indent}  ")
    return wrapped


def write(certificates: Sequence[Certificate], cfg: Config, facts: dict[str, Any], folder: Path) -> None:
    """Writes `certificate.json` and `certificate.md`.

    Args:
        certificates: the certificates.
        cfg: the user's configuration.
        facts: recipe, configuration file, rows and seconds of the experiment.
        folder: folder to write to.
    """
    document = {
        "config_hash": config_hash(cfg),
        "written": datetime.now(UTC).isoformat("T", "seconds"),
        "passed": all(certificate.verdict != FAILED for certificate in certificates),
        **facts,
        "versions": versions(),
        "certificates": [vars(certificate) for certificate in certificates],
    }
    write_json(folder / CERTIFICATE, document)
    blocks = [
        f"# Certificate of {facts['config']}",
        f"Written {document['written']} by finetune-toolkit {__version__}, for the configuration "
        f"`{document['config_hash']}`, on {facts['rows']} training rows, on the CPU, in float32.",
        "| certificate | verdict | promise |\n|---|---|---|\n"
        + "\n".join(f"| {c.name} | {c.verdict} | {c.promise} |" for c in certificates),
    ]
    for certificate in certificates:
        sentences = [*certificate.found, *certificate.problems]
        blocks.append(f"## {certificate.name}: {certificate.verdict}\n\n" + "\n".join(f"- {s}" for s in sentences))
    write_text(folder / "certificate.md", "\n\n".join(blocks) + "\n")
