"""Exports a finished run as a zip that its receiver can use with transformers alone: `toolkit export`."""

from __future__ import annotations

import html
import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from toolkit.api.supports import SupportsScript
from toolkit.base.disk import disk_problem
from toolkit.base.errors import DataError, InputError, RunError
from toolkit.base.files import expanded, read_json, temporary_file, write_text
from toolkit.base.run_folder import RunFolder
from toolkit.config.sections import DataConfig
from toolkit.data.readers.delimited import USUAL, recognise
from toolkit.data.reading import Reading
from toolkit.deploy.inputs import needed_columns
from toolkit.deploy.trained import TrainedRun, load, read_settings
from toolkit.models.adapters import merged
from toolkit.report.card import Card, model_card, scores_of

TEMPLATES = Path(__file__).with_name("templates")
LIBRARIES = {"text": (), "seq2seq": (), "image": ("pillow",), "audio": ("soundfile", "soxr")}
"""Libraries that a script needs for its inputs, besides torch and transformers, by modality."""
PRIVATE_SUFFIXES = (".json", ".html", ".md", ".txt", ".py")
"""Suffixes of the exported files in which paths of this machine are shortened."""
README = """{name}: a model, fine-tuned with finetune-toolkit.
Install:  pip install -r requirements.txt
Predict a CSV or .jsonl file:  python predict.py input.csv > output.csv  (columns: {columns})
Predict one input:  python predict.py {example}
More: model/README.md (data, labels, scores, licence) and report.html (open it in a browser).
"""


def export_zip(run_folder: Path, recipe: str | None, output: Path, trust_remote_code: bool = False) -> None:
    """Writes a zip with the model, its card, the report and a script that predicts with transformers alone.

    Adapters are merged into the model. Paths of this machine are shortened in all files.

    Args:
        run_folder: the run's `output_dir`.
        recipe: the recipe's name or file if it was moved after the run.
        output: the zip to write.
        trust_remote_code: whether Python code in the model's folder may run.

    Raises:
        InputError: if the folder is not a finished run, or its task or adapters cannot be exported.
        RunError: if the zip cannot be written.
    """
    cfg, task = read_settings(run_folder, recipe)
    if not isinstance(task, SupportsScript):
        raise InputError(f"toolkit export: {type(task).__name__} has no script that predicts without the toolkit")
    template = task.script()
    if cfg.model.peft.method in ("qlora", "prompt_tuning"):
        how = "cannot be merged into a model; its folder model/ is loaded with peft"
        raise InputError(f"toolkit export: model.peft.method={cfg.model.peft.method} {how}")
    run = load(run_folder, recipe, trust_remote_code=trust_remote_code)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as temporary:
            folder = Path(temporary)
            _write_folder(run, template, run_folder, folder)
            with temporary_file(output) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
                for path in sorted(each for each in folder.rglob("*") if each.is_file()):
                    zipped.write(path, path.relative_to(folder).as_posix())
    except OSError as error:
        raise RunError(f"cannot write {output.absolute()}: {disk_problem(error, output.parent) or error}") from error


def _write_folder(run: TrainedRun, template: str, run_folder: Path, folder: Path) -> None:
    """Writes what is exported into an empty folder."""
    files, name = RunFolder(run_folder), run_folder.absolute().name
    model = run.accelerator.unwrap_model(run.model)
    if run.cfg.model.peft.method == "none":
        shutil.copytree(files.model, folder / "model", copy_function=shutil.copyfile)
    else:
        model = merged(model)
        model.save_pretrained(folder / "model")
        run.processor.save_pretrained(folder / "model")
    facts = read_json(files.facts)
    scores = scores_of(files.model_card.read_text(encoding="utf-8")) if files.model_card.is_file() else "Not evaluated."
    card = Card(name, run.cfg, run.task, model.config, facts, scores, adapted=False)
    write_text(folder / "model" / "README.md", model_card(card))
    if files.report_html.is_file():
        shutil.copyfile(files.report_html, folder / files.report_html.name)
    columns = _columns(run)
    libraries = ("torch", "transformers", *LIBRARIES[run.task.modality])
    write_text(folder / "predict.py", script(run, template, columns, libraries))
    # An older transformers may not know the model or its tokenizer.
    lines = (f"{each}>={version(each)}" if each == "transformers" else each for each in libraries)
    write_text(folder / "requirements.txt", "\n".join(lines) + "\n")
    example = " ".join(f"--{option} ..." for option in columns)
    write_text(folder / "README.txt", README.format(name=name, columns=", ".join(columns.values()), example=example))
    _shorten_paths(folder, _private_paths(run_folder, run, facts))


def _columns(run: TrainedRun) -> dict[str, str]:
    """Returns the columns of a CSV file for the script, by the names of its options."""
    columns, theirs = needed_columns(run.task), run.cfg.data.columns
    if len(columns) == 1:
        ((name, column),) = columns.items()
        return {name if column.file else "text": theirs.get(name, name)}
    return {name: theirs.get(name, name) for name in columns}


def script(run: TrainedRun, template: str, columns: Mapping[str, str], libraries: tuple[str, ...]) -> str:
    """Returns the source of `predict.py`.

    Args:
        run: the finished run.
        template: name of the script's template.
        columns: columns of a CSV file by the names of the script's options.
        libraries: the libraries that it needs.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), trim_blocks=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    environment.filters["literal"] = partial(json.dumps, ensure_ascii=False)
    model = run.accelerator.unwrap_model(run.model)
    assert isinstance(run.task, SupportsScript)
    return environment.get_template(f"{template}.py.jinja").render(
        {**run.task.script_values(model, run.processor), **_dialect(run.cfg.data)},
        columns=columns,
        config=model.config,
        is_file=any(column.file for column in needed_columns(run.task).values()),
        auto_model=run.task.auto_model(model.config),
        libraries=", ".join(libraries[:-1]) + f" and {libraries[-1]}",
        options=run.task.options,
        processor=run.processor,
    )


def _dialect(data: DataConfig) -> dict[str, Any]:
    """Returns how the script reads tables: like the run's training file if that can still be read."""
    reading, file = Reading.of(data), expanded(data.train_file or "")
    if file.suffix.lower() in USUAL and file.is_file():
        with suppress(DataError):
            reading = recognise(file, reading)
    unquoted = reading.quoting == "none"
    return {"delimiter": reading.delimiter or ",", "unquoted": unquoted, "unescape": reading.unescape_html}


def _private_paths(run_folder: Path, run: TrainedRun, facts: Mapping[str, Any]) -> list[Path]:
    """Returns all absolute paths that the run recorded, and the run's and the user's folder, longest first."""
    texts = _texts([asdict(run.cfg), {name: facts.get(name) for name in ("command", "recipe", "working_directory")}])
    named = {Path(part) for text in texts for part in (text, text.partition("=")[2])}
    paths = {run_folder.absolute(), run_folder.resolve(), Path.home(), *named}
    return sorted((path for path in paths if path.is_absolute() and path.name), key=lambda path: -len(str(path)))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


def _shorten_paths(folder: Path, private: list[Path]) -> None:
    """Replaces paths by their names, and removes their folders before other names, in the text files of a folder."""
    folders = sorted({path.parent for path in private if path.parent.name}, key=lambda path: -len(str(path)))
    changes = [(str(path), path.name) for path in private] + [(f"{path}/", "") for path in folders]
    for file in folder.rglob("*"):
        if file.suffix in PRIVATE_SUFFIXES and file.name != "tokenizer.json":
            text = before = file.read_text(encoding="utf-8")
            for path, short in changes:
                text = text.replace(path, short).replace(html.escape(path), short)
            if text != before:
                write_text(file, text)
