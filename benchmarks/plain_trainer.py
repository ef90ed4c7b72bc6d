"""Text classification with a plain `transformers.Trainer`, for comparison."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import evaluate  # noqa: F401 - typical scripts import it
import numpy as np
from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)


def read_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser()
    for name in ("model", "train_file", "validation_file", "output_dir"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--seed", type=int, default=42)
    return parser.parse_args()


def main() -> None:
    """Trains and prints one line with `RESULT` and a JSON object: seconds of training and accuracy."""
    arguments = read_arguments()
    files = {"train": arguments.train_file, "validation": arguments.validation_file}
    data = load_dataset("csv", data_files=files)
    names = sorted(set(data["train"]["label"]))
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)

    def tokenise(rows: dict) -> dict:
        return tokenizer(rows["text"], truncation=True, max_length=128) | {
            "labels": [names.index(x) for x in rows["label"]]
        }

    data = data.map(tokenise, batched=True, remove_columns=["text", "label"])
    if (Path(arguments.model) / "model.safetensors").exists():
        model = AutoModelForSequenceClassification.from_pretrained(arguments.model, num_labels=len(names))
    else:
        config = AutoConfig.from_pretrained(arguments.model, num_labels=len(names))
        model = AutoModelForSequenceClassification.from_config(config)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=arguments.output_dir,
            per_device_train_batch_size=arguments.batch_size,
            gradient_accumulation_steps=arguments.accumulation,
            num_train_epochs=1,
            learning_rate=1e-4,
            warmup_steps=0.1,
            weight_decay=0.01,
            bf16=arguments.bf16,
            save_strategy="no",
            report_to="none",
            seed=arguments.seed,
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda result: {"accuracy": float(np.mean(result.predictions.argmax(-1) == result.label_ids))},
    )
    start = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start
    scores = trainer.evaluate()
    print("RESULT", json.dumps({"train_seconds": seconds, "accuracy": scores["eval_accuracy"]}))


if __name__ == "__main__":
    main()
