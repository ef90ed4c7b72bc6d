"""Counted memory and messages of each process under the strategies, beside what `toolkit plan` estimates.

    python benchmarks/bench_sharding.py [--only 2 4]
    python benchmarks/bench_sharding.py --pairs-of-values

First a Llama of 78 million parameters (hidden 768, 8 layers, tied vocabulary of 8,000) with AdamW under data
parallelism and FSDP2, micro-batches of 2 x 64 tokens: the numbers of processes, micro-batches of a step, the precision,
recomputation and `parallel.gradient_sync`. With `--pairs-of-values` a smaller one (hidden 256, vocabulary of 2,000)
under every strategy: each value, and each pair of values of the factors `FACTORS` that can be combined, at least once.
`tracking.count_memory` counts the bytes of all tensors in the second step until its update, so nothing depends on the
load of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import combinations, product
from pathlib import Path
from typing import Any

from pairs import ROOT, cpu, parser, read_options

from toolkit.system.environment import checkout, versions

MIB = 2**20
MODEL = (
    "model.from_config={model_type: llama, vocab_size: 8000, hidden_size: 768, num_hidden_layers: 8, "
    "num_attention_heads: 12, num_key_value_heads: 12, intermediate_size: 3072, max_position_embeddings: 64, "
    "tie_word_embeddings: true}"
)
SHORT = (
    MODEL, "task.block_size=64", "train.max_steps=2", "train.per_device_train_batch_size=2",
    "train.global_batch_size=null", "train.chunked_loss=false", "data.validation_file=null", "eval.eval_steps=null",
    "checkpoint.save_steps=null", "tracking.count_memory=true",
)  # fmt: skip


def cases(processes: int) -> Iterator[tuple[str, list[str]]]:
    """Yields the name and the settings of each case."""
    for accumulation, precision, recomputed in ((a, p, r) for a in (4, 1) for p in ("bf16", "no") for r in (0, 1)):
        settings = [
            f"train.gradient_accumulation_steps={accumulation}", f"train.mixed_precision={precision}",
            f"train.activation_checkpointing={'full' if recomputed else 'none'}",
        ]  # fmt: skip
        name = f"{processes} processes, {accumulation} x {'bf16' if precision == 'bf16' else 'float32'}"
        name += ", recomputed" if recomputed else ""
        if not recomputed:
            yield f"DDP, {name}", settings
        yield f"FSDP2, {name}", [*settings, f"parallel.fsdp={processes}"]
        if accumulation > 1 and not recomputed:
            yield f"FSDP2 by window, {name}", [*settings, f"parallel.fsdp={processes}", "parallel.gradient_sync=window"]


SMALLER = (
    "model.from_config.hidden_size=256", "model.from_config.intermediate_size=1024",
    "model.from_config.vocab_size=2000", "model.from_config.num_attention_heads=8",
    "model.from_config.num_key_value_heads=8", "train.per_device_train_batch_size=4",
)  # fmt: skip
FACTORS: dict[str, dict[str, tuple[str, ...]]] = {
    "strategy": {
        "DDP": (),
        "local SGD": ("train.strategy=local_sgd",),
        "ZeRO-1": ("parallel.zero_stage=1",),
        "ZeRO-2": ("parallel.zero_stage=2",),
        "FSDP2": ("parallel.zero_stage=3",),
        "FSDP2 by window": ("parallel.zero_stage=3", "parallel.gradient_sync=window"),
        "HSDP": ("parallel.replicas=2", "parallel.fsdp=*"),
        "tensor": ("parallel.tensor=*",),
        "tensor, sequence": ("parallel.tensor=*", "parallel.sequence=true"),
        "context": ("parallel.context=*",),
        "pipeline, 1F1B": ("parallel.pipeline=*",),
        "pipeline, GPipe": ("parallel.pipeline=*", "parallel.schedule=gpipe"),
        "pipeline, zero bubble": ("parallel.pipeline=*", "parallel.schedule=zero_bubble"),
        "replicas, tensor": ("parallel.replicas=2", "parallel.tensor=*"),
        "FSDP2, tensor": ("parallel.fsdp=2", "parallel.tensor=*"),
        "FSDP2, context": ("parallel.fsdp=2", "parallel.context=*"),
        "FSDP2, pipeline": ("parallel.fsdp=2", "parallel.pipeline=*"),
        "3D": ("parallel.replicas=*", "parallel.tensor=2", "parallel.pipeline=2"),
        "3D, ZeRO-1": ("parallel.replicas=*", "parallel.tensor=2", "parallel.pipeline=2", "parallel.zero_stage=1"),
    },
    "processes": {str(number): () for number in (1, 2, 4, 8)},
    "precision": {name: (f"train.mixed_precision={value}",) for name, value in (("float32", "no"), ("bf16", "bf16"))},
    "recomputation": {
        name: (f"train.activation_checkpointing={name}",)
        for name in ("none", "full", "selective", "every_2_layers", "segments", "nested_segments")
    },
    "micro-batches": {str(number): (f"train.gradient_accumulation_steps={number}",) for number in (1, 4)},
}
"""Values of each factor with their settings; `*` is what makes the sizes the number of processes."""


def settings_of(case: Mapping[str, str]) -> list[str] | None:
    """Returns the settings of a case, or None if its sizes do not make its number of processes."""
    settings = [text for factor, value in case.items() for text in FACTORS[factor][value]]
    given = [int(text[-1]) for text in settings if text.startswith("parallel.") and text[-1].isdecimal()
             and "zero_stage" not in text]  # fmt: skip
    rest, processes = 1, int(case["processes"])
    for size in given:
        rest *= size
    free = processes // rest
    has_free = any(text.endswith("=*") for text in settings)
    alone = case["strategy"] != "DDP" and processes == 1
    if alone or (free < 2 or free * rest != processes if has_free else rest not in (1, processes)):
        return None
    return [*SMALLER, *(text.replace("=*", f"={free}") for text in settings)]


def pairs_of_values() -> Iterator[tuple[str, int, list[str]]]:
    """Yields name, processes and settings of cases that have each possible pair of values, few by a greedy choice."""
    from toolkit.base.errors import ConfigError

    every = [dict(zip(FACTORS, values, strict=True)) for values in product(*FACTORS.values())]
    possible = [case for case in every if settings_of(case) is not None]
    missing = {pair for case in possible for pair in combinations(case.items(), 2)}
    while missing:
        best = max(possible, key=lambda case: len(missing & {*combinations(case.items(), 2)}))
        covered = missing & {*combinations(best.items(), 2)}
        if not covered:
            return
        settings, processes = settings_of(best) or [], int(best["processes"])
        try:
            configured(settings, processes)
        except ConfigError:  # cannot be combined
            possible.remove(best)
            continue
        missing -= covered
        number = f"{processes} process" + "es" * (processes > 1)
        shown = best | {"processes": number, "micro-batches": f"{best['micro-batches']} x"}
        yield ", ".join(shown.values()), processes, settings


def measured(cases: Mapping[str, list[str]], processes: int) -> dict[str, dict[str, float]]:
    """Trains two steps of each case; returns the counted peak and what the main process sent per step, in MiB."""
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", str(processes), "--config_file",
              str(ROOT / "accelerate_configs/cpu_2proc.yaml")]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        given, found = Path(folder) / "cases.json", {}
        given.write_text(json.dumps(cases), encoding="utf-8")
        command = [*(launch if processes > 1 else launch[:1]), str(Path(__file__).resolve()), "--work", str(given)]
        subprocess.run(command, env=environment, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        for number, name in enumerate(cases):
            if not (given.with_name(str(number)) / "run.json").is_file():
                print("failed:", name, file=sys.stderr)
                continue
            page = json.loads((given.with_name(str(number)) / "run.json").read_text(encoding="utf-8"))["result"]
            found[name] = {
                "counted": max(page["counted_peak_bytes"]) / MIB, "sent": page.get("exchange_bytes", 0) / 2 / MIB,
            }  # fmt: skip
    return found


@contextmanager
def suppress_and_name(settings: list[str]) -> Iterator[None]:
    """Names a case that fails, and goes on with the others."""
    try:
        yield
    except Exception as error:
        print(f"{' '.join(settings)}: {error}", file=sys.stderr)
        traceback.print_exc()


def work(given: Path) -> None:
    """Trains the cases of a file, in this process and those launched with it."""
    import toolkit

    config = ROOT / "recipes/configs/language_modeling/smoke.yaml"
    for number, settings in enumerate(json.loads(given.read_text(encoding="utf-8")).values()):
        folder = given.with_name(str(number))
        with suppress_and_name(settings):
            toolkit.train(ROOT / "recipes/language_modeling.py", config, [*SHORT, *settings, f"output_dir={folder}"])


def configured(settings: list[str], processes: int) -> Any:
    """Returns the task and the configuration of a case; raises ConfigError if it is invalid."""
    from toolkit.recipe import load_settings, load_task_type

    task_type = load_task_type(ROOT / "recipes/language_modeling.py")
    config = ROOT / "recipes/configs/language_modeling/smoke.yaml"
    environ = {"WORLD_SIZE": str(processes)}
    cfg = load_settings(task_type, config, [*SHORT, *settings, "output_dir=none"], environ, check_files=False).config
    return task_type(cfg), cfg


def planned(settings: list[str], processes: int) -> dict[str, float]:
    """Returns what the plan estimates, in MiB."""
    from toolkit.distributed.launch import own_process_state
    from toolkit.footprint.simulate import simulate
    from toolkit.lab.plan.estimates import estimated
    from toolkit.lab.plan.subject import subject_of

    task, cfg = configured(settings, processes)
    with own_process_state():
        found = estimated(simulate(subject_of(cfg, task)), cfg, processes)
    return {"planned": found.peak / MIB, "planned_sent": found.sent / MIB}


def main() -> None:
    """Measures the cases, and writes each result when it is there."""
    made = parser(__doc__, pairs=1, wall_only="bytes are counted")
    made.add_argument("--only", type=int, nargs="+", default=[1, 2, 4, 8], help="numbers of processes")
    made.add_argument("--pairs-of-values", action="store_true", help="every strategy, and every pair of values once")
    made.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options: argparse.Namespace = read_options(made)
    if options.work:
        work(options.work)
        return
    name = "sharding_pairs" if options.pairs_of_values else "sharding"
    file = options.results / f"{name}.json" if options.results else Path(os.devnull)
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["cases"] if file.is_file() else {}
    every = list(pairs_of_values()) if options.pairs_of_values else [
        (case, processes, settings) for processes in (2, 4) for case, settings in cases(processes)
    ]  # fmt: skip
    for processes in options.only:
        chosen = {case: settings for case, number, settings in every if number == processes}
        for case, counts in measured(chosen, processes).items() if chosen else ():
            found[case] = counts | planned(chosen[case], processes)
            print(case, found[case])
        state = checkout(ROOT)
        page = {"cases": found, **cpu(), "versions": versions(), "commit": state.commit if state else None}
        if options.results:
            file.write_text(json.dumps(page, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
