"""Speech recognition: the transcript of a recording, by CTC models and encoder-decoders.

accelerate launch recipes/speech_recognition.py --config recipes/configs/speech_recognition/smoke_ctc.yaml \
    [section.key=value ...]
"""

from __future__ import annotations

import io
import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, compress, pairwise
from operator import eq
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from toolkit.api.batch import (
    IGNORE_INDEX,
    BadRow,
    Batch,
    Description,
    EvalData,
    ModelOutput,
    Omission,
    Predictions,
    Processor,
    Record,
    Row,
)
from toolkit.api.task import Task
from toolkit.config.fields import Column
from toolkit.config.paths import source_of
from toolkit.config.sections import STRICT, Config, Fraction, Positive
from toolkit.main import main
from toolkit.metrics.transcription import (
    TRANSCRIPTION,
    alignment,
    frequent_errors,
    transcription_error,
    transcription_quality,
    transcription_scores,
)
from toolkit.modalities import seq2seq
from toolkit.modalities.options import AudioOptions, idle_options
from toolkit.tasks.records import checked_text, columns_of
from toolkit.tasks.tokens import labelled_positions, token_losses

if TYPE_CHECKING:
    import datasets
    import numpy as np
    from torch import Tensor, nn
    from transformers import PreTrainedConfig, PreTrainedModel

    from toolkit.api.random import RowRandom
    from toolkit.document.blocks import Section
    from toolkit.metrics.score import Quality


WITHOUT_SPACES = ("zh", "yue", "ja", "th", "lo", "my")
"""Languages whose words Whisper does not separate; in others, pretraining began every transcript with a space."""


@dataclass(frozen=True, kw_only=True)
class SpeechAudioOptions(AudioOptions):
    """Options for reading recordings, which are mixed to one channel and resampled to the model's rate."""

    min_seconds: Annotated[float, Field(gt=0)] = 0.25
    """Rows whose clip is shorter are bad rows."""
    max_seconds: Annotated[float, Field(gt=0)] = 30.0
    """Rows whose clip is longer are bad rows in training, because a part has another transcript (columns `start` and
    `end` name parts of a recording). Whisper's inputs have this length, rounded to full seconds."""
    crop: Literal["center"] = "center"
    """Clips are never cropped."""


@dataclass(frozen=True, kw_only=True)
class SpeechRecognitionOptions:
    """Options of transcripts, recordings and generation, named as in transformers."""

    __pydantic_config__ = STRICT
    limits: ClassVar[Mapping[str, str]] = {"target": "max_target_length"}

    language: str | None = None
    """Language of the transcripts, as a code or an English name, for models that are told it (multilingual Whisper);
    `data.columns.language` names a column for rows of several languages. For MMS, the code of its vocabulary."""
    task: Literal["transcribe", "translate"] = "transcribe"
    """What Whisper is asked for: the transcript, or its translation to English."""
    normalize: Literal["none", "basic", "whisper"] = "none"
    """Normalises transcripts before training, and transcripts and predictions before scoring: `basic` writes lower case
    without punctuation and symbols; `whisper` also spells English numbers and contractions in one way. Both are
    transformers' own."""
    case: Literal["keep", "lower", "upper"] = "keep"
    """Case of the transcripts, at the same places; vocabularies of wav2vec 2.0 often have upper case only."""
    punctuation: Literal["keep", "remove"] = "keep"
    """Whether punctuation and symbols are removed, at the same places; apostrophes inside words stay."""
    vocabulary: Literal["auto", "model", "transcripts"] = "auto"
    """Characters of CTC: those of the model, or of the training transcripts; `auto` takes the model's if it has any."""
    max_target_length: Positive = 448
    """Maximum number of characters (CTC) or tokens of a transcript; rows with longer ones are bad rows."""
    num_beams: Positive = 1
    """Number of beams of beam search by encoder-decoders; 1 is greedy search."""
    chunk_length_s: Annotated[float, Field(gt=0)] | None = None
    """Recordings that are longer are transcribed in overlapping parts of this length, in prediction; null uses
    `audio.max_seconds`."""
    stride_length_s: Annotated[float, Field(ge=0)] | None = None
    """How much of a part, at each side where it was cut, only helps to hear the rest; null uses a sixth of the part."""
    word_times: bool = False
    """Whether predictions have the column `words`: each word with its beginning and end, in seconds of the clip."""
    label_smoothing_factor: Fraction = 0.0
    """Part of each token's probability that is distributed over the vocabulary (encoder-decoders)."""
    generation: dict[str, Any] = field(default_factory=dict)
    """Further fields of `transformers.GenerationConfig` for the transcripts of encoder-decoders."""
    audio: SpeechAudioOptions = field(default_factory=SpeechAudioOptions)
    """Options for reading and augmenting recordings."""

    def problems(self) -> list[str]:
        """Returns what is wrong in combination."""
        own = {"max_new_tokens": "max_target_length", "max_length": "max_target_length", "num_beams": "num_beams",
               "language": "language", "task": "task"}  # fmt: skip
        found = [f"task.generation.{name}: set task.{own[name]}" for name in self.generation if name in own]
        found += idle_options(self)
        chunk, most, stride = self.chunk_length_s, self.audio.max_seconds, self.stride_length_s
        if chunk is not None and chunk > most:
            found.append(f"task.chunk_length_s: received {chunk:g}, must be at most task.audio.max_seconds={most:g}")
        elif stride is not None and 2 * stride >= (chunk or most):
            limit = f"must be less than half of a part of {chunk or most:g} s (task.chunk_length_s)"
            found.append(f"task.stride_length_s: received {stride:g}, {limit}")
        return found


class SpeechRecognition(Task):
    """Speech recognition; see `toolkit.api.task.Task`."""

    Options: ClassVar[type] = SpeechRecognitionOptions
    columns: ClassVar[Mapping[str, Column]] = {
        "audio": Column("the recording", file=True),
        "start": Column("where the clip begins in the recording, in seconds", required=False),
        "end": Column("where it ends", required=False),
        "language": Column("the language of the transcript", required=False, opt_in=True),
        "text": Column("the transcript", label=True),
    }
    modality, unit = "speech", "samples"
    scores = TRANSCRIPTION
    best_metric = "wer"
    reference = "reference"
    error_name = "word errors"
    decoding = ("num_beams", "generation", "chunk_length_s", "stride_length_s", "word_times")

    options: SpeechRecognitionOptions

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self.state = {"ctc": None, "start": None, "blank": None, "steps": None}
        self.answer_columns = ("prediction", "confidence", *(["words"] if self.options.word_times else []))

    @property
    def speech(self) -> Any:
        """The modality's functions; not stored, because modules cannot be pickled for data loader workers."""
        from toolkit.modalities import speech

        return speech

    def auto_model(self, config: PreTrainedConfig) -> str:
        return "AutoModelForCTC" if self.speech.is_ctc(config) else "AutoModelForSpeechSeq2Seq"

    def schema(self) -> datasets.Features:
        from datasets import Features, Value

        from toolkit.modalities import audio

        return Features({"audio": audio.feature(), "text": Value("string"), "language": Value("string")})

    def check_row(self, row: Row, labelled: bool) -> Row:
        language = self._language(row)
        words = None
        if labelled:  # first, because decoding takes longer
            given = checked_text(row["text"], "transcript", "column 'text'")
            words = self.normalised(given, language)
            if not words:
                raise BadRow(f"nothing is left of its transcript {given!r} after normalisation")
        clip = {**row["audio"], "start": row.get("start"), "end": row.get("end")}
        return {"audio": self.speech.check(clip, self.options, labelled), "text": words, "language": language}

    def _language(self, row: Row) -> str | None:
        """Returns the language of a row; raises BadRow if its column holds none."""
        if "language" not in self.cfg.data.columns:
            return self.options.language
        given = row.get("language")
        if not isinstance(given, str) or self.speech.language_code(given) is None:
            raise BadRow(f"column 'language' holds {given!r}, not the code or name of a language that Whisper knows")
        return given

    def normalised(self, words: str, language: str | None) -> str:
        """Returns a transcript as the options want it."""
        english = language is None or self.speech.language_code(language) == "en"
        options = self.options
        result: str = normaliser(options.normalize, english, options.case, options.punctuation)(words)
        return result

    def training_texts(self, rows: datasets.Dataset) -> Iterator[str]:
        return iter(rows["text"])

    def configure(self, config: PreTrainedConfig) -> None:
        ctc = self.speech.is_ctc(config)
        self.state |= {
            "ctc": ctc,
            "start": None if ctc else config.decoder_start_token_id,
            "blank": config.pad_token_id if ctc else None,
            "steps": frame_steps(config) if ctc else None,
        }

    def processor_problems(self, processor: Processor) -> list[str]:
        by_row = "language" in self.cfg.data.columns
        found = language_problems(processor.tokenizer, self.options, by_row)
        times = self.speech.time_problems(source_of(self.cfg)) if self.options.word_times else []
        return [*found, *times, *seq2seq.generation_problems(self.options.generation)]

    def preprocess(
        self, rows: Mapping[str, Sequence[Any]], processor: Processor, labelled: bool
    ) -> dict[str, list[Any]]:
        from toolkit.modalities import audio

        columns = cut(rows["audio"], processor, self.options, self.state["steps"], whole=labelled)
        files = columns.pop("files")
        columns |= audio.preprocess(files, processor.feature_extractor, self.options)
        languages = [rows["language"][owner] for owner in columns["example"]]
        labels: list[list[int]] = [[] for _ in files]
        if labelled:
            task, start = self.options.task, self.state["start"]
            labels = encode(rows["text"], languages, processor.tokenizer, start, task)
        fitting = [True] * len(files)
        if labelled:
            pairs = zip(labels, files, strict=True)
            fitting = [fits(*pair, processor, self.options, self.state["steps"]) for pair in pairs]
        unknown = [""] * len(labels)
        if labelled and self.state["ctc"]:
            unknown = unknown_characters(rows["text"], processor.tokenizer)
        columns |= {"labels": labels, "language": languages, "unknown": unknown}
        return {name: list(compress(values, fitting)) for name, values in columns.items()}

    def lost(self, rows: datasets.Dataset, features: datasets.Dataset) -> tuple[Sequence[int], str]:
        kept = set(features["example"][:]) if "example" in features.column_names else set()
        lost = [place for place in range(len(rows)) if place not in kept]
        limit, texts = self.options.max_target_length, rows["text"]
        longer = {len(texts[place]) > limit for place in lost} if self.state["ctc"] else {True}
        whys = {True: f"more than task.max_target_length={limit} labels", False: "more frames than their recording has"}
        return lost, f"need {' or '.join(why for case, why in whys.items() if case in longer)}"

    def omissions(self, rows: datasets.Dataset, features: datasets.Dataset) -> list[Omission]:
        from toolkit.modalities import audio

        files, limits = rows["audio"], self.options.audio
        counts = Counter("".join(features["unknown"] if "unknown" in features.column_names else ()))
        named = ", ".join(f"{letter!r} ({count:,})" for letter, count in counts.most_common(10))
        letters = sum(len(words or "") for words in rows["text"])
        most = self.options.chunk_length_s or limits.max_seconds
        cut = len(features) - len(set(features["example"][:])) if len(features) else 0
        return [
            Omission("characters unknown to the vocabulary", counts.total(), letters, named),
            Omission(f"cuts of longer recordings into parts of {most:g} s", cut, len(features)),
            *audio.omissions(files, replace(self.options, audio=replace(limits, max_seconds=math.inf))),
        ]

    def collate(self, features: list[dict[str, Any]], processor: Processor, random: RowRandom) -> Batch:
        from toolkit.modalities import audio

        extractor, labels = processor.feature_extractor, seq2seq.pad_targets(features)
        clips = audio.arrays(features, extractor, self.options.audio, random)
        inputs, lengths = audio.batched(clips, extractor), labels.new_tensor([len(clip) for clip in clips])
        batch: Batch = {"inputs": inputs, "labels": labels}
        if self.state["ctc"]:
            frames = [num_frames(length, self.state["steps"]) for length in lengths.tolist()]
            kept = [[row["left"], min(row["stop"], count)] for row, count in zip(features, frames, strict=True)]
            return batch | {"extra": {"frames": lengths.new_tensor(frames), "kept": lengths.new_tensor(kept)}}
        tokenizer, start, task = processor.tokenizer, self.state["start"], self.options.task
        inputs["decoder_input_ids"] = seq2seq.decoder_ids(labels, start, tokenizer.pad_token_id)
        prefixes = [prefix(tokenizer, start, row["language"], task) for row in features]
        spectrogram = [math.ceil(100 * row["file"]["frames"] / row["file"]["rate"]) for row in features]
        extra = {"prefixes": lengths.new_tensor(prefixes), "spectrogram": lengths.new_tensor(spectrogram)}
        return batch | {"labelled": labelled_positions(labels), "extra": extra}

    def loss_sum(self, outputs: ModelOutput, batch: Batch) -> Tensor:
        if self.state["ctc"]:
            frames = batch["extra"]["frames"]
            return ctc_losses(outputs.logits, batch["labels"], frames, self.state["blank"]).sum()
        smoothing = self.options.label_smoothing_factor
        return token_losses(outputs.logits, batch["labels"], label_smoothing=smoothing, labelled=batch["labelled"])

    def predict(self, model: nn.Module, outputs: ModelOutput, batch: Batch) -> dict[str, Tensor]:
        """Returns `ids` `[B, T]`, of frames (CTC) or tokens, `confidence` `[B]`, and `times` of tokens `[B, T]`."""
        if self.state["ctc"]:
            ids, scores = best_path(outputs.logits, batch["extra"]["kept"])
            return {"ids": ids, "confidence": confidence(ids, scores, self.state["blank"])}
        prefixes = batch["extra"]["prefixes"]
        settings = self._generation(model, prefixes.shape[1])
        frames = batch["extra"]["spectrogram"].tolist() if self.options.word_times else None
        found: dict[str, Tensor] = generate(model, outputs, batch["inputs"], prefixes, frames, **settings)
        return found

    def _generation(self, model: Any, prefix: int) -> dict[str, Any]:
        options = self.options
        most = num_new_tokens(model.config, options.max_target_length, prefix)
        return {"max_new_tokens": most, "num_beams": options.num_beams, **options.generation}

    def pretrained_options(self, config: PreTrainedConfig, processor: Processor) -> Mapping[str, Any]:
        """Returns the language whose adapters are loaded, for MMS; a folder of a run has no files of adapters."""
        language, folder = getattr(processor.tokenizer, "target_lang", None), Path(config._name_or_path)
        merged = folder.is_dir() and not any(folder.glob("adapter.*"))
        adapted = language is not None and getattr(config, "adapter_attn_dim", None) is not None and not merged
        return {"target_lang": language} if adapted else {}

    def generation_fields(self, model: PreTrainedModel, processor: Processor) -> Mapping[str, Any]:
        if self.state["ctc"]:
            return {}
        tokenizer, options = processor.tokenizer, self.options
        language = None if "language" in self.cfg.data.columns else options.language
        own = generation_fields(tokenizer, language, options.task, self.state["start"])
        return own | self._generation(model, len(self._prefix(tokenizer)))

    def _prefix(self, tokenizer: Any) -> list[int]:
        """Returns the decoder's first tokens, of English where rows have languages."""
        return prefix(tokenizer, self.state["start"], self.options.language or "en", self.options.task)

    def decode(self, predictions: Predictions, data: EvalData) -> list[Record]:
        from toolkit.modalities import audio

        extractor, steps = data.processor.feature_extractor, self.state["steps"]
        frame = hop(extractor, steps) / extractor.sampling_rate if self.state["ctc"] else None
        found = _transcripts(predictions, data.features, data.processor.tokenizer, self.options, frame)
        return [
            {"audio": audio.shown(row["audio"]), **answer, "reference": row["text"], "language": row["language"]}
            for row, answer in zip(data.each_row(), found, strict=True)
        ]

    def answer(self, record: Record) -> dict[str, Any]:
        return {name: record[name] for name in self.answer_columns}

    def _pairs(self, records: Iterable[Record]) -> tuple[list[str], list[str]]:
        predictions, references, languages = columns_of(records, "prediction", "reference", "language")
        return [self.normalised(*each) for each in zip(predictions, languages, strict=True)], references

    def metrics(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> dict[str, float]:
        return transcription_scores(*self._pairs(records))

    def quality(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> Quality:
        return transcription_quality(*self._pairs(records))

    def describe(self, record: Record) -> Description:
        aligned = [] if record["reference"] is None else alignment(*self._pair(record))
        return Description(record["audio"], record["prediction"], record["reference"], aligned)

    def error(self, record: Record) -> tuple[float, ...] | None:
        return None if record["reference"] is None else transcription_error(*self._pair(record))

    def _pair(self, record: Record) -> tuple[str, str]:
        return self.normalised(record["prediction"], record["language"]), record["reference"]

    def baselines(
        self, train: datasets.Dataset, sets: Mapping[str, datasets.Dataset]
    ) -> Iterator[tuple[str, dict[str, dict[str, float]]]]:
        from toolkit.tasks.baselines import frequent_text

        return frequent_text("text", train, sets, transcription_scores)

    def slices(self, rows: datasets.Dataset) -> Mapping[str, Sequence[float]]:
        return {"seconds": [clip["frames"] / clip["rate"] for clip in rows["audio"]]}

    def report_sections(self, name: str, predictions: Predictions, data: EvalData, folder: Path) -> list[Section]:
        from toolkit.document.blocks import Section, Table

        errors = frequent_errors(*self._pairs(self.decode(predictions, data)))
        table = Table(["error", "heard", "expected", "times"], errors, sortable=True)
        return [Section(f"Most frequent errors ({name})", [table] if errors else [])]

    def script(self) -> str:
        return "speech_recognition"

    def script_values(self, model: PreTrainedModel, processor: Processor) -> Mapping[str, Any]:
        import re
        from inspect import getsource

        return {
            "ctc": self.state["ctc"],
            "prefix": [] if self.state["ctc"] else self._prefix(processor.tokenizer),
            "spans": re.sub(' *""".*?"""\n', "", getsource(spans), flags=re.DOTALL).strip(),
            "sizes": chunks(processor.feature_extractor, self.options, self.state["steps"]),
            "overlaps": self.options.stride_length_s != 0,
            "language": self.cfg.data.columns.get("language"),
        }

    def decoded(self, row: dict[str, Any], processor: Processor, training: bool) -> np.ndarray | None:
        from toolkit.modalities import audio

        return audio.decoded(row, processor.feature_extractor, self.options, training)


def _transcripts(
    predictions: Predictions,
    features: datasets.Dataset,
    tokenizer: Any,
    options: SpeechRecognitionOptions,
    frame: float | None,
) -> Iterator[Record]:
    """Yields the answer for each recording, of the predictions of its parts; `frame` is None without frames."""
    import numpy as np

    owners, begins, lefts = np.array(features["example"][:]), features["begin"][:], features["left"][:]
    special = set(tokenizer.all_special_ids)
    for group in np.split(np.arange(len(owners)), np.flatnonzero(np.diff(owners)) + 1):
        rows = [row[row != IGNORE_INDEX].tolist() for row in predictions["ids"][group]]
        spoken = [[token for token in row if token not in special] for row in rows]
        words = None
        if frame is not None:  # joined before they are collapsed, as if they were of one pass
            ids: list[int] = []
            for place, row in zip(group, rows, strict=True):
                # Convolutions leave out the last frame of a part, which matters if parts do not overlap.
                gap = round(begins[place] / frame) + lefts[place] - len(ids)
                ids += [*ids[-1:] * gap, *row]
            # As transformers' pipeline: the blank is a special token.
            text = tokenizer.decode(ids, skip_special_tokens=False)
            words = _words_of_frames(ids, tokenizer, frame) if options.word_times else None
        else:
            times = [
                [
                    (begins[place] + start, begins[place] + end)
                    for token, (start, end) in zip(row, pairwise([0.0, *ends]), strict=False)
                    if token not in special
                ]
                for place, row, ends in zip(group, rows, predictions["times"][group].tolist(), strict=True)
            ] if "times" in predictions else []  # fmt: skip
            ids, ends = _merged(spoken, times, options)
            text = tokenizer.decode(ids, skip_special_tokens=True)
            words = _words_of_tokens(ids, ends, tokenizer, options.language) if options.word_times else None
        scores = predictions["confidence"][group].tolist()
        confidence = scores[0] if len(rows) == 1 else _mean(scores, [*map(len, spoken)])
        answer = {"prediction": text.strip(), "confidence": confidence}
        yield answer | ({"words": words} if options.word_times else {})


def _mean(scores: Sequence[float], counts: Sequence[int]) -> float:
    """Returns the geometric mean of `counts` probabilities each, of which `scores` are the means; 0 without any."""
    logs = [count * math.log(score) for score, count in zip(scores, counts, strict=True) if count]
    return math.exp(sum(logs) / sum(counts)) if logs else 0.0


def _merged(
    parts: list[list[int]], times: list[list[tuple[float, float]]], options: SpeechRecognitionOptions
) -> tuple[list[int], list[tuple[float, float]]]:
    """Returns the tokens of parts, joined as by transformers at the longest common sequence of neighbours.

    Their times are joined alike, if there are any. Parts that do not overlap have nothing in common.
    """
    from transformers.models.whisper.tokenization_whisper import _find_longest_common_sequence

    if len(parts) == 1 or options.stride_length_s == 0:
        return list(chain(*parts)), list(chain(*times))
    heard = [part for part in parts if part] or [[]]
    joined: tuple[list[int], list[tuple[float, float]]]
    joined = _find_longest_common_sequence(heard, [part for part in times if part])
    return joined


def _words_of_frames(ids: list[int], tokenizer: Any, frame: float) -> list[dict[str, Any]]:
    offsets = tokenizer.decode(ids, output_word_offsets=True)["word_offsets"]
    return [
        {"word": each["word"], "start": float(each["start_offset"] * frame), "end": float(each["end_offset"] * frame)}
        for each in offsets
    ]


def _words_of_tokens(
    ids: list[int], times: list[tuple[float, float]], tokenizer: Any, language: str | None
) -> list[dict[str, Any]]:
    from transformers.models.whisper.tokenization_whisper import LANGUAGES, _collate_word_timestamps

    name = LANGUAGES.get(language, language) if language else None
    found = _collate_word_timestamps(tokenizer, ids, times, name, False)
    return [
        {"word": each["text"].strip(), "start": each["timestamp"][0], "end": each["timestamp"][1]} for each in found
    ]


def frame_steps(config: PreTrainedConfig) -> list[list[int]]:
    """Returns kernel, stride and padding of each step from samples (of wav2vec2-bert: from its features) to frames."""
    steps = []
    if hasattr(config, "conv_kernel"):
        steps = [[kernel, stride, 0] for kernel, stride in zip(config.conv_kernel, config.conv_stride, strict=True)]
    if getattr(config, "add_adapter", False):
        kernel = getattr(config, "adapter_kernel_size", 1) if config.model_type == "wav2vec2-bert" else 1
        steps += [[kernel, config.adapter_stride, kernel // 2]] * config.num_adapter_layers
    return steps


def num_frames(length: int, steps: Sequence[Sequence[int]]) -> int:
    """Returns the number of frames that convolutions make of an input of this length."""
    for kernel, stride, padding in steps:
        length = (length + 2 * padding - kernel) // stride + 1
    return max(0, length)


def least_frames(file: Mapping[str, Any], extractor: Any, options: Any, steps: Sequence[Sequence[int]]) -> int:
    """Returns the frames of a clip at the highest speed of training."""
    from toolkit.modalities import audio

    samples = int(file["frames"] / file["rate"] * extractor.sampling_rate / (1 + options.audio.speed))
    if not audio.takes_waveforms(extractor):
        samples = num_frames(samples, [[audio.FRAME, audio.HOP, 0], [extractor.stride, extractor.stride, 0]])
    return num_frames(samples, steps)


def fits(labels: Sequence[int], file: Mapping[str, Any], processor: Processor, options: Any, steps: Any) -> bool:
    """Whether a transcript has at most `max_target_length` labels and, with the `steps` of CTC, frames enough."""
    needed = len(labels) + sum(map(eq, labels, labels[1:]))  # one for each, and a blank between two equal ones
    frames = math.inf if steps is None else least_frames(file, processor.feature_extractor, options, steps)
    return len(labels) <= options.max_target_length and needed <= frames


def hop(extractor: Any, steps: Sequence[Sequence[int]] | None) -> int:
    """Returns the samples between two frames of CTC; 1 for encoder-decoders, whose `steps` are None."""
    from toolkit.modalities import audio

    if steps is None:
        return 1
    return math.prod(stride for _, stride, _ in steps) * (
        1 if audio.takes_waveforms(extractor) else audio.HOP * extractor.stride
    )


def chunks(extractor: Any, options: Any, steps: Sequence[Sequence[int]] | None) -> tuple[int, int, int, int]:
    """Returns the last four arguments of `spans`: parts have whole frames."""
    rate, frame = extractor.sampling_rate, hop(extractor, steps)
    seconds = options.chunk_length_s or options.audio.max_seconds
    stride = seconds / 6 if options.stride_length_s is None else options.stride_length_s
    least = math.ceil(options.audio.min_seconds * rate)
    return round(seconds * rate) // frame * frame, round(stride * rate / frame) * frame, least, frame


def spans(total: int, chunk: int, stride: int, least: int, hop: int) -> list[tuple[int, int, int, int]]:
    """Returns begin and end of the parts of a recording, in samples, and those of the frames that are kept of each.

    Parts overlap by two strides, of which each keeps its half; the last one has at least `least` samples.
    """
    step = chunk - 2 * stride
    starts = list(range(0, total - chunk, step))
    found = [(start, start + chunk, stride // hop if start else 0, (chunk - stride) // hop) for start in starts]
    last = max(0, min(len(starts) * step, (total - least) // hop * hop))
    return [*found, (last, total, (len(starts) * step + stride - last) // hop if starts else 0, total)]


def cut(
    files: Sequence[Mapping[str, Any]], processor: Processor, options: Any, steps: Any, whole: bool
) -> dict[str, list[Any]]:
    """Returns columns of the parts of recordings: `files`, `example` (place of the recording), `begin`, `left`, `stop`.

    A part begins at `begin` seconds, and its frames from `left` to `stop` are kept, which may be more than there are.
    With `whole`, every recording is one part.
    """
    from toolkit.modalities.audio_files import open_sound

    extractor = processor.feature_extractor
    rate, sizes = extractor.sampling_rate, chunks(extractor, options, steps)
    found: dict[str, list[Any]] = {"files": [], "example": [], "begin": [], "left": [], "stop": []}
    for place, file in enumerate(files):
        total = round(file["frames"] / file["rate"] * rate)
        parts = [(0, total, 0, total)] if whole else spans(total, *sizes)
        if len(parts) > 1 and file["bytes"] is not None:
            with open_sound(file) as opened:  # decoded once
                file = {**file, "bytes": opened.read(), "name": f"{file['name']}.wav"}
        for start, end, left, stop in parts:
            part = file if len(parts) == 1 else _part(file, start / rate, end / rate, rate, options)
            for name, value in zip(found, (part, place, start / rate, left, stop), strict=True):
                found[name].append(value)
    return found


def _part(file: Mapping[str, Any], start: float, end: float, rate: int, options: Any) -> Mapping[str, Any]:
    """Returns a part of a clip; of a recording in memory with its own samples, because every row has its file."""
    import soundfile

    from toolkit.modalities import audio

    first, stop = (min(round(time * file["rate"]), file["frames"]) for time in (start, end))
    part = {**file, "first": file["first"] + first, "frames": stop - first}
    if file["bytes"] is None:
        return part
    samples, buffer = audio.read(part, rate, options.audio, None), io.BytesIO()
    soundfile.write(buffer, samples, rate, format="WAV", subtype="FLOAT")
    own = {"bytes": buffer.getvalue(), "first": 0, "frames": len(samples), "rate": rate, "channels": 1}
    return part | own


@cache
def normaliser(name: str, english: bool, case: str, punctuation: str) -> Callable[[str], str]:
    """Returns a function that normalises transcripts; see the task's options."""
    from transformers.models.whisper.english_normalizer import BasicTextNormalizer, EnglishTextNormalizer

    spelled: Any = EnglishTextNormalizer({}) if english and name == "whisper" else BasicTextNormalizer()
    first = str if name == "none" else spelled
    cased: Any = {"keep": str, "lower": str.lower, "upper": str.upper}[case]
    last = without_punctuation if punctuation == "remove" else str
    return lambda words: " ".join(last(cased(first(words))).split())


def without_punctuation(words: str) -> str:
    """Replaces punctuation and symbols with spaces, except apostrophes inside words."""
    kept = []
    for place, letter in enumerate(words):
        inside = letter in "'\u2019" and words[place - 1 : place].isalnum() and words[place + 1 : place + 2].isalnum()
        kept.append(letter if inside or unicodedata.category(letter)[0] not in "PS" else " ")
    return "".join(kept)


def unknown_characters(texts: Sequence[str], tokenizer: Any) -> list[str]:
    """Returns the characters of each transcript that a CTC vocabulary lacks."""
    upper, known = getattr(tokenizer, "do_lower_case", False), {" ", *tokenizer.get_vocab()}
    return ["".join(each for each in words if (each.upper() if upper else each) not in known) for words in texts]


def language_problems(tokenizer: Any, options: Any, by_row: bool) -> list[str]:
    """Returns why a tokenizer does not fit the language settings; `by_row` says whether rows have languages."""
    from toolkit.modalities.speech import language_code

    language = options.language
    if not is_multilingual(tokenizer):
        used = options.normalize == "whisper" or getattr(tokenizer, "target_lang", None)
        wanted = {"task.language": language is not None and not used, "data.columns.language": by_row}
        return [
            f"{key}: given, but this model is not told a language; remove it" for key, each in wanted.items() if each
        ]
    if language is not None and language_code(language) is None:
        return [f"task.language: received {language!r}, not the code or name of a language that Whisper knows"]
    if language is None and not by_row:
        columns = "data.columns.language to the column that holds it"
        return [f"task.language: this model is told the language of the transcripts; set it, or {columns}"]
    return []


def is_multilingual(tokenizer: Any) -> bool:
    """Whether a tokenizer is Whisper's, with the tokens of languages that transcripts begin with."""
    return "<|transcribe|>" in tokenizer.get_added_vocab() and "<|en|>" in tokenizer.get_added_vocab()


def prefix(tokenizer: Any, start: int, language: str | None, task: str) -> list[int]:
    """Returns the tokens that the decoder is given before a transcript; `start` is the decoder's start id."""
    from toolkit.modalities.speech import language_code

    found = tokenizer.get_added_vocab()
    names = ["<|notimestamps|>"]
    if is_multilingual(tokenizer) and language is not None:
        names = [f"<|{language_code(language)}|>", f"<|{task}|>", *names]
    return [start, *(found[name] for name in names if name in found)]


def encode(
    texts: Sequence[str], languages: Sequence[str | None], tokenizer: Any, start: int | None, task: str
) -> list[list[int]]:
    """Returns the labels of transcripts: characters (CTC; `start` is None), or what an encoder-decoder writes.

    The latter are Whisper's tokens of language and task, the transcript, and the end token.
    """
    from toolkit.modalities.speech import language_code

    if start is None:
        return [tokenizer(each)["input_ids"] for each in texts]
    end, whisper = tokenizer.eos_token_id, "<|notimestamps|>" in tokenizer.get_added_vocab()
    found = []
    for each, language in zip(texts, languages, strict=True):
        space = " " if whisper and language_code(language or "en") not in WITHOUT_SPACES else ""
        ids = tokenizer(space + each, add_special_tokens=False)["input_ids"]
        found.append([*prefix(tokenizer, start, language, task)[1:], *ids, end])
    return found


def ctc_losses(logits: Tensor, labels: Tensor, frames: Tensor, blank: int) -> Tensor:
    """Returns the CTC loss (Graves et al. 2006) of each row, `[B]`; 0 for rows without labels.

    Args:
        logits: `[B, frames, vocabulary]`.
        labels: `[B, T]`; `IGNORE_INDEX` is ignored.
        frames: `[B]`, the frames of each row.
        blank: id of the blank.
    """
    import torch
    from torch._subclasses.fake_tensor import is_fake
    from torch.nn.functional import ctc_loss, log_softmax

    lengths, targets = (labels != IGNORE_INDEX).sum(-1), labels.clamp(min=0)
    dtype = torch.promote_types(logits.dtype, torch.float32)
    probabilities = log_softmax(logits, dim=-1, dtype=dtype).transpose(0, 1)
    if is_fake(logits):  # torch cannot simulate the loss; this keeps a table of its size, frames by twice the labels
        places = targets.repeat(1, 2).expand(len(probabilities), -1, -1)
        return -probabilities.gather(2, places).logsumexp(2).sum(0)
    with torch.backends.cudnn.flags(enabled=False):  # cuDNN's is not deterministic
        losses = ctc_loss(
            probabilities, targets, frames.clamp(max=len(probabilities)), lengths, blank=blank, reduction="none"
        )
    return losses.masked_fill(lengths == 0, 0.0)


def best_path(logits: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the most likely token of each frame, and its logarithmic probability.

    Both are `[B, frames]`, the first int32 and `IGNORE_INDEX` outside the frames that are `kept`, where the second is
    0; `kept` is `[B, 2]`, the first frame of each row, and the one behind the last.
    """
    import torch

    scores, ids = logits.float().log_softmax(-1).max(-1)
    places = torch.arange(logits.shape[1], device=logits.device)
    padding = (places < kept[:, :1]) | (places >= kept[:, 1:])
    return ids.int().masked_fill(padding, IGNORE_INDEX), scores.masked_fill(padding, 0.0)


def confidence(ids: Tensor, scores: Tensor, blank: int) -> Tensor:
    """Returns the geometric mean of the probabilities of a row's frames that are no blank, `[B]`; 0 without any."""
    spoken = (ids != blank) & (ids != IGNORE_INDEX)
    counts = spoken.sum(-1)
    return ((scores * spoken).sum(-1) / counts.clamp(min=1)).exp().masked_fill(counts == 0, 0.0)


def generate(
    model: Any,
    outputs: Any,
    inputs: Mapping[str, Tensor],
    prefixes: Tensor,
    frames: Sequence[int] | None = None,
    **settings: Any,
) -> dict[str, Tensor]:
    """Generates transcripts with greedy or beam search.

    Args:
        model: a `PreTrainedModel`, not wrapped in DDP.
        outputs: outputs of its forward pass; Whisper's encoder states are used again.
        inputs: inputs of that pass.
        prefixes: `[B, P]` int64, the decoder's first tokens.
        frames: the spectrogram's frames of each clip, for the times of tokens; None for none.
        **settings: fields of `transformers.GenerationConfig`.

    Returns:
        `ids` `[B, T]` int32, padded with the padding id or `IGNORE_INDEX`, `confidence` `[B]`, the geometric mean of
        their probabilities, and `times` `[B, T]`, their ends in seconds.
    """
    import torch

    own = getattr(model, "get_base_model", lambda: model)()
    given: dict[str, Any] = {"prefixes": prefixes}
    if own.config.model_type == "whisper":
        given["states"] = outputs.encoder_last_hidden_state
    else:  # which need more of their encoder than its states, and call it without the hooks of the forward pass
        source = {name: value for name, value in inputs.items() if not name.startswith("decoder_")}
        given |= {name: each.to(own.dtype) if each.is_floating_point() else each for name, each in source.items()}
    if frames is None:
        return _generated(own, **given, **settings)
    # Alone, because the times of a row depend on what the longest transcript of its batch adds to it.
    rows = [
        _generated(own, **{name: each[place : place + 1] for name, each in given.items()}, frames=count, **settings)
        for place, count in enumerate(frames)
    ]
    found = {"confidence": torch.cat([row.pop("confidence") for row in rows])}
    pad = torch.nn.utils.rnn.pad_sequence
    return found | {name: pad([row[name][0] for row in rows], True, IGNORE_INDEX) for name in rows[0]}


def _generated(
    own: Any, prefixes: Tensor, states: Tensor | None = None, frames: int | None = None, **settings: Any
) -> dict[str, Tensor]:
    import torch
    from transformers import GenerationMixin
    from transformers.modeling_outputs import BaseModelOutput

    attention = own.config._attn_implementation
    if states is not None:
        settings["encoder_outputs"] = BaseModelOutput(last_hidden_state=states)
    if frames is not None:
        own.set_attn_implementation("eager")  # other kernels return no weights
        settings["output_attentions"] = True
    # Whisper's own `generate` cuts long recordings into parts; clips are not longer than one.
    generate_ids: Any = GenerationMixin.generate
    made = generate_ids(
        own, decoder_input_ids=prefixes, do_sample=False, return_dict_in_generate=True, output_scores=True, **settings
    )
    length, pad = prefixes.shape[1], own.generation_config.pad_token_id
    ids = made.sequences[:, length:]
    scores = own.compute_transition_scores(
        made.sequences, made.scores, getattr(made, "beam_indices", None), normalize_logits=True
    )
    written = torch.isfinite(scores) & (ids[:, : scores.shape[1]] != pad)
    mean = scores.masked_fill(~written, 0.0).sum(-1) / written.sum(-1).clamp(min=1)
    found = {"ids": ids.int(), "confidence": mean.exp()}
    if frames is not None:
        own.set_attn_implementation(attention)
        heads = own.generation_config.alignment_heads
        times = own._extract_token_timestamps(made, heads, num_frames=frames, num_input_ids=length)
        found["times"] = times[:, length : made.sequences.shape[1]]
    return found


def num_new_tokens(config: PreTrainedConfig, most: int, prefix: int) -> int:
    """Returns how many tokens are generated behind a prefix: a transcript of `most` labels, if the decoder has room."""
    from toolkit.modalities.speech import room as room_of

    room = room_of(config)
    return max(1, most - prefix + 1 if room is None else min(most - prefix + 1, room - prefix))


def generation_fields(tokenizer: Any, language: str | None, task: str, start: int) -> dict[str, Any]:
    """Returns the fields of the generation config with which `generate` and pipelines transcribe as in training."""
    from toolkit.modalities.speech import language_code

    found = tokenizer.get_added_vocab()
    fields = {"decoder_start_token_id": start, "eos_token_id": tokenizer.eos_token_id,
              "pad_token_id": tokenizer.pad_token_id, "max_length": None}  # fmt: skip
    if "<|notimestamps|>" not in found:
        return fields
    fields |= {"no_timestamps_token_id": found["<|notimestamps|>"], "return_timestamps": False,
               "forced_decoder_ids": None, "is_multilingual": is_multilingual(tokenizer)}  # fmt: skip
    if is_multilingual(tokenizer):
        tasks = {name: found[f"<|{name}|>"] for name in ("transcribe", "translate")}
        codes = {name: place for name, place in found.items() if language_code(name.strip("<|>")) == name.strip("<|>")}
        chosen = None if language is None else language_code(language)
        fields |= {"lang_to_id": codes, "task_to_id": tasks, "task": task, "language": chosen}
    return fields


TASK = SpeechRecognition

if __name__ == "__main__":
    main(TASK)
