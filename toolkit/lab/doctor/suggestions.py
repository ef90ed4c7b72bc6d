"""Settings that answer findings, as overrides that a run accepts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toolkit.base.errors import ConfigError
from toolkit.config.keys import to_yaml, written
from toolkit.config.sections import Config
from toolkit.lab.doctor.examine import Examined
from toolkit.lab.doctor.findings import Finding
from toolkit.lab.doctor.sizes import Histogram
from toolkit.lab.init.models import config_of, local_folder
from toolkit.modalities.text import positions
from toolkit.models.load import source_of

ROUND = 16


@dataclass(frozen=True)
class Suggestion:
    """A suggested change.

    Args:
        overrides: `section.key=value` strings, which belong together.
        why: the reason, as a sentence.
    """

    overrides: Sequence[str]
    why: str


def suggestions(cfg: Config, examined: Examined, accepts: Callable[[Sequence[str]], object]) -> list[dict[str, Any]]:
    """Returns changes that answer the findings, as JSON objects.

    Args:
        cfg: the settings.
        examined: the findings.
        accepts: loads the run's settings with overrides; raises ConfigError if they are refused.
    """
    found = []
    for each in _suggested(cfg, examined):
        try:
            accepts(each.overrides)
        except ConfigError:  # for instance because the validation rows are a hub dataset's
            continue
        found.append(asdict(each))
    return found


def _suggested(cfg: Config, examined: Examined) -> Iterator[Suggestion]:
    kinds: dict[str, list[Finding]] = {}
    for finding in examined.findings:
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
        counts = examined.labels["train"]
        merged = dict(getattr(cfg.task, "label_map", {}))
        for group in finding.details["groups"]:
            best = max(group, key=lambda name: counts[name])
            merged |= {name: best for name in group if name != best}
        yield Suggestion([f"task.label_map={to_yaml(merged)}"], "Labels that differ only in spelling become one.")
    for histogram in examined.histograms:
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


def _limits(each: Histogram, longest: float) -> Iterator[Suggestion]:
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
