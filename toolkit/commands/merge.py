"""Merge a run's adapters into its model: `toolkit merge RUN [--output DIR] [--data FILE]`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from toolkit.config.sections import Config
    from toolkit.trained import TrainedRun

ROWS = 8
"""On so many rows the merged model must answer as before."""
TOLERANCE = 1e-4
"""Largest difference of logits, relative to the largest logit."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run, where the model goes, and the rows that prove it."""
    parser.add_argument("run", metavar="RUN", help="output folder of a finished run with adapters")
    parser.add_argument("--output", metavar="DIR", help="where the merged model goes (default: RUN/merged)")
    parser.add_argument("--data", metavar="FILE", help="rows to compare on (default: a few of the run's own)")
    parser.add_argument("--recipe", metavar="FILE", help="the recipe, if it was moved since the run")
    parser.add_argument("--trust-remote-code", action="store_true", help="run Python code that lies beside the model")


def work(arguments: argparse.Namespace) -> None:
    """Writes a folder that transformers alone can load, and ends with exit code 1 if it answers otherwise."""
    from dataclasses import replace

    from toolkit.adapters import merged
    from toolkit.console import quiet_libraries, say
    from toolkit.distributed import build_accelerator
    from toolkit.errors import RunError
    from toolkit.trained import open_run, read_settings

    folder = Path(arguments.run)
    cfg, task = read_settings(folder, arguments.recipe)
    output = _output_folder(Path(arguments.output) if arguments.output else folder / "merged")
    _refuse_unmergeable(cfg)
    file = _rows_file(cfg, arguments.data)
    cfg = replace(
        cfg,
        model=replace(cfg.model, trust_remote_code=arguments.trust_remote_code),
        train=replace(cfg.train, mixed_precision="no"),
        tracking=replace(cfg.tracking, report_to=[]),
    )
    quiet_libraries()
    run = open_run(folder, cfg, task, build_accelerator(cfg))
    batch = _batch(run, file)
    before = _logits(run, run.model, batch)
    merged(run.accelerator.unwrap_model(run.model)).save_pretrained(output)
    run.processor.save_pretrained(output)
    after = _logits(run, _reload(run, output), batch)
    difference = float((after - before).abs().max() / before.abs().max().clamp(min=1e-12))
    rows = len(batch["row_ids"])
    say(f"largest difference of logits on {rows} rows, relative to the largest logit: {difference:.1e}")
    if not difference <= TOLERANCE:
        raise RunError(f"the merged model in {output} answers otherwise than the adapters did; do not use it")
    say(f"merged into {output}; transformers loads it without peft")


def _refuse_unmergeable(cfg: Config) -> None:
    from toolkit.errors import InputError

    reasons = {
        "none": "it trained the model itself: its folder model/ is what you want",
        "prompt_tuning": "virtual tokens are inputs, not weights; use its folder model/ with peft",
        "qlora": "weights of 4 bits cannot hold the sum, and others would answer otherwise; use its folder model/ with "
        "peft",
    }
    if why := reasons.get(cfg.model.peft.method):
        raise InputError(f"this run (model.peft.method={cfg.model.peft.method}) has nothing to merge: {why}.")


def _output_folder(output: Path) -> Path:
    from toolkit.errors import InputError

    if output.is_file() or (output.is_dir() and any(output.iterdir())):
        raise InputError(f"--output: {output.absolute()} is not an empty folder; give another, or delete it")
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output: cannot make the folder {output.absolute()}: {error.strerror}") from error
    return output


def _rows_file(cfg: Config, given: str | None) -> str:
    """The file whose first rows prove the merge."""
    from toolkit.config.paths import aligned_files
    from toolkit.errors import InputError

    own = [name for name in (cfg.data.validation_file, cfg.data.train_file) if name]
    for name in [given] if given else own:
        if all(Path(part).expanduser().exists() for part in (aligned_files(name).values() or [name])):
            return name
    known = f"({', '.join(own)})" if own else "(they came from the hub)"
    raise InputError(f"--data: give a file with rows to compare on; the run's own are not here {known}")


def _batch(run: TrainedRun, file: str) -> dict[str, Any]:
    """The first rows of a file, as the model is given them."""
    from dataclasses import replace

    from accelerate.utils import send_to_device

    from toolkit.data.batches import evaluation_loader
    from toolkit.data.prepare import tokenise
    from toolkit.data.rows import apply_policy, load_table

    tables = {"input": load_table(file, run.task, run.cfg.data.columns, labelled=False)}
    apply_policy(tables, "skip")
    rows = tables["input"].rows
    features = tokenise(rows.select(range(min(ROWS, len(rows)))), run.task, run.processor, labelled=False)
    cfg = replace(run.cfg, eval=replace(run.cfg.eval, per_device_eval_batch_size=ROWS))
    loader = evaluation_loader(features, run.task, run.processor, cfg, rank=0, world_size=1)
    return send_to_device(next(iter(loader)), run.accelerator.device)


def _logits(run: TrainedRun, model: Any, batch: dict[str, Any]) -> Tensor:
    """All numbers that a model answers with, in one row."""
    import torch

    model.eval()
    with torch.no_grad():
        outputs = model(**batch["inputs"])
    names = ("logits", "start_logits", "end_logits")
    return torch.cat([outputs[name].double().flatten().cpu() for name in names if name in outputs])


def _reload(run: TrainedRun, folder: Path) -> Any:
    """The model as transformers reads it back, which is what a user will have."""
    import transformers

    auto_class = getattr(transformers, run.task.auto_model(run.accelerator.unwrap_model(run.model).config))
    model = auto_class.from_pretrained(folder, trust_remote_code=run.cfg.model.trust_remote_code)
    return model.to(run.accelerator.device)
