"""Exports a finished run as a zip that its receiver can use with transformers alone, without private data."""

from __future__ import annotations

import html
import shutil
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from toolkit.base.console import format_bytes, say
from toolkit.base.errors import InputError, RunError
from toolkit.base.files import disk_problem, read_json, temporary_file, texts_in, write_text
from toolkit.base.run_folder import RunFolder
from toolkit.config.sections import Config
from toolkit.deploy.convert import require_mergeable, write_merged
from toolkit.deploy.export.script import columns_of_script, write_script
from toolkit.deploy.trained import TrainedRun, decoded_with, load, read_settings
from toolkit.report.card import Card, model_card, scores_of

SUFFIXES = (".json", ".html", ".md", ".txt", ".py")
"""Suffixes of the exported files in which paths of this machine are shortened."""
VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt")
"""Files to copy unchanged: they hold no paths, but tokens that may look like one."""

_NO_PATHS = ("task.", "data.columns.")


def private_paths(run_folder: Path, cfg: Config, facts: Mapping[str, Any]) -> list[Path]:
    """Returns all absolute paths that a run recorded, and the run's and the user's folder, longest first."""
    settings = asdict(replace(cfg, task=None, data=replace(cfg.data, columns={})))
    command = [text for text in texts_in(facts.get("command")) if not text.startswith(_NO_PATHS)]
    texts = texts_in([settings, command, facts.get("recipe"), facts.get("working_directory")])
    named = {Path(part) for text in texts for part in (text, text.partition("=")[2])}
    paths = {run_folder.absolute(), run_folder.resolve(), Path.home(), *named}
    return sorted((path for path in paths if path.is_absolute() and path.name), key=lambda path: -len(str(path)))


def own_card(run_folder: Path) -> str:
    """Returns the model card of a run; empty if it was removed."""
    card = RunFolder(run_folder).model_card
    return card.read_text(encoding="utf-8") if card.is_file() else ""


def shorten_paths(folder: Path, private: Sequence[Path]) -> None:
    """Replaces paths by their names, and removes their folders before other names, in the text files of a folder."""
    folders = sorted({path.parent for path in private if path.parent.name}, key=lambda path: -len(str(path)))
    changes = [(str(path), path.name) for path in private] + [(f"{path}/", "") for path in folders]
    for file in folder.rglob("*"):
        if file.suffix in SUFFIXES and file.name not in VOCABULARIES:
            text = before = file.read_text(encoding="utf-8")
            for path, short in changes:
                text = text.replace(path, short).replace(html.escape(path), short)
            if text != before:
                write_text(file, text)


README = """{name}: a model, fine-tuned with finetune-toolkit.
Install:  pip install -r requirements.txt
Predict a CSV or .jsonl file:  python predict.py input.csv > output.csv  (columns: {columns})
Predict one input:  python predict.py {example}
More: model/README.md (data, labels, scores, licence) and report.html (open it in a browser).
"""


def export_zip(
    run_folder: Path, recipe: str | None, output: Path, trust_remote_code: bool = False, overrides: Sequence[str] = ()
) -> None:
    """Writes a zip with the model, its card, the report and a script that predicts with transformers alone.

    Adapters are merged into the model; paths of this machine are shortened in all files. Raises InputError if the
    folder is not a finished run, or its task or adapters cannot be exported; RunError if the zip cannot be written.
    """
    cfg, task = read_settings(run_folder, recipe, overrides=overrides)
    if not task.has("script"):
        raise InputError(f"toolkit export: {type(task).__name__} has no script that predicts without the toolkit")
    template = task.script()
    if cfg.model.peft.method != "none":
        require_mergeable(cfg)
    run = load(run_folder, recipe, trust_remote_code=trust_remote_code, overrides=overrides)
    bare = getattr(run.bare_model, "get_base_model", lambda: run.bare_model)()
    if not type(bare).__module__.startswith("transformers"):
        raise InputError(f"toolkit export: {type(bare).__name__} is the recipe's own model, and not transformers'")
    try:
        with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as temporary:
            folder = Path(temporary)
            _write_folder(run, template, run_folder, folder, overrides)
            with temporary_file(output) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
                for path in sorted(each for each in folder.rglob("*") if each.is_file()):
                    zipped.write(path, path.relative_to(folder).as_posix())
    except OSError as error:
        raise RunError(f"cannot write {output.absolute()}: {disk_problem(error, output.parent) or error}") from error
    say(f"{output} ({format_bytes(output.stat().st_size)}) has the model, its card, the report and predict.py,")
    say("which needs torch and transformers, but not the toolkit; README.txt explains its use")


def _write_folder(run: TrainedRun, template: str, run_folder: Path, folder: Path, overrides: Sequence[str]) -> None:
    """Writes the content of the zip into an empty folder."""
    files, name, facts = RunFolder(run_folder), run_folder.absolute().name, read_json(RunFolder(run_folder).facts)
    if run.cfg.model.peft.method == "none":
        model = run.bare_model
        shutil.copytree(files.model, folder / "model", copy_function=shutil.copyfile)
        if run.task.generation_fields(model, run.processor):  # changed, maybe, for this export
            model.generation_config.save_pretrained(folder / "model")
    else:
        model = write_merged(run, folder / "model")
    card = Card(name, run.cfg, run.task, model.config, facts, scores_of(own_card(run_folder)), adapted=False)
    write_text(folder / "model" / "README.md", model_card(card))
    if files.report_html.is_file():
        shutil.copyfile(files.report_html, folder / files.report_html.name)
    write_script(folder, template, run.cfg, run.task, model, run.processor, ("torch", "transformers"))
    columns = columns_of_script(run.cfg, run.task)
    example = " ".join(f"--{option} ..." for option in columns)
    text = README.format(name=name, columns=", ".join(columns.values()), example=example)
    text += f"Answers are made with {', '.join(changed)}.\n" if (changed := decoded_with(overrides)) else ""
    write_text(folder / "README.txt", text)
    shorten_paths(folder, private_paths(run_folder, run.cfg, facts))
