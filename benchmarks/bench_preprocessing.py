"""P5: preprocessing of question answering, from checked rows to features on disk, against the library's example.

    python benchmarks/bench_preprocessing.py --minilm FOLDER [--pairs 7] [--rows 20000]

The example's side is the `map` call of `run_qa.py`, with rows padded to 384 tokens (its default) and without padding.
Both tokenise the same rows with MiniLM's tokenizer and write the features to the cache of `datasets`. Five questions in
a row share a context, as in SQuAD (107,785 questions on 23,215 paragraphs, arXiv 1606.05250); in further cases, each
has a context of its own. Measured in wall-clock time, the toolkit also runs on all cores.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import texts
from ours import STEPS_ONLY
from pairs import ROOT, Clock, calling, compared, interleave, parser, read_options, write

LENGTHS = {"max_length": 384, "doc_stride": 128}
QUESTIONS = 5
"""Questions on a context."""
CONFIG = "recipes/configs/qa/squad.yaml"


def example(file: str, warm_up: str, tokenizer: str, variant: str, cache: str) -> dict[str, Any]:
    """Preprocesses rows with the example's function."""
    from datasets import load_dataset
    from scripts.qa import features_of
    from transformers import AutoTokenizer

    fast = AutoTokenizer.from_pretrained(tokenizer)
    options = argparse.Namespace(variant=variant, **LENGTHS)
    clock = Clock()
    features: Any = None
    for place in (warm_up, file):
        rows = load_dataset("json", data_files=place, split="train", cache_dir=cache)
        clock.tick()
        features = rows.map(
            lambda part: features_of(part, fast, options), batched=True, remove_columns=rows.column_names,
            load_from_cache_file=False,
        )  # fmt: skip
        clock.tick()
    real = sum(sum(mask) for mask in features["attention_mask"])
    return {"seconds": clock.steps(0)[-1], "features": len(features), "tokens": real}


def toolkit(file: str, warm_up: str, tokenizer: str, folder: str, processes: int | None = None) -> dict[str, Any]:
    """Preprocesses rows as a run of the toolkit does, into a cache of its own; processes None means this one."""
    import datasets
    from transformers import AutoTokenizer

    from toolkit.data.loading import check_rows
    from toolkit.data.tokenise import tokenise
    from toolkit.recipe import load_settings, load_task_type

    datasets.config.HF_DATASETS_CACHE = Path(tempfile.mkdtemp(dir=folder))
    fast = AutoTokenizer.from_pretrained(tokenizer)
    task_type = load_task_type(ROOT / "recipes" / "qa.py")
    clock = Clock()
    features: Any = None
    for place in (warm_up, file):
        settings = [*STEPS_ONLY, "data.dataset_name=null", f"data.train_file={place}",
                    f"model.name_or_path={tokenizer}", f"output_dir={folder}/run"]  # fmt: skip
        cfg = load_settings(task_type, ROOT / CONFIG, settings).config
        task = task_type(cfg)
        rows = check_rows(cfg, task).splits["train"]
        clock.tick()
        features = tokenise(rows, task, fast, labelled=True, num_proc=processes)
        clock.tick()
    return {"seconds": clock.steps(0)[-1], "features": len(features), "tokens": sum(features["length"])}


def main() -> None:
    """Runs the pairs and writes the result."""
    made = parser(__doc__, pairs=7)
    made.add_argument("--minilm", type=Path, help=f"folder of the pretrained MiniLM (default: ${texts.MINILM})")
    made.add_argument("--rows", type=int, default=20_000)
    options = read_options(made)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        title = "rows to features, five questions per context: `run_qa.py`, against the toolkit"
        write("p5_preprocessing", "P5", title, figures(options, Path(folder)), options)


def scaling(given: dict[str, str], suffix: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measures the toolkit on one core and on all, as threads of the tokenizer or as processes."""
    cores = os.cpu_count() or 1
    sides = [
        replace(calling(name, toolkit, processes=processes, **given), environment={"RAYON_NUM_THREADS": str(threads)})
        for name, threads, processes in (
            ("1 core", 1, None), (f"{cores} threads", cores, None), (f"{cores} processes", 1, cores)
        )
    ]  # fmt: skip
    runs = interleave(sides, options)
    return {f"1 core, against {each.name}{suffix}": compared(runs, "1 core", each.name) for each in sides[1:]}


def figures(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measures both sides.

    Raises:
        SystemExit: if they make different numbers of features or tokens.
    """
    model = texts.new_bert(folder / "model") if options.quick else texts.minilm(options.minilm)
    words = texts.one_token_words(model)
    number = 40 if options.quick else options.rows
    warm_up = texts.write_rows(texts.qa_rows(words[::-1], 20, 1, "random"), folder / "warm_up.jsonl")
    rows = texts.qa_rows(words, number, 1, "random")
    shared = [row | {name: rows[place - place % QUESTIONS][name] for name in ("context", "answers")}
              for place, row in enumerate(rows)]  # fmt: skip
    cases = {}
    for suffix, own in (("", shared), (", contexts of their own", rows)):
        file = texts.write_rows(own, folder / "rows.jsonl")
        files = {"file": file, "warm_up": warm_up, "tokenizer": str(model)}
        names = {f"example{suffix}": "defaults", f"example without padding{suffix}": "tuned"}
        cache = tempfile.mkdtemp(dir=folder)
        sides = [calling(name, example, variant=variant, cache=cache, **files) for name, variant in names.items()]
        runs = interleave([*sides, calling("toolkit", toolkit, folder=str(folder), **files)], options)
        made = {(run["features"], run["tokens"]) for each in runs.values() for run in each}
        if len(made) > 1:
            raise SystemExit(f"the sides make different features and tokens: {sorted(made)}")
        cases |= {name: compared(runs, name, "toolkit") for name in names}
        if not options.cpu_time:  # that of a main process alone would say nothing
            cases |= scaling({"folder": str(folder), **files}, suffix, options)
    settings = {"rows": number, "questions_per_context": QUESTIONS}
    return {**cases["example"], "case": "example", "cases": cases, "settings": settings}


if __name__ == "__main__":
    main()
