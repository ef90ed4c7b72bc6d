"""Pushes the model of a finished run to the Hub: `toolkit push`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from toolkit.base.errors import InputError
from toolkit.base.files import read_json
from toolkit.base.run_folder import RunFolder
from toolkit.models.adapters import BASE, FILE
from toolkit.models.save import Upload, access_problems
from toolkit.report.facts import refuse_damaged_model
from toolkit.report.runs import read_record


@dataclass(frozen=True)
class Push:
    """What is about to be pushed.

    Args:
        upload: where to, and the folder.
        files: size of each file in bytes, by its path in the folder.
        notes: what the user should know before, as sentences.
    """

    upload: Upload
    files: dict[str, int]
    notes: list[str] = field(default_factory=list)


def planned(run_folder: Path, repository: str | None, private: bool) -> Push:
    """Returns what is pushed for a finished run; nothing that its folder names is executed.

    Args:
        run_folder: the run's `output_dir`.
        repository: `owner/name`; None for that of the run's settings, or the name of its folder.
        private: whether a new repository is private; otherwise as in the run's settings.

    Raises:
        InputError: if the run is not finished or damaged, has no model card, or the Hub cannot be reached from here.
    """
    record, files = read_record(run_folder), RunFolder(run_folder)
    if not record.finished or not files.model.is_dir():
        raise InputError(
            f"{run_folder}: the run is not finished, so its model is not complete; resume it with "
            "checkpoint.resume=auto"
        )
    refuse_damaged_model(run_folder)
    if not files.model_card.is_file():
        raise InputError(f"{run_folder}: {files.model_card} is missing; a model is not pushed without its card")
    settings, name = record.settings, run_folder.absolute().name
    target = repository or settings.get("checkpoint.hub_model_id") or name
    if problems := [*_name_problems(target), *access_problems("toolkit push: uploads a model")]:
        raise InputError("\n".join(problems))
    private_repo = True if private else settings.get("checkpoint.hub_private_repo")
    message = f"{name}, trained with finetune-toolkit"
    upload = Upload(target, files.model, message, private_repo, settings.get("checkpoint.hub_revision"))
    found = sorted(path for path in files.model.rglob("*") if path.is_file())
    sizes = {path.relative_to(files.model).as_posix(): path.stat().st_size for path in found}
    return Push(upload, sizes, _notes(files.model))


def _name_problems(name: str) -> list[str]:
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        return [f"--repo: received {name!r}, which is no name of a repository: {str(error).splitlines()[0]}"]
    return []


def _notes(model: Path) -> list[str]:
    """Returns a warning if adapters name a base model that others do not have."""
    if not (model / FILE).is_file():
        return []
    base = read_json(model / FILE).get("base_model_name_or_path")
    if (model / BASE).is_dir() or not Path(str(base)).is_absolute():
        return []
    return [
        f"its adapters name the base model {base}, which is on this machine only. Others cannot load them; "
        "`toolkit export --format merged` makes one model of both."
    ]
