"""Pushes the final model to the Hub, under either engine."""

from __future__ import annotations

from pathlib import Path

from toolkit.base.console import say
from toolkit.base.errors import RunError
from toolkit.config.sections import CheckpointConfig, Config


def hub_problems(checkpoint: CheckpointConfig) -> list[str]:
    """Returns why the model cannot be pushed after the run, as full messages."""
    if not checkpoint.push_to_hub:
        return []
    import huggingface_hub

    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return ["checkpoint.push_to_hub: received true, but HF_HUB_OFFLINE=1 disables access to the Hub"]
    if huggingface_hub.get_token() is None:
        return ["checkpoint.push_to_hub: not logged in; run `hf auth login`, or set HF_TOKEN"]
    return []


def push(cfg: Config, model: Path) -> None:
    """Pushes a run's model folder if `checkpoint.push_to_hub` is set. Call it on the main process only.

    Args:
        cfg: resolved configuration.
        model: the run's model folder.

    Raises:
        RunError: if the push fails, with the command to push by hand; all local files are complete.
    """
    checkpoint = cfg.checkpoint
    if not checkpoint.push_to_hub:
        return
    from huggingface_hub import HfApi

    name = checkpoint.hub_model_id or Path(cfg.output_dir).name
    try:
        api = HfApi()
        repository = api.create_repo(name, private=checkpoint.hub_private_repo, exist_ok=True).repo_id
        if checkpoint.hub_revision is not None:
            api.create_branch(repository, branch=checkpoint.hub_revision, exist_ok=True)
        message = f"{Path(cfg.output_dir).name}, trained with finetune-toolkit"
        done = api.upload_folder(
            repo_id=repository, folder_path=model, commit_message=message, revision=checkpoint.hub_revision
        )
    except Exception as error:  # network, permission and naming errors of several libraries alike
        raise RunError(
            f"checkpoint.push_to_hub: cannot push to {name!r}: {type(error).__name__}: {error}\n"
            f"  The run is complete; push it by hand with `hf upload {name} {model}`."
        ) from error
    say(f"pushed to {done.repo_url.url if done.repo_url else repository}", blank_line_before=True)
