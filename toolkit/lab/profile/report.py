"""What a profile found and suggests to change: each with its number, and an override that the settings allow."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from toolkit.base.console import counted, format_bytes, say, shorten
from toolkit.base.files import write_json, write_text
from toolkit.config.keys import written
from toolkit.config.sections import Config
from toolkit.document import render
from toolkit.document.blocks import Block, Cell, Code, Section, Table, Text
from toolkit.document.render import print_table
from toolkit.lab.jobs.jobs import batch_and_accumulation
from toolkit.report.sections import MEANINGS, share_cell

Found = Mapping[str, Any]
"""Contents of `profile.json`."""


def found_of(measured: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the figures of a profile, without advice.

    Args:
        measured: the result of `toolkit.lab.profile.measure.measure`.
        facts: further facts.
    """
    ranks, trace = measured["ranks"], measured["trace"]
    seconds = {phase: fmean(rank["seconds"][phase] for rank in ranks) for phase in ranks[0]["seconds"]}
    step = sum(seconds.values())
    counting = [rank for rank in ranks if rank["counts"]]
    return {
        "phases": {phase: {"seconds": each, "share": each / step} for phase, each in seconds.items()},
        "step_seconds": step,
        "rows_per_second": sum(rank["rows"] for rank in counting) / step,
        "memory": {"before": measured["memory"], "phases": trace["memory"]},
        "operations": trace["operations"],
        "kernels": trace["kernels"],
        "launches": _launches(measured, step),
        "flops": _flops(ranks, step),
        "padding": _padding(measured, counting),
        "loading": measured["loading"],
        "exchange": _exchange(ranks, trace, step),
        "attention": measured["attention"],
        "machine": measured["machine"],
        "processes": len(ranks),
        **facts,
    }


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
    """Returns the shares of a step in which processes did nothing but exchange, and in which any exchange went on.

    The process that comes last waits for nobody: what the others take longer than it is waiting.
    """
    own = [rank["seconds"]["exchange"] + rank["hidden_exchange"] for rank in ranks]
    return {
        "share": fmean(own) / step,
        "waiting": (fmean(own) - min(own)) / step,
        "in_flight": trace["exchange_seconds"] / step,
    }


LEAST = {"loading": 0.05, "padding": 0.1, "launches": 0.25, "exchange": 0.1, "attention": 0.1}
"""From which share of a step (of padding: of the positions; of attention: of the operations' time) advice is given."""
LEAST_BUSY = 0.5
"""Part of a step in which a GPU should at least compute."""

Choice = Sequence[str]
"""Overrides, or options of the command that trains."""


@dataclass(frozen=True)
class Finding:
    """Something that takes time and can be changed.

    Args:
        what: its name.
        number: its share of the time, or of GPUs or cores that are not used, from 0 to 1.
        text: what was found, with the number.
        choices: changes that may help, the best one first.
    """

    what: str
    number: float
    text: str
    choices: Sequence[Choice]


def advice_of(found: Found, cfg: Config, allowed: Callable[[Choice], bool]) -> list[dict[str, Any]]:
    """Returns what to change, the largest share first.

    Args:
        found: the figures of the profile.
        cfg: the configuration.
        allowed: whether the settings allow overrides; of each finding, the first choice that they allow is given.
    """
    findings = [finding for rule in RULES for finding in rule(found, cfg)]
    kept = []
    for finding in sorted(findings, key=lambda each: -each.number):
        choice = next((choice for choice in finding.choices if allowed(choice)), None)
        if choice is not None:
            facts = asdict(finding)
            del facts["choices"]
            kept.append(facts | {"override": list(choice)})
    return kept


def _loading(found: Found, cfg: Config) -> Iterator[Finding]:
    share, loading = found["phases"]["fetch"]["share"], found["loading"]
    if share < LEAST["loading"]:
        return
    rest = found["step_seconds"] - found["phases"]["fetch"]["seconds"]
    needed = max(1, math.ceil(loading["seconds"] / rest))
    now = cfg.train.dataloader_num_workers
    workers = max(needed, (now if now != "auto" else 0) + 1)
    where = ""
    if loading["function"] is not None:
        where = (
            f" Of the {_ms(loading['seconds'])} to load the rows of a step in one process, {loading['function']} "
            f"({loading['place']}) takes {_ms(loading['function_seconds'])}."
        )
    spent, processes = _ms(found["phases"]["fetch"]["seconds"]), _counted(workers, "worker process")
    text = f"{share:.0%} of a step ({spent}) is spent waiting for rows.{where} Make it faster, or load rows in "
    text += f"{processes} while the model computes."
    yield Finding("loading", share, text, [written({"train.dataloader_num_workers": workers})])


def _advise_padding(found: Found, cfg: Config) -> Iterator[Finding]:
    padding = found["padding"]
    share = padding["share"]
    if share is None or share < LEAST["padding"] or not padding["computed"]:
        return
    text = f"{share:.0%} of the positions that the model computes are padding. Leave it out, or put rows of similar "
    text += "length together."
    choices = [written({"train.unpadded": True})] if padding["can_be_left_out"] else []
    choices.append(written({"train.train_sampling_strategy": "group_by_length"}))
    yield Finding("padding", share, text, choices)


def _advise_launches(found: Found, cfg: Config) -> Iterator[Finding]:
    launches, share = found["launches"], found["launches"]["share"]
    idle = None if launches["busy"] is None else 1 - launches["busy"] - found["phases"]["fetch"]["share"]
    if share < LEAST["launches"] and (idle is None or idle < 1 - LEAST_BUSY):
        return
    text = (
        f"A step has {launches['operations']:,.0f} operations. If none computed anything, they would still take "
        f"{_us(launches['smallest_seconds'])} each, {share:.0%} of the step"
    )
    text += "." if idle is None else f", and the GPU computes in {launches['busy']:.0%} of it."
    batch, accumulation = batch_and_accumulation(cfg)
    choices = []
    if accumulation % 2 == 0 and cfg.train.max_tokens_per_batch is None:
        text += " Larger micro-batches need fewer operations for the same rows."
        choices.append(written({
            "train.per_device_train_batch_size": 2 * batch, "train.gradient_accumulation_steps": accumulation // 2,
        }))  # fmt: skip
    else:
        text += " Compiled code joins small operations; larger micro-batches need fewer for each row."
    choices.append(written({"train.torch_compile": True}))
    choices.append(written({"train.per_device_train_batch_size": 2 * batch}))
    yield Finding("launches", max(share, idle or 0.0), text, choices)


def _advise_exchange(found: Found, cfg: Config) -> Iterator[Finding]:
    exchange, share = found["exchange"], found["exchange"]["share"]
    if found["processes"] == 1 or share < LEAST["exchange"]:
        return
    _, accumulation = batch_and_accumulation(cfg)
    text = (
        f"{share:.0%} of a step is spent in exchanges between processes and nothing else; {exchange['waiting']:.0%} is "
        "waiting for the slowest one. A step of twice as many rows exchanges half as much for each row; it needs "
        "another learning rate (toolkit batch-find --scale-lr)."
    )
    yield Finding("exchange", share, text, [written({"train.gradient_accumulation_steps": 2 * accumulation})])


def _attention(found: Found, cfg: Config) -> Iterator[Finding]:
    attention = found["attention"]
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


def _idle(found: Found, cfg: Config) -> Iterator[Finding]:
    machine, processes = found["machine"], found["processes"]
    if machine["device"] == "cuda":
        if (unused := machine["gpus"] - processes) > 0:
            text = f"{machine['gpus']} GPUs visible, {processes} used."
            yield Finding("idle", unused / machine["gpus"], text, [[f"--processes {machine['gpus']}"]])
        return
    cores, threads = machine["cores"], machine["threads"] * processes
    if threads != cores:
        text = f"{_counted(cores, 'core')}, {_counted(threads, 'thread')} in {_counted(processes, 'process')}."
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


def is_setting(choice: Choice) -> bool:
    """Whether a choice is overrides, not an option or an environment variable of the command."""
    return all("." in each.partition("=")[0] for each in choice)


def _counted(count: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.2g} us"


TRACE = "trace.json.gz"
WIDTH = 80
NOTHING = "Nothing here takes much time that a setting would save."
SHOWN = 8
"""Operations that the terminal shows."""
NAME = 44
"""Characters of an operation's name there."""


def phases(found: Found) -> Table:
    """Returns the table of the phases."""
    memory = found["memory"]["phases"]
    rows = [
        [name, duration(each["seconds"]), share_cell(each["share"]), *_memory(memory.get(name)), MEANINGS[name]]
        for name, each in found["phases"].items()
        if each["seconds"]
    ]
    caption = f"Phases of a step of {format_seconds(found['step_seconds'])}"
    return Table(["phase", "time", "share", "peak", "kept", "what it is"], rows, caption=caption)


def operations(found: Found) -> list[Table]:
    """Returns the tables of the operations with the most time, on the CPU and on the GPU."""
    tables = []
    for name, caption in (("kernels", "Kernels of the GPU"), ("operations", "Operations of the CPU")):
        rows = [
            [each["name"], Cell(f"{each['calls']:,.0f}", each["calls"]), duration(each["seconds"]),
             share_cell(each["share"])]
            for each in found[name]
        ]  # fmt: skip
        if rows:
            tables.append(Table(["name", "calls", "own time", "share"], rows, caption=f"{caption}, of a step"))
    return tables


def figures(found: Found) -> Table:
    """Returns the table of speed and use."""
    flops, padding, launches, exchange = (found[name] for name in ("flops", "padding", "launches", "exchange"))
    rows: list[list[Any]] = [
        ["rows per second", f"{found['rows_per_second']:,.4g}"],
        ["FLOP of a step", _units(flops["step"], "FLOP")],
        ["FLOP/s", _units(flops["second"], "FLOP/s")],
        ["FLOP/s of a large matrix product", _units(flops["matmul_second"], "FLOP/s")],
        ["utilisation (MFU): the part of it", f"{flops['utilisation']:.1%}"],
        ["operations of a step", f"{launches['operations']:,.0f}"],
    ]
    if launches["busy"] is not None:
        rows.append(["part of it in which the GPU computes", f"{launches['busy']:.1%}"])
    if padding["share"] is not None:
        left_out = "" if padding["computed"] else " (not computed)"
        rows.append(["padding", f"{padding['share']:.1%} of the positions{left_out}"])
    rows.append(["loading the rows of a step, alone", format_seconds(found["loading"]["seconds"])])
    if found["processes"] > 1:
        rows += [
            ["exchange and nothing else", f"{exchange['share']:.1%} of a step"],
            ["of that, waiting for the slowest", f"{exchange['waiting']:.1%} of a step"],
            ["any exchange under way, main process", f"{exchange['in_flight']:.1%} of a step"],
        ]
    return Table(["figure", "value"], rows)


def advice(found: Found, width: int | None = None) -> list[str]:
    """Returns the advice as lines, wrapped to a width."""
    lines = []
    for number, each in enumerate(found["advice"], start=1):
        text = f"{number}. {each['text']}"
        lines += [text] if width is None else textwrap.wrap(text, width, subsequent_indent="   ")
        lines += [f"   {override}" for override in each["override"]]
    return lines or [NOTHING]


def show(found: Found) -> None:
    """Prints the tables and the advice."""
    table = phases(found)
    print_table(Table(table.header[:-1], [row[:-1] for row in table.rows], caption=table.caption))
    say("")
    for each in operations(found)[:1]:
        rows = [[shorten(name, NAME), *rest] for name, *rest in each.rows[:SHOWN]]
        print_table(Table(each.header, rows, caption=each.caption))
        say("")
    print_table(figures(found))
    say("\n".join(["", *advice(found, WIDTH)]))


def sections(found: Found) -> list[Section]:
    """Returns the sections of the page."""
    return [
        Section("Advice", _advice(found)),
        Section("Where the time goes", [phases(found), Text(_how(found)), Text(_memory_note(found))]),
        Section("Figures", [figures(found)]),
        Section("Operations", [*operations(found), Text(f"The trace is in {TRACE}: open it in ui.perfetto.dev.")]),
        Section("Command", [Code(found["command"], "bash")]),
    ]


def _advice(found: Found) -> list[Block]:
    blocks: list[Block] = []
    for each in found["advice"]:
        blocks += [Text(each["text"]), Code("\n".join(each["override"]), "bash")]
    return blocks or [Text(line) for line in advice(found)]


def _how(found: Found) -> str:
    gpu = " Each phase waits for the GPU." if found["machine"]["device"] != "cpu" else ""
    return (
        f"Times are means over {found['steps']} steps after {found['skipped']} others, and over "
        f"{found['processes']} process{'' if found['processes'] == 1 else 'es'}.{gpu} As many further steps were "
        "traced, for operations and memory, and one was counted, for FLOP: matrix products, convolutions and "
        "attention, of the forward and the backward pass. Nothing was evaluated or saved."
    )


def _memory_note(found: Found) -> str:
    return (
        f"Peak: the most that tensors held in a phase above the {format_bytes(found['memory']['before'])} of weights, "
        "buffers and optimizer. Kept: by how much they grew in it, over a step."
    )


def _memory(each: dict[str, float] | None) -> list[Cell | None]:
    if each is None:
        return [None, None]
    return [Cell(_signed(each[name]), each[name]) for name in ("peak", "kept")]


def _signed(size: float) -> str:
    return f"-{format_bytes(-size)}" if size < 0 else format_bytes(size)


def duration(seconds: float) -> Cell:
    """Returns a time as a cell."""
    return Cell(format_seconds(seconds), seconds)


def format_seconds(seconds: float) -> str:
    """Returns a short time with its unit."""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e6:.3g} us"


def _units(value: float, unit: str) -> str:
    for factor, name in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= factor:
            return f"{value / factor:.3g} {name}{unit}"
    return f"{value:.3g} {unit}"


def write(found: Found, folder: Path) -> None:
    """Writes `profile.json`, and the page as HTML and Markdown."""
    count = len(found["advice"])
    title, lead = f"Profile of {found['config']}", f"{counted(count, 'thing')} to change." if count else NOTHING
    write_json(folder / "profile.json", found)
    write_text(folder / "profile.md", render.render_markdown(title, lead, sections(found)))
    write_text(folder / "profile.html", render.render_html(title, lead, sections(found)))
