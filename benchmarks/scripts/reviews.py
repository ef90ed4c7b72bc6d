"""Text classification with `transformers.Trainer`, as the library's example `run_classification.py` does it.

`defaults` pads every row to the maximum length (the example's `pad_to_max_length`); `tuned` pads to the longest row
of a batch.
"""

from __future__ import annotations

from typing import Any

from datasets import load_dataset
from trainer_side import read_arguments, train_and_report, training_arguments
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    default_data_collator,
)


def main() -> None:
    """Trains and prints the result line."""
    options = read_arguments(__doc__, max_length=128)
    rows = load_dataset("json", data_files=options.train_file, split="train", cache_dir=f"{options.output_dir}/cache")
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    names = sorted(set(rows["label"]))
    padding = "max_length" if options.variant == "defaults" else False

    def features_of(part: dict[str, list[Any]]) -> dict[str, list[Any]]:
        encoded = tokenizer(part["text"], padding=padding, max_length=options.max_length, truncation=True)
        return {**encoded, "label": [names.index(label) for label in part["label"]]}

    trainer = Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=len(names)),
        args=TrainingArguments(**training_arguments(options)),
        train_dataset=rows.map(features_of, batched=True, remove_columns=rows.column_names),
        data_collator=default_data_collator if options.variant == "defaults" else DataCollatorWithPadding(tokenizer),
    )
    train_and_report(trainer, options)


if __name__ == "__main__":
    main()
