"""Certificates as files and on the terminal."""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from toolkit import __version__
from toolkit.certificates import FAILED, Certificate
from toolkit.config import flatten
from toolkit.config.sections import Config
from toolkit.outputs import FREE
from toolkit.report.facts import versions, write_json, write_text

WIDTH = 80
NAME_COLUMN = 12


def config_hash(cfg: Config) -> str:
    """Returns what names a configuration's certificates: settings of another run, or another seed, change nothing."""
    free = (*FREE, "seed", "data.max_train_samples")
    kept = {k: v for k, v in flatten(cfg).items() if not any(fnmatchcase(k, pattern) for pattern in free)}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()[:16]


def folder_of(cfg: Config) -> Path:
    """Returns where a configuration's newest certificate lies: beside the output folders of its runs."""
    return Path(cfg.output_dir).absolute().parent / "certificates" / config_hash(cfg)


def lines(certificate: Certificate) -> list[str]:
    """Returns a certificate in lines for a terminal."""
    head = f"{certificate.name:{NAME_COLUMN}}{certificate.verdict:8}"
    indent = " " * len(head)
    wrapped = textwrap.wrap(head + certificate.promise, WIDTH, subsequent_indent=indent)
    for sentence in [*certificate.found, *certificate.problems]:
        wrapped += textwrap.wrap(sentence, WIDTH, initial_indent=f"{indent}- ", subsequent_indent=f"{indent}  ")
    return wrapped


def write(certificates: Sequence[Certificate], cfg: Config, facts: dict[str, Any], folder: Path) -> None:
    """Writes `certificate.json` and `certificate.md`.

    Args:
        certificates: what was found.
        cfg: the person's configuration.
        facts: how it was found: recipe, configuration file, rows, seconds.
        folder: where to.
    """
    document = {
        "config_hash": config_hash(cfg),
        "written": datetime.now(UTC).isoformat("T", "seconds"),
        "passed": all(certificate.verdict != FAILED for certificate in certificates),
        **facts,
        "versions": versions(),
        "certificates": [vars(certificate) for certificate in certificates],
    }
    write_json(folder / "certificate.json", document)
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


def state_of(cfg: Config) -> str:
    """Returns one sentence about the newest certificate of a configuration, for a run's report."""
    file = folder_of(cfg) / "certificate.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        verdicts = ", ".join(f"{c['name']} {c['verdict']}" for c in found["certificates"])
        return f"{verdicts} ({found['written'][:10]}, finetune-toolkit {found['versions']['finetune-toolkit']})"
    except FileNotFoundError:
        return "none for this configuration; `toolkit certify` makes one"
    except (OSError, ValueError, KeyError, TypeError):
        return f"{file} cannot be read; `toolkit certify` makes a new one"
