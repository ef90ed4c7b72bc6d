"""Finds the newest certificate of a configuration for the report."""

from __future__ import annotations

import hashlib
import json
from fnmatch import fnmatchcase
from pathlib import Path

from toolkit.base.files import read_json
from toolkit.checkpoint.state import FREE
from toolkit.config import flatten
from toolkit.config.sections import Config

CERTIFICATE = "certificate.json"
"""File name of a certificate."""


def config_hash(cfg: Config) -> str:
    """Returns the hash that names a configuration's certificates; it ignores the seed and settings of a single run."""
    free = (*FREE, "seed", "data.max_train_samples")
    kept = {k: v for k, v in flatten(cfg).items() if not any(fnmatchcase(k, pattern) for pattern in free)}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()[:16]


def folder_of(cfg: Config) -> Path:
    """Returns the folder of a configuration's newest certificate, next to the output folders of its runs."""
    return Path(cfg.output_dir).absolute().parent / "certificates" / config_hash(cfg)


def state_of(cfg: Config) -> str:
    """Returns one sentence about the newest certificate of a configuration, for a run's report."""
    file = folder_of(cfg) / CERTIFICATE
    try:
        found = read_json(file)
        verdicts = ", ".join(f"{c['name']} {c['verdict']}" for c in found["certificates"])
        return f"{verdicts} ({found['written'][:10]}, finetune-toolkit {found['versions']['finetune-toolkit']})"
    except FileNotFoundError:
        return "none for this configuration; create one with `toolkit certify`"
    except (OSError, ValueError, KeyError, TypeError):
        return f"{file} cannot be read; create a new one with `toolkit certify`"
