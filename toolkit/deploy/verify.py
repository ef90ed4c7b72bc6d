"""`toolkit checkpoint` and `toolkit verify`: what checkpoints hold, and which files of a run are damaged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from toolkit.api.run import Checkpoint
from toolkit.base.console import counted, format_bytes, print_lines, print_table, say
from toolkit.base.errors import CheckpointError, InputError, RunError
from toolkit.base.files import kind_of
from toolkit.base.run_folder import RunFolder
from toolkit.checkpoint.manifest import files_of, read_manifest, reason, tensor_names, verify
from toolkit.checkpoint.state import SavedState, described
from toolkit.checkpoint.store import open_checkpoint, steps
from toolkit.checkpoint.tensors import verified_tensors
from toolkit.config.paths import source_of_finished
from toolkit.config.sections import ModelConfig
from toolkit.models.adapters import BASE, FILE, base_of
from toolkit.models.origin import changes
from toolkit.report.facts import damaged
from toolkit.report.runs import read_record
from toolkit.tracking.jsonl import has_changed, wrong_lines


def show_checkpoint(checkpoint: Checkpoint, every_tensor: bool) -> None:
    """Shows the origin, size and content of a checkpoint, after verifying its tensors.

    Raises DamagedCheckpoint if a file is damaged.
    """
    manifest = read_manifest(checkpoint.path)
    rows = {
        "step": checkpoint.step,
        "format": manifest.format,
        "saved by": described(SavedState.from_json(checkpoint.state).identity),
        "size": format_bytes(sum(entry.size for entry in manifest.files.values())),
    }
    tensors = {}
    for name in tensor_names(manifest.files):
        with verified_tensors(checkpoint, name) as saved:
            tensors[name] = saved.entries
        files = files_of(manifest.files, name)
        size = format_bytes(sum(manifest.files[file].size for file in files))
        values = sum(entry.numel() for entry in saved.entries.values())
        rows[name] = f"{len(saved)} tensors, {values:,} values, {size} in {counted(len(files), 'file')}"
    print_table(str(checkpoint.path), rows)
    for name, entries in tensors.items() if every_tensor else ():
        types = {key: str(entry.dtype).removeprefix("torch.") for key, entry in entries.items()}
        print_lines(name, [f"{key}  {types[key]} {[*entries[key].shape]}" for key in sorted(entries)])


def verify_checkpoints(path: Path) -> None:
    """Verifies every byte of a checkpoint, or of all checkpoints of a run.

    Raises CheckpointError if there are none; RunError if one is damaged.
    """
    run = RunFolder(path)
    folders = [folder for _, folder in steps(run.checkpoints if run.checkpoints.is_dir() else path)]
    if not path.is_dir():
        raise CheckpointError(f"{path.absolute()}: there is no such folder; give a run or one of its checkpoints")
    if not folders and (run.checkpoints.is_dir() or run.facts.exists()):
        raise CheckpointError(f"{path}: this run has no checkpoints; `toolkit verify {path}` checks its other files")
    wrong = []
    for folder in folders or [path]:
        if (problems := verify(folder)) and not folder.exists():
            continue  # its run has removed it meanwhile
        say(f"{folder}: {'; '.join(problems) or 'every byte is intact'}")
        wrong += [folder.name] if problems else []
    if wrong:
        raise RunError(f"damaged: {', '.join(wrong)}. checkpoint.resume=auto uses the newest intact checkpoint")


def verify_run(folder: Path) -> None:
    """Verifies results, checkpoints and the files that a resume reads.

    Raises:
        InputError: if the folder holds nothing of a run.
        RunError: if a file is damaged; names all of them.
    """
    files = RunFolder(folder)
    if not any(map(kind_of, (files.facts, files.config, files.checkpoints, files.model))):
        raise InputError(f"{folder}: not a run, missing run.json (tried {folder.absolute()})")
    if problems := list(dict.fromkeys(damages(folder))):
        raise RunError("\n".join([f"{folder} is damaged:", *(f"  - {problem}" for problem in problems)]))
    say(f"{folder}: every file is as it was written")


def damages(folder: Path) -> Iterator[str]:
    """Yields one phrase for each damaged file of a run."""
    files, sealed = RunFolder(folder), False
    try:
        record = read_record(folder)
    except InputError as error:
        yield str(error)
    else:
        yield from (found := list(damaged(folder, record.facts)))
        if not found and (files.model / FILE).exists() and not (files.model / BASE).exists():
            name, revision = base_of(files.model, str(folder)), record.settings.get("model.revision")
            base = ModelConfig(name_or_path=name, revision=revision)
            source = source_of_finished(base, record.settings.get("offline_dir"))
            yield from changes(source, record.facts.get("model_files", {}))
        sealed = files.metrics.name in record.facts.get("files", {})
        if record.finished and "files" not in record.facts:
            yield "run.json has no checksums: the run is of an older version, and its model was not verified"
    mark = None
    if files.checkpoints.is_dir():
        whole = None
        for _, checkpoint in steps(files.checkpoints):
            problems = verify(checkpoint)
            whole = whole if problems else checkpoint
            yield from (f"{checkpoint.relative_to(folder)}: {problem}" for problem in problems)
        try:
            mark = None if whole is None else SavedState.from_json(open_checkpoint(whole).state).metrics
        except CheckpointError as error:
            yield str(error)
    try:
        if files.metrics.exists():
            yield from (f"{files.metrics.name}: line {n} cannot be read" for n in wrong_lines(files.metrics, sealed))
        if has_changed(files.metrics, mark):
            yield f"{files.metrics.name} is not as it was when the newest checkpoint was written"
    except OSError as error:
        yield f"{files.metrics.name}: {reason(error)}"
