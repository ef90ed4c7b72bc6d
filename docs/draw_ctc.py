"""Draws what CTC learns: the probabilities of the characters over time, at several steps of one training.

python docs/draw_ctc.py --output ctc.svg

Joins the made-up words of recipes/data/audio, trains the configuration `spoken_digits` on them, and shows an
utterance of a voice that is not in training.
"""

from __future__ import annotations

import argparse
import base64
import csv
import io
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from drawing import parser as parser_of
from drawing import write

from toolkit.document.svg import WIDTH, Drawing, text

ROOT = Path(__file__).resolve().parents[1]
STEPS = (20, 80, 300)
SETTINGS = ("train.learning_rate=2.0e-3", "checkpoint.save_steps=20", "checkpoint.save_total_limit=null",
            "eval.eval_steps=null", "task.audio.speed=0", "train.dataloader_num_workers=0",
            "train.global_batch_size=12")  # fmt: skip
LEFT, LINE, SPECTROGRAM = 56, 13, 90
"""Width of the names of characters, height of a character's line and of the spectrogram."""
NAMES = {"[PAD]": "blank", "|": "space"}


def trained(folder: Path, steps: Sequence[int]) -> Path:
    """Joins words and trains on them; returns the run's folder."""
    import toolkit

    joined = folder / "joined"
    script = ROOT / "recipes/data/audio/join.py"
    sizes = ["--words", "1", "3", "--utterances", "300", "--held-out", "20"]
    subprocess.run([sys.executable, script, script.parent, joined, *sizes], check=True, stdout=subprocess.DEVNULL)
    files = [f"data.{part}_file={joined / part}.csv" for part in ("train", "validation")]
    places = [*files, f"output_dir={folder / 'run'}", f"train.max_steps={max(steps)}"]
    return toolkit.train("speech_recognition", "spoken_digits", [*SETTINGS, *places]).output_dir


def probabilities(run: Path, audio: Path, steps: Sequence[int]) -> tuple[list[str], np.ndarray, dict[int, np.ndarray]]:
    """Returns characters, the spectrogram `[frames, mels]`, and probabilities `[frames, characters]` by step."""
    import soundfile
    import soxr
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCTC, AutoProcessor

    processor = AutoProcessor.from_pretrained(run / "model")
    model = AutoModelForCTC.from_pretrained(run / "model").eval()
    extractor = processor.feature_extractor
    samples, rate = soundfile.read(audio, dtype="float32")
    samples = soxr.resample(samples, rate, extractor.sampling_rate)
    inputs = extractor(samples, sampling_rate=extractor.sampling_rate, return_tensors="pt")
    found = {}
    for step in steps:
        model.load_state_dict(load_file(run / "checkpoints" / f"step-{step}" / "model.safetensors"))
        with torch.no_grad():
            found[step] = model(**inputs).logits[0].softmax(-1).numpy()
    vocabulary = processor.tokenizer.get_vocab()
    # The mel bins above half of the recording's rate are empty.
    frames = inputs["input_features"][0].numpy().reshape(-1, extractor.num_mel_bins)
    return sorted(vocabulary, key=vocabulary.__getitem__), frames, found


def best_path(names: Sequence[str], values: np.ndarray) -> str:
    """Returns the text of the most likely character of each frame: repeats are one, blanks none."""
    best = values.argmax(-1)
    kept = [names[each] for place, each in enumerate(best) if place == 0 or each != best[place - 1]]
    return "".join({"|": " ", "[PAD]": "", "[UNK]": ""}.get(each, each) for each in kept).strip()


def spectrogram(frames: np.ndarray, top: float) -> str:
    """Returns a spectrogram as an image, dark where it is loud, low frequencies at the bottom."""
    from PIL import Image

    low, high = np.percentile(frames, [5, 99])
    shades = 255 - np.clip((frames - low) / (high - low) * 255, 0, 255)
    picture = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(shades.T[::-1]).astype(np.uint8)).save(picture, "png", optimize=True)
    data = base64.b64encode(picture.getvalue()).decode()
    place = f'x="{LEFT}" y="{top:.1f}" width="{WIDTH - LEFT}" height="{SPECTROGRAM}" preserveAspectRatio="none"'
    return f'<image {place} href="data:image/png;base64,{data}"/>'


def over_time(names: Sequence[str], values: np.ndarray, top: float) -> list[str]:
    """Returns a line for each character, darker where it is more likely."""
    width = (WIDTH - LEFT) / len(values)
    parts = []
    for line, name in enumerate(names):
        y = top + LINE * line
        parts.append(text(NAMES.get(name, name), LEFT - 6, y + LINE - 3, "end"))
        parts.append(f'<path class="grid" d="M{LEFT} {y + LINE:.1f}h{WIDTH - LEFT}" stroke-width="0.5"/>')
        parts += [
            f'<rect x="{LEFT + width * place:.1f}" y="{y + 1:.1f}" width="{width:.1f}" height="{LINE - 2}" '
            f'fill-opacity="{value:.2f}"/>'
            for place, value in enumerate(values[:, line])
            if value >= 0.03
        ]
    return parts


def drawn(words: str, names: Sequence[str], frames: np.ndarray, found: Mapping[int, np.ndarray]) -> Drawing:
    """Draws the spectrogram of an utterance, and below it the probabilities at each step."""
    shown = [place for place, name in enumerate(names) if name != "[UNK]"]
    shown = [*shown[1:], shown[0]]  # the blank last
    parts = [text(f"spectrogram of a new voice: {words}", 2, 14, kind="ink"), spectrogram(frames, 20)]
    top = 20.0 + SPECTROGRAM
    for step, values in found.items():
        heard = best_path(names, values)
        parts.append(text(f"step {step}: {heard or '(nothing)'}", 2, top + 22, kind="ink"))
        parts += over_time([names[place] for place in shown], values[:, shown], top + 28)
        top += 34 + LINE * len(shown)
    return Drawing(parts, "The probabilities of characters over time, at several steps", round(top + 6))


def main(target: Path, steps: Sequence[int] = STEPS) -> None:
    """Trains, and draws the first utterance of three words."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = trained(folder, steps)
        with (folder / "joined/validation.csv").open(encoding="utf-8") as file:
            row = next(row for row in csv.DictReader(file) if row["text"].count(" ") == 2)
        found = probabilities(run, folder / "joined" / row["audio"], steps)
    write(target, [drawn(row["text"], *found)])


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    return parser_of(__doc__)


if __name__ == "__main__":
    main(parser().parse_args().output)
