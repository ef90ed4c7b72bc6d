"""Exports a finished run as a zip that its receiver can use with transformers alone: `--format zip`."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from pathlib import Path

from toolkit.api.task import SupportsScript
from toolkit.base.errors import InputError, RunError
from toolkit.base.files import disk_problem, read_json, temporary_file, write_text
from toolkit.base.run_folder import RunFolder
from toolkit.deploy.export.private import private_paths, shorten_paths
from toolkit.deploy.export.script import columns_of_script, write_script
from toolkit.deploy.merge import refuse_unmergeable
from toolkit.deploy.trained import TrainedRun, load, read_settings
from toolkit.models.adapters import merged
from toolkit.report.card import Card, model_card, scores_of

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
    if cfg.model.peft.method != "none":
        refuse_unmergeable(cfg)
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
    write_script(folder, template, run.cfg, run.task, model, run.processor, ("torch", "transformers"))
    columns = columns_of_script(run.cfg, run.task)
    example = " ".join(f"--{option} ..." for option in columns)
    write_text(folder / "README.txt", README.format(name=name, columns=", ".join(columns.values()), example=example))
    shorten_paths(folder, private_paths(run_folder, run.cfg, facts))
