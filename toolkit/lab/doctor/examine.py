"""Examines the rows of a run, and suggests what to change."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from toolkit.api.task import Task
from toolkit.base.console import counted
from toolkit.base.errors import ConfigError, InputError
from toolkit.config.keys import to_yaml, written
from toolkit.config.paths import source_of
from toolkit.config.sections import Config
from toolkit.data.columns import Beside, roles
from toolkit.lab.doctor import duplicates, sizes
from toolkit.lab.doctor.findings import Finding, Part, Suggestion, column_findings, described, label_findings, parts_of
from toolkit.lab.doctor.label_errors import label_errors, predictions_of
from toolkit.lab.doctor.report import Diagnosis
from toolkit.lab.init.models import config_of, local_folder
from toolkit.lab.init.overview import Subject
from toolkit.lab.init.overview import subject as read_subject
from toolkit.lab.tool import Request
from toolkit.modalities.text import positions


def diagnose(request: Request, run: Path | None) -> Diagnosis:
    """Examines the usable rows of a run, with the predictions of a finished `run` or cross-validation if there is one.

    Raises InputError if the predictions cannot be used; DataError if a file cannot be read, or none of its rows can be
    used.
    """
    if run is not None:
        if not run.is_dir():
            raise InputError(f"--run: there is no folder {run.absolute()}")
        if find_spec("cleanlab") is None:
            raise InputError("--run: needs cleanlab, which is not installed; pip install 'finetune-toolkit[doctor]'")
    request.make_output()
    subject = read_subject(request.task_type, request.cfg)
    cfg, task, checked = subject.cfg, subject.task, subject.rows
    predicted = None if run is None else predictions_of(run, request.recipe)
    parts = parts_of(checked)
    used = roles(task, cfg.data.columns)
    rows = duplicates.different_rows(parts)
    prints = duplicates.fingerprints(task, rows)
    histograms = list(_histograms(cfg, task, parts[0], [
        each for each, (part, _) in zip(prints, rows, strict=False) if each is not None and part is parts[0]
    ]))  # fmt: skip
    findings = [
        *_bad_rows(subject),
        *duplicates.equal_rows(task, parts),
        *duplicates.equal_texts(task, parts),
        *duplicates.near_rows(task, rows, prints),
        *duplicates.shared_groups(parts, Beside.of(cfg.data, task).group),
        *([] if predicted is None else label_errors(predicted)),
        *label_findings(checked.findings),
        *sizes.cuts(histograms),
        *column_findings(subject.profile, used),
        *sizes.sounds(rows, prints),
        *sizes.foreign(task, parts, prints),
        *sizes.uneven_lengths(task, parts),
        *sizes.outliers(rows, sizes.lengths_of(task, rows, prints)),
        *sizes.number_outliers(task, parts),
    ]
    labels = {name: dict(counts) for name, counts in checked.findings.labels.items()}
    suggested = []
    for each in _suggestions(cfg, findings, labels.get("train", {}), histograms):
        with suppress(ConfigError):  # for instance because the validation rows are a hub dataset's
            request.load(each.overrides)
            suggested.append(each)
    return Diagnosis(
        rows={part.name: len(part.numbers) for part in parts},
        labels=labels,
        columns=described(subject.profile, used),
        histograms=histograms,
        findings=findings,
        suggestions=suggested,
        run=None if run is None else str(run),
        config=str(request.config),
        command=request.command,
    )


def _histograms(cfg: Config, task: Task, train: Part, prints: list[Any]) -> Iterator[sizes.Histogram]:
    if prints:
        yield from sizes.file_histograms(task, prints)
    yield from sizes.text_histograms(cfg, task, train)


def _bad_rows(subject: Subject) -> Iterator[Finding]:
    """Yields the unusable rows."""
    for name, table in ((name, file) for name, whole in subject.rows.tables.items() for file in whole.files):
        if table.bad:
            rows = [{"split": name, "file": table.source, "row": bad.number, "reason": bad.reason} for bad in table.bad]
            said = f"{counted(len(rows), 'row')} of {table.source} cannot be used: {table.bad[0].reason}."
            yield Finding("bad_rows", len(rows), said, rows)


ROUND = 16


def _suggestions(
    cfg: Config, findings: Sequence[Finding], labels: Mapping[str, int], histograms: Sequence[sizes.Histogram]
) -> Iterator[Suggestion]:
    """Yields changes that answer the findings, given the counts of the training labels."""
    kinds: dict[str, list[Finding]] = {}
    for finding in findings:
        kinds.setdefault(finding.kind, []).append(finding)
    if "bad_rows" in kinds and cfg.data.bad_rows == "error":
        yield Suggestion(["data.bad_rows=skip"], "A run stops at rows that cannot be used, unless it skips them.")
    if cfg.data.validation_file is not None and any(
        row["split"] == "validation" for kind in ("leaked", "shared_groups") for each in kinds.get(kind, ())
        for row in each.rows[:1]
    ):  # fmt: skip
        yield Suggestion(
            ["data.validation_file=null", "data.validation_split=0.1"],
            "Rows with equal inputs, and groups, then stay on one side; or remove the leaked rows from the file.",
        )
    for finding in kinds.get("imbalance", ()):
        yield from _balanced(cfg, finding)
    for finding in kinds.get("similar_labels", ()):
        merged = dict(getattr(cfg.task, "label_map", {}))
        for group in finding.details["groups"]:
            best = max(group, key=lambda name: labels[name])
            merged |= {name: best for name in group if name != best}
        yield Suggestion([f"task.label_map={to_yaml(merged)}"], "Labels that differ only in spelling become one.")
    for histogram in histograms:
        yield from _limits(histogram, longest_input(cfg))


def longest_input(cfg: Config) -> float:
    """Returns the largest number of tokens of the model's input, as far as it is known."""
    model = source_of(cfg)
    if model.from_config is not None:
        return float(model.from_config.get("max_position_embeddings", math.inf))
    folder = local_folder(model.name_or_path) if model.name_or_path else None
    config = config_of(folder) if folder else None
    known = None if config is None else positions(config)
    return math.inf if known is None else known


def _balanced(cfg: Config, finding: Finding) -> Iterator[Suggestion]:
    said = f"The classes differ in size by a factor of {finding.details['ratio']:.3g}"
    if getattr(cfg.task, "class_weights", None) == "none":
        yield Suggestion(["task.class_weights=balanced"], f"{said}: weigh the loss of rare ones up.")
    if cfg.train.train_sampling_strategy != "balanced":
        yield Suggestion(["train.train_sampling_strategy=balanced"], f"{said}: draw rare ones more often instead.")
    if cfg.eval.metric_for_best_model is None:
        yield Suggestion(["eval.metric_for_best_model=eval_f1_macro"], f"{said}: accuracy hardly sees the rare ones.")


def _limits(each: sizes.Histogram, longest: float) -> Iterator[Suggestion]:
    if not each.option or each.limit is None or not each.share_cut:
        return
    seconds = each.unit == "seconds"
    enough = math.ceil(10 * each.covered) / 10 if seconds else min(math.ceil(each.covered / ROUND) * ROUND, longest)
    if enough > each.limit:
        yield Suggestion(
            written({each.option: enough}),
            f"{each.share_cut:.1%} of {each.name} are cut at {each.limit:g}; 99 % have at most {each.covered:g} "
            f"{each.unit}. Longer inputs take more memory and time.",
        )
