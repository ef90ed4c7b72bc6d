"""Writes a run's model in another format into a folder, after comparing it with the run: `toolkit export`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.api.batch import EvalData, looked_up
from toolkit.api.task import Task
from toolkit.base.console import say, warn
from toolkit.base.errors import InputError, RunError, ToolkitError
from toolkit.base.files import disk_problem, read_json, write_json, write_text, written_folder
from toolkit.base.run_folder import RunFolder
from toolkit.config.sections import Config
from toolkit.config.train import ParallelConfig
from toolkit.data.batching.batches import evaluation_loader
from toolkit.data.loading import check_rows
from toolkit.data.readers.raw import Reading
from toolkit.data.table import apply_policy, load_table
from toolkit.deploy.convert import add_runs, reloaded, require_mergeable, write_merged
from toolkit.deploy.export.archive import own_card, private_paths, shorten_paths
from toolkit.deploy.export.formats import FORMATS, MODEL, TOLERANCE, Format, Written, write_pair
from toolkit.deploy.export.graph import example_of, examples_of_pair
from toolkit.deploy.export.parity import Parity, measure
from toolkit.deploy.export.script import SUFFIX, TEMPLATES, generating_code, write_script
from toolkit.deploy.trained import TrainedRun, open_run, read_settings
from toolkit.distributed.launch import build_accelerator, own_process_state
from toolkit.document.blocks import Table
from toolkit.document.render import print_table
from toolkit.report.card import Card, model_card, scores_of, with_section

if TYPE_CHECKING:
    import datasets


GIVE = "give a labelled file with the columns of the run's files as --data"


def labelled_rows(cfg: Config, task: Task, run_folder: Path, file: str | None, most: int) -> datasets.Dataset:
    """Returns checked rows of a file or, without one, the run's own; evenly spaced if there are more than `most`."""
    if file is not None:
        tables = {"--data": load_table(file, task, cfg.data.columns, labelled=True, reading=Reading.of(cfg.data))}
        apply_policy(tables, "skip", 1.0)
        rows = tables["--data"].rows
    else:
        splits = own_splits(cfg, type(task)(cfg), run_folder)
        rows = splits["validation" if "validation" in splits else "train"]
    if not len(rows):
        raise InputError(f"there are no rows to compare the export with the run; {GIVE}")
    places = np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(int)
    return rows.select(places)


def own_splits(cfg: Config, task: Task, run_folder: Path) -> Mapping[str, datasets.Dataset]:
    """Returns a run's rows by split; `task` learns its labels again, as before the run."""
    expected = read_json(RunFolder(run_folder).facts).get("data_fingerprints")
    data = replace(cfg.data, bad_rows="skip", max_bad_rows=1.0, stage_to=None)  # needs no copy on a fast disk
    try:
        checked = check_rows(replace(cfg, data=data), task)
    except InputError as error:
        raise InputError(f"the run's own rows cannot be read again; {GIVE}.\n  Reason: {error}") from error
    if dict(checked.fingerprints) != expected:
        raise InputError(f"the data files have changed since {run_folder} was trained; {GIVE}")
    return checked.splits


PARITY = "parity.json"
CARD = "README.md"


@dataclass(frozen=True)
class Request:
    """What to export."""

    run_folder: Path  # the run's `output_dir`
    format: str  # `merged`, the name of another library, or a name of `FORMATS`
    output: Path  # the folder to write, which does not exist or is empty
    max_rows: int  # largest number of rows to compare on
    recipe: str | None = None  # the recipe's name or file if it was moved after the run
    data: str | None = None  # labelled rows to compare on; None for the run's own validation rows
    trust_remote_code: bool = False  # whether Python code in the model's folder may run
    overrides: Sequence[str] = ()  # how answers are made
    others: Sequence[Path] = ()  # further runs, whose adapters are added
    combined: Mapping[str, Any] = field(default_factory=dict)  # arguments of `combine`


def export_folder(request: Request) -> None:
    """Writes a folder with the model in a format, its processor, `parity.json`, a model card and a script.

    The folder appears once it is complete and the outputs match the run; otherwise not at all. The parity is also
    shown, and written into the card of the run. Raises InputError if the folder is not a finished run, or its task,
    adapters or rows cannot be used; RunError if the model cannot be written, or its outputs differ.
    """
    cfg, task = read_settings(request.run_folder, request.recipe, overrides=request.overrides)
    cfg = _as_exported(cfg, request.trust_remote_code)
    chosen = FORMATS.get(request.format)
    if chosen is None and request.format not in ("merged", task.library.replace("-", "_")):
        raise InputError(
            f"--format {request.format}: a model of {type(task).__name__} cannot be loaded by this library"
        )
    if cfg.model.peft.method != "none" or request.format == "merged":
        require_mergeable(cfg)
    template = _template(task) if chosen is not None else None
    if chosen is not None:
        if task.has("forward") and template is None:
            raise InputError(
                f"--format {request.format}: {type(task).__name__} has its own forward pass, which no graph of the "
                "model contains; use --format zip or the folder model/"
            )
        chosen.check()
    rows = labelled_rows(cfg, task, request.run_folder, request.data, request.max_rows)
    try:
        with written_folder(request.output) as folder, _plain_model(request, cfg, task) as plain:
            run = _opened(request, cfg, task)
            data = run.preprocessed(rows, labelled=True)
            written = _merged(run, plain, folder) if chosen is None else _graph(run, plain, folder, chosen, data)
            tolerance = TOLERANCE if chosen is None else chosen.tolerance
            notes = {**written.notes, **request.combined}
            parity = measure(run, written.model, data, folder, request.format, tolerance, notes)
            parity.check()
            usage = None if chosen is None else chosen.usage([*written.names] if _is_pair(run) else [MODEL])
            _describe(request, run, parity, folder, usage)
            if chosen is not None and template is not None:
                _write_script(run, template, folder, chosen, written)
            facts = read_json(RunFolder(request.run_folder).facts)
            shorten_paths(folder, private_paths(request.run_folder, cfg, facts))
    except OSError as error:
        where = disk_problem(error, request.output.parent) or error
        raise RunError(f"cannot write {request.output.absolute()}: {where}") from error
    _add_to_own_card(request, parity)
    print_table(Table(["", "run", request.format], parity.lines()))
    allowed = "" if parity.allowed is None else f" (at most {parity.allowed:.1e} is allowed)"
    say(f"largest difference of an output on {parity.rows} rows: {parity.difference:.1e}{allowed}")
    say(f"{request.output} has the model in this format; README.md is its card, parity.json these figures")


def _as_exported(cfg: Config, trust_remote_code: bool) -> Config:
    """Returns settings with which a model is plain: one process, float32, with padding, without trackers."""
    return replace(
        cfg,
        parallel=ParallelConfig(),
        model=replace(cfg.model, trust_remote_code=trust_remote_code, attn_implementation=None),
        train=replace(cfg.train, mixed_precision="no", unpadded=False, tf32=None),
        tracking=replace(cfg.tracking, report_to=[]),
    )


def _template(task: Task) -> str | None:
    """Returns the template of the script, or None if the task has no script."""
    if not task.has("script") and not task.has("graph_script"):
        return None
    name = f"graph/{task.graph_script()}"
    return name if (TEMPLATES / f"{name}{SUFFIX}").is_file() else None


def _opened(request: Request, cfg: Config, task: Task) -> TrainedRun:
    """Opens the run on the CPU."""
    with own_process_state():
        os.environ["ACCELERATE_USE_CPU"] = "true"  # restored with the state
        run = open_run(request.run_folder, cfg, task, build_accelerator(cfg))
    if request.combined:
        add_runs(run, request.run_folder, request.others, request.combined)
    return run


@contextmanager
def _plain_model(request: Request, cfg: Config, task: Task) -> Iterator[Path]:
    """Yields a folder with the run's model without adapters: its own, or one that exists inside the block."""
    if cfg.model.peft.method == "none":
        yield RunFolder(request.run_folder).model
        return
    with TemporaryDirectory(prefix=f".{request.output.name}.", dir=request.output.absolute().parent) as temporary:
        write_merged(_opened(request, cfg, task), Path(temporary))
        yield Path(temporary)


def _merged(run: TrainedRun, plain: Path, folder: Path) -> Written:
    for each in plain.iterdir():
        if run.cfg.model.peft.method != "none":
            shutil.move(each, folder / each.name)  # the output may be a link to another disk
        elif each.is_dir():
            shutil.copytree(each, folder / each.name, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(each, folder / each.name)
    return Written(reloaded(run, folder), {}, [])


def _graph(run: TrainedRun, plain: Path, folder: Path, chosen: Format, data: EvalData) -> Written:
    """Writes the graph, the configuration with the labels, and the processor."""
    model = reloaded(run, plain)
    batch = looked_up(next(iter(evaluation_loader(data.features, run.task, run.processor, run.cfg, run.mesh))))
    try:
        if _is_pair(run):
            written = write_pair(chosen, examples_of_pair(model, batch), model, folder)
        else:
            written = chosen.write(example_of(model, batch), folder, MODEL)
    except (ToolkitError, OSError):
        raise
    except Exception as error:  # exporters raise errors of many kinds for operations that they do not know
        reason = str(error).strip().split("\n")[0][:300]
        raise RunError(
            f"this {model.config.model_type} cannot be traced: {type(error).__name__}: {reason}\n"
            "  Export it with --format zip instead, which needs no graph."
        ) from error
    model.config.save_pretrained(folder)
    run.processor.save_pretrained(folder)
    return written


def _is_pair(run: TrainedRun) -> bool:
    """Returns whether the model generates with an encoder and a decoder, which are two graphs."""
    return run.task.auto_model(run.bare_model.config) in ("AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq")


def _write_script(run: TrainedRun, template: str, folder: Path, chosen: Format, written: Written) -> None:
    """Writes the script of a graph; for an encoder-decoder, it contains the classes that generate with two graphs."""
    libraries, values = chosen.libraries, {"names": written.names, "program": chosen.module == "torch"}
    if _is_pair(run):
        libraries = tuple(dict.fromkeys((*libraries, "torch")))
        values["generating"] = generating_code()
    write_script(folder, template, run.cfg, run.task, run.bare_model, run.processor, libraries, **values)


def _describe(request: Request, run: TrainedRun, parity: Parity, folder: Path, usage: str | None) -> None:
    """Writes `parity.json` and the model card."""
    changed = {"overrides": [*request.overrides]} if request.overrides else {}
    write_json(folder / PARITY, parity.as_json() | changed)
    name, config = request.run_folder.absolute().name, run.bare_model.config
    own, facts = own_card(request.run_folder), read_json(RunFolder(request.run_folder).facts)
    scores = scores_of("" if request.combined else own)
    card = model_card(Card(name, run.cfg, run.task, config, facts, scores, adapted=False, usage=usage))
    write_text(folder / CARD, with_section(card, f"Export: {request.format}", parity.markdown()))


def _add_to_own_card(request: Request, parity: Parity) -> None:
    """Adds the parity to the card of the run; warns if that cannot be written, because the export is complete."""
    card, own = RunFolder(request.run_folder).model_card, own_card(request.run_folder)
    if not own or request.combined:
        return
    try:
        write_text(card, with_section(own, f"Export: {request.format}", parity.markdown()))
    except OSError as error:
        warn(f"the figures of this export were not added to {card}: {error.strerror or error}")
