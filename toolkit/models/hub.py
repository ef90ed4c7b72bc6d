"""Pushing the final model to the hub, under either engine."""

from __future__ import annotations

from pathlib import Path

from toolkit.base.console import say
from toolkit.base.errors import ConfigError, RunError
from toolkit.config.sections import CheckpointConfig, Config


def check_hub(checkpoint: CheckpointConfig) -> None:
    """Checks before a run what would only fail after it.

    Raises:
        ConfigError: if the model is to be pushed and the hub is switched off, or nobody is logged in.
    """
    if not checkpoint.push_to_hub:
        return
    import huggingface_hub

    if huggingface_hub.constants.HF_HUB_OFFLINE:
        raise ConfigError(
            ["checkpoint.push_to_hub: received true, but HF_HUB_OFFLINE=1 keeps this process off the hub"]
        )
    if huggingface_hub.get_token() is None:
        raise ConfigError(["checkpoint.push_to_hub: nobody is logged in; run `hf auth login`, or set HF_TOKEN"])


def push(cfg: Config, model: Path) -> None:
    """Pushes a run's model folder if the settings say so; on the main process.

    Raises:
        RunError: if the hub does not take it, with what to do by hand; everything has been written here by then.
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
