"""Translation with `transformers.Seq2SeqTrainer`, as the library's example `run_translation.py` does it.

Both variants pad to the longest row of a batch, the example's default. A careful user adds bfloat16 and batches of
rows of similar length, which are options of the comparison.
"""

from __future__ import annotations

from datasets import load_dataset
from trainer_side import read_arguments, train_and_report, training_arguments
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)


def main() -> None:
    """Trains and prints the result line."""
    options = read_arguments(__doc__, max_length=64, label_smoothing=0.1)
    rows = load_dataset("json", data_files=options.train_file, split="train", cache_dir=f"{options.output_dir}/cache")
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForSeq2SeqLM.from_pretrained(options.model)

    def features_of(part: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        inputs = tokenizer(part["source"], max_length=options.max_length, truncation=True)
        labels = tokenizer(text_target=part["target"], max_length=options.max_length, truncation=True)
        return {**inputs, "labels": labels["input_ids"]}

    trainer = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(**training_arguments(options, label_smoothing_factor=options.label_smoothing)),
        train_dataset=rows.map(features_of, batched=True, remove_columns=rows.column_names),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    )
    train_and_report(trainer, options)


if __name__ == "__main__":
    main()
