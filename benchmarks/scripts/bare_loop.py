"""Question answering with a bare PyTorch loop: no Accelerate, no Trainer, no checks, nothing logged."""

from __future__ import annotations

import argparse

import torch
from datasets import load_dataset
from pairs import Clock, report
from scripts.qa import features_of
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    DataCollatorWithPadding,
    get_linear_schedule_with_warmup,
)

LARGEST_NORM = 1.0


def main() -> None:
    """Trains one epoch and prints the result line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("model", "train_file", "cache"):
        parser.add_argument(f"--{name}", required=True)
    for name, default in (("batch_size", 16), ("warm_up", 2), ("max_length", 384), ("doc_stride", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    options.variant = "tuned"
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    rows = load_dataset("json", data_files=options.train_file, split="train", cache_dir=options.cache)
    features = rows.map(
        lambda part: features_of(part, tokenizer, options), batched=True, remove_columns=rows.column_names
    )
    batches = DataLoader(features, batch_size=options.batch_size, collate_fn=DataCollatorWithPadding(tokenizer))
    model = AutoModelForQuestionAnswering.from_pretrained(options.model).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.0, fused=True)
    schedule = get_linear_schedule_with_warmup(optimizer, 0, len(batches))
    clock, losses = Clock(), []
    for batch in batches:
        labels = batch.pop("start_positions"), batch.pop("end_positions")
        outputs = model(**batch)
        padding = batch["attention_mask"] == 0  # left out of the softmax, as by the toolkit
        logits = [logits.masked_fill(padding, -1e30) for logits in (outputs.start_logits, outputs.end_logits)]
        loss = sum(cross_entropy(*pair) for pair in zip(logits, labels, strict=True)) / 2
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), LARGEST_NORM)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        clock.tick()
    measured = clock.steps(options.warm_up - 1)
    report({"seconds": sum(measured), "steps": len(measured), "losses": [float(loss) for loss in losses]})


if __name__ == "__main__":
    main()
