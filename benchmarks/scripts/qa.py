"""Question answering with `transformers.Trainer`, as the library's example `run_qa.py` does it.

`defaults` pads every row to 384 tokens (the example's `pad_to_max_length`); `tuned` pads to the longest row of a batch.
"""

from __future__ import annotations

import argparse
from typing import Any

from datasets import load_dataset
from torch.nn.functional import cross_entropy
from trainer_side import read_arguments, train_and_report, training_arguments
from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    default_data_collator,
)


def features_of(rows: dict[str, list[Any]], tokenizer: Any, options: argparse.Namespace) -> Any:
    """Tokenises rows and finds the tokens of their answers: `prepare_train_features` of the example."""
    encoded = tokenizer(
        [question.lstrip() for question in rows["question"]],
        rows["context"],
        truncation="only_second",
        max_length=options.max_length,
        stride=options.doc_stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding="max_length" if options.variant == "defaults" else False,
    )
    owners = encoded.pop("overflow_to_sample_mapping")
    offset_mapping = encoded.pop("offset_mapping")
    encoded["start_positions"], encoded["end_positions"] = [], []
    for index, offsets in enumerate(offset_mapping):
        cls_index = encoded["input_ids"][index].index(tokenizer.cls_token_id)
        sides = encoded.sequence_ids(index)
        answers = rows["answers"][owners[index]]
        start_char = answers["answer_start"][0]
        end_char = start_char + len(answers["text"][0])
        start = sides.index(1)
        end = len(sides) - 1
        while sides[end] != 1:
            end -= 1
        if offsets[start][0] > start_char or offsets[end][1] < end_char:
            start = end = cls_index
        else:
            while start < len(offsets) and offsets[start][0] <= start_char:
                start += 1
            start -= 1
            while offsets[end][1] >= end_char:
                end -= 1
            end += 1
        encoded["start_positions"].append(start)
        encoded["end_positions"].append(end)
    return encoded


class MaskedTrainer(Trainer):
    """Leaves padding out of the softmax over positions, as the toolkit does, so that losses can be compared."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **rest: Any) -> Any:
        """Returns the mean of the two losses."""
        labels = inputs.pop("start_positions"), inputs.pop("end_positions")
        outputs = model(**inputs)
        padding = inputs["attention_mask"] == 0
        logits = [logits.float().masked_fill(padding, -1e30) for logits in (outputs.start_logits, outputs.end_logits)]
        loss = sum(cross_entropy(*pair) for pair in zip(logits, labels, strict=True)) / 2
        return (loss, outputs) if return_outputs else loss


def main() -> None:
    """Trains and prints the result line."""
    options = read_arguments(__doc__, max_length=384, doc_stride=128, mask_padding=False)
    rows = load_dataset("json", data_files=options.train_file, split="train", cache_dir=f"{options.output_dir}/cache")
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    features = rows.map(
        lambda part: features_of(part, tokenizer, options), batched=True, remove_columns=rows.column_names
    )
    trainer = (MaskedTrainer if options.mask_padding else Trainer)(
        model=AutoModelForQuestionAnswering.from_pretrained(options.model),
        args=TrainingArguments(**training_arguments(options)),
        train_dataset=features,
        data_collator=default_data_collator if options.variant == "defaults" else DataCollatorWithPadding(tokenizer),
    )
    train_and_report(trainer, options)


if __name__ == "__main__":
    main()
