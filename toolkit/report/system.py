"""What a run used and cost: the figures, and curves of each process from its samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from toolkit.base.console import format_duration, format_value
from toolkit.base.files import parse_json, read_file
from toolkit.base.run_folder import RunFolder
from toolkit.config.sections import Config
from toolkit.document.blocks import Block, Cell, Figure, Gallery, Table, Text
from toolkit.document.charts import Line, line_chart

MIB, MINUTE = 2**20, 60.0
MOST_RANKS = 8
"""Processes whose curves are drawn; all have files."""
LONG = 10 * MINUTE
"""Seconds from which the horizontal axis shows minutes."""

Samples = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Curve:
    """A figure of the samples: the sum of some of their entries, divided by a unit."""

    title: str
    label: str
    names: tuple[str, ...]
    unit: float = 1.0


CURVES = (
    Curve("Processors", "logical CPUs in use by the process", ("cpu_cores",)),
    Curve("Memory", "MiB, resident", ("memory_bytes",), MIB),
    Curve("Disk", "MiB per second, read and written",
          ("disk_read_bytes_per_second", "disk_written_bytes_per_second"), MIB),
    Curve("Network", "MiB per second, the whole machine",
          ("network_sent_bytes_per_second", "network_received_bytes_per_second"), MIB),
    Curve("GPU", "% of the time", ("gpu_percent",)),
    Curve("GPU memory", "MiB, the whole GPU", ("gpu_memory_bytes",), MIB),
    Curve("GPU temperature", "degrees Celsius", ("gpu_celsius",)),
    Curve("Power", "watts", ("watts",)),
)  # fmt: skip


def read_samples(path: Path) -> list[dict[str, Any]]:
    """Returns the samples of a process; skips lines that cannot be read."""
    found = []
    for line in read_file(path).split(b"\n"):
        try:
            sample = parse_json(line)
        except ValueError:
            continue
        if isinstance(sample, dict) and isinstance(sample.get("seconds"), int | float):
            found.append(sample)
    return found


def samples_of(folder: Path, processes: int) -> dict[int, list[dict[str, Any]]]:
    """Returns the samples of the first `MOST_RANKS` of a run's processes, by rank; empty if there are none."""
    files = {rank: RunFolder(folder).system(rank) for rank in range(min(processes, MOST_RANKS))}
    return {rank: read_samples(file) for rank, file in files.items() if file.is_file()}


def system_blocks(samples: Mapping[int, Samples]) -> list[Block]:
    """Returns the curves of a run from the samples of each rank; a figure needs two samples."""
    clocks = {rank: _clock(each) for rank, each in samples.items()}
    end = max((clock[-1] for clock in clocks.values() if clock), default=0.0)
    unit, name = (MINUTE, "minutes") if end > LONG else (1.0, "seconds")
    figures, rows = [], []
    for curve in CURVES:
        lines = {
            f"process {rank}": line
            for rank, each in samples.items()
            if len((line := _line(curve, each, [at / unit for at in clocks[rank]]))[0]) > 1
        }
        if any(any(values) for _, values in lines.values()):  # not if all is 0, for instance without a network
            chart = line_chart(
                lines, title=f"{curve.title} over time", x_label=f"{name} of training",
                y_label=curve.label, zero=True, whole=False, point="at",
            )  # fmt: skip
            figures.append(Figure(curve.title, chart))
            found = [[value for value in values if value is not None] for _, values in lines.values()]
            means, highest = [fmean(values) for values in found], max(map(max, found))
            cells = [Cell(format_value(each), each) for each in (fmean(means), min(means), max(means), highest)]
            rows.append([f"{curve.title} ({curve.label})", *cells])
    if not figures:
        return []
    names = ["what", "mean", "least process", "most process", "highest"]
    return [Table(names, rows, caption="How much the processes used"), Gallery(figures, "What each process used")]


def _clock(samples: Samples) -> list[float]:
    """Returns the time of each sample in seconds of training; a later session continues the clock of the former."""
    found, before, last = list[float](), 0.0, 0.0
    for sample in samples:
        if sample["seconds"] < last:
            before += last
        last = float(sample["seconds"])
        found.append(before + last)
    return found


def _line(curve: Curve, samples: Samples, times: Sequence[float]) -> Line:
    points = [
        (at, sum(sample[name] for name in curve.names) / curve.unit)
        for at, sample in zip(times, samples, strict=True)
        if all(isinstance(sample.get(name), int | float) for name in curve.names)
    ]
    return [at for at, _ in points], [value for _, value in points]


def cost_blocks(figures: Mapping[str, Any], source: str | None, cfg: Config) -> list[Block]:
    """Returns the table of time, energy, emissions and price, and their sources."""
    rows = [[name, text] for name, text in cost_rows(figures, source, cfg.train.target_metric).items()]
    words = []
    if source and "energy_wh" in figures:
        words.append(f"Energy: {source}.")
    if "co2_grams" in figures:
        words.append(f"Emissions: {format_value(float(cfg.tracking.grid_intensity or 0))} g of CO2 for a kWh.")
    if "cost" in figures:
        words.append(f"Price: {format_value(float(cfg.tracking.price_per_hour or 0))} for an hour of all processes.")
    return [Table(["what", "value"], rows), *([Text(" ".join(words))] if words else [])] if rows else []


def cost_rows(figures: Mapping[str, Any], source: str | None, target: Mapping[str, float]) -> dict[str, str]:
    """Returns time, energy, emissions and price of a run, also until its `train.target_metric`, as text by name."""
    found, guessed = dict[str, str](), " (estimated)" if "estimated" in (source or "") else ""
    if (seconds := figures.get("run_seconds")) is not None:
        found["time of training and evaluation"] = format_duration(seconds)
    for name, words, unit in (("energy_wh", "energy", f" Wh{guessed}"), ("co2_grams", "CO2", f" g{guessed}")):
        if (value := figures.get(name)) is not None:
            found[words] = f"{format_value(float(value))}{unit}"
    if (price := figures.get("cost")) is not None:
        found["price"] = format_value(float(price))
    for name, goal in target.items():
        energy, step = figures.get("target_energy_wh"), figures.get("target_step")
        spent = "" if energy is None else f", {format_value(float(energy))} Wh{guessed}"
        place = f"until {name} {format_value(float(goal))}"
        found[place] = "not reached"
        if step is not None:
            found[place] = f"step {step:,.0f}, {format_duration(figures['target_seconds'])}{spent}"
    return found


def asked_rows(figures: Mapping[str, Any], source: str | None, cfg: Config) -> dict[str, str]:
    """Returns those rows that settings ask for, for the summary on the terminal."""
    rows = cost_rows(figures, source, cfg.train.target_metric)
    asked = cfg.tracking.grid_intensity is not None or cfg.tracking.price_per_hour is not None
    names = {"energy", "CO2", "price"} if asked else set[str]()
    return {name: text for name, text in rows.items() if name in names or name.startswith("until ")}
