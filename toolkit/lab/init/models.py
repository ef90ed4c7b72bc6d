"""The model of a new YAML: one that was asked for, or a small pretrained one that fits the language.

Nothing is downloaded: a model's files are looked up in the local cache.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.base.errors import InputError
from toolkit.base.files import expanded
from toolkit.system.limits import has_gpu

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True)
class Candidate:
    """A small pretrained model."""

    name: str  # hub id; its weights are safetensors
    what: str  # what it is, for the comment
    longest: int | None = 512  # largest number of tokens of an input; None if there is no limit
    learning_rate: float = 5e-5  # usual peak learning rate
    # codes of the languages that it was trained for; empty means that the language does not matter
    languages: tuple[str, ...] = ()
    model_type: str = ""  # its type in transformers, where settings depend on it
    for_gpu: bool = False  # whether it is too large for most CPUs
    told: bool = False  # whether it is told the language, which must be recognised


_ENCODERS = (
    Candidate("distilbert/distilbert-base-uncased", "a small English model", languages=("en",)),
    Candidate("distilbert/distilbert-base-multilingual-cased", "a small model of 104 languages"),
)
_CHAT = (Candidate("Qwen/Qwen2.5-0.5B-Instruct", "a small chat model of many languages", 32768, 5e-5),)
CANDIDATES: dict[str, tuple[Candidate, ...]] = {
    "text": _ENCODERS,
    "qa": _ENCODERS,
    "search": (
        Candidate("sentence-transformers/all-MiniLM-L6-v2", "a small English sentence encoder", languages=("en",)),
        Candidate("sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2", "a small one of 50 languages"),
    ),
    "image": (
        Candidate("google/vit-base-patch16-224-in21k", "pretrained on 14 million images", None, for_gpu=True),
        Candidate("microsoft/resnet-18", "small enough for a CPU, pretrained on 1.3 million images", None, 5e-4),
    ),
    "audio": (Candidate("openai/whisper-tiny", "the smallest Whisper, many languages", None, 1e-4),),
    "speech": (
        Candidate("openai/whisper-small", "Whisper, 99 languages", None, 1e-5, (), "whisper", for_gpu=True, told=True),
        Candidate("facebook/wav2vec2-base-960h", "reads English, learns the characters of others", None),
    ),
    "translation": (
        Candidate("google-t5/t5-small", "a small T5", 512, 5e-4, ("en", "de", "fr", "ro"), "t5"),
        Candidate("facebook/mbart-large-50-many-to-many-mmt", "for 50 languages", 1024, 3e-5, (), "mbart"),
    ),
    "language_modeling": (Candidate("openai-community/gpt2", "the smallest GPT-2, English", 1024),),
    "chat": _CHAT,
    "prompts": _CHAT,
    "preference": (replace(_CHAT[0], learning_rate=5e-6),),
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


ENCODED = ("text", "qa", "token_classification")
"""Kinds of data whose models are encoders."""


@dataclass(frozen=True)
class Model:
    """The model of a new YAML."""

    name: str  # hub id or local folder
    reason: str  # why this one, and whether it is on this machine
    longest: int | None  # largest number of tokens of an input, if known
    learning_rate: float  # usual peak learning rate
    model_type: str  # its type in transformers, if known
    masked: bool  # whether it predicts masked tokens, as BERT does
    hidden_size: int | None  # of an encoder whose configuration is on this machine
    folder: Path | None  # the folder with its files on this machine, or None
    # of a new model, by dotted key; empty for a pretrained one
    settings: Mapping[str, Any] = field(default_factory=dict)
    epochs: float = 1  # how many times the epochs of a pretrained model it needs


def _new(longest: int | None, rate: float, epochs: float, config: Mapping[str, Any], **settings: Any) -> Model:
    own = {f"model.from_config.{name}": value for name, value in config.items()}
    others = {name.replace("__", "."): value for name, value in {**settings, "train__weight_decay": 0.05}.items()}
    return Model("", "", longest, rate, "", False, None, None, own | others, epochs)


_BERT = {"model_type": "bert", "vocab_size": 4000, "hidden_size": 128, "num_hidden_layers": 2,
         "num_attention_heads": 4, "intermediate_size": 512}  # fmt: skip
_GPT2 = {"model_type": "gpt2", "vocab_size": 8000, "n_positions": 512, "n_embd": 256, "n_layer": 4, "n_head": 4}
_RESNET = {"model_type": "resnet", "embedding_size": 32, "hidden_sizes": [32, 64, 128], "depths": [2, 2, 2],
           "layer_type": "basic"}  # fmt: skip
_RECOGNISER = {"model_type": "wav2vec2-bert", "hidden_size": 144, "num_hidden_layers": 4, "num_attention_heads": 4,
               "intermediate_size": 288, "vocab_size": 32, "hidden_dropout": 0.1, "conformer_conv_dropout": 0.0,
               "layerdrop": 0.0, "mask_time_prob": 0.08, "mask_time_length": 6}  # fmt: skip
_LISTENER = {**_RESNET, "num_channels": 1}
SCRATCH = {
    "text": _new(512, 1e-3, 2, _BERT),
    "token_classification": _new(512, 1e-3, 2, _BERT),
    "language_modeling": _new(512, 1e-3, 2, _GPT2),
    "prompts": _new(512, 1e-3, 2, _GPT2),
    "preference": _new(512, 1e-3, 2, _GPT2),
    "image": _new(None, 3e-3, 2.4, _RESNET, task__image__random_crop=0.7, train__lr_scheduler_type="cosine"),
    "speech": _new(None, 1e-3, 4, _RECOGNISER, train__lr_scheduler_type="cosine"),
    "audio": _new(None, 2e-3, 3, _LISTENER, task__audio__speed=0.2, train__lr_scheduler_type="cosine"),
}
"""Small new models, which learn from the rows alone, by kind of data; like those of the shipped configurations."""


def from_scratch(kind: str, what: str) -> Model:
    """Returns a new model for a kind of data; raises InputError if it could not learn that from the rows alone."""
    if kind not in SCRATCH:
        raise InputError(f"--from-scratch: {what} need a pretrained model; --model also takes a local folder")
    return SCRATCH[kind]


def choose(kind: str, languages: Sequence[str | None], asked: str | None) -> Model:
    """Returns the model for a kind of data and its languages (None is unrecognised), or the one that is asked for."""
    from toolkit.modalities.text import positions

    fitting = [each for each in CANDIDATES[kind] if not each.languages or set(languages) <= set(each.languages)]
    fitting = [each for each in fitting if not (each.told and None in languages)]
    fitting.sort(key=lambda each: each.for_gpu and not has_gpu())
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
        getattr(config, "hidden_size", None) if kind in ENCODED else None,
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
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError):
        return None


_LEAST_SHARE = 0.08
"""Smallest share of a language's common words among all words of its texts; in running text it is 0.2 to 0.4."""
_READ_CHARACTERS = 100_000


@dataclass(frozen=True)
class Language:
    """A language."""

    names: tuple[str, ...]  # its English and own name
    code: str  # its code of mBART-50, which begins with that of ISO 639-1
    script: str = "A-Za-zÀ-ɏ"  # a character class of its letters
    words: str = ""  # common words that few other languages have; empty if the script decides alone
    characters_per_token: float = 4.0  # roughly, for a tokenizer that was trained on the language


LANGUAGES = {
    "en": Language(("english",), "en_XX", words="the of and to is that for it with was this are not have you do"),
    "de": Language(("german", "deutsch"), "de_DE", words="der die und das ist nicht mit den ein eine auf ich sich"),
    "fr": Language(("french", "francais"), "fr_XX", words="le les des et est dans pour une qui pas sur du nous avec"),
    "es": Language(("spanish", "espanol"), "es_XX", words="el los las que en un una por con para del es muy lo"),
    "it": Language(("italian", "italiano"), "it_IT", words="il di che è per una sono non della con gli nel più anche"),
    "nl": Language(("dutch", "nederlands"), "nl_XX", words="het een van niet op te zijn voor met dat ook maar wij"),
    "pt": Language(("portuguese", "portugues"), "pt_XX", words="o os não uma do da em para com que por são mais foi"),
    "pl": Language(("polish", "polski"), "pl_PL", words="nie się na jest że do jak ale to przez był już tym dla"),
    "ro": Language(("romanian", "romana"), "ro_RO", words="și este nu din care pentru la cu sunt mai au pe această"),
    "sv": Language(("swedish", "svenska"), "sv_SE", words="och att det som är på inte jag med har till den av"),
    "cs": Language(("czech", "cesky"), "cs_CZ", words="je se že na jsem jako ale není jsou pro které byl také"),
    "tr": Language(("turkish", "turkce"), "tr_TR", words="ve bir bu için çok ile değil daha olarak gibi ama kadar"),
    "ja": Language(("japanese",), "ja_XX", "぀-ヿ", characters_per_token=1.5),
    "zh": Language(("chinese",), "zh_CN", "一-鿿", characters_per_token=1.2),
    "ko": Language(("korean",), "ko_KR", "가-힣", characters_per_token=1.5),
    "uk": Language(("ukrainian",), "uk_UA", "Ѐ-ӿ", "та не що це на як але було", 2.5),
    "ru": Language(("russian",), "ru_RU", "Ѐ-ӿ", characters_per_token=2.5),
    "ar": Language(("arabic",), "ar_AR", "؀-ۿ", characters_per_token=2.5),
    "he": Language(("hebrew",), "he_IL", "֐-׿", characters_per_token=2.5),
    "hi": Language(("hindi",), "hi_IN", "ऀ-ॿ", characters_per_token=2.5),
    "th": Language(("thai",), "th_TH", "฀-๿", characters_per_token=2.0),
}
"""The languages that are recognised, by their code of ISO 639-1; of those with one script, the first that fits."""


def language_of(texts: Iterable[str]) -> str | None:
    """Returns the code of the texts' language in `LANGUAGES`, or None if it is not recognised."""
    text = " ".join(texts)[:_READ_CHARACTERS].lower()
    letters = sum(map(str.isalpha, text))
    words = Counter(re.findall(r"[^\W\d_]+", text))
    scripts = {language.script for language in LANGUAGES.values()}
    in_script = {script: len(re.findall(f"[{script}]", text)) for script in scripts}
    scores = {}
    for code, language in LANGUAGES.items():
        if not letters or in_script[language.script] < 0.3 * letters:
            continue
        common = sum(words[word] for word in language.words.split()) / max(words.total(), 1)
        scores[code] = common if language.words else _LEAST_SHARE
    best = max(scores, key=lambda code: scores[code], default=None)
    return best if best is not None and scores[best] >= _LEAST_SHARE else None


def language_named(name: str) -> str | None:
    """Returns the code of the language that a column's name means, such as `en`, `en-US`, `text_en` or `German`."""
    parts = re.findall(r"[a-z]+", name.lower())
    for part in parts:
        found = next((code for code, language in LANGUAGES.items() if part in (code, *language.names)), None)
        if found:
            return found
    return None


def characters_per_token(language: str | None) -> float:
    """Returns how many characters a token has, roughly; 3 for a language that is not recognised."""
    return LANGUAGES[language].characters_per_token if language else 3.0
