"""Audio classification with `transformers.Trainer`, as the library's example `run_audio_classification.py` does it.

Clips are decoded and resampled whenever a batch needs them, and padded to the longest of their batch; the convolutions
before the transformer are frozen (the example's `freeze_feature_encoder`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import soundfile
import soxr
from datasets import load_dataset
from trainer_side import read_arguments, train_and_report, training_arguments
from transformers import AutoFeatureExtractor, AutoModelForAudioClassification, Trainer, TrainingArguments


def main() -> None:
    """Trains and prints the result line."""
    options = read_arguments(__doc__, epochs=3)
    rows = load_dataset("json", data_files=options.train_file, split="train", cache_dir=f"{options.output_dir}/cache")
    extractor = AutoFeatureExtractor.from_pretrained(options.model)
    model = AutoModelForAudioClassification.from_pretrained(options.model)
    model.freeze_feature_encoder()

    def read(file: str) -> np.ndarray:
        samples, rate = soundfile.read(file, dtype="float32", always_2d=True)
        return soxr.resample(samples.mean(axis=1), rate, extractor.sampling_rate)

    def transform(part: dict[str, list[Any]]) -> dict[str, list[Any]]:
        inputs = extractor([read(file) for file in part["audio"]], sampling_rate=extractor.sampling_rate)
        labels = [model.config.label2id[label] for label in part["label"]]
        return {"input_values": inputs["input_values"], "labels": labels}

    rows.set_transform(transform)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            **training_arguments(options, num_train_epochs=options.epochs, remove_unused_columns=False)
        ),
        train_dataset=rows,
        processing_class=extractor,
    )
    train_and_report(trainer, options)


if __name__ == "__main__":
    main()
