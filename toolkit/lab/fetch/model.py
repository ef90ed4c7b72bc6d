"""The files of a pretrained model that a run reads: configuration, processor and safetensors weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from toolkit.base.errors import InputError, pretrained_error
from toolkit.base.files import kind_of, read_json
from toolkit.base.offline import MODEL, prepare_download
from toolkit.config.sections import ModelConfig

OTHER_WEIGHTS = (
    *("*.bin", "*.h5", "*.msgpack", "*.ot", "*.onnx", "*.onnx_data", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.ggml"),
    *("*.tflite", "*.pb", "*.pkl", "*.npz", "*.zip", "*.tar", "*.gz", "*.mlmodel", "*.nemo"),
)
"""Files in the folder of a model that the toolkit never reads."""
IMAGES = ("*.png", "*.jpg", "*.jpeg", "*.gif", "*.svg", "*.pdf")
WEIGHTS, INDEX, ADAPTERS = "model.safetensors", "model.safetensors.index.json", "adapter_config.json"
COMMIT_CHARS = 40
"""Length of a commit, by which the Hub's cache names a snapshot."""


def model_source(model: ModelConfig) -> tuple[Path, str | None]:
    """Returns the folder with a model's files, downloaded if need be, and its commit.

    Args:
        model: the settings, with `name_or_path`.

    Returns:
        The folder, and the commit of the Hub; None for a local folder.

    Raises:
        InputError: if there is no such model.
    """
    from huggingface_hub import snapshot_download

    name = str(model.name_or_path)
    if kind_of(Path(name)) == "folder":
        return Path(name), None
    prepare_download(name)
    code = () if model.trust_remote_code else ("*.py",)
    skipped = ["*/*", "*.safetensors", *OTHER_WEIGHTS, *IMAGES, *code]
    try:
        # Subfolders hold other formats of the weights. Which safetensors are read follows from the other files.
        folder = Path(snapshot_download(name, revision=model.revision, ignore_patterns=skipped))
        weights = _shards(folder / INDEX) if (folder / INDEX).is_file() else []
        snapshot_download(name, revision=folder.name, allow_patterns=[WEIGHTS, *weights])
    except Exception as error:  # whatever the Hub answers, or the cache lacks
        raise pretrained_error(MODEL, name, error) from error
    return folder, folder.name if len(folder.name) == COMMIT_CHARS else None


def model_file_names(folder: Path, model: ModelConfig) -> list[str]:
    """Returns the names of the files in a model's folder that a run reads.

    Raises:
        InputError: if the folder has no configuration or no weights, or needs files from elsewhere.
    """
    name, found = str(model.name_or_path), {path.name for path in folder.iterdir() if path.is_file()}
    if ADAPTERS in found:
        base = read_json(folder / ADAPTERS).get("base_model_name_or_path")
        raise InputError(
            f"{MODEL}: {name!r} are adapters of {base!r}, so a run reads two models; merge "
            "them into their model first (`toolkit merge` for a run, `merge_and_unload` of peft)"
        )
    if "config.json" not in found:
        raise InputError(f"{MODEL}: {name!r} has no config.json in {folder}")
    _refuse_code_elsewhere(read_json(folder / "config.json"), name, model.trust_remote_code)
    weights = [WEIGHTS] if WEIGHTS in found else [INDEX, *_shards(folder / INDEX)] if INDEX in found else []
    missing = [each for each in weights if each not in found]
    if missing or not weights:
        what = f"lacks {', '.join(missing)}" if weights else "has no safetensors weights"
        raise InputError(f"{MODEL}: {name!r} {what} (looked in {folder})")
    skipped = (*OTHER_WEIGHTS, *IMAGES, "*.safetensors", INDEX, *(() if model.trust_remote_code else ("*.py",)))
    others = [each for each in found if not any(Path(each).match(pattern) for pattern in skipped)]
    return sorted({*weights, *(each for each in others if not each.startswith("."))})


def _shards(index: Path) -> list[str]:
    return sorted({str(name) for name in read_json(index).get("weight_map", {}).values()})


def _refuse_code_elsewhere(config: Mapping[str, Any], name: str, trusted: bool) -> None:
    """Refuses a model whose code is in another repository, which it names as `owner/name--module.Class`."""
    elsewhere = sorted({value.split("--")[0] for value in _texts(config.get("auto_map")) if "--" in value})
    if trusted and elsewhere:
        raise InputError(
            f"{MODEL}: the code of {name!r} is in another repository, {', '.join(elsewhere)}, which a fetched folder "
            "cannot hold; copy the code beside the model, and give that folder"
        )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)
