"""A tiny run from a hub on this machine: `python fetch_runs.py ROOT CONFIG RUN FETCHED` trains and fetches it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

SMALL = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32}
CLASSES = {"good": "pos", "bad": "neg", "fine": "pos", "poor": "neg"}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *CLASSES, "the", "film", "was", *"abcde"]
YAML = """
output_dir: unused
task: {max_length: 16}
model: {name_or_path: tiny/bert}
data: {dataset_name: tiny/reviews}
train: {max_steps: 3, per_device_train_batch_size: 2}
"""
HUB_ALONE = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_UPDATE_DOWNLOAD_COUNTS": "0"}
"""Environment with which the libraries ask no server but the hub."""


def reviews(letters: str) -> list[dict[str, str]]:
    return [{"text": f"the film was {word} {each}", "label": CLASSES[word]} for each in letters for word in CLASSES]


def make_hub(root: Path) -> None:
    """Makes the model and the dataset of `YAML`, for `fake_hub`."""
    _make_model(root / "models/tiny/bert")
    rows = root / "datasets/tiny/reviews"
    rows.mkdir(parents=True)
    for split, letters in (("train", "abcd"), ("validation", "e")):
        lines = [json.dumps(row) + "\n" for row in reviews(letters)]
        (rows / f"{split}.jsonl").write_text("".join(lines))


def _make_model(folder: Path) -> None:
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, **SMALL))
    model.save_pretrained(folder)
    (folder / "pytorch_model.bin").write_bytes(b"the same weights")
    (folder / "onnx").mkdir()
    (folder / "onnx/model.onnx").write_bytes(b"the same weights")


def main(root: str, config: str, run: str, fetched: str) -> None:
    """Runs the commands, in a process of its own, since libraries read the hub's address when they are imported."""
    from fake_hub import served

    with served(Path(root)) as (address, hub):
        os.environ |= {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0"}
        os.environ |= HUB_ALONE
        from toolkit.commands.cli import main as toolkit

        for command in (
            ["train", "reviews", "--config", config, f"output_dir={run}"],
            ["fetch", "reviews", "--config", config, "--output", fetched, "--prepare"],
            ["fetch", "reviews", "--config", config, "--output", fetched],
        ):
            hub.asked.clear()
            try:
                toolkit(command)
            except SystemExit as ended:
                print(f"{command[0]} ended with {ended.code}, read {len(hub.asked)} files", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
