"""P8: how long training waits for a checkpoint, against accelerate's `save_state`: 110 million parameters, AdamW.

    python benchmarks/bench_checkpoint.py [--pairs 5]

The toolkit's side trains and writes checkpoints while training goes on: it waits for the state to be gathered, for the
copy before the next update, and for the checkpoint before if that is still being written. Its first checkpoint, which
allocates the memory of the copy, is given as a case of its own, as are the same run with `checkpoint.async_save: false`
and how much longer the steps are during which a checkpoint is written.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import texts
from pairs import Side, calling, compared, interleave, parser, read_options, write

from toolkit.api.training import Callback

if TYPE_CHECKING:
    pass

BASE = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12}
"""BERT-base, whose vocabulary makes it 109 million parameters."""
WORDS = 30_522
SAVES, QUICK_SAVES = 4, 2
EVERY = 8
"""Steps between two checkpoints."""


class Waits(Callback):
    """Times steps, and what training waits for checkpoints in them."""

    def __init__(self) -> None:
        self.waited: dict[int, float] = {}
        self.in_flight: set[int] = set()
        self.ends = [time.perf_counter()]

    def after_step(self, record: Mapping[str, float]) -> None:
        """Notes the end of a step."""
        self.ends.append(time.perf_counter())

    def timed(self, function: Callable[..., None]) -> Callable[..., None]:
        """Returns a method of the checkpointer, whose seconds are noted with the step."""

        def timed(checkpointer: Any, *arguments: Any, **settings: Any) -> None:
            step = checkpointer.training.state.step
            begin = time.perf_counter()
            function(checkpointer, *arguments, **settings)
            self.waited[step] = self.waited.get(step, 0.0) + time.perf_counter() - begin
            if checkpointer.background.state.name != "IDLE":
                self.in_flight.add(step + 1)

        return timed


def toolkit(model: str, rows: str, folder: str, background: bool, saves: int) -> dict[str, Any]:
    """Trains, and returns the median of the `seconds` that training waited for a checkpoint, without the first."""
    from unittest.mock import patch

    from pairs import ROOT

    from toolkit.engine.checkpointing import Checkpointer
    from toolkit.lab.jobs.training import trained

    shutil.rmtree(folder, ignore_errors=True)
    waits = Waits()
    overrides = [
        "model.from_config=null", f"model.name_or_path={model}", f"data.train_file={rows}", "data.validation_file=null",
        "data.validation_split=0", "data.max_train_samples=null", "data.max_eval_samples=null", "eval.eval_steps=null",
        "train.global_batch_size=2", "train.optim=adamw_torch_fused",
        f"train.max_steps={saves * EVERY + EVERY - 1}", f"checkpoint.save_steps={EVERY}", "task.max_length=64",
        "checkpoint.save_total_limit=1", f"checkpoint.async_save={str(background).lower()}", f"output_dir={folder}",
    ]  # fmt: skip
    job = {"recipe": str(ROOT / "recipes/reviews.py"), "config": str(ROOT / "recipes/configs/reviews/smoke.yaml")}
    methods = {name: waits.timed(getattr(Checkpointer, name)) for name in ("save", "wait_for_copy", "join_if")}
    with patch.multiple(Checkpointer, **methods), trained({**job, "overrides": overrides}, waits):
        pass
    own = [sum(waits.waited.get(step, 0.0) for step in range(number * EVERY, (number + 1) * EVERY))
           for number in range(1, saves + 1)]  # fmt: skip
    steps = {step: end - waits.ends[step - 1] - waits.waited.get(step - 1, 0.0) for step, end in enumerate(waits.ends)
             if step > 1}  # fmt: skip
    during = [seconds for step, seconds in steps.items() if step in waits.in_flight]
    others = [seconds for step, seconds in steps.items() if step not in waits.in_flight]
    slower = statistics.median(during) / statistics.median(others) if during and others else 1.0
    return {"seconds": statistics.median(own[1:]), "first": own[0], "each": own, "slower_steps": slower}


def accelerate(model: str, folder: str, saves: int) -> dict[str, Any]:
    """Returns the median of the `seconds` of `save_state`, without the first."""
    import torch
    from accelerate import Accelerator
    from transformers import AutoModelForSequenceClassification

    shutil.rmtree(folder, ignore_errors=True)
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    prepared = AutoModelForSequenceClassification.from_pretrained(model)
    trained, optimizer = accelerator.prepare(prepared, torch.optim.AdamW(prepared.parameters(), fused=True))
    own = []
    for number in range(saves):
        ids = torch.randint(5, 100, (2, 64), device=accelerator.device)
        accelerator.backward(trained(input_ids=ids, labels=ids[:, 0] % 2).loss)
        optimizer.step()
        optimizer.zero_grad()
        begin = time.perf_counter()
        accelerator.save_state(f"{folder}/{number}")
        own.append(time.perf_counter() - begin)
        shutil.rmtree(f"{folder}/{number - 1}", ignore_errors=True)
    parameters = sum(parameter.numel() for parameter in prepared.parameters())
    return {"seconds": statistics.median(own[1:]), "first": own[0], "each": own, "parameters": parameters}


def sides(options: argparse.Namespace, folder: Path) -> list[Side]:
    """Returns `save_state`, and the toolkit with and without `checkpoint.async_save`."""
    saves = QUICK_SAVES if options.quick else SAVES
    base = texts.new_bert(folder / "base", **({} if options.quick else {**BASE, "vocab_size": WORDS}))
    model = texts.with_head(base, folder / "model", False, "AutoModelForSequenceClassification")
    made = texts.review_rows(texts.one_token_words(base), (saves + 1) * EVERY, 2, "random")
    rows = texts.write_rows(made, folder / "rows.jsonl")
    given = {"model": str(model), "rows": rows, "saves": saves}
    return [
        calling("save_state", accelerate, model=str(model), folder=str(folder / "accelerate"), saves=saves),
        calling("async", toolkit, **given, folder=str(folder / "async"), background=True),
        calling("waiting", toolkit, **given, folder=str(folder / "waiting"), background=False),
    ]


def main() -> None:
    """Runs the pairs and writes `benchmarks/results/checkpoint.json`."""
    options = read_options(parser(__doc__, wall_only="waiting for a checkpoint takes no CPU time"))
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        runs = interleave(sides(options, Path(folder)), options)
    firsts = {name: [{"seconds": run["first"]} for run in found] for name, found in runs.items()}
    figures = blocked(runs) | {
        "parameters": runs["save_state"][0]["parameters"],
        "slower_steps": [run["slower_steps"] for run in runs["async"]],
        "cases": {
            "the first checkpoint of a run": blocked(firsts),
            "checkpoint.async_save: false": blocked({**runs, "async": runs["waiting"]}),
        },
    }
    write("checkpoint", "P8", "seconds that training waits for a checkpoint / seconds of save_state", figures, options)


def blocked(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Returns the ratios of the seconds that training waits to those of `save_state`: below 1 waits less."""
    return compared(runs, "async", "save_state")


if __name__ == "__main__":
    main()
