"""Histograms of lengths, durations and sizes, what limits cut, and values far from the others."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from operator import itemgetter
from statistics import median
from typing import Any

import numpy as np

from toolkit.api.task import Task
from toolkit.base.console import counted, format_value
from toolkit.config.paths import source_of
from toolkit.config.sections import Config
from toolkit.lab.doctor.duplicates import Print, plain
from toolkit.lab.doctor.findings import Finding, Part, input_columns
from toolkit.lab.init.guesses import tokens
from toolkit.lab.init.models import language_of, local_folder
from toolkit.lab.init.overview import limit_of, pairs_of

BINS = 24
COVERED = 0.99
FENCE = 3.0
"""Values further from the quartiles than this many times their distance are outliers (Tukey 1977), on a log scale."""
LEAST_ROWS = 20
"""Outliers are looked for in at least this many values."""
LEAST_FACTOR = 2.0
"""An outlier differs from the nearer quartile by at least this factor: many equal values make fences tight."""


@dataclass(frozen=True)
class Histogram:
    """How a property of the training rows is distributed."""

    name: str  # what is measured
    unit: str  # its unit
    edges: Sequence[float]  # `[B + 1]` edges of the bins
    counts: Sequence[int]  # `[B]` rows in each bin
    middle: float  # the median
    covered: float  # the value that `COVERED` of the rows do not exceed
    longest: float  # the largest value
    option: str = ""  # dotted key of the setting that limits it, or empty
    limit: float | None = None  # value of that setting, or None
    share_cut: float | None = None  # fraction of the rows above the limit, or None
    how: str = ""  # how it was measured, as an addition to a sentence; may be empty


def histogram(
    name: str, unit: str, values: Sequence[float], option: str = "", limit: float | None = None, how: str = ""
) -> Histogram:
    """Returns the histogram of values, at least one; the arguments are those of `Histogram`."""
    found = np.asarray(values, dtype=float)
    whole = unit not in ("seconds",)
    low, high = float(found.min()), float(found.max())
    bins = min(BINS, int(high - low) + 1) if whole else BINS
    counts, edges = np.histogram(found, bins=max(bins, 1), range=(low, max(high, low + (1 if whole else 0.1))))
    covered = float(np.quantile(found, COVERED, method="inverted_cdf"))
    cut = None if limit is None else float((found > limit).mean())
    return Histogram(
        name, unit, edges.tolist(), counts.tolist(), float(median(values)), covered, high, option, limit, cut, how
    )


def text_columns(task: Task) -> list[str]:
    """Returns the columns with texts, those of the labels included."""
    import datasets

    used, schema = task.read_columns(), task.schema()
    named = task.has("label_counts")
    found = [name for name in input_columns(task) if not used[name].file]
    targets = [
        name for name in schema
        if name in used and used[name].label and not named and schema[name] == datasets.Value("string")
    ]  # fmt: skip
    return found + targets


def text_histograms(cfg: Config, task: Task, part: Part) -> Iterator[Histogram]:
    """Yields the histograms of the tokens of each column of texts."""
    import datasets

    name = source_of(cfg).name_or_path
    folder = local_folder(name) if name else None
    columns = text_columns(task)
    found_texts = {name: [text for value in part.rows[name][:] if (text := plain(value))] for name in columns}
    for name, texts in (found_texts | pairs_of(part.rows, columns)).items():
        if not texts:
            continue
        # Lists of words are split into windows, and messages are skipped, but only texts are cut.
        is_text = task.schema().get(name, datasets.Value("string")) == datasets.Value("string")
        option = limit_of(task, name, columns) if is_text else None
        limit = getattr(task.options, option) if option else None
        found = tokens(texts, folder)
        how = found.how + ("" if len(found.counts) == len(texts) else f", of {len(found.counts):,} evenly spaced rows")
        yield histogram(name, "tokens", found.counts, f"task.{option}" if option and limit else "", limit, how)


def file_histograms(task: Task, prints: Sequence[Print]) -> Iterator[Histogram]:
    """Yields the histograms of the durations or sizes of files, at least one."""
    if "audio" in input_columns(task):
        limit = task.options.audio.max_seconds
        yield histogram("audio", "seconds", [each.size[0] for each in prints], "task.audio.max_seconds", limit)
        return
    yield histogram("image", "pixels of the shorter side", [min(each.size) for each in prints])


def cuts(histograms: Sequence[Histogram]) -> Iterator[Finding]:
    """Yields a finding for each limit that cuts rows."""
    for each in histograms:
        if each.share_cut:
            said = f"{each.share_cut:.1%} of {each.name} are longer than {each.option}={each.limit:g} and are cut."
            details = {"setting": each.option, "limit": each.limit, "share": each.share_cut, "covered": each.covered}
            yield Finding("cut", round(each.share_cut * sum(each.counts)), said, details=details)


def lengths_of(task: Task, rows: Sequence[tuple[Part, int]], prints: Sequence[Print | None]) -> dict[str, list[Any]]:
    """Returns the sizes of rows by what is measured; None where a file can no longer be read."""
    if prints:
        if "audio" in input_columns(task):
            lengths = {"length of audio in seconds": [each and each.size[0] for each in prints]}
            for name in set(text_columns(task)) - set(input_columns(task)):
                pairs = zip(prints, rows, strict=True)
                pace = [each and len(part.rows[row][name] or "") / each.size[0] for each, (part, row) in pairs]
                lengths[f"number of characters of {name} per second"] = pace
            return lengths
        return {
            "size of the image in pixels": [each and each.size[0] * each.size[1] for each in prints],
            "width of the image divided by its height": [each and each.size[0] / each.size[1] for each in prints],
        }
    return {
        f"length of {name} in characters": [len(values[part.name][row]) for part, row in rows]
        for name in text_columns(task)
        for values in [{part.name: list(map(plain, part.rows[name][:])) for part, _ in rows}]
    }


def outliers(rows: Sequence[tuple[Part, int]], measured: Mapping[str, Sequence[float | None]]) -> Iterator[Finding]:
    """Yields the rows whose size is far from that of the others."""
    for name, values in measured.items():
        logs = np.log1p(np.array([np.nan if value is None else value for value in values], dtype=float))
        low, high, far = _far(logs, np.log(LEAST_FACTOR))
        order = far[np.argsort(-np.abs(logs[far] - (low + high) / 2), kind="stable")]
        if len(order):
            usual = f"{format_value(float(np.expm1(low)))} to {format_value(float(np.expm1(high)))}"
            said = f"{counted(len(order), 'row')} with an unusual {name} (half of the rows have {usual})."
            found = [{**rows[place][0].place(rows[place][1]), "value": values[place]} for place in order]
            yield Finding("outliers", len(order), said, found, {"measured": name})


def _far(values: np.ndarray, least: float = 0.0) -> tuple[float, float, np.ndarray]:
    """Returns the quartiles, and which values are further from them than `FENCE` times their distance, or `least`."""
    finite = values[np.isfinite(values)]
    if len(finite) < LEAST_ROWS:
        return 0.0, 0.0, np.array([], dtype=int)
    low, high = np.quantile(finite, (0.25, 0.75))
    reach = max(FENCE * (high - low), least) or np.inf
    return low, high, np.flatnonzero((values < low - reach) | (values > high + reach))


def number_outliers(task: Task, parts: Sequence[Part]) -> Iterator[Finding]:
    """Yields the rows whose number to predict is far from the others."""
    for name, column in task.read_columns().items():
        if not column.label or name not in task.schema():
            continue
        rows = [(part, row, value) for part in parts for row, value in enumerate(part.rows[name][:])]
        if not all(isinstance(value, list) and all(isinstance(x, float) for x in value) for _, _, value in rows):
            continue
        for place in range(max((len(value) for *_, value in rows), default=0)):
            values = np.array([value[place] for *_, value in rows])
            low, high, far = _far(values)
            if len(far):
                said = f"{counted(len(far), 'row')} with an unusual {name} (half are from {low:.4g} to {high:.4g})."
                found = [{**rows[i][0].place(rows[i][1]), "value": float(values[i])} for i in far]
                yield Finding("outliers", len(far), said, found, {"measured": name})


CLIPPED = 0.001
"""Share of cut-off samples that can be heard."""
MOSTLY, LEAST_WORDS = 0.9, 6
"""Share of the texts in one language that makes others doubtful, and the words of a text that tell its language."""


def sounds(rows: Sequence[tuple[Part, int]], prints: Sequence[Print | None]) -> Iterator[Finding]:
    """Yields the rows whose recording is silent or clipped."""
    shares = [0.0 if each is None else each.clipped for each in prints]
    silent = [place for place, share in enumerate(shares) if np.isnan(share)]
    cut = sorted((place for place, share in enumerate(shares) if share >= CLIPPED), key=lambda place: -shares[place])
    peaks = "whose recording is clipped: its peaks are cut off at full scale, in this share of its samples"
    for kind, places, what in (("silent", silent, "whose recording has no sound"), ("clipped", cut, peaks)):
        values = [{} if kind == "silent" else {"value": round(shares[place], 4)} for place in places]
        found = [rows[place][0].place(rows[place][1]) | more for place, more in zip(places, values, strict=True)]
        if found:
            yield Finding(kind, len(found), f"{counted(len(found), 'row')} {what}.", found)


def foreign(task: Task, parts: Sequence[Part], prints: Sequence[Print | None]) -> Iterator[Finding]:
    """Yields the rows of recordings whose transcript is in another language, or alphabet, than nearly all others."""
    for name in set(text_columns(task)) - set(input_columns(task)) if prints else ():
        rows = [(part, row, text) for part in parts for row, text in enumerate(part.rows[name][:]) if text]
        found: dict[int, str] = {}
        long = [text if len(text.split()) >= LEAST_WORDS else "" for *_, text in rows]
        for each in ([language_of([text]) for text in long], [_alphabet(text) for *_, text in rows]):
            counts = Counter(filter(None, each))
            usual, count = max(counts.items(), key=lambda item: item[1], default=("", 0))
            if len(rows) >= LEAST_ROWS and count >= MOSTLY * counts.total():
                found |= {place: value for place, value in enumerate(each) if value not in (None, usual)}
        if found:
            said = f"{counted(len(found), 'row')} with a {name} in another language or alphabet than nearly all others."
            places = [rows[place][0].place(rows[place][1]) | {"value": value} for place, value in found.items()]
            yield Finding("foreign", len(found), said, places)


def uneven_lengths(task: Task, parts: Sequence[Part]) -> Iterator[Finding]:
    """Yields the rows of which one text is longer, if that is nearly always the same one of the task's two columns."""
    for name, rest in permutations(task.alike, 2):
        gaps = [
            (part, row, len(one) - len(other))
            for part in parts
            for row, (one, other) in enumerate(zip(part.rows[name][:], part.rows[rest][:], strict=True))
        ]
        longer = sorted((each for each in gaps if each[2] > 0), key=itemgetter(2), reverse=True)
        if len(gaps) >= LEAST_ROWS and len(longer) > (0.5 + max(0.1, 1.5 / math.sqrt(len(gaps)))) * len(gaps):
            said = (
                f"{counted(len(longer), 'row')} of {len(gaps):,} ({len(longer) / len(gaps):.0%}) where {name} is "
                f"longer than {rest}: a model can learn the length alone (task.length_normalized, or other rows)."
            )
            places = [part.place(row) | {"value": f"{gap:,} characters"} for part, row, gap in longer]
            yield Finding("uneven_lengths", len(longer), said, places)


def _alphabet(text: str) -> str | None:
    """Returns the alphabet of most letters of a text, as Unicode names it; None without letters."""
    names = Counter(unicodedata.name(letter, "").split(" ")[0] for letter in text if letter.isalpha())
    found = max(names, key=lambda name: names[name], default=None)
    return "Japanese or Chinese" if found in ("CJK", "HIRAGANA", "KATAKANA") else found and found.capitalize()
