"""The model of a new YAML: a local folder or hub id that was asked for, or a small pretrained one that fits.

Nothing is downloaded: a model's files are looked up in the local cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.base.files import expanded

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True)
class Candidate:
    """A small pretrained model.

    Args:
        name: hub id; its weights are safetensors.
        what: what it is, for the comment.
        longest: largest number of tokens of an input; None if there is no limit.
        learning_rate: usual peak learning rate.
        languages: codes of the languages that it was trained for; empty means that the language does not matter.
        model_type: its type in transformers, where settings depend on it.
    """

    name: str
    what: str
    longest: int | None = 512
    learning_rate: float = 5e-5
    languages: tuple[str, ...] = ()
    model_type: str = ""


_ENCODERS = (
    Candidate("distilbert/distilbert-base-uncased", "a small English model", languages=("en",)),
    Candidate("distilbert/distilbert-base-multilingual-cased", "a small model of 104 languages"),
)
CANDIDATES: dict[str, tuple[Candidate, ...]] = {
    "text": _ENCODERS,
    "qa": _ENCODERS,
    "image": (Candidate("google/vit-base-patch16-224-in21k", "pretrained on 14 million images", None),),
    "audio": (Candidate("openai/whisper-tiny", "the smallest Whisper, many languages", None, 1e-4),),
    "translation": (
        Candidate("google-t5/t5-small", "a small T5", 512, 5e-4, ("en", "de", "fr", "ro"), "t5"),
        Candidate("facebook/mbart-large-50-many-to-many-mmt", "for 50 languages", 1024, 3e-5, (), "mbart"),
    ),
    "language_modeling": (Candidate("openai-community/gpt2", "the smallest GPT-2, English", 1024),),
    "chat": (Candidate("Qwen/Qwen2.5-0.5B-Instruct", "a small chat model of many languages", 32768, 5e-5),),
    "token_classification": (
        Candidate("distilbert/distilbert-base-cased", "a small English model that keeps case", languages=("en",)),
        Candidate("distilbert/distilbert-base-multilingual-cased", "a small model of 104 languages"),
    ),
    "summarization": (
        Candidate("google-t5/t5-small", "a small T5", 512, 5e-4, ("en",), "t5"),
        Candidate("facebook/mbart-large-50-many-to-many-mmt", "for 50 languages", 1024, 3e-5, (), "mbart"),
    ),
}
"""The models that a YAML can name, by kind of data; the first that fits the languages is preferred."""


@dataclass(frozen=True)
class Model:
    """The model of a new YAML.

    Args:
        name: hub id or local folder.
        reason: why this one, and whether it is on this machine.
        longest: largest number of tokens of an input, if known.
        learning_rate: usual peak learning rate.
        model_type: its type in transformers, if known.
        masked: whether it predicts masked tokens, as BERT does.
        folder: the folder with its files on this machine, or None.
    """

    name: str
    reason: str
    longest: int | None
    learning_rate: float
    model_type: str
    masked: bool
    folder: Path | None


def choose(kind: str, languages: Sequence[str | None], asked: str | None) -> Model:
    """Returns the model for a kind of data.

    Args:
        kind: a key of `CANDIDATES`.
        languages: codes of the languages of the texts; None for one that is not recognised.
        asked: the hub id or folder that the user named, or None.
    """
    fitting = [each for each in CANDIDATES[kind] if not each.languages or set(languages) <= set(each.languages)]
    known = next((each for each in fitting if asked is None and local_folder(each.name)), fitting[0])
    if asked is not None:
        known = next((each for each in CANDIDATES[kind] if each.name == asked), Candidate(asked, "as given", None))
    folder = local_folder(known.name)
    config = config_of(folder) if folder else None
    return Model(
        known.name,
        f"{known.what}; {_place(known.name, folder)}",
        known.longest if config is None else positions(config),
        known.learning_rate,
        known.model_type if config is None else config.model_type,
        any(name.endswith("ForMaskedLM") for name in getattr(config, "architectures", None) or ()),
        folder,
    )


def _place(name: str, folder: Path | None) -> str:
    if folder is None:
        return "not on this machine: the first run downloads it"
    return "a local folder" if expanded(name).is_dir() else "in the cache of this machine"


def local_folder(name: str) -> Path | None:
    """Returns the folder with a model's files: the local folder itself, or a snapshot in the cache of the hub."""
    if (given := expanded(name)).is_dir():
        return given
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError:  # neither a folder nor a hub id
        return None
    return Path(found).parent if isinstance(found, str) else None


def config_of(folder: Path) -> PreTrainedConfig | None:
    """Returns a model's configuration, or None if it cannot be read without code of its own."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError):
        return None
