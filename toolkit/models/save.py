"""Saves a trained model as a folder that transformers can load, and pushes it to the hub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.api.batch import Processor
from toolkit.api.run import Run
from toolkit.api.task import Task
from toolkit.base.console import say
from toolkit.base.errors import RunError
from toolkit.base.files import write_json, written_folder
from toolkit.base.run_folder import RunFolder
from toolkit.config.sections import CheckpointConfig, Config, ModelConfig
from toolkit.models.adapters import save_adapters


@dataclass(frozen=True)
class Upload:
    """A folder to upload."""

    repository: str  # `owner/name`, or a name in the user's namespace
    folder: Path  # the folder
    message: str  # message of the commit
    private: bool | None = None  # whether a new repository is private; None for the user's default
    revision: str | None = None  # branch; None for the main one

    def send(self) -> str:
        """Makes the repository and the branch if they do not exist, and uploads; returns the address.

        Raises Exception: network, permission and naming errors of several libraries.
        """
        from huggingface_hub import HfApi

        api = HfApi()
        repository = api.create_repo(self.repository, private=self.private, exist_ok=True).repo_id
        if self.revision is not None:
            api.create_branch(repository, branch=self.revision, exist_ok=True)
        done = api.upload_folder(
            repo_id=repository, folder_path=self.folder, commit_message=self.message, revision=self.revision
        )
        return str(done.repo_url.url if done.repo_url else repository)


def access_problems(key: str) -> list[str]:
    """Returns why nothing can be pushed from here, as full messages that begin with a setting or command."""
    import huggingface_hub

    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return [f"{key}, but HF_HUB_OFFLINE=1 disables access to the Hub"]
    if huggingface_hub.get_token() is None:
        return [f"{key}, but you are not logged in; run `hf auth login`, or set HF_TOKEN"]
    return []


def hub_problems(checkpoint: CheckpointConfig) -> list[str]:
    """Returns why the model cannot be pushed after the run, as full messages."""
    return access_problems("checkpoint.push_to_hub: received true") if checkpoint.push_to_hub else []


def push(cfg: Config, model: Path) -> None:
    """Pushes a run's model folder if `checkpoint.push_to_hub` is set. Call it on the main process only.

    Raises RunError if the push fails, with the command to push by hand; all local files are complete.
    """
    checkpoint, name = cfg.checkpoint, Path(cfg.output_dir).name
    if not checkpoint.push_to_hub:
        return
    repository, message = checkpoint.hub_model_id or name, f"{name}, trained with finetune-toolkit"
    try:
        address = Upload(repository, model, message, checkpoint.hub_private_repo, checkpoint.hub_revision).send()
    except Exception as error:  # network, permission and naming errors of several libraries alike
        raise RunError(
            f"checkpoint.push_to_hub: cannot push to {repository!r}: {type(error).__name__}: {error}\n"
            f"  The run is complete; push it with `toolkit push {cfg.output_dir}`."
        ) from error
    say(f"pushed to {address}", blank_line_before=True)


_MAX_FILE = "5GB"
"""Greatest size of a file with weights; safetensors copies a file's tensors in memory before it writes them."""


def save_model(run: Run, replacing: Callable[[], object]) -> None:
    """Writes `model/` with weights, configuration and processor; transformers (or peft) can load it.

    The run has a complete model. When the new folder is complete, `replacing` is called before it gets this name.
    """
    files = RunFolder(run.output_dir)
    with written_folder(files.model, replacing) as folder:
        write_model(run.model, run.processor, run.cfg.model, run.task, folder, files.base, files.model)


def write_model(
    model: Any, processor: Processor, settings: ModelConfig, task: Task, folder: Path, base: Path, final: Path
) -> None:
    """Writes a folder that transformers (or peft) can load, of a model with its adapters if it has any.

    The folder of a new base model, `base`, moves into it; `final` is where the folder will be.
    """
    if settings.peft.method == "none":
        model.save_pretrained(folder, max_shard_size=_MAX_FILE)
        write_further(task, model, folder)
    else:
        save_adapters(model, folder, base, settings.name_or_path, final)
    processor.save_pretrained(folder)
    mode = (folder / "config.json" if settings.peft.method == "none" else folder / "adapter_config.json").stat().st_mode
    for weights in folder.rglob("*.safetensors"):  # safetensors creates files that only the owner can read
        weights.chmod(mode)


def write_further(task: Task, model: Any, folder: Path) -> None:
    """Writes the files with which another library loads a model in a folder (`Task.model_files`)."""
    for name, content in task.model_files(model.config).items():
        (folder / name).parent.mkdir(exist_ok=True)
        write_json(folder / name, content)
