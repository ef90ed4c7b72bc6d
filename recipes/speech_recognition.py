"""Speech recognition: the transcript of a recording, by CTC models and encoder-decoders.

accelerate launch recipes/speech_recognition.py --config recipes/configs/speech_recognition/smoke_ctc.yaml \
    [section.key=value ...]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from toolkit.api.batch import (
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
from toolkit.modalities.options import AudioOptions
from toolkit.tasks.records import checked_text, columns_of
from toolkit.tasks.tokens import labelled_positions, token_losses

if TYPE_CHECKING:
    import datasets
    import numpy as np
    from torch import Tensor, nn
    from transformers import PreTrainedConfig

    from toolkit.api.random import RowRandom
    from toolkit.document.blocks import Section
    from toolkit.metrics.score import Quality


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
        return [f"task.generation.{name}: set task.{own[name]}" for name in self.generation if name in own]


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
    decoding = ("num_beams", "generation")
    answer_columns = ("prediction", "confidence")

    options: SpeechRecognitionOptions

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self.state = {"ctc": None, "start": None, "blank": None, "steps": None}

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
        return {"audio": self.speech.check(clip, self.options), "text": words, "language": language}

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
        result: str = self.speech.normaliser(options.normalize, english, options.case, options.punctuation)(words)
        return result

    def training_texts(self, rows: datasets.Dataset) -> Iterator[str]:
        return iter(rows["text"])

    def configure(self, config: PreTrainedConfig) -> None:
        ctc = self.speech.is_ctc(config)
        self.state |= {
            "ctc": ctc,
            "start": None if ctc else config.decoder_start_token_id,
            "blank": config.pad_token_id if ctc else None,
            "steps": self.speech.frame_steps(config) if ctc else None,
        }

    def processor_problems(self, processor: Processor) -> list[str]:
        return self.speech.language_problems(processor.tokenizer, self.options, "language" in self.cfg.data.columns)

    def preprocess(
        self, rows: Mapping[str, Sequence[Any]], processor: Processor, labelled: bool
    ) -> dict[str, list[Any]]:
        columns = self.speech.preprocess(rows["audio"], processor, self.options)
        languages = list(rows["language"])
        labels: list[list[int]] = [[] for _ in languages]
        if labelled:
            task, start = self.options.task, self.state["start"]
            labels = self.speech.encode(rows["text"], languages, processor.tokenizer, start, task)
        fits = [
            not labelled or self.speech.fits(label, clip, processor, self.options, self.state["steps"])
            for label, clip in zip(labels, rows["audio"], strict=True)
        ]
        unknown = [""] * len(labels)
        if labelled and self.state["ctc"]:
            unknown = self.speech.unknown_characters(rows["text"], processor.tokenizer)
        columns |= {"labels": labels, "language": languages, "unknown": unknown, "example": list(range(len(labels)))}
        return {
            name: [value for value, kept in zip(values, fits, strict=True) if kept] for name, values in columns.items()
        }

    def lost(self, rows: datasets.Dataset, features: datasets.Dataset) -> tuple[Sequence[int], str]:
        kept = set(features["example"][:]) if "example" in features.column_names else set()
        lost = [place for place in range(len(rows)) if place not in kept]
        limit, texts = self.options.max_target_length, rows["text"]
        longer = {len(texts[place]) > limit for place in lost} if self.state["ctc"] else {True}
        whys = {True: f"more than task.max_target_length={limit} labels", False: "more frames than their recording has"}
        return lost, f"need {' or '.join(why for case, why in whys.items() if case in longer)}"

    def omissions(self, rows: datasets.Dataset, features: datasets.Dataset) -> list[Omission]:
        from toolkit.modalities import audio

        counts = Counter("".join(features["unknown"] if "unknown" in features.column_names else ()))
        named = ", ".join(f"{letter!r} ({count:,})" for letter, count in counts.most_common(10))
        total = sum(len(words or "") for words in rows["text"])
        unknown = Omission("characters unknown to the vocabulary", counts.total(), total, named)
        return [unknown, *audio.omissions(rows["audio"], self.options)]

    def collate(self, features: list[dict[str, Any]], processor: Processor, random: RowRandom) -> Batch:
        inputs, lengths = self.speech.collate(features, processor, self.options, random)
        labels = self.speech.pad_labels(features)
        batch: Batch = {"inputs": inputs, "labels": labels}
        if self.state["ctc"]:
            frames = [self.speech.num_frames(length, self.state["steps"]) for length in lengths.tolist()]
            return batch | {"extra": {"frames": lengths.new_tensor(frames)}}
        tokenizer, start, task = processor.tokenizer, self.state["start"], self.options.task
        inputs |= self.speech.decoder_inputs(labels, start, tokenizer.pad_token_id)
        prefixes = [self.speech.prefix(tokenizer, start, row["language"], task) for row in features]
        return batch | {"labelled": labelled_positions(labels), "extra": {"prefixes": lengths.new_tensor(prefixes)}}

    def loss_sum(self, outputs: ModelOutput, batch: Batch) -> Tensor:
        if self.state["ctc"]:
            frames = batch["extra"]["frames"]
            return self.speech.ctc_losses(outputs.logits, batch["labels"], frames, self.state["blank"]).sum()
        smoothing = self.options.label_smoothing_factor
        return token_losses(outputs.logits, batch["labels"], label_smoothing=smoothing, labelled=batch["labelled"])

    def predict(self, model: nn.Module, outputs: ModelOutput, batch: Batch) -> dict[str, Tensor]:
        """Returns `ids` `[B, T]`, of frames (CTC) or tokens, and `confidence` `[B]`."""
        if self.state["ctc"]:
            ids, scores = self.speech.best_path(outputs.logits, batch["extra"]["frames"])
            return {"ids": ids, "confidence": self.speech.confidence(ids, scores, self.state["blank"])}
        settings = {"max_new_tokens": self.options.max_target_length, "num_beams": self.options.num_beams}
        settings |= self.options.generation
        ids, confidence = self.speech.generate(model, outputs, batch["inputs"], batch["extra"]["prefixes"], **settings)
        return {"ids": ids, "confidence": confidence}

    def decode(self, predictions: Predictions, data: EvalData) -> list[Record]:
        from toolkit.modalities import audio

        texts = self.speech.decode(predictions["ids"], data.processor.tokenizer, self.state["ctc"])
        found = zip(data.rows, texts, predictions["confidence"].tolist(), strict=True)
        return [
            {
                "audio": audio.shown(row["audio"]),
                "prediction": words,
                "confidence": confidence,
                "reference": row["text"],
                "language": row["language"],
            }
            for row, words, confidence in found
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

    def decoded(self, row: dict[str, Any], processor: Processor, training: bool) -> np.ndarray | None:
        from toolkit.modalities import audio

        return audio.decoded(row, processor.feature_extractor, self.options, training)


TASK = SpeechRecognition

if __name__ == "__main__":
    main(TASK)
