"""Pairs answers that are right with answers to the same prompt that are not, for preference tuning.

python recipes/data/preference/pair.py data/trec_qa/train.csv train_pairs.csv --columns qtext,atext,label

Reads a CSV file of prompts, answers and labels (1 or 0) and writes the columns `prompt`, `chosen` and `rejected`: each
right answer with up to four random others of its prompt. The same file and options always give the same pairs.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections import defaultdict
from pathlib import Path

Answers = dict[str, tuple[list[str], list[str]]]


def answers_of(file: Path, names: list[str]) -> Answers:
    """Returns the wrong and the right answers of each prompt once; raises SystemExit for other columns or labels."""
    found: Answers = defaultdict(lambda: ([], []))
    with file.open(encoding="utf-8", newline="") as rows:
        for number, row in enumerate(csv.DictReader(rows), start=1):
            try:
                prompt, answer, label = (row[name] for name in names)
            except KeyError as error:
                raise SystemExit(f"{file}: has no column {error}; name three with --columns") from None
            if label not in ("0", "1"):
                raise SystemExit(f"{file}: row {number}: column {names[2]!r} holds {label!r}, expected 0 or 1")
            same = found[prompt][int(label)]
            if answer not in same:
                same.append(answer)
    return found


def main(arguments: list[str] | None = None) -> None:
    """Reads the options, and writes the pairs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--columns", default="prompt,completion,label", metavar="PROMPT,ANSWER,LABEL")
    parser.add_argument("--most", type=int, default=4, metavar="N", help="most pairs of a right answer (default: 4)")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    options = parser.parse_args(arguments)
    names = options.columns.split(",")
    if len(names) != 3 or options.most < 1:
        raise SystemExit("--columns: expected three names; --most: expected at least 1")
    draw, pairs, alone = random.Random(options.seed), [], 0
    for prompt, (wrong, right) in answers_of(options.file, names).items():
        alone += 0 if wrong and right else 1
        for chosen in right:
            others = [each for each in wrong if each not in right]
            pairs += [(prompt, chosen, each) for each in draw.sample(others, min(options.most, len(others)))]
    with options.target.open("w", encoding="utf-8", newline="") as target:
        csv.writer(target).writerows([("prompt", "chosen", "rejected"), *pairs])
    sys.stdout.write(f"{options.target}: {len(pairs):,} pairs; {alone:,} prompts without a right or a wrong answer\n")


if __name__ == "__main__":
    main()
