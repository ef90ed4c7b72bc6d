"""Renders `predict.py`, the script of an export, which does not need the toolkit."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from inspect import getsource
from pathlib import Path
from typing import Any

from toolkit import modalities
from toolkit.api.batch import Processor
from toolkit.api.task import Task
from toolkit.base.errors import DataError
from toolkit.base.files import expanded, write_json, write_text
from toolkit.base.run_folder import RunFolder
from toolkit.config.messages import join
from toolkit.config.sections import Config, DataConfig
from toolkit.config.templates import fill, is_template, parts_of
from toolkit.data.readers.delimited import MAX_FIELD_CHARS, USUAL, recognise
from toolkit.data.readers.raw import Reading
from toolkit.deploy.predict import needed_columns

TEMPLATES = Path(__file__).parents[1] / "templates"
SUFFIX = ".py.jinja"
_FILL = getsource(fill).replace("Mapping[str, Any]", "dict").strip()
"""The function of a script that fills templates of columns."""


def generating_code() -> str:
    """Returns the source of the classes that generate with two graphs, with their imports."""
    source = (Path(__file__).parent / "generating.py").read_text(encoding="utf-8")
    return source.partition("from __future__ import annotations\n")[2].strip()


def columns_of_script(cfg: Config, task: Task) -> dict[str, str]:
    """Returns the columns of a CSV file for the script, by the names of its options."""
    columns, found = needed_columns(task), dict[str, str]()
    for name, column in columns.items():
        given = cfg.data.columns.get(name, name)
        only = name if column.file or len(columns) > 1 else "text"
        for part in parts_of(given):
            option = re.sub(r"\W", "_", part) if is_template(given) else only
            while option in found and found[option] != part:
                option += "_"
            found[option] = part
    return found


def _reads(cfg: Config, task: Task) -> list[str]:
    """Returns the expressions of the script for the inputs of a `row`."""
    literal = partial(json.dumps, ensure_ascii=False)
    given = [cfg.data.columns.get(name, name) for name in needed_columns(task)]
    return [f"fill({literal(g)}, row)" if is_template(g) else f"row[{literal(parts_of(g)[0])}]" for g in given]


def write_script(
    folder: Path,
    template: str,
    cfg: Config,
    task: Task,
    model: Any,
    processor: Processor,
    libraries: Sequence[str],
    **values: Any,
) -> None:
    """Writes `predict.py` from a template, and `requirements.txt` with these libraries and the modality's."""
    # How transformers notes what a class needs; some extractors compute spectrograms with torch.
    own = [name for name in getattr(type(processor), "__backends", ()) if name == "torch" and name not in libraries]
    needed = (*libraries, *own, *modalities.load(task.modality).LIBRARIES)
    if decision := task.state.get("decision"):
        write_json(folder / RunFolder(folder).decision.name, decision)
    values |= {"needed": needed, "libraries": join(needed, "and"), "decision": decision}
    source = _script(template, cfg, task, model, processor, **values)
    write_text(folder / "predict.py", source)
    # An older library may not know the model, its tokenizer or its operations.
    exact = ("transformers", "onnxruntime")
    lines = [f"{each}>={version(each)}" if each in exact else each for each in needed]
    if "return_overflowing_tokens" in source:
        lines.append("tokenizers!=0.23.1,!=0.23.2")  # see toolkit.modalities.text
    write_text(folder / "requirements.txt", "\n".join(lines) + "\n")


def _script(template: str, cfg: Config, task: Task, model: Any, processor: Processor, **values: Any) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), trim_blocks=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    environment.filters["literal"] = partial(json.dumps, ensure_ascii=False)
    return environment.get_template(f"{template}{SUFFIX}").render(
        {**task.script_values(model, processor), **_dialect(cfg.data), **values},
        columns=columns_of_script(cfg, task),
        reads=(reads := _reads(cfg, task)),
        fill=_FILL if any(each.startswith("fill(") for each in reads) else "",
        part=[parts_of(cfg.data.columns.get(name, name))[0] for name in ("start", "end")],  # of a recording
        max_field_chars=MAX_FIELD_CHARS,
        config=model.config,
        is_file=any(column.file for column in needed_columns(task).values()),
        auto_model=task.auto_model(model.config),
        options=task.options,
        processor=processor,
    )


def _dialect(data: DataConfig) -> Mapping[str, Any]:
    """Returns how the script reads tables: like the run's (first) training file if that can still be read."""
    reading, file = Reading.of(data), expanded((*data.files("train_file"), "")[0])
    if file.suffix.lower() in USUAL and file.is_file():
        with suppress(DataError):
            reading = recognise(file, reading)
    unquoted = reading.quoting == "none"
    return {"delimiter": reading.delimiter or ",", "unquoted": unquoted, "unescape": reading.unescape_html}
