"""Reads the inputs of a run: the model's configuration, the processor and the rows, equal on every rank."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.api.batch import Omission, Prepared, Processor
from toolkit.api.mesh import Mesh
from toolkit.api.task import Task
from toolkit.base.console import say, warn
from toolkit.base.errors import ConfigError, DataError
from toolkit.base.offline import PREPARED, read_fetched
from toolkit.checkpoint.output_folder import Claimed
from toolkit.checkpoint.state import (
    VERSIONS,
    SavedState,
    changed_layout,
    changed_versions,
    layout,
    require_same_settings,
)
from toolkit.config import flatten
from toolkit.config.paths import source_of
from toolkit.config.sections import Config
from toolkit.data.loading import CheckedRows, load_rows
from toolkit.data.row_cache import adopt
from toolkit.data.table import Table
from toolkit.data.tokenise import omissions, prepare, tokenise
from toolkit.distributed.collectives import objects_of_all, require_same
from toolkit.modalities.text import listed_synonyms
from toolkit.models.load import load_model_config, lost_override_problems
from toolkit.models.origin import FILES, origin
from toolkit.prepare.auto import Circumstances, resolve
from toolkit.prepare.processor import build_processor, configure_model, processor_of
from toolkit.system.environment import versions
from toolkit.system.rank_order import local_main_first

if TYPE_CHECKING:
    import datasets
    from accelerate import Accelerator
    from transformers import PreTrainedConfig


STATE = "what the task learned from the training rows"


def require_same_rows(cfg: Config, task: Task, rows: CheckedRows, data: Prepared) -> None:
    """Raises DataError on every process if any has other rows than rank 0, since gradients would be wrong."""
    own = facts(cfg, task, rows, data)
    (first_host, first), *others = objects_of_all((socket.gethostname(), own))
    found = []
    for rank, (host, facts_there) in enumerate(others, start=1):
        if names := [name for name in {**first, **facts_there} if first.get(name) != facts_there.get(name)]:
            shown = "; ".join(f"{name}: {first.get(name)} on rank 0, {facts_there.get(name)}" for name in names)
            found.append(f"rank {rank} (on {host}): {shown}")
    if found:
        error = DataError(
            f"not all processes have the rows of rank 0 (on {first_host}):\n  "
            + "\n  ".join(found)
            + "\nEvery process must read the same data. Copy the data files again to the nodes where they are old, or "
            "put them on a file system that all nodes share."
        )
        error.shared = True  # every rank compares the same facts
        raise error


def facts(cfg: Config, task: Task, rows: CheckedRows, data: Prepared) -> dict[str, str]:
    """Returns what must be the same on every process, by what it is about: the sets of rows, and the task's state."""
    features = {"train": data.train, **{name: part.features for name, part in data.evals.items()}}
    sets = {f"{name} features": f"{len(part):,}" for name, part in features.items()}
    sources = {f"{name} rows": _of_table(table, cfg) for name, table in rows.tables.items()}
    state = json.dumps(task.state, sort_keys=True, default=str)
    return {**sources, **sets, STATE: _short(hashlib.sha256(state.encode()))}


def _of_table(table: Table, cfg: Config) -> str:
    # Times of files (`stat`) and of the cache of a Hub dataset differ between nodes that have the same rows.
    content = cfg.data.train_file is not None and cfg.data.fingerprint == "content"
    digest = hashlib.sha256(table.fingerprint.encode() if content else b"")
    for values in (table.keys.inputs, table.keys.labels, table.keys.groups):
        digest.update(values.tobytes())
    return f"{len(table.rows):,} ({_short(digest)})"


def _short(digest: hashlib._Hash) -> str:
    return f"sha256 {digest.hexdigest()[:12]}"


@dataclass(frozen=True)
class Inputs:
    """Everything that a run reads before it builds its model."""

    model_config: PreTrainedConfig  # the model's configuration, completed by task and processor
    auto_model: str  # name of the model's auto class in transformers
    processor: Processor  # tokenizer, image processor or feature extractor
    rows: CheckedRows  # the checked rows
    data: Prepared  # the preprocessed rows
    identity: Mapping[str, Any]  # settings and fingerprints that must not change on resume, by dotted key
    resolved: Mapping[str, bool | int | str]  # what settings of `auto` became, by dotted key


def read_inputs(
    cfg: Config, task: Task, accelerator: Accelerator, claimed: Claimed, sample: int | None = None
) -> Inputs:
    """Reads the model's configuration and the rows, and preprocesses them; the same on every process.

    The task learns its labels. The first process of each node reads, the others use its cache. The claimed folder gets
    a new processor, and may have the checkpoint to resume from. With `sample`, only so many training rows are read.

    Raises:
        ConfigError: if settings, model and task do not fit together; lists all problems.
        DataError: if files or rows cannot be used, or the processes have different ones.
        CheckpointError: if the run to resume had other settings or rows.
    """
    _verify_fetched(cfg, accelerator, content=sample is None)
    config = load_model_config(source_of(cfg))
    rows = load_rows(cfg, task, accelerator, sample)
    mesh = Mesh.of(cfg.parallel, accelerator.num_processes)
    resolved = resolve(Circumstances(cfg, task, config, accelerator.device, mesh))
    with local_main_first(accelerator):  # the others know the first one's checksums
        files = {f"{FILES}{name}": value for name, value in origin(source_of(cfg)).items()}
    if listed := listed_synonyms(cfg.task):
        files["data.fingerprint.synonyms"] = _short(hashlib.sha256(json.dumps(listed).encode()))
    require_same(accelerator, files)
    identity = {**identity_of(cfg, rows, mesh), **resolved, **files}
    if claimed.resume is not None:
        saved = SavedState.from_json(claimed.resume.state).identity
        require_same_settings(saved, identity)
        if note := changed_layout(saved, identity):
            say(note)
        if note := changed_versions(saved, identity):
            warn(note)
    processor = build_processor(cfg, task, config, rows, accelerator, claimed.output_dir, claimed.resume)
    configure_model(config, task, processor, new=cfg.model.from_config is not None)
    if problems := task.processor_problems(processor) + lost_override_problems(cfg.model, config):
        raise ConfigError(problems)
    data = prepare(rows, task, processor, cfg, accelerator)
    require_same_rows(cfg, task, rows, data)
    return Inputs(config, task.auto_model(config), processor, rows, data, identity, resolved)


def features_of(cfg: Config, task: Task, rows: CheckedRows) -> tuple[Processor, dict[str, datasets.Dataset]]:
    """Returns the processor and the feature rows of a run, by split, without its model; raises as `omissions_of`."""
    texts, config = task.training_texts(rows.splits["train"]), load_model_config(source_of(cfg))
    processor = processor_of(cfg, task, config, texts)
    configure_model(config, task, processor, new=cfg.model.from_config is not None)  # rows may not fit the model
    return processor, {name: tokenise(part, task, processor, labelled=True) for name, part in rows.splits.items()}


def omissions_of(cfg: Config, task: Task, rows: CheckedRows) -> list[Omission]:
    """Returns everything of checked rows that a run would not use, or not as it is; tokenises them as the run would.

    Raises InputError if the model's processor cannot be loaded, and DataError as `read_inputs`.
    """
    processor, features = features_of(cfg, task, rows)
    return [*rows.findings.omissions, *omissions(rows.splits, features, task, processor, cfg.data)]


def _verify_fetched(cfg: Config, accelerator: Accelerator, content: bool) -> None:
    """Refuses a damaged `offline_dir`, and takes over its prepared rows; once per node."""
    if cfg.offline_dir is None:
        return
    with local_main_first(accelerator):
        if accelerator.is_local_main_process:
            fetched = read_fetched(cfg.offline_dir)
            fetched.require_intact(content)
            adopt(fetched.folder / PREPARED)


def identity_of(cfg: Config, rows: CheckedRows, mesh: Mesh) -> dict[str, Any]:
    """Returns the settings and fingerprints that must not change on resume, by dotted key."""
    return {
        **flatten(cfg),
        **layout(mesh),
        "data.num_train_rows": len(rows.splits["train"]),  # a validation file added later would change it
        **{f"data.fingerprint.{split}": value for split, value in rows.fingerprints.items()},
        **{f"{VERSIONS}{package}": number for package, number in versions().items()},  # may change, with a warning
    }
