"""Training on a GPU, against scripts on `transformers.Trainer`, and attention over sequences of uneven length.

    python benchmarks/bench_gpu.py [--case qa_base qa_large translation attention] [--pairs 3] [--steps 40]

The scripts (benchmarks/scripts) are those of `bench_training.py`: with defaults, or tuned by hand (bfloat16, padding to
the longest row of a batch, the fused optimizer), in random order or with rows of similar length together. Models have
the sizes of BERT-base, BERT-large and BART-base and random weights. All sides of a case run in one process, A B A B
after a round that is not counted, each from the same weights on the same rows.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import runpy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import bench_training
import texts
from bench_training import Case, qa_case, translation_case
from pairs import MARK, Side, compared, parser, read_options, write

WARM_UP = 8
BERTS = {
    "qa_base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "qa_large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}
BART = {"d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 12,
        "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072}  # fmt: skip
ROUNDS = 20
"""Calls of attention of which the median is taken."""
ATTENTION = {"16 rows": (16, 12), "32 rows": (32, 16)}
"""Rows of SQuAD's lengths and heads of size 64."""


def in_this_process(side: Side) -> dict[str, Any]:
    """Runs a side in this process, which has imported everything and begun to use the GPU.

    Returns:
        Its result, with the memory that it allocated at most, in `gib`.
    """
    import torch
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    gc.collect()
    has_gpu = torch.cuda.is_available()  # not where `--quick` tries this file
    if has_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    script, *arguments = side.command[1:]
    if Path(script).name == "pairs.py":
        module, _, function = arguments[0].partition(":")
        result = getattr(import_module(module), function)(**json.loads(arguments[1]))
    else:
        result = _script(script, arguments)
    return {**result, "gib": torch.cuda.max_memory_allocated() / 2**30 if has_gpu else 0.0}


def _script(script: str, arguments: Sequence[str]) -> dict[str, Any]:
    output, given = io.StringIO(), sys.argv
    sys.argv = [script, *arguments]
    try:
        with contextlib.redirect_stdout(output):
            runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv = given
    (line,) = (line for line in output.getvalue().splitlines() if line.startswith(MARK))
    result: dict[str, Any] = json.loads(line.removeprefix(MARK))
    return result


def interleave(sides: Sequence[Side], options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Runs the sides in turn, as `pairs.interleave` does with processes, after a round in which code is loaded."""
    runs: dict[str, list[dict[str, Any]]] = {side.name: [] for side in sides}
    for _ in range(options.quick, options.pairs + 1):
        for side in sides:
            runs[side.name].append(in_this_process(side))
            print(f"{side.name}: {runs[side.name][-1]['seconds']:.4g} s", file=sys.stderr, flush=True)
    return {name: each[-options.pairs :] for name, each in runs.items()}


def figures(case: Case, runs: Mapping[str, Any], pairs: Mapping[str, tuple[Side, Side]]) -> dict[str, Any]:
    """Returns the ratios of a case by name, with rows per second and memory of each side."""
    found: dict[str, Any] = {}
    for name, (baseline, ours) in pairs.items():
        found[name] = compared(runs, baseline.name, ours.name) | {
            "rows_per_second": {
                side.name: statistics.median(case.size * run["steps"] / run["seconds"] for run in runs[side.name])
                for side in (baseline, ours)
            },
            "gib": {side.name: max(run["gib"] for run in runs[side.name]) for side in (baseline, ours)},
        }
    return found


def measured(case: Case, what: str, full: bool) -> dict[str, Any]:
    """Runs the sides of a case, and returns its ratios.

    Args:
        case: rows and models.
        what: the name in the results.
        full: also with the library's defaults, and in fp32.
    """
    case.waste = []  # the defaults
    tuned = {order: case.script("tuned", "bf16", order) for order in texts.ORDERS}
    ours = {order: case.ours("bf16", order) for order in texts.ORDERS}
    pairs = {f"{what}, bf16, {order}, against tuned": (tuned[order], ours[order]) for order in texts.ORDERS}
    if full:
        defaults, fp32 = case.script("defaults", "no", "random"), case.ours("no", "random")
        pairs |= {f"{what}, fp32, against defaults": (defaults, fp32)}
        pairs |= {f"{what}, bf16, against defaults in fp32": (defaults, ours["random"])}
    sides = {side.name: side for pair in pairs.values() for side in pair}
    runs = interleave([*sides.values()], case.options)
    found = figures(case, runs, pairs)
    if full:
        flags = ["--mask_padding"] if case.name == "qa" else []
        check = bench_training.loss_check(case, flags, interleave)
        found[f"{what}, fp32, against defaults"]["loss_check"] = check
    return found


def qa(options: argparse.Namespace, folder: Path, name: str) -> dict[str, Any]:
    """Measures question answering with the sizes of a BERT, and its share of the speed of a matrix product."""
    import torch

    from toolkit.lab.profile.measure import matmul_rate

    encoder = texts.new_bert(folder / "new", **({} if options.quick else BERTS[name]))
    case = qa_case(options, folder, encoder)
    found = measured(case, name, full=name == "qa_base")
    rate = matmul_rate(torch.device("cuda" if torch.cuda.is_available() else "cpu"), torch.bfloat16)
    for entry in (each for key, each in found.items() if "against tuned" in key):
        entry["share_of_matmul"] = {
            side: tokens_of(case, side) * 6 * layer_parameters(BERTS[name]) / seconds / rate
            for side, seconds in ((key, statistics.median(each)) for key, each in entry["seconds_per_run"].items())
        }
        entry["matmul_flops"] = rate
    return found


def layer_parameters(sizes: Mapping[str, int]) -> int:
    """Returns the weights of a BERT's layers: six operations for each and each token make a step."""
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    return sizes["num_hidden_layers"] * (4 * hidden**2 + 2 * hidden * inner)


def tokens_of(case: Case, side: str) -> int:
    """Returns the tokens of the measured steps, without padding."""
    rows = case.orders[side.rpartition(", ")[2]][case.warm_up * case.size :]
    return sum(len(row["context"].split()) + texts.QUESTION + texts.SPECIAL for row in rows)


def translation(options: argparse.Namespace, folder: Path, name: str) -> dict[str, Any]:
    """Measures translation with the sizes of BART-base."""
    return measured(translation_case(options, folder, **BART), name, full=True)


def attention(options: argparse.Namespace, folder: Path, name: str) -> dict[str, Any]:
    """Measures attention, forward and backward, against a padded batch with a mask."""
    import torch

    found = {}
    for what, (rows, heads) in ATTENTION.items():
        for dtype, dropout in ((torch.bfloat16, 0.0), (torch.bfloat16, 0.1), (torch.float32, 0.0)):
            sides = dict(attention_sides(rows, heads, dtype, dropout))
            rounds = [{side: seconds_of(call) for side, call in sides.items()} for _ in range(options.pairs)]
            runs = {side: [{"seconds": each[side]} for each in rounds] for side in sides}
            title = f"attention, {what}, {str(dtype).removeprefix('torch.')}, dropout {dropout}"
            found[f"{title}, against padded"] = compared(runs, "padded", "one call")
            found[f"{title}, against row by row"] = compared(runs, "row by row", "one call")
    return found


def attention_sides(rows: int, heads: int, dtype: Any, dropout: float) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yields the ways to compute attention of a batch, by name."""
    import random

    import torch
    from torch import nn

    from toolkit.models.unpadded import attention
    from toolkit.models.unpadded.packing import Packing, Rows

    source = random.Random(17)
    lengths = torch.tensor([texts.bounded(source, *texts.QA_TOKENS) for _ in range(rows)])
    mask = (torch.arange(int(lengths.max())) < lengths[:, None]).cuda()
    held = Rows.of(mask)
    assert held is not None
    packing = Packing(held, held, False, None, {})

    def inputs(*shape: int) -> list[torch.Tensor]:
        return [torch.randn(*shape, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)]

    flat, padded = inputs(1, heads, held.total), inputs(rows, heads, held.longest)
    kernel = attention.choose

    def call(chosen: Any, given: Sequence[torch.Tensor], how: Any) -> Callable[[], None]:
        def once() -> None:
            attention.choose = chosen
            attention.attend(nn.Module(), *given, how, dropout)[0].sum().backward()

        return once

    yield "one call", call(kernel, flat, packing)
    yield "row by row", call(lambda *_: "split", flat, packing)
    yield "padded", call(kernel, padded, mask[:, None, None].expand(rows, 1, held.longest, held.longest))


def seconds_of(call: Callable[[], None]) -> float:
    """Returns the median seconds of a call, after some that are not counted."""
    import torch

    taken = []
    for _ in range(ROUNDS + 5):
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[5:])


CASES = {"qa_base": (qa, 32), "qa_large": (qa, 32), "translation": (translation, 128), "attention": (attention, 0)}
"""Function, and rows of a batch."""


def main() -> None:
    """Measures the cases that are asked for."""
    import torch

    made = parser(__doc__, pairs=3, wall_only="a GPU's time is not that of the CPU")
    made.add_argument("--case", choices=list(CASES), nargs="+", default=list(CASES))
    made.add_argument("--steps", type=int, default=40, help="measured steps (default 40)")
    options = read_options(made)
    if not torch.cuda.is_available() and (not options.quick or "attention" in options.case):
        made.error("needs a GPU; where there is none, --quick tries the other cases")
    found: dict[str, Any] = {}
    for name in options.case:
        function, size = CASES[name]
        own = {"batch_size": size, "warm_up": WARM_UP, "max_tokens": None, "minilm": None}
        own |= {"batch_size": 4, "warm_up": 2, "steps": 2} if options.quick else {}
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            found |= function(argparse.Namespace(**vars(options) | own), Path(folder), name)
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        main_case = next(iter(found))
        title = "one GPU: the library's examples and a Trainer tuned by hand, against the toolkit"
        settings = {"steps": options.steps, "warm_up_steps": WARM_UP}
        write("gpu", "GPU", title, {**found[main_case], "case": main_case, "gpu": gpu, "cases": found,
              "settings": settings}, options)  # fmt: skip


if __name__ == "__main__":
    main()
