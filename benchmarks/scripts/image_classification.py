"""Image classification with `transformers.Trainer`, as the library's example `run_image_classification.py` does it.

Images are decoded, resized and normalised whenever a batch needs them, by the transform of the data set. So that all
sides train on the same pixels, they are resized as a whole, by the processor of the model.
"""

from __future__ import annotations

from typing import Any

import torch
from datasets import Image, load_dataset
from trainer_side import read_arguments, train_and_report, training_arguments
from transformers import AutoImageProcessor, AutoModelForImageClassification, Trainer, TrainingArguments


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Stacks pixels and labels."""
    pixels = torch.stack([row["pixel_values"] for row in rows])
    return {"pixel_values": pixels, "labels": torch.tensor([row["labels"] for row in rows])}


def main() -> None:
    """Trains and prints the result line."""
    options = read_arguments(__doc__, epochs=3)
    rows = load_dataset("json", data_files=options.train_file, split="train", cache_dir=f"{options.output_dir}/cache")
    rows = rows.cast_column("image", Image())
    processor = AutoImageProcessor.from_pretrained(options.model, backend="pil")
    model = AutoModelForImageClassification.from_pretrained(options.model)

    def transform(part: dict[str, list[Any]]) -> dict[str, list[Any]]:
        images = [image.convert("RGB") for image in part["image"]]
        pixels = list(processor(images=images, return_tensors="pt")["pixel_values"])
        return {"pixel_values": pixels, "labels": [model.config.label2id[label] for label in part["label"]]}

    rows.set_transform(transform)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            **training_arguments(options, num_train_epochs=options.epochs, remove_unused_columns=False)
        ),
        train_dataset=rows,
        processing_class=processor,
        data_collator=collate,
    )
    train_and_report(trainer, options)


if __name__ == "__main__":
    main()
