"""What a profile found, and what to change: each with its number, and an override that the settings allow."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from toolkit.base.console import counted, format_bytes, format_seconds, shorten
from toolkit.base.errors import ConfigError
from toolkit.base.files import write_bytes
from toolkit.config.keys import written
from toolkit.config.sections import Config
from toolkit.document.blocks import Block, Cell, Code, Page, Section, Table, Text
from toolkit.lab.jobs.jobs import batch_and_accumulation
from toolkit.lab.jobs.training import FEW_STEPS, unfrozen_at_once
from toolkit.lab.plan.report import show_flops
from toolkit.lab.tool import Report, Request
from toolkit.report.sections import MEANINGS, bytes_cell, share_cell

TRACE = "trace.json.gz"
COMPRESSION = 5
OPENED = Text(f"The trace is in {TRACE}: open it in ui.perfetto.dev.")
NOTHING = "Nothing here takes much time that a setting would save."
SHOWN = 8
"""Operations that the terminal shows."""
NAME = 44
"""Characters of an operation's name there."""


@dataclass(frozen=True)
class Profile(Report):
    """Where the time and the memory of a step go."""

    FILE: ClassVar[str] = "profile"

    phases: Mapping[str, Mapping[str, float]]  # `seconds` and `share` by name
    step_seconds: float  # mean seconds of a step
    rows_per_second: float  # over all processes
    memory: Mapping[str, Any]  # bytes `before` the steps, and by phase their `peak` and what was `kept`
    operations: Sequence[Mapping[str, Any]]  # those of the CPU with the most time
    kernels: Sequence[Mapping[str, Any]]  # the same of the GPU
    launches: Mapping[str, Any]  # how much of a step its operations would take if each had nothing to compute
    flops: Mapping[str, float]  # operations of a step on all processes, against those of a large matrix product
    padding: Mapping[str, Any]  # share of the positions, and whether it is computed
    loading: Mapping[str, Any]  # the time to load the rows of a step, and the function with most of it
    exchange: Mapping[str, float]  # shares of a step: exchange alone, waiting, any exchange
    attention: Mapping[str, Any]  # how attention is computed, and its share of the operations' time
    machine: Mapping[str, Any]  # the device, and numbers of GPUs, cores and threads
    processes: int
    steps: int  # steps that were timed
    skipped: int  # steps before them
    config: str
    command: str
    advice: Sequence[Mapping[str, Any]] = ()  # what to change, the largest share first

    def page(self) -> Page:
        """Returns the page: what to change, then the time, the figures and the operations."""
        lead = f"{counted(len(self.advice), 'thing')} to change." if self.advice else NOTHING
        note = (
            f"Peak: the most that tensors held in a phase above the {format_bytes(self.memory['before'])} of weights, "
            "buffers and optimizer. Kept: by how much they grew in it, over a step."
        )
        return Page(f"Profile of {self.config}", lead, [
            Section("Advice", self._advised()),
            Section("Where the time goes", [phases(self), Text(_how(self)), Text(note)]),
            Section("Figures", [figures(self)]),
            Section("Operations", [*operations(self), OPENED]),
        ])  # fmt: skip

    def on_terminal(self) -> Iterator[Block]:
        """Yields the phases, the operations with the most time, the figures and the advice."""
        yield phases(self).without("what it is")
        for table in operations(self)[:1]:
            yield replace(table, rows=[[shorten(name, NAME), *rest] for name, *rest in table.rows[:SHOWN]])
        yield figures(self)
        yield from self._advised()
        yield OPENED

    def _advised(self) -> list[Block]:
        blocks: list[Block] = []
        for each in self.advice:
            blocks += [Text(each["text"]), Code("\n".join(each["override"]), "bash")]
        return blocks or [Text(NOTHING)]


def profile(request: Request, skipped: int, steps: int) -> Profile:
    """Times `steps` steps after `skipped` others, traces as many, and writes the trace to the output folder.

    Raises ConfigError if the settings are invalid; RunError if training fails.
    """
    settings = {"train.max_steps": skipped + 2 * steps + 1}
    short = request.override(FEW_STEPS, settings, unfrozen_at_once(request.cfg))
    output = request.make_output()
    with TemporaryDirectory(prefix="trace-") as name:
        trace = Path(name) / "trace.json"
        measured = short.measured("profile", skipped=skipped, steps=steps, trace=str(trace))
        write_bytes(output / TRACE, gzip.compress(trace.read_bytes(), COMPRESSION, mtime=0))

    def allowed(choice: Sequence[str]) -> bool:
        try:
            if all("." in each.partition("=")[0] for each in choice):  # not options or environment variables
                request.load(choice)
        except ConfigError:
            return False
        return True

    found = profile_of(measured, steps=steps, skipped=skipped, config=str(request.config), command=request.command)
    return replace(found, advice=advice_of(found, short.cfg, allowed))


def profile_of(measured: Mapping[str, Any], **facts: Any) -> Profile:
    """Returns a profile without advice from the result of `toolkit.lab.profile.measure.measure` and further fields."""
    ranks, trace = measured["ranks"], measured["trace"]
    seconds = {phase: fmean(rank["seconds"][phase] for rank in ranks) for phase in ranks[0]["seconds"]}
    step = sum(seconds.values())
    counting = [rank for rank in ranks if rank["counts"]]
    return Profile(
        phases={phase: {"seconds": each, "share": each / step} for phase, each in seconds.items()}, step_seconds=step,
        rows_per_second=sum(rank["rows"] for rank in counting) / step,
        memory={"before": measured["memory"], "phases": trace["memory"]}, operations=trace["operations"],
        kernels=trace["kernels"], launches=_launches(measured, step), flops=_flops(ranks, step),
        padding=_padding(measured, counting), loading=measured["loading"], exchange=_exchange(ranks, trace, step),
        attention=measured["attention"], machine=measured["machine"], processes=len(ranks), **facts,
    )  # fmt: skip


def _launches(measured: Mapping[str, Any], step: float) -> dict[str, Any]:
    """Returns how much of a step its operations would take if each had nothing to compute."""
    leaves, smallest = measured["trace"]["leaves"], measured["machine"]["smallest_operation"]
    on_gpu = measured["machine"]["device"] != "cpu"
    return {
        "operations": leaves,
        "smallest_seconds": smallest,
        "share": leaves * smallest / step,
        "busy": measured["trace"]["busy_seconds"] / step if on_gpu else None,
    }


def _flops(ranks: list[Mapping[str, Any]], step: float) -> dict[str, Any]:
    """Returns the operations of a step on all processes, and how they compare with matrix products alone."""
    flops, rate = (sum(rank[name] for rank in ranks) for name in ("flops", "matmul_rate"))
    return {"step": flops, "second": flops / step, "matmul_second": rate, "utilisation": flops / step / rate}


def _padding(measured: Mapping[str, Any], counting: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the share of padding among the positions of all rows; None if they have no masks."""
    positions, real = (sum(rank[name] for rank in counting) for name in ("positions", "real"))
    return {
        "share": 1 - real / positions if positions else None,
        "computed": not measured["unpadded"],
        "can_be_left_out": measured["can_leave_out_padding"],
    }


def _exchange(ranks: list[Mapping[str, Any]], trace: Mapping[str, Any], step: float) -> dict[str, Any]:
    """Returns the shares of a step of exchange alone, of waiting for the slowest process, and of any exchange."""
    own = [rank["seconds"]["exchange"] + rank["hidden_exchange"] for rank in ranks]
    return {
        "share": fmean(own) / step,
        "waiting": (fmean(own) - min(own)) / step,
        "in_flight": trace["exchange_seconds"] / step,
    }


LEAST = {"loading": 0.05, "padding": 0.1, "launches": 0.25, "exchange": 0.1, "attention": 0.1}
"""Least shares for advice: of a step, for padding of the positions, for attention of the operations' time."""
LEAST_BUSY = 0.5
"""Part of a step in which a GPU should at least compute."""

Choice = Sequence[str]
"""Overrides, or options of the command that trains."""


@dataclass(frozen=True)
class Finding:
    """Something that takes time and can be changed."""

    what: str  # its name
    number: float  # its share of the time, or of GPUs or cores that are not used, from 0 to 1
    text: str  # what was found, with the number
    choices: Sequence[Choice]  # changes that may help, the best one first


def advice_of(found: Profile, cfg: Config, allowed: Callable[[Choice], bool]) -> list[dict[str, Any]]:
    """Returns what to change, the largest share first, each with the first of its choices that the settings allow."""
    findings = [finding for rule in RULES for finding in rule(found, cfg)]
    kept = []
    for finding in sorted(findings, key=lambda each: -each.number):
        if (choice := next((choice for choice in finding.choices if allowed(choice)), None)) is not None:
            facts = asdict(finding)
            del facts["choices"]
            kept.append(facts | {"override": list(choice)})
    return kept


def _loading(found: Profile, cfg: Config) -> Iterator[Finding]:
    share, loading = found.phases["fetch"]["share"], found.loading
    if share < LEAST["loading"]:
        return
    rest = found.step_seconds - found.phases["fetch"]["seconds"]
    needed = max(1, math.ceil(loading["seconds"] / rest))
    now = cfg.train.dataloader_num_workers
    workers = max(needed, (now if now != "auto" else 0) + 1)
    where = ""
    if loading["function"] is not None:
        where = (
            f" Of the {format_seconds(loading['seconds'])} to load the rows of a step in one process, "
            f"{loading['function']} ({loading['place']}) takes {format_seconds(loading['function_seconds'])}."
        )
    spent, processes = format_seconds(found.phases["fetch"]["seconds"]), counted(workers, "worker process")
    text = f"{share:.0%} of a step ({spent}) is spent waiting for rows.{where} Make it faster, or load rows in "
    text += f"{processes} while the model computes."
    yield Finding("loading", share, text, [written({"train.dataloader_num_workers": workers})])


def _advise_padding(found: Profile, cfg: Config) -> Iterator[Finding]:
    padding = found.padding
    share = padding["share"]
    if share is None or share < LEAST["padding"] or not padding["computed"]:
        return
    text = f"{share:.0%} of the positions that the model computes are padding. Leave it out, or put rows of similar "
    text += "length together."
    choices = [written({"train.unpadded": True})] if padding["can_be_left_out"] else []
    choices.append(written({"train.train_sampling_strategy": "group_by_length"}))
    yield Finding("padding", share, text, choices)


def _advise_launches(found: Profile, cfg: Config) -> Iterator[Finding]:
    launches, share = found.launches, found.launches["share"]
    idle = None if launches["busy"] is None else 1 - launches["busy"] - found.phases["fetch"]["share"]
    if share < LEAST["launches"] and (idle is None or idle < 1 - LEAST_BUSY):
        return
    text = (
        f"A step has {launches['operations']:,.0f} operations. If none computed anything, they would still take "
        f"{format_seconds(launches['smallest_seconds'])} each, {share:.0%} of the step"
    )
    text += "." if idle is None else f", and the GPU computes in {launches['busy']:.0%} of it."
    batch, accumulation = batch_and_accumulation(cfg)
    choices = []
    if accumulation % 2 == 0 and cfg.train.max_tokens_per_batch is None:
        text += " Larger micro-batches need fewer operations for the same rows."
        larger = {"train.per_device_train_batch_size": 2 * batch}
        if cfg.train.global_batch_size is None:  # otherwise it follows
            larger["train.gradient_accumulation_steps"] = accumulation // 2
        choices.append(written(larger))
    else:
        text += " Compiled code joins small operations; larger micro-batches need fewer for each row."
    choices.append(written({"train.torch_compile": True}))
    choices.append(written({"train.per_device_train_batch_size": 2 * batch}))
    yield Finding("launches", max(share, idle or 0.0), text, choices)


def _advise_exchange(found: Profile, cfg: Config) -> Iterator[Finding]:
    exchange, share = found.exchange, found.exchange["share"]
    if found.processes == 1 or share < LEAST["exchange"]:
        return
    _, accumulation = batch_and_accumulation(cfg)
    text = (
        f"{share:.0%} of a step is spent in exchanges between processes and nothing else; {exchange['waiting']:.0%} is "
        "waiting for the slowest one. A step of twice as many rows exchanges half as much for each row; it needs "
        "another learning rate (toolkit batch-find --scale-lr)."
    )
    rows = cfg.train.global_batch_size
    larger = {"train.global_batch_size": 2 * rows} if rows else {"train.gradient_accumulation_steps": 2 * accumulation}
    yield Finding("exchange", share, text, [written(larger)])


def _attention(found: Profile, cfg: Config) -> Iterator[Finding]:
    attention = found.attention
    if attention["share"] < LEAST["attention"]:
        return
    start = f"{attention['share']:.0%} of the operations' time is spent in attention that is computed step by step"
    if attention["implementation"] == "eager" and attention["can_be_fused"]:
        text = f"{start} (model.attn_implementation is eager). One kernel computes all of it faster."
        yield Finding("attention", attention["share"], text, [written({"model.attn_implementation": "sdpa"})])
    elif attention["dropout"] is not None:
        field = attention["dropout"]
        text = f"{start}, because it has dropout ({field}). Without it, one kernel computes all of it; quality may "
        text += "change."
        choice = written({f"model.config_overrides.{field}": 0.0})
        yield Finding("attention", attention["share"], text, [choice])


def _idle(found: Profile, cfg: Config) -> Iterator[Finding]:
    machine, processes = found.machine, found.processes
    if machine["device"] == "cuda":
        if (unused := machine["gpus"] - processes) > 0:
            text = f"{machine['gpus']} GPUs visible, {processes} used."
            yield Finding("idle", unused / machine["gpus"], text, [[f"--processes {machine['gpus']}"]])
        return
    cores, threads = machine["cores"], machine["threads"] * processes
    if threads != cores:
        text = f"{counted(cores, 'core')}, {counted(threads, 'thread')} in {counted(processes, 'process')}."
        if threads > cores:
            text += " They wait for each other."
        yield Finding(
            "threads",
            abs(cores - threads) / max(cores, threads),
            text,
            [[f"OMP_NUM_THREADS={max(1, cores // processes)}"]],
        )


RULES = (_loading, _advise_padding, _advise_launches, _advise_exchange, _attention, _idle)
"""What is looked for."""


def phases(found: Profile) -> Table:
    """Returns the table of the phases."""
    memory = found.memory["phases"]
    rows = [
        [name, duration(each["seconds"]), share_cell(each["share"]),
         *(bytes_cell(memory.get(name, {}).get(kind)) for kind in ("peak", "kept")), MEANINGS[name]]
        for name, each in found.phases.items()
        if each["seconds"]
    ]  # fmt: skip
    caption = f"Phases of a step of {format_seconds(found.step_seconds)}"
    return Table(["phase", "time", "share", "peak", "kept", "what it is"], rows, caption=caption)


def operations(found: Profile) -> list[Table]:
    """Returns the tables of the operations with the most time, on the CPU and on the GPU."""
    tables = []
    for found_here, caption in ((found.kernels, "Kernels of the GPU"), (found.operations, "Operations of the CPU")):
        rows = [
            [each["name"], Cell(f"{each['calls']:,.0f}", each["calls"]), duration(each["seconds"]),
             share_cell(each["share"])]
            for each in found_here
        ]  # fmt: skip
        if rows:
            tables.append(Table(["name", "calls", "own time", "share"], rows, caption=f"{caption}, of a step"))
    return tables


def figures(found: Profile) -> Table:
    """Returns the table of speed and use."""
    flops, padding, launches, exchange = (found.flops, found.padding, found.launches, found.exchange)
    rows: list[list[Any]] = [
        ["rows per second", f"{found.rows_per_second:,.4g}"],
        ["FLOP of a step", show_flops(flops["step"])],
        ["FLOP/s", f"{show_flops(flops['second'])}/s"],
        ["FLOP/s of a large matrix product", f"{show_flops(flops['matmul_second'])}/s"],
        ["utilisation (MFU): the part of it", f"{flops['utilisation']:.1%}"],
        ["operations of a step", f"{launches['operations']:,.0f}"],
    ]
    if launches["busy"] is not None:
        rows.append(["part of it in which the GPU computes", f"{launches['busy']:.1%}"])
    if padding["share"] is not None:
        left_out = "" if padding["computed"] else " (not computed)"
        rows.append(["padding", f"{padding['share']:.1%} of the positions{left_out}"])
    rows.append(["loading the rows of a step, alone", format_seconds(found.loading["seconds"])])
    if found.processes > 1:
        rows += [
            ["exchange and nothing else", f"{exchange['share']:.1%} of a step"],
            ["of that, waiting for the slowest", f"{exchange['waiting']:.1%} of a step"],
            ["any exchange under way, main process", f"{exchange['in_flight']:.1%} of a step"],
        ]
    return Table(["figure", "value"], rows)


def _how(found: Profile) -> str:
    gpu = " Each phase waits for the GPU." if found.machine["device"] != "cpu" else ""
    return (
        f"Times are means over {found.steps} steps after {found.skipped} others, and over "
        f"{counted(found.processes, 'process')}.{gpu} As many further steps were "
        "traced, for operations and memory, and one was counted, for FLOP: matrix products, convolutions and "
        "attention, of the forward and the backward pass. Nothing was evaluated or saved."
    )


def duration(seconds: float) -> Cell:
    """Returns a time as a cell."""
    return Cell(format_seconds(seconds), seconds)
