"""Writes the table of docs/cpu.md from benchmarks/results/cpu_step.json.

python docs/render_cpu.py
"""

from __future__ import annotations

import json
from pathlib import Path

from toolkit.document.render import table

PAGE = Path(__file__).with_name("cpu.md")
RESULTS = PAGE.parents[1] / "benchmarks" / "results" / "cpu_step.json"
BEGIN, END = "<!-- parts: written by docs/render_cpu.py -->\n", "\n<!-- end of parts -->"
PARTS = {
    "fast_dropout": ("`train.fast_dropout`", "a pass with dropout 0.1"),
    "labelled_logits": ("logits where there is a label", "a pass of a masked language model, 30,522 tokens"),
    "flush_denormal": ("denormal numbers are flushed", "an AdamW step on an embedding without gradient"),
    "kept": ("freed memory is kept", "passes with batches of different lengths"),
    "jemalloc": ("jemalloc (not used)", "passes with batches of different lengths"),
    "autocast_cache": ("one autocast cache per window (not used)", "four passes with"),
}
"""Title of each part, and what was measured, by the beginning of its cases' names."""
SUFFIXES = {"fp32": "fp32", "bf16": "bf16", "adamw": "fp32", "4_rows": "4 rows each, bf16", "1_row": "1 row each, bf16"}


def rendered() -> str:
    """Returns the page with the table of the results."""
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows = []
    for name, case in found["cases"].items():
        part = next(part for part in PARTS if name.startswith(part))
        title, measured = PARTS[part]
        ending = SUFFIXES[name.removeprefix(f"{part}_")]
        spread = f"{case['ratio_median']:.2f} ({case['ratio_min']:.2f} to {case['ratio_max']:.2f})"
        memory = f"{case['mib_with'] / case['mib_without'] - 1:+.0%}" if "mib_with" in case else ""
        rows.append([title, f"{measured}{' ' if part == 'autocast_cache' else ', '}{ending}", spread, memory])
    header = ["part", "measured", "times faster (range of the pairs)", "peak memory of the process"]
    text = table(header, rows, marked_up=True)
    pairs = {case["pairs"] for case in found["cases"].values()}
    note = f"\n\n{found['cpu']}, torch {found['torch']}, one thread; {max(pairs)} interleaved pairs for each row."
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    return before + BEGIN + text + note + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(rendered(), encoding="utf-8")
