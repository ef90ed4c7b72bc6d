"""Pushes the model of a finished run to the Hub: `toolkit push`."""

from __future__ import annotations

from pathlib import Path

from toolkit.base.console import counted, format_bytes, say, warn
from toolkit.base.errors import InputError, RunError
from toolkit.base.files import read_json
from toolkit.base.run_folder import RunFolder
from toolkit.models.adapters import BASE, FILE
from toolkit.models.save import Upload, access_problems
from toolkit.report.facts import require_intact_model
from toolkit.report.runs import read_record


def push_run(run_folder: Path, repository: str | None, private: bool) -> None:
    """Shows the files of a finished run's model and pushes them; nothing that the folder names is executed.

    `repository` is `owner/name` and `private` its kind; None means the run's settings, or the name of its folder.
    Raises InputError if the run is not finished or damaged, has no model card, or the Hub cannot be reached; RunError
    if the upload fails.
    """
    upload = _upload(run_folder, repository, private)
    paths = sorted(path for path in upload.folder.rglob("*") if path.is_file())
    sizes = {path.relative_to(upload.folder).as_posix(): path.stat().st_size for path in paths}
    kind = {True: "private", False: "public", None: "of your default visibility"}[upload.private]
    branch = f", branch {upload.revision}" if upload.revision else ""
    total = format_bytes(sum(sizes.values()))
    say(f"{counted(len(sizes), 'file')} ({total}) go to {upload.repository}{branch}; if it is new, it is {kind}:")
    for name, size in sizes.items():
        say(f"  {name} ({format_bytes(size)})")
    _warn_of_local_base(upload.folder)
    try:
        address = upload.send()
    except Exception as error:  # network, permission and naming errors of several libraries alike
        raise RunError(
            f"cannot push to {upload.repository!r}: {type(error).__name__}: {error}\n  Nothing of the run has changed."
        ) from error
    say(f"pushed to {address}")


def _upload(run_folder: Path, repository: str | None, private: bool) -> Upload:
    """Returns the upload of a complete model with a card."""
    record, files = read_record(run_folder), RunFolder(run_folder)
    if not record.finished or not files.model.is_dir():
        raise InputError(
            f"{run_folder}: the run is not finished, so its model is not complete; resume it with "
            "checkpoint.resume=auto"
        )
    require_intact_model(run_folder)
    if not files.model_card.is_file():
        raise InputError(f"{run_folder}: {files.model_card} is missing; a model is not pushed without its card")
    settings, name = record.settings, run_folder.absolute().name
    target = repository or settings.get("checkpoint.hub_model_id") or name
    if problems := [*_name_problems(target), *access_problems("toolkit push: uploads a model")]:
        raise InputError("\n".join(problems))
    private_repo = True if private else settings.get("checkpoint.hub_private_repo")
    message = f"{name}, trained with finetune-toolkit"
    return Upload(target, files.model, message, private_repo, settings.get("checkpoint.hub_revision"))


def _name_problems(name: str) -> list[str]:
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        return [f"--repo: received {name!r}, which is no name of a repository: {str(error).splitlines()[0]}"]
    return []


def _warn_of_local_base(model: Path) -> None:
    """Warns if adapters name a base model that others do not have."""
    if not (model / FILE).is_file() or (model / BASE).is_dir():
        return
    base = read_json(model / FILE).get("base_model_name_or_path")
    if Path(str(base)).is_absolute():
        warn(
            f"its adapters name the base model {base}, which is on this machine only. Others cannot load them; "
            "`toolkit export --format merged` makes one model of both."
        )
