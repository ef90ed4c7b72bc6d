"""Shows that a change moves no bit: trains recipes in this checkout and in another one, and compares what they write.

    python benchmarks/scripts/compare_weights.py OTHER_CHECKOUT [--only TASK[/ENGINE[/CASE]] ...] [--output FOLDER]

Six recipes are trained with both engines on one process (`one`), on two (`two`), and on one that is killed while it
saves a checkpoint and then resumed (`resumed`); `--only qa/loop reviews/trainer/two` trains some of them. The weights
of the final model and its predictions must be equal in both checkouts, and after a resume those of the run without a
stop. No hashes are stored, since bits are the same on one machine only. Exit code: 0 if all are equal, otherwise 1.

Both checkouts use the libraries of this interpreter, and caches of their own. Of a checkout, this file knows only the
command line of the recipes, their settings, and the names of the files that a run writes, so that it works with older
and newer commits. `--output` keeps the runs and their logs in a new folder.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import multiprocessing
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SIDES = ("this", "other")

BERT = ("model.config_overrides.hidden_dropout_prob=0.1", "model.config_overrides.attention_probs_dropout_prob=0.1")
T5 = ("model.config_overrides.dropout_rate=0.1", "task.label_smoothing_factor=0.1")
TASKS = {
    "reviews": (*BERT, "data.max_train_samples=19"),
    "qa": (*BERT, "data.max_train_samples=17"),  # several windows each, as of the documents below
    "translation": (*T5, "data.max_train_samples=19"),
    "summarization": (*T5, "data.max_train_samples=19"),
    "language_modeling": ("model.config_overrides.attention_dropout=0.1", "data.max_train_samples=13"),
    "token_classification": (*BERT, "data.max_train_samples=19"),
}
"""Dropout and rows of each recipe, for about four steps per epoch on one process, the last one with fewer rows."""
ENGINES, KINDS = ("loop", "trainer"), ("one", "two", "resumed")
CASES = [f"{task}/{engine}/{kind}" for task in TASKS for engine in ENGINES for kind in KINDS]
WINDOWS = (
    *("train.per_device_train_batch_size=2", "train.gradient_accumulation_steps=3", "train.num_train_epochs=2"),
    *("checkpoint.save_steps=1", "checkpoint.save_total_limit=2", "tracking.logging_steps=1"),
    "data.max_eval_samples=8",
)
KILLED_AT = "step-4"
"""The checkpoint during which a run is killed, so that it resumes in the middle of an epoch."""
LIMIT_SECONDS = 300
"""Limit of one run, which takes a few seconds."""

HEAVY = (
    *("torch", "tokenizers", "accelerate", "datasets", "transformers.trainer", "sklearn.metrics", "scipy.stats"),
    *("scipy.io", "pydantic.dataclasses", "ruamel.yaml"),
)
"""What every run imports. No import computes anything, so a fork loses no thread that matters."""
FIXED = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
FIXED |= {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
OTHERS = ("ACCELERATE_", "HF_", "RANK", "LOCAL_", "WORLD_SIZE", "MASTER_")
"""How variables begin that must not reach the runs."""


def environment(checkout: Path, home: Path) -> dict[str, str]:
    """Returns the variables of a checkout's runs: one thread, no GPU, no network, caches of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OTHERS)}
    folders = {"HF_HOME": home / "hf", "XDG_STATE_HOME": home / "state", "MPLCONFIGDIR": home / "matplotlib"}
    folders["PYTHONPATH"] = checkout  # before an editable install, which may be of yet another checkout
    return kept | {name: str(folder) for name, folder in folders.items()} | FIXED


def work(checkout: Path, folder: Path, cases: Sequence[str]) -> None:
    """Trains cases one after another in forks of this process, which has imported the libraries once."""
    sys.path[0] = str(checkout)
    for name in (*HEAVY, "toolkit"):
        importlib.import_module(name)
    origin = Path(sys.modules["toolkit"].__file__ or "")
    assert origin.is_relative_to(checkout), f"toolkit is {origin}, not that of {checkout}"
    for case in cases:
        began, run = time.monotonic(), folder / case
        run.mkdir(parents=True)
        problem = train(case, run)
        if not problem:
            (run / "hashes.json").write_text(json.dumps(hashes(run / "run")), encoding="utf-8")
        shutil.rmtree(run / "run" / "checkpoints", ignore_errors=True)
        print(f"{folder.name}: {case}: {time.monotonic() - began:.1f} s{problem}", file=sys.stderr, flush=True)


def train(case: str, folder: Path) -> str:
    """Trains a case into `folder/run`; returns what went wrong, with the end of the log, or an empty text."""
    task, engine, kind = case.split("/")
    words = [f"recipes/{task}.py", "--config", f"recipes/configs/{task}/smoke.yaml", f"engine={engine}"]
    words += [*WINDOWS, *TASKS[task], f"output_dir={folder / 'run'}"]
    if "global_batch_size" in importlib.import_module("toolkit.config.train").TrainConfig.__annotations__:
        words.append("train.global_batch_size=null")  # the other checkout may not know it
    log, metrics, problem, begin = folder / "log.txt", folder / "run" / "metrics.jsonl", "", None
    if kind == "resumed":
        if (codes := fork(words, log, kill=True)) != [-signal.SIGKILL]:
            problem = f"ended with {codes}, and was not killed while it saved {KILLED_AT}"
        else:  # the first line has times, which a run that begins anew would not repeat
            begin = metrics.read_text(encoding="utf-8").splitlines()[0]
            words.append("checkpoint.resume=auto")
    if not problem and any(codes := fork(words, log, processes=2 if kind == "two" else 1)):
        problem = f"ended with {codes}"
    if not problem and begin not in (None, metrics.read_text(encoding="utf-8").splitlines()[0]):
        problem = "began anew instead of resuming"
    end = log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:]
    return "\n".join([f": {problem}", *end]) if problem else ""


def fork(words: list[str], log: Path, *, processes: int = 1, kill: bool = False) -> list[int | None]:
    """Runs a recipe's command line on new processes; returns their exit codes."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        several = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": found.getsockname()[1]}
    several |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), processes)
    children = []
    for rank in range(processes):
        variables = {**several, "RANK": rank, "LOCAL_RANK": rank} if processes > 1 else {}
        process = multiprocessing.get_context("fork").Process(target=run_recipe, args=(words, variables, log, kill))
        process.start()
        children.append(process)
    for process in children:
        process.join()
    return [process.exitcode for process in children]


def run_recipe(words: list[str], variables: dict[str, Any], log: Path, kill: bool) -> None:
    """Runs a recipe in this process, as `python` would, with its output in the log."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.alarm(LIMIT_SECONDS)
    os.environ.update({name: str(value) for name, value in variables.items()})
    sys.argv = words
    if kill:
        sys.addaudithook(kill_at_checkpoint)
    runpy.run_path(words[0], run_name="__main__")


def kill_at_checkpoint(event: str, arguments: tuple[Any, ...]) -> None:
    """Kills this process just before a folder is renamed to the checkpoint's name: the one before is the newest."""
    if event == "os.rename" and Path(os.fsdecode(arguments[1])).name == KILLED_AT:
        os.kill(os.getpid(), signal.SIGKILL)


def hashes(run: Path) -> dict[str, str]:
    """Returns the sha256 of the weights and the predictions of a run."""
    files = [*sorted((run / "model").glob("*.safetensors")), run / "predictions.jsonl"]
    assert len(files) > 1, f"{run / 'model'} has no weights"
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def whole(case: str) -> str:
    """Returns the case on one process without a stop."""
    return f"{case.rpartition('/')[0]}/one"


def verdict(case: str, folder: Path) -> str:
    """Returns `equal`, or what differs or failed, of a case that both checkouts have trained."""
    pairs = {"": [f"{side}/{case}" for side in SIDES]}
    if case.endswith("/resumed"):
        pairs |= {f" after a stop in {side} checkout": [f"{side}/{case}", f"{side}/{whole(case)}"] for side in SIDES}
    differing = []
    for where, runs in pairs.items():
        files = [folder / run / "hashes.json" for run in runs]
        if failed := [run for run, file in zip(runs, files, strict=True) if not file.exists()]:
            return f"failed: {', '.join(failed)}"
        left, right = (json.loads(file.read_text(encoding="utf-8")) for file in files)
        differing += [f"{name}{where}" for name in sorted(left | right) if left.get(name) != right.get(name)]
    return f"differs: {', '.join(differing)}" if differing else "equal"


def compare(other: Path, cases: Sequence[str], folder: Path) -> int:
    """Trains cases in both checkouts at the same time and prints the table; returns the exit code."""
    began, workers = time.monotonic(), []
    trained = [case for case in CASES if case in cases or case in {whole(each) for each in cases if "resumed" in each}]
    for side, checkout in zip(SIDES, (ROOT, other), strict=True):
        (folder / side).mkdir(parents=True)
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", str(checkout), str(folder / side)]
        variables = environment(checkout, folder / side / "home")
        workers.append(subprocess.Popen([*command, *trained], cwd=checkout, env=variables))
    codes = [worker.wait() for worker in workers]
    verdicts = {case: verdict(case, folder) for case in cases}
    print(f"this checkout is {ROOT}, the other one {other}")
    for row in [("task", "engine", "case", "files"), *((*case.split("/"), found) for case, found in verdicts.items())]:
        print("{:21} {:8} {:8} {}".format(*row))
    equal = [*verdicts.values()].count("equal")
    print(f"{equal} of {len(cases)} are equal, after {time.monotonic() - began:.0f} s")
    return int(equal < len(cases) or any(codes))


def main() -> None:
    """Reads the command line, and ends with the exit code."""
    if sys.argv[1:2] == ["--worker"]:
        return work(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, metavar="OTHER_CHECKOUT")
    parser.add_argument("--only", nargs="+", default=[""], metavar="TASK[/ENGINE[/CASE]]", help=f"such as {CASES[1]}")
    parser.add_argument("--output", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    chosen = {part: [case for case in CASES if f"{case}/".startswith(part and f"{part}/")] for part in options.only}
    if unknown := [part for part, cases in chosen.items() if not cases]:
        parser.error(f"--only: no case is {', '.join(unknown)}; the cases are {', '.join(CASES)}")
    if not (options.other / "recipes").is_dir():
        parser.error(f"{options.other} is not a checkout: it has no recipes/")
    if options.output is not None and options.output.exists():
        parser.error(f"--output: {options.output} exists already")
    cases = [case for case in CASES if any(case in some for some in chosen.values())]
    with tempfile.TemporaryDirectory(prefix="compare-weights-") as temporary:
        sys.exit(compare(options.other.resolve(), cases, (options.output or Path(temporary)).absolute()))


if __name__ == "__main__":
    main()
