"""Speech: recordings in, transcripts out; processors, vocabularies and labels of CTC models and encoder-decoders."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.api.batch import BadRow, Processor
from toolkit.base.errors import pretrained_error
from toolkit.config.sections import ModelConfig
from toolkit.modalities import audio, seq2seq, text

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

AUTO_PROCESSOR, LIBRARIES = "AutoProcessor", ("soundfile", "soxr")
CTC = (
    "data2vec-audio", "hubert", "sew", "sew-d", "unispeech", "unispeech-sat", "wav2vec2", "wav2vec2-bert",
    "wav2vec2-conformer", "wavlm",
)  # fmt: skip
"""Types of encoders that give a character for each frame of 20 ms."""
ENCODER_DECODERS = ("whisper", "moonshine", "speech_to_text")
"""Types of models that write the transcript token by token."""
VOCABULARIES = ["vocab.json", "tokenizer.json", "tokenizer_config.json", "sentencepiece.bpe.model"]
"""Files of which a folder with a tokenizer has one."""


def is_ctc(config: PreTrainedConfig) -> bool:
    """Whether a model gives a character for each frame."""
    return config.model_type in CTC


def check_model(config: PreTrainedConfig, options: Any) -> list[str]:
    """Returns what is wrong between a model and the task's options, as full messages."""
    kind, ctc = config.model_type, is_ctc(config)
    if kind not in (*CTC, *ENCODER_DECODERS):
        return [f"model: received a {kind}; speech recognition needs one of {', '.join((*CTC, *ENCODER_DECODERS))}"]
    most = room(config)
    if not ctc and most is not None and options.max_target_length > most:
        given = f"task.max_target_length: received {options.max_target_length}"
        return [f"{given}, but this {kind} writes at most {most} tokens"]
    unused = {
        "num_beams": ctc and options.num_beams > 1,
        "label_smoothing_factor": ctc and options.label_smoothing_factor > 0,
        "vocabulary": not ctc and options.vocabulary != "auto",
        "task": kind != "whisper" and options.task != "transcribe",
        "generation": ctc and bool(options.generation),
    }
    ours = [f"task.{name}: has no effect on a {kind}; remove it" for name, each in unused.items() if each]
    return ours or audio.clip_problems(config, options.audio)


def time_problems(model: ModelConfig) -> list[str]:
    """Returns why the words of a model have no times, as full messages; frames of CTC always have some.

    Whisper's are found in the cross-attention of the heads that its generation config names (transformers'
    `WhisperGenerationMixin._extract_token_timestamps`). Raises InputError if the configuration cannot be loaded.
    """
    from transformers import GenerationConfig

    from toolkit.models.load import load_model_config

    config, found = load_model_config(model), None
    if is_ctc(config):
        return []
    if config.model_type == "whisper" and model.name_or_path is not None:
        with suppress(OSError):  # it has no such file
            found = GenerationConfig.from_pretrained(model.name_or_path, revision=model.revision or "main")
    if getattr(found, "alignment_heads", None):
        return []
    why = f"this {config.model_type} has no alignment_heads in its generation config, by which times are found"
    return [f"task.word_times: received true, but {why}; remove it, or train a published Whisper, or a CTC model"]


def room(config: PreTrainedConfig) -> int | None:
    """Returns the most tokens that a decoder takes."""
    return getattr(config, "max_target_positions", None) or getattr(config, "max_position_embeddings", None)


def check(file: Mapping[str, Any], options: Any, labelled: bool = True) -> Mapping[str, Any]:
    """Decodes a file once; arguments and result are those of `audio.check`.

    Raises:
        BadRow: if the file cannot be used, is too short or, with a transcript, which would not fit a part, too long.
        DataError: if the machine could not read it just now.
    """
    found = audio.check(file, options)
    seconds, limits = found["frames"] / found["rate"], options.audio
    if (short := seconds < limits.min_seconds) or (labelled and seconds > limits.max_seconds):
        limit = f"below task.audio.min_seconds={limits.min_seconds:g}"
        why = limit if short else f"above task.audio.max_seconds={limits.max_seconds:g}"
        raise BadRow(f"{audio.shown(found)}: lasts {seconds:.6g} s, {why}")
    return found


def longest(options: Any, processor: Processor) -> int:
    """Returns the samples of the longest clip."""
    return audio.longest(options, processor.feature_extractor)


def lacks_vocabulary(model: ModelConfig, options: Any) -> bool:
    """Whether a pretrained model comes without the vocabulary, which is then made from the transcripts."""
    from transformers.utils.hub import cached_files

    if options.vocabulary != "auto":
        return bool(options.vocabulary == "transcripts")
    quietly: Any = {f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors")}
    try:
        return not cached_files(str(model.name_or_path), VOCABULARIES, revision=model.revision or "main", **quietly)
    except (OSError, ValueError):  # no model is there; loading it says so
        return False


def load_processor(source: str, model: ModelConfig, options: Any) -> Processor:
    """Loads the feature extractor and the tokenizer of a model, a run or a checkpoint as one processor.

    Raises InputError if one of them cannot be loaded, or the sampling rate is not the configured one.
    """
    extractor, tokenizer = audio.load_processor(source, model, options), text.load_tokenizer(source, model, False)
    if getattr(tokenizer, "target_lang", None) and options.language not in (None, tokenizer.target_lang):
        try:
            tokenizer.set_target_lang(options.language)
        except ValueError as error:
            raise pretrained_error("task.language", source, error) from error
    return _joined(extractor, tokenizer)


def new_processor(texts: Iterator[str], config: PreTrainedConfig, options: Any) -> Processor:
    """Creates the processor of a new model, with a vocabulary of the training transcripts."""
    return _joined(audio.new_processor(texts, config, options), _new_tokenizer(texts, config, options))


def complete_processor(texts: Iterator[str], config: PreTrainedConfig, options: Any, model: ModelConfig) -> Processor:
    """Loads the feature extractor of a pretrained encoder, and makes its vocabulary of the training transcripts."""
    extractor = audio.load_processor(str(model.name_or_path), model, options)
    return _joined(extractor, _new_tokenizer(texts, config, options))


def _new_tokenizer(texts: Iterator[str], config: PreTrainedConfig, options: Any) -> PreTrainedTokenizerBase:
    if is_ctc(config):
        return _characters(texts)
    if config.model_type == "whisper":
        return _whisper_tokenizer(texts, config, options)
    length, inputs = options.max_target_length, seq2seq.MODEL_INPUTS
    made: Any = text.train_tokenizer((f" {each}" for each in texts), config.vocab_size, seq2seq.STYLE, length, inputs)
    made.backend_tokenizer.pre_tokenizer.add_prefix_space = True  # as published ones, so that joined parts have spaces
    return made


def _joined(extractor: Any, tokenizer: PreTrainedTokenizerBase) -> Processor:
    import transformers

    names = {"WhisperFeatureExtractor": "Whisper", "SeamlessM4TFeatureExtractor": "Wav2Vec2Bert",
             "Speech2TextFeatureExtractor": "Speech2Text"}  # fmt: skip
    kind = getattr(transformers, f"{names.get(type(extractor).__name__, 'Wav2Vec2')}Processor")
    return kind(feature_extractor=extractor, tokenizer=tokenizer)


def _characters(texts: Iterator[str]) -> PreTrainedTokenizerBase:
    """Returns a tokenizer of the characters of the transcripts; a bar is the space, as wav2vec 2.0's."""
    from transformers import Wav2Vec2CTCTokenizer

    known = sorted(set().union(*texts) - {" ", "|"})
    vocabulary = {token: place for place, token in enumerate(["[PAD]", "[UNK]", "|", *known])}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "vocab.json")
        file.write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
        none = {"bos_token": None, "eos_token": None}
        return Wav2Vec2CTCTokenizer(str(file), unk_token="[UNK]", pad_token="[PAD]", **none)


def _whisper_tokenizer(texts: Iterator[str], config: PreTrainedConfig, options: Any) -> PreTrainedTokenizerBase:
    """Returns a tokenizer with Whisper's special tokens in its order; only its first tokens are of these texts."""
    from transformers import WhisperTokenizer
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    end = "<|endoftext|>"
    others = ["<|startoftranscript|>", *(f"<|{code}|>" for code in LANGUAGES), "<|translate|>", "<|transcribe|>",
              "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]  # fmt: skip
    style = text.TokenizerStyle({"eos_token": end, "pad_token": end}, None, lowercase=False)
    size = max(257, config.vocab_size - len(others))
    trained = text.train_tokenizer((f" {each}" for each in texts), size, style, options.max_target_length, ())
    found = json.loads(trained.backend_tokenizer.to_str())["model"]
    # The library expects the end of a text behind the words, and before the other special tokens.
    words = sorted(set(found["vocab"]) - {end}, key=found["vocab"].__getitem__)
    vocabulary = {word: place for place, word in enumerate([*words, end])}
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=[tuple(pair) for pair in found["merges"]], pad_token=end)
    tokenizer.add_special_tokens({"additional_special_tokens": others})
    return tokenizer


def configure(config: PreTrainedConfig, processor: Processor, new: bool) -> None:
    """Sets the size of the vocabulary and the special ids; shortens Whisper's positions to the clips' length."""
    audio.configure(config, processor.feature_extractor, new)
    tokenizer = processor.tokenizer
    if is_ctc(config):
        config.vocab_size, config.pad_token_id = len(tokenizer), tokenizer.pad_token_id
    elif new:
        config.vocab_size = len(tokenizer)
        start = "<|startoftranscript|>" if config.model_type == "whisper" else tokenizer.bos_token
        config.decoder_start_token_id = tokenizer.convert_tokens_to_ids(start)
        for name in ("pad", "bos", "eos"):
            setattr(config, f"{name}_token_id", getattr(tokenizer, f"{name}_token_id"))
        for name in ("suppress_tokens", "begin_suppress_tokens"):  # of the published vocabularies
            if hasattr(config, name):
                setattr(config, name, None)


def language_code(language: str) -> str | None:
    """Returns Whisper's code of a language, given by code or English name; None if it has none."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES, TO_LANGUAGE_CODE

    code = TO_LANGUAGE_CODE.get(language.lower(), language.lower())
    return code if code in LANGUAGES else None
