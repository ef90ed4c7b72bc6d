"""P16: parallel clients of a FastAPI app with a pipeline of transformers, and of `toolkit serve`.

    python benchmarks/bench_serve.py --minilm FOLDER [--pairs 5] [--rows 2000] [--clients 16 1]

The app is written as in tutorials (benchmarks/scripts/serve_pipeline.py): it has a forward pass for each request, in
threads of its own. Each client sends one text at a time, and the next one once it has the answer; a few requests
before are not counted. Both servers have the same classifier in float32, the same texts of mixed lengths, and the same
`OMP_NUM_THREADS`; the clients share the machine with them. If a server gives less than 99 % of the texts the app's
label, nothing is written. With `--cpu-time`, the seconds are those of the server's process. FastAPI and uvicorn come
with `pip install 'finetune-toolkit[serve]'`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import texts
from bench_predict import check_equal, column, trained_classifier, write_texts
from pairs import CPU_TIME, ROOT, Clock, calling, compared, interleave, parser, read_options, write
from soak_serve import ask, running

WARM_UP = 4
"""Requests of each client that are not counted."""
APP, OURS = "FastAPI with a pipeline", "toolkit serve"


def measured(server: str, run: str, file: str, clients: int) -> dict[str, Any]:
    """Starts a server, and sends it the texts of a file from so many clients."""
    given = column(file, "text")
    script = [str(ROOT / "benchmarks/scripts/serve_pipeline.py"), f"{run}/model"]
    command = script if server == APP else ["-m", "toolkit", "serve", run, "--port", "0"]
    bodies = [json.dumps({"text": text} if server == APP else {"rows": [{"text": text}]}) for text in given]
    own = threading.local()

    def connect() -> None:
        own.connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=120)

    def answered(body: str) -> tuple[str, float]:
        began = time.perf_counter()
        _, content = ask(own.connection, body)
        label = content["label"] if server == APP else content["predictions"][0]["prediction"]
        return label, time.perf_counter() - began

    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        running([sys.executable, *command], Path(folder) / "log") as (process, address),
        ThreadPoolExecutor(clients, initializer=connect) as pool,
    ):
        list(pool.map(answered, bodies[: WARM_UP * clients]))
        clock = Clock()
        if os.environ.get(CPU_TIME):
            clock.now = lambda: sum(psutil.Process(process.pid).cpu_times()[:2])
        clock.tick()
        labels, latency = zip(*pool.map(answered, bodies), strict=True)
        clock.tick()
    ranks = statistics.quantiles(latency, n=100)
    return {"seconds": clock.steps(0)[0], "labels": labels, "p50": ranks[49], "p99": ranks[98]}


def said(name: str, runs: Sequence[Mapping[str, Any]], rows: int) -> str:
    """Returns a sentence with the rate and the latencies of a side: medians of its runs."""
    seconds, p50, p99 = (statistics.median(run[key] for run in runs) for key in ("seconds", "p50", "p99"))
    return f"{name}: {rows / seconds:.0f} requests per second; p50 {1000 * p50:.0f} ms, p99 {1000 * p99:.0f} ms."


def figures(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measures both servers with each number of clients."""
    model = texts.new_bert(folder / "model") if options.quick else texts.minilm(options.minilm)
    words, rows = texts.one_token_words(model), 64 if options.quick else options.rows
    run = trained_classifier(model, words, folder)
    counts = options.clients[:1] if options.quick else options.clients
    sizes = {clients: rows if clients > 1 else rows // 5 for clients in counts}
    sides = [
        calling(f"{server}, {clients} at once", measured, server=server, run=run, clients=clients,
                file=write_texts(words, size, folder / f"{size}.csv"))
        for clients, size in sizes.items() for server in (APP, OURS)
    ]  # fmt: skip
    runs = interleave(sides, options)
    cases, sentences = {}, []
    for clients, size in sizes.items():
        names = [f"{server}, {clients} at once" for server in (APP, OURS)]
        check_equal({name: runs[name] for name in names}, options)
        cases[f"{clients} at once"] = compared(runs, *names)
        sentences += [said(name, runs[name], size) for name in names]
    case, settings = next(iter(cases)), {"rows": rows, "clients": options.clients, "warm_up_requests": WARM_UP}
    return {**cases[case], "case": case, "cases": cases, "said": sentences, "settings": settings}


def main() -> None:
    """Runs the pairs and writes the result."""
    made = parser(__doc__)
    made.add_argument("--minilm", type=Path, help=f"folder of the pretrained MiniLM (default: ${texts.MINILM})")
    made.add_argument("--rows", type=int, default=2000)
    made.add_argument("--clients", type=int, nargs="+", default=[16, 1], help="clients at once (default: 16, and 1)")
    options = read_options(made)
    if not all(map(find_spec, ("fastapi", "uvicorn"))):
        made.error("it needs FastAPI and uvicorn: pip install 'finetune-toolkit[serve]'")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        title = "parallel clients that send a text each: a FastAPI app with a pipeline, against `toolkit serve`"
        write("p16_serve", "P16", title, figures(options, Path(folder)), options)


if __name__ == "__main__":
    main()
