"""Builds the sections of a run's report."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.api.batch import Record
from toolkit.api.run import FitResult, Run
from toolkit.base.console import counted, format_bytes, format_duration, format_value, shorten
from toolkit.base.files import read_json
from toolkit.base.run_folder import RunFolder
from toolkit.config.describe import Change, changes
from toolkit.config.keys import to_yaml
from toolkit.config.sections import Config
from toolkit.data.table import IDENTIFIER, row_names
from toolkit.document.blocks import Block, Cell, Code, Folded, Gallery, Highlights, Pictured, Section, Table, Text
from toolkit.metrics.score import without_classes
from toolkit.report.curves import Chart
from toolkit.report.examples import LEGEND, Example, Shown, Worst, marked
from toolkit.report.runs import folder_of
from toolkit.report.scores import Scores, base_name, readable
from toolkit.report.system import cost_blocks, samples_of, system_blocks
from toolkit.system.memory import MEMORY, MemoryUse
from toolkit.system.phases import OTHER, PHASES, PREFIX

PASSING = ("rest", "train_peak")
"""Parts of `MEMORY` that exist during a step only; on a CPU they are measured as memory of the process."""


def holds_all(run: Run) -> bool:
    """Returns whether each process holds the complete model and optimizer, of which the memory is predicted."""
    return not run.mesh.is_split and run.cfg.parallel.zero_stage is None


def memory_section(run: Run, memory: MemoryUse, predicted: Mapping[str, int] | None) -> list[Block]:
    """Returns `memory_table` with notes on comparing both."""
    notes = []
    if not holds_all(run):
        notes.append("The model or its optimizer is split over the processes; no prediction is shown for that.")
    elif predicted is not None and run.accelerator.device.type == "cpu":
        notes.append(
            "On a CPU, activations are measured as memory of the process, which includes what libraries allocate and "
            "keep; they are predicted as tensors only, so no ratio is shown."
        )
    return [*memory_table(memory, predicted, run.accelerator.device.type), *map(Text, notes)]


def memory_table(memory: MemoryUse, predicted: Mapping[str, int] | None = None, device: str = "cuda") -> list[Block]:
    """Returns a table of measured and, as far as they are known, predicted bytes by the parts of `MEMORY`."""
    rows: list[list[Any]] = []
    for part, words in MEMORY.items():
        count = getattr(memory, part)
        row: list[Any] = [words, bytes_cell(count)]
        if predicted is not None:
            guess = predicted.get(part)
            compared = guess is not None and count and (device != "cpu" or part not in PASSING)
            row += [bytes_cell(guess), guess / count if compared else None]
        rows.append(row)
    header = ["part", "measured", *(["predicted", "predicted / measured"] if predicted is not None else [])]
    return [
        Text(
            f"Memory of the main process above the {format_bytes(memory.baseline)} in use before the model was "
            f"built; its peak was {format_bytes(memory.peak)} in total, including evaluations and rows. On a GPU, that "
            "is what torch has allocated, otherwise what was resident; samples (as in curves) miss short peaks."
        ),
        Table(header, rows),
    ]


def bytes_cell(size: float | None) -> Cell | None:
    """Returns a number of bytes as a cell, or None for a missing one."""
    return None if size is None else Cell(format_bytes(size), size)


MEANINGS = {**PHASES, OTHER: "all else, for instance the code between these phases"}
"""The phases, and their descriptions in the report."""
ON_GPUS = (
    "The clock is that of the CPU, which hands work over to the GPU and continues. So forward, backward and update are "
    "the time to hand it over, and the wait for the GPU is in clip, where the norm of the gradient is read. "
    "`toolkit profile` waits for the GPU after each phase."
)


def time_section(run: Run, seconds: Mapping[str, float]) -> list[Block]:
    """Returns `time_table` with notes on reading it."""
    table = time_table(seconds)
    if table is None:
        return []
    notes = []
    if run.mesh.size > 1:
        notes = ["Times are those of the main process.", run.strategy.hidden_exchange]
    if run.accelerator.device.type != "cpu":
        notes.append(ON_GPUS)
    about = "Time since training was started or resumed, until the model was complete."
    return [Text(about), table, *(Text(note) for note in notes if note)]


def time_table(seconds: Mapping[str, float]) -> Table | None:
    """Returns a table of the phases that took time, in the order of a step; None if none did."""
    total = sum(seconds.values())
    rows: list[list[Any]] = [
        [name, Cell(format_duration(seconds[name]), seconds[name]), share_cell(seconds[name] / total), meaning]
        for name, meaning in MEANINGS.items()
        if seconds.get(name)
    ]
    return Table(["phase", "time", "share", "what it is"], rows, sortable=True) if rows else None


def share_cell(share: float) -> Cell:
    """Returns a share of a whole as a cell, shaded by its size."""
    return Cell(f"{share:.1%}", share, shade=share)


CERTIFICATE = "certificate.json"
"""File name of a certificate."""


def state_of(cfg: Config) -> str:
    """Returns one sentence about the newest certificate of a configuration, for a run's report."""
    file = folder_of(cfg) / CERTIFICATE
    try:
        found = read_json(file)
        verdicts = ", ".join(f"{c['name']} {c['verdict']}" for c in found["certificates"])
        return f"{verdicts} ({found['written'][:10]}, finetune-toolkit {found['versions']['finetune-toolkit']})"
    except FileNotFoundError:
        return "none for this configuration; create one with `toolkit certify`"
    except (OSError, ValueError, KeyError, TypeError):
        return f"{file} cannot be read; create a new one with `toolkit certify`"


SIZES = {f"train.{name}" for name in (
    "global_batch_size", "per_device_train_batch_size", "num_train_epochs", "max_steps", "learning_rate",
    "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "warmup_steps")}  # fmt: skip
"""Settings of every training that do not enable a technique."""
PLAIN = {"train.mixed_precision": "no", "train.gradient_accumulation_steps": 1}
"""Values of settings that neither the YAML nor the launcher sets."""
SWITCHES = ("train.", "model.peft.", "model.freeze", "model.unfreeze", "model.attn_implementation", "engine")
"""Prefixes of settings that change how a model is trained."""
WORST, EXAMPLES, SAMPLES = "Largest errors", "Example predictions", "Samples"
"""Titles of the sections with predictions, and with generated texts."""
DESCRIBED = ["input", "prediction", "expected"]
"""Columns of a table of predictions."""


@dataclass(frozen=True)
class Outcome:
    """Results of a run for its report."""

    result: FitResult
    facts: Mapping[str, Any]  # content of `run.json`
    charts: Sequence[Chart]
    shown: Shown
    sections: Sequence[Section]  # the task's own
    predicted: Mapping[str, int] | None = None  # bytes of parts of the memory, by the names of `MEMORY`


def lead(run: Run, facts: Mapping[str, Any]) -> str:
    """Returns the sentence below the report's title."""
    base, processes = run.cfg.model.name_or_path, facts["num_processes"]
    model = f"{base_name(base)}, fine-tuned" if base else f"a new {run.model.config.model_type} model"
    alone = "one process" if processes == 1 else f"{processes} processes"
    rows = f"{facts['num_rows']['train']:,} rows, {facts['rows_per_step']:,} per step"
    return f"{model} on {rows}, {alone}, {_device(facts)}, engine {facts['engine']}"


def sections(run: Run, outcome: Outcome) -> list[Section]:
    """Returns all sections of a run's report, in order."""
    shown, drawing = outcome.shown, RunFolder(run.output_dir).curves.name
    figures = [chart.figure for chart in outcome.charts]
    changed = [change for change in changes(run.cfg) if PLAIN.get(change.key) != change.value]
    costs = cost_blocks(outcome.result.figures, outcome.facts["energy_source"], run.cfg)
    parts = [
        Section("Result", _result(run, outcome)),
        Section("Curves", [Gallery(figures, "Curves over the steps", drawing)] if figures else []),
        *outcome.sections,
        Section("Data", [_rows(outcome.facts), *_labels(outcome.facts), *_omitted(run), *map(Text, run.data.notes)]),
        Section(WORST, _worst(run, shown.worst)),
        Section(EXAMPLES, _examples(run, shown.examples.chosen() if shown.examples else [])),
        Section(SAMPLES, [Code(sample) for sample in shown.samples]),
        Section("Environment", [_pairs(_where(run, outcome.facts), "what", "value")]),
        Section("Time, energy and machine", [*costs, *system_blocks(samples_of(run.output_dir, run.mesh.size))]),
        Section("Techniques used", _switches(changed)),
        Section("Where the time goes", time_section(run, outcome.result.phases)),
        Section("Memory", memory_section(run, outcome.result.memory, outcome.predicted)),
        Section("Changed settings", [_changes(changed)]),
        Section("Reproduce", _lock(run, outcome.facts)),
    ]
    return [part for part in parts if part.blocks]


def _pairs(rows: Mapping[str, Any], left: str, right: str) -> Table:
    return Table([left, right], list(rows.items()))


def _result(run: Run, outcome: Outcome) -> list[Block]:
    scores = Scores.of(outcome.result, run.task)
    header, rows = scores.table()
    shown = {row.name for row in scores.rows} | scores.figures.keys()
    figures = readable(without_classes(outcome.result.figures, run.task.scores))
    further = {name: value for name, value in figures.items() if name not in shown and not name.startswith(PREFIX)}
    return [
        _highlights(run, outcome, scores),
        *map(Text, scores.hints),
        *([Table(header, rows)] if rows else []),
        Folded("Further figures", [_pairs(further, "figure", "value")]),
    ]


def _highlights(run: Run, outcome: Outcome, scores: Scores) -> Highlights:
    result, rows = outcome.result, {row.name: row for row in scores.rows}
    figures, main = [], [*list(rows)[:1], run.best.name]
    tested = [name.replace("eval_", "test_", 1) for name in main]
    for name in dict.fromkeys([*main, "eval_loss", *tested]):
        if (row := rows.get(name)) is not None:
            words = [name.replace("eval_", "validation ").replace("_", " ")]
            words += [f"95 %: {row.interval}"] * bool(row.interval)
            words += [f"{scores.constant}: {row.baseline}"] * bool(row.baseline)
            figures.append(("; ".join(words), row.value))
    return Highlights(
        [
            *figures,
            *([] if result.train_loss is None else [("training loss", format_value(result.train_loss))]),
            ("items per second", f"{result.items_per_second:,.4g}"),
            ("peak memory, main process", format_bytes(result.memory.peak)),
            ("training time", format_duration(result.train_seconds)),
            ("step" if result.steps == 1 else "steps", f"{result.steps:,}"),
        ]
    )


def _rows(facts: Mapping[str, Any]) -> Table:
    rows = {}
    for split, count in facts["num_rows"].items():
        bad = facts["bad_rows"].get(split)
        rows[split] = f"{count:,}" + (f" ({counted(bad, 'bad row')} skipped, see bad_rows.jsonl)" if bad else "")
    return _pairs(rows, "set", "rows")


def _labels(facts: Mapping[str, Any]) -> list[Block]:
    """Returns the table of the number of rows with each label, by set; none for a task without labels."""
    counts = facts["labels"]
    if not counts:
        return []
    rows = [[name, *(part[name] for part in counts.values())] for name in counts["train"]]
    return [Table(["label", *(f"{split} rows" for split in counts)], rows, sortable=True)]


def _omitted(run: Run) -> list[Block]:
    """Returns the table of everything that the run did not use, or not as it was; none if there is nothing."""
    rows = [
        [each.where, each.what, f"{each.count:,} of {each.total:,}", f"{each.count / each.total:.1%}", each.details]
        for each in run.data.omissions
    ]
    header = ["where", "cut, skipped or ignored", "number", "share", "details"]
    return [Table(header, rows, stacked=True)] if rows else []


def _described(run: Run, line: int, record: Record) -> list[Any]:
    """Returns the cells of `DESCRIBED` for one line of the first set's predictions."""
    description = run.task.describe(record)
    image = run.task.thumbnail(next(iter(run.data.evals.values())).rows[line - 1])
    shown = shorten(description.input)
    answers: list[Any] = [shorten(description.prediction), description.expected and shorten(description.expected)]
    if description.aligned:
        answers = marked(description.aligned)
    return [shown if image is None else Pictured(shown, image), *answers]


def _legend(run: Run, records: Iterable[Record]) -> list[Text]:
    return [Text(LEGEND)] if any(run.task.describe(record).aligned for record in records) else []


def _examples(run: Run, examples: Sequence[Example]) -> list[Block]:
    if not examples:
        return []
    rows = [_described(run, line, record) for line, record in examples]
    text = "Predictions on rows that were not used for training, right and wrong ones where there are both."
    return [Text(text), *_legend(run, (record for _, record in examples)), Table(DESCRIBED, rows, stacked=True)]


def _worst(run: Run, worst: Worst | None) -> list[Block]:
    found = worst.found() if worst is not None else []
    if worst is None or not found:
        return []
    name, data = next(iter(run.data.evals.items()))
    numbers, names = row_names(data.rows), data.rows[IDENTIFIER]
    rows = [
        [names[wrong.line - 1] or numbers[wrong.line - 1], wrong.error[0], *_described(run, wrong.line, wrong.record)]
        for wrong in found
    ]
    file = RunFolder(run.output_dir).predictions(name).name
    return [
        Text(f"The largest errors on the {name} rows. The full text is in {file}, with the same row (or id)."),
        *_legend(run, (wrong.record for wrong in found)),
        Table(["row", worst.error_name, *DESCRIBED], rows, sortable=True, stacked=True),
    ]


def _device(facts: Mapping[str, Any]) -> str:
    return ", ".join(facts["hardware"]["gpus"]) or f"{facts['hardware']['cpus']} CPUs"


def _where(run: Run, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "processes": facts["num_processes"],
        "engine": facts["engine"],
        "device": _device(facts),
        "seed": str(facts["seed"]),
        "certificate": state_of(run.cfg),
        **{name: facts["versions"][name] for name in ("torch", "transformers", "accelerate")},
        # The signature of a task's scores, if it has one.
        **{name: value for name, value in facts["task_state"].items() if isinstance(value, str)},
    }


def _switches(changed: Sequence[Change]) -> list[Block]:
    on = [
        [change.key, to_yaml(change.value), change.help]
        for change in changed
        if change.key.startswith(SWITCHES) and change.key not in SIZES
    ]
    return [Table(["switch", "value", "what it does"], on, stacked=True)] if on else [Text("None.")]


def _changes(changed: Sequence[Change]) -> Table:
    missing = dataclasses.MISSING
    rows = [[c.key, to_yaml(c.value), "required" if c.default is missing else to_yaml(c.default)] for c in changed]
    caption = "Settings that are not at their defaults"
    return Table(["setting", "value", "default"], rows, sortable=True, caption=caption)


def _lock(run: Run, facts: Mapping[str, Any]) -> list[Block]:
    kept = {name: value for name, value in facts.items() if name not in ("result", "memory", "files", "versions")}
    settings = RunFolder(run.output_dir).config.read_text(encoding="utf-8")
    return [
        Text("To repeat this run and check that the results are bit-identical, and the command that started it:"),
        Code(f"toolkit reproduce {shlex.quote(run.cfg.output_dir)}\n\n{shlex.join(facts['command'])}", "bash"),
        Folded("config.yaml: every setting", [Code(settings.rstrip(), "yaml")]),
        Folded("Versions", [_pairs(facts["versions"], "package", "version")]),
        Folded("run.json", [Code(json.dumps(kept, indent=2, ensure_ascii=False), "json")]),
    ]
