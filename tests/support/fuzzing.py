"""Strategies of hypothesis for settings and records, and a limit of time for each example."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import hypothesis
from faults import SEED, SHARE, Faults
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from toolkit.base.errors import ToolkitError

CPU_SECONDS, WALL_SECONDS = 5, 60
"""Limits of an example: of computing, on which a busy machine has little influence, and of waiting."""
EXAMPLES = 4000
"""Examples of each test in a complete run."""


class HangError(BaseException):
    """Raised when an input takes longer than a limit; not an `Exception`, which code might handle."""


@contextmanager
def limited() -> Iterator[None]:
    limits = (
        (signal.ITIMER_PROF, signal.SIGPROF, CPU_SECONDS, "of CPU time"),
        (signal.ITIMER_REAL, signal.SIGALRM, WALL_SECONDS, "of waiting"),
    )

    def stop(number: int, frame: object) -> None:
        raise HangError(next(f"more than {seconds} s {kind}" for _, each, seconds, kind in limits if each == number))

    before = {number: signal.signal(number, stop) for _, number, _, _ in limits}
    for timer, _, seconds, _ in limits:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for timer, number, _, _ in limits:
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def fuzzed(strategy: st.SearchStrategy[Any], share: float = 1.0) -> Callable[..., Any]:
    """Returns a decorator that calls a test with this session's share of the examples."""
    number = max(25, round(EXAMPLES * share * float(os.environ.get(SHARE, "0.1"))))

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        checks = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much,
                  HealthCheck.data_too_large, HealthCheck.large_base_example)  # fmt: skip
        settings = hypothesis.settings(
            max_examples=number, deadline=None, database=None, suppress_health_check=checks, print_blob=True
        )
        return settings(hypothesis.seed(int(os.environ[SEED]))(given(example=strategy)(function)))

    return decorate


@st.composite
def mutated(draw: st.DrawFn, content: bytes) -> bytes:
    """Cuts, repeats, replaces and inserts parts of a file."""
    found = bytearray(content)
    special = [b"\0", b"\xff", b"\xef\xbb\xbf", b"\r", b'"', b"&a ", b"*a", b"<<: ", b"!!python/object:os.system ",
               b"[" * 2000, b"9" * 5000, b"{", b": ", b"\t", b"- ", b"1e999", b"NaN", b"\xed\xa0\x80", b"\\ud800",
               b"null"]  # fmt: skip
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(found)))
        end = min(len(found), begin + draw(st.integers(0, 40)))
        part = draw(st.one_of(st.sampled_from(special), st.binary(max_size=8), st.just(bytes(found[begin:end]) * 3)))
        found[begin:end] = part
    return bytes(found)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["", "~", "/dev/zero", "a\0b"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
KEYS = (
    *("output_dir", "seed", "task.max_length", "task.labels", "model.from_config", "model.name_or_path"),
    *("data.train_file", "data.columns", "data.max_train_samples", "train.optim", "train.learning_rate"),
    *("train.num_train_epochs", "train.max_steps", "eval.eval_steps", "checkpoint.resume", "checkpoint.save_steps"),
    *("tracking.project", "tracking.report_to", "parallel.fsdp", "trainer.callbacks", "x-notes", "nothing.here"),
)


@st.composite
def replaced(draw: st.DrawFn, content: Any) -> Any:
    """Replaces one value anywhere in JSON, removes one, or adds one."""
    content = json.loads(json.dumps(content))
    place = content
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return draw(VALUES)
        key = draw(st.sampled_from(keys))
        if isinstance(place[key], dict | list) and place[key] and draw(st.booleans()):
            place = place[key]
            continue
        how = draw(st.sampled_from(("replace", "remove", "add")))
        if how == "replace":
            place[key] = draw(VALUES)
        elif how == "remove":
            del place[key]
        elif isinstance(place, dict):
            place[draw(st.text(max_size=8))] = draw(VALUES)
        return content


def refused_or_accepted(faults: Faults, work: Callable[[], Any]) -> None:
    """Calls a function, which may raise the toolkit's errors only, within the limit."""
    faults.count("bad inputs")
    try:
        with limited():
            work()
    except HangError:
        faults.count("hangs")
        raise
    except ToolkitError as error:
        if not str(error).strip():
            raise
    except Exception:
        faults.count("tracebacks")
        raise


def with_own_hash(content: Any) -> Any:
    """Returns a manifest whose hash is right, whatever it holds."""
    if isinstance(content, dict):
        content.pop("sha256", None)
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        content["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    return content
