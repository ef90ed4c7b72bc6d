"""A plan: what a step needs, what strategies cost, and which settings fit, for the terminal and as JSON."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from toolkit.base.console import format_bytes, format_seconds
from toolkit.base.errors import InputError, ToolkitError
from toolkit.checks.check import Case, ask
from toolkit.checks.run import check_settings
from toolkit.checks.settings import SETTINGS
from toolkit.config.keys import with_values, written
from toolkit.config.launcher import with_processes
from toolkit.config.problems import touching
from toolkit.config.sections import Config
from toolkit.data.batching.budget import num_micro_batches
from toolkit.document.blocks import Block, Cell, Code, Table, Text
from toolkit.footprint.simulate import Footprint, Subject
from toolkit.lab.jobs.strategies import ACCUMULATION, BATCH
from toolkit.lab.jobs.training import unfrozen_at_once
from toolkit.lab.plan.estimates import MACHINE, scaling
from toolkit.lab.plan.fit import Load, Planner, Splits, Strategy, fitting_splits, smallest_fit, switch_sets
from toolkit.lab.plan.measure import Correction, Measured, calibrate, measured_bandwidth, rows_that_fit, serial_seconds
from toolkit.lab.plan.subject import resized, sizes, subject_of
from toolkit.lab.tool import Request
from toolkit.recipe import load_settings

PARTS = {
    "parameters": "weights",
    "buffers": "buffers",
    "gradients": "gradients",
    "optimizer_state": "optimizer state",
    "copies": "averages and anchors",
    "weight_copies": "weights in mixed precision",
    "activations": "activations kept for the backward pass",
    "logits": "logits and loss",
    "batch": "batch",
    "working": "working memory at the peak",
}
"""Parts of a footprint, in the order in which they are shown."""
OF_WEIGHTS = ("parameters", "gradients", "optimizer_state", "copies", "weight_copies")
"""Parts that grow with the number of weights."""

OF_THE_DRIVER = 512 * 2**20
"""Bytes that a GPU's driver reserves per process for context, kernel code and library workspaces."""
_OF_SPLITS = [("parallel",), ("train", "strategy"), *(tuple(key.split(".")) for key in (BATCH, ACCUMULATION))]
"""What a planner changes."""
MAX_SPLITS = 10
"""Maximum number of splits to show."""
SAME_ROWS = Text(
    "Each step has the same rows: with fewer copies of the model, more micro-batches. Speed is relative to one device "
    "and ignores communication time."
)


@dataclass
class Plan:
    """A plan in the making."""

    request: Request  # the run
    processes: int = 1  # number of processes, with one device each
    length: int | None = None  # length of inputs, instead of the largest that the options allow
    capacity: int | None = None  # memory of a GPU in bytes, or None to plan for this machine
    bandwidth: int | None = None  # bytes per second of an all-reduce, or None to measure it
    found: dict[str, Any] = field(default_factory=dict)  # the results as JSON values

    def parts(self, calibrates: bool) -> Iterator[Block]:
        """Yields the results as they are computed, with those of a few real steps if the plan `calibrates`.

        Raises:
            InputError: if the model cannot be simulated.
            ToolkitError: if settings or data cannot be used.
            RunError: if the calibration fails.
        """
        cfg, task = self.request.cfg, self.request.task
        case = check_settings(cfg, task, simulated=True)
        subject = subject_of(cfg, task, self.length, gpu=self.capacity is not None)
        planner = Planner(subject, self.processes, self._split(cfg), case)
        footprint = planner.footprint(subject.cfg)
        self.found |= {"rows": footprint.rows, "flops": footprint.flops, "footprint": asdict(footprint)}
        yield _heading(subject, footprint)
        yield memory_table(footprint, cfg.train.optim)
        splits = planner.splits() if self.processes > 1 else []
        table, refused = planner.strategies(splits)
        self.found |= {"strategies": [asdict(each) for each in table], "refused": refused}
        if self.processes > 1:
            yield costs_table(table, f"Strategies for {self.processes} devices")
            uses = [[each.name, each.complexity, each.when] for each in table]
            uses += [[name, "not possible", reason] for name, reason in refused.items()]
            yield Table(["strategy", "complexity", "when"], uses, caption="When to use which")
            yield SAME_ROWS
        correction = Correction()
        if calibrates:
            correction = yield from self._calibrate(footprint)
        if self.capacity is not None:
            correction = replace(correction, constant=correction.constant + OF_THE_DRIVER)
            if self.processes == 1:
                yield from self._fit(subject, footprint, correction, self.capacity)
                return
            fitting = fitting_splits(self._choices(planner, splits), self.capacity, correction.peak)
            self.found["splits"] = {**asdict(fitting), "reserved": correction.constant}
            yield from split_blocks(fitting, self.processes, self.capacity)

    def _load(self, more: Sequence[str]) -> Config:
        request = self.request
        # The files were checked with the request; without them, settings that are invalid are not examined further.
        changed = [*request.overrides, *more]
        return load_settings(request.task_type, request.config, changed, check_files=False).config

    def _split(self, cfg: Config) -> Load:
        """Returns how a planner's settings change others: quickly, as there are hundreds of splits."""
        asked = [check for check in SETTINGS if touching(check.reads, _OF_SPLITS)]

        def load(overrides: Sequence[str]) -> Config:
            changed = with_processes(with_values(cfg, overrides), self.processes)
            ask(asked, Case(changed, self.request.task_type), ["settings"]).raise_problems()
            return changed

        return load

    def _choices(self, planner: Planner, splits: Sequence[Strategy]) -> Iterator[tuple[Sequence[str], list[Strategy]]]:
        """Yields further settings, the cheapest first, and the splits with them."""
        yield (), [*splits]
        yield (), planner.splits(offloaded=True)
        for _, switches in switch_sets(planner.cfg)[1:]:
            with suppress(ToolkitError):  # not with these settings, or not here
                cfg = self._load(switches)
                yield switches, Planner(resized(planner.subject, cfg), self.processes, self._split(cfg)).splits()

    def _calibrate(self, footprint: Footprint) -> Generator[Block, None, Correction]:
        """Measures steps on this machine, yields what they say, and returns the correction of the plan."""
        request, cfg = self.request, self.request.cfg
        overrides = [*request.overrides, *written(unfrozen_at_once(cfg))]
        correction, runs = calibrate(str(request.recipe), str(request.config), overrides, rows_that_fit(footprint))
        large, peak = runs[-1], correction.peak(footprint)
        self.found["calibration"] = {
            "device": large.device, "factor": correction.factor, "constant": correction.constant,
            "measured": [{"rows": run.footprint.rows, "peak": run.peak, "seconds": run.seconds} for run in runs],
            "peak": peak,
        }  # fmt: skip
        here = (
            f"Measured here ({large.device}), steps of {' and '.join(str(run.footprint.rows) for run in runs)} rows: "
            f"peak {format_bytes(large.peak)}, predicted {format_bytes(large.footprint.peak)}. "
        )
        applies = large.device == ("cpu" if self.capacity is None else "cuda") or self.capacity is None
        if applies:
            here += (
                f"Correction: temporary memory of a step times {correction.factor:.2f}, plus "
                f"{format_bytes(correction.constant)} for libraries. Peak of a step here: {format_bytes(peak)}."
            )
        else:
            here += "A GPU has a different allocator, so the plan for it is not corrected."
        yield Text(here)
        if large.seconds:
            serial = serial_seconds(runs)
            larger = footprint.flops * num_micro_batches(cfg.train, footprint.rows) / large.footprint.flops
            seconds = serial + max(0.0, large.seconds - serial) * larger
            speed = f"{show_flops(large.flops_per_second or 0.0)}/s"
            yield Text(f"{speed}; a step as configured would take {seconds:.3g} s here.")
            if self.processes > 1:
                yield from self._scaling(runs, seconds, footprint)
        return correction if applies else Correction()

    def _scaling(self, runs: Sequence[Measured], seconds: float, footprint: Footprint) -> Iterator[Block]:
        """Yields the speed-ups by number of processes."""
        if self.bandwidth is None and runs[-1].device != "cpu":
            yield Text("The bandwidth between GPUs cannot be measured here: set --bandwidth to estimate the scaling.")
            return
        rate = self.bandwidth or measured_bandwidth()
        serial = min(seconds, serial_seconds(runs))
        lines = scaling(seconds, serial, footprint.gradients, rate, self.processes)
        self.found["scaling"] = {
            "bytes_per_second": rate, "step_seconds": seconds, "serial_seconds": serial,
            "lines": [asdict(each) for each in lines],
        }  # fmt: skip
        how = "as given" if self.bandwidth else "measured between two processes here"
        yield Text(f"All-reduce at {format_bytes(rate)}/s ({how}).")
        rows = [[n.processes, *(Cell(f"{each:.2f}x", each) for each in (n.amdahl, n.gustafson))] for n in lines]
        header = ["processes", "same step, shared (Amdahl)", "larger step (Gustafson)"]
        yield Table(header, rows, caption="Speed of data parallelism, from measurements on this machine")

    def _fit(self, subject: Subject, whole: Footprint, correction: Correction, capacity: int) -> Iterator[Block]:
        """Yields the smallest set of settings with which the run fits."""
        fit, fits = smallest_fit(subject, self._load, capacity, correction.peak)
        needed = correction.peak(fit.footprint)
        self.found["fit"] = {
            "gpu_memory": capacity, "fits": fits, "overrides": list(fit.overrides), "needed": needed,
            "reserved": correction.constant, "footprint": asdict(fit.footprint),
        }  # fmt: skip
        reserved = f"({format_bytes(correction.constant)} of that is reserved for the driver and libraries.)"
        if fits and not fit.overrides:
            yield Text(f"It fits {format_bytes(capacity)} as it is: {format_bytes(needed)}. {reserved}")
            return
        compute = fit.footprint.flops * whole.rows / (whole.flops * fit.footprint.rows) if whole.flops else 1.0
        slower = f", {compute:.2f} times the compute" if compute > 1.005 else ""
        if fits:
            yield Text(f"It fits {format_bytes(capacity)} with these: {format_bytes(needed)}{slower}. {reserved}")
            yield _settings(fit.overrides)
            return
        least = f"The smallest needs {format_bytes(needed)}, with these. {reserved}"
        yield Text(f"No combination of settings fits {format_bytes(capacity)}. {least}")
        yield _settings(fit.overrides)
        yield Text("Use shorter inputs, a smaller model, or several devices (see --processes).")


def _heading(subject: Subject, footprint: Footprint) -> Code:
    train = subject.cfg.train
    where = "a GPU" if subject.fused_attention or subject.device.type == "cuda" else "the CPU"
    return Code(
        f"{subject.config.model_type}, {footprint.total:,} weights, {footprint.trained:,} of them trained, on {where}\n"
        f"micro-batches of {footprint.rows} rows ({sizes(subject.batch)}), {subject.window} in a step, "
        f"{train.mixed_precision or 'no'} mixed precision\n"
        f"{show_flops(footprint.flops)} for forward and backward pass of one"
        + (f", {footprint.recomputed / footprint.flops:.0%} recomputed" if footprint.recomputed else "")
    )


def memory_table(footprint: Footprint, optim: str) -> Table:
    """Returns the table of memory by part, with bytes per weight for parts that grow with the weights."""
    rows = []
    for name, label in PARTS.items():
        if size := getattr(footprint, name):
            shown = f"optimizer state ({optim})" if name == "optimizer_state" else label
            rows.append([shown, size, size / footprint.total if name in OF_WEIGHTS else None])
    rows.append(["peak of a step", footprint.peak, footprint.peak / footprint.total])
    cells = [
        [label, Cell(format_bytes(size), size), None if each is None else Cell(f"{each:.2f}", each)]
        for label, size, each in rows
    ]
    return Table(["part", "memory", "bytes per weight"], cells, caption="Memory of one device")


def costs_table(found: Sequence[Strategy], caption: str) -> Table:
    """Returns the table of what strategies hold and send."""
    rows = [
        [_shown(each), Cell(format_bytes(each.memory), each.memory),
         Cell(format_bytes(each.sent), each.sent) if each.sent else None, Cell(f"{each.speed:.2g}x", each.speed)]
        for each in found
    ]  # fmt: skip
    return Table(["strategy", "memory of each", "sent by each in a step", "speed, at most"], rows, caption=caption)


def _shown(strategy: Strategy) -> str:
    """Returns the name of a strategy, with its sizes if there are several."""
    sizes = [f"{name} {size}" for name, size in strategy.sizes.items() if size > 1]
    return f"{strategy.name}: {', '.join(sizes)}" if len(sizes) > 1 else strategy.name


def splits_table(found: Sequence[Strategy], caption: str) -> Table:
    """Returns the table of splits with the sizes of their dimensions, without those that no split has."""
    names = [name for name in found[0].sizes if any(each.sizes[name] > 1 for each in found)]
    rows = [
        [each.name.replace(" (ZeRO-3)", "").replace(", 1F1B", ""), *(each.sizes[name] for name in names),
         Cell(format_bytes(each.memory), each.memory), Cell(format_bytes(each.sent), each.sent),
         Cell(f"{each.waiting:.0%}", each.waiting) if each.waiting else None,
         Cell(format_seconds(each.seconds), each.seconds)]
        for each in found
    ]  # fmt: skip
    return Table(["split", *names, "memory", "sent", "waits", "time"], rows, caption=caption)


def split_blocks(found: Splits, processes: int, capacity: int) -> Iterator[Block]:
    """Yields the splits that fit and the settings of the first, or the one with the smallest memory."""
    if not found.fitting:
        yield Text(
            f"No split over {processes} devices of {format_bytes(capacity)} fits with these micro-batches. The "
            f"smallest needs {format_bytes(found.smallest.memory)}, with these."
        )
        yield _settings([*found.switches, *found.smallest.overrides])
        return
    first = {each.name: each for each in reversed(found.fitting)}
    best = [each for each in found.fitting if each in found.fitting[:MAX_SPLITS] or each is first[each.name]]
    if found.switches:
        yield Text(f"No split fits as configured; these do with {' '.join(found.switches)}.")
    yield splits_table(best, f"Splits that fit {processes} x {format_bytes(capacity)}, the fastest first")
    if (more := len(found.fitting) - len(best)) > 0:
        yield Text(f"The {MAX_SPLITS} fastest, and the fastest of each other kind; {more} more fit (--output FILE).")
    links = f"{MACHINE.inside / 1e9:.0f} GB/s inside a machine, {MACHINE.outside / 1e9:.0f} GB/s between two"
    yield Text(f"Times are estimated for machines like a {MACHINE.name}, {links} (docs/plan.md).")
    yield Text("Settings of the first:")
    yield _settings([*found.switches, *found.fitting[0].overrides])


def _settings(overrides: Sequence[str]) -> Code:
    return Code("\n".join([f"    {override}" for override in overrides]) or "    the settings as configured")


_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_bytes(text: str, option: str) -> int:
    """Returns the bytes of a size such as `16GiB` or `800 MB`, or for `--bandwidth` a rate such as `25GB/s`.

    Raises InputError, naming the option, if the text is not a number with a unit of bytes, or is 0.
    """
    # pydantic's ByteSize accepts `16` and bits, which are mistakes here.
    rate = option == "--bandwidth"
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT]?i?)B" + ("/s" if rate else "") + r"\s*", text)
    if match is None or match[2] == "i" or not float(match[1]):
        example = "25GB/s (bytes: a network of 200 Gbit/s has 25GB/s)" if rate else "16GiB or 24GB"
        raise InputError(f"{option}: received {text!r}; write a number and a unit, for instance {example}")
    return round(float(match[1]) * _SIZES[match[2].lower()])


def show_flops(count: float) -> str:
    """Formats a number of floating-point operations with three digits and a unit."""
    for unit in ("MFLOP", "GFLOP", "TFLOP", "PFLOP"):
        count /= 1e6 if unit == "MFLOP" else 1e3
        if count < 999.5:
            break
    return f"{count:.3g} {unit}"
