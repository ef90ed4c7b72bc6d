"""What a profile suggests to change: each with its number, and an override that the settings allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toolkit.config.keys import written
from toolkit.config.sections import Config
from toolkit.lab.launch import batch_and_accumulation
from toolkit.lab.profile.summary import Found

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
