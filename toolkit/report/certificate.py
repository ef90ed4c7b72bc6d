"""The newest certificate of a configuration, as a report shows it."""

from __future__ import annotations

import hashlib
import json
from fnmatch import fnmatchcase
from pathlib import Path

from toolkit.checkpoint.changes import FREE
from toolkit.config import flatten
from toolkit.config.sections import Config

CERTIFICATE = "certificate.json"
"""The file of a certificate, in its folder."""


def config_hash(cfg: Config) -> str:
    """Returns what names a configuration's certificates: settings of another run, or another seed, change nothing."""
    free = (*FREE, "seed", "data.max_train_samples")
    kept = {k: v for k, v in flatten(cfg).items() if not any(fnmatchcase(k, pattern) for pattern in free)}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()[:16]


def folder_of(cfg: Config) -> Path:
    """Returns where a configuration's newest certificate lies: beside the output folders of its runs."""
    return Path(cfg.output_dir).absolute().parent / "certificates" / config_hash(cfg)


def state_of(cfg: Config) -> str:
    """Returns one sentence about the newest certificate of a configuration, for a run's report."""
    file = folder_of(cfg) / CERTIFICATE
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        verdicts = ", ".join(f"{c['name']} {c['verdict']}" for c in found["certificates"])
        return f"{verdicts} ({found['written'][:10]}, finetune-toolkit {found['versions']['finetune-toolkit']})"
    except FileNotFoundError:
        return "none for this configuration; `toolkit certify` makes one"
    except (OSError, ValueError, KeyError, TypeError):
        return f"{file} cannot be read; `toolkit certify` makes a new one"
