"""Too little memory: a run in an address space that is too small ends with one message, or does not need more."""

from __future__ import annotations

import signal

import pytest
from fault_runs import QUICK, RESUME, argv
from faults import Faults, differences
from forked import ForkServer

pytestmark = [pytest.mark.faults, pytest.mark.timeout(5400)]

STEP = 2**20
SIZES = [0.25, 0.5, 1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256]
"""MiB of address space that a run may take beyond what is there when it starts."""
SETTINGS = {"loop": (), "trainer": ("engine=trainer",), "large": ("model.from_config.hidden_size=512",)}

ABORTED = "memory allocation of"
"""What a library written in Rust (safetensors, tokenizers) says before it aborts the process."""


def test_memory_that_is_too_small_is_a_message_and_nothing_is_lost(server: ForkServer, faults: Faults, tmp_path):
    wrong, refused = [], 0
    references = {}
    for number, (name, size) in enumerate(faults.sample([(n, s) for n in SETTINGS for s in SIZES], least=4)):
        run, where = tmp_path / str(number), f"{name}, {size} MiB"
        if name not in references:
            references[name] = tmp_path / f"reference-{name}"
            assert server.run(argv(references[name], *SETTINGS[name]), hooks=QUICK).code == 0
        limit = ("limit_memory", {"more": round(size * STEP)})
        ended = server.run(argv(run, *SETTINGS[name]), hooks=[*QUICK, limit])
        faults.count("operations")
        aborts = [-signal.SIGABRT] if ABORTED in ended.output else []
        wrong += faults.problems(ended, where, [0, 1, *aborts])
        refused += ended.code != 0
        if ended.code and "memory" not in ended.output:
            wrong += faults.wrong([f"{where}: no word of memory:\n{ended.output}"])
        again = server.run(argv(run, *SETTINGS[name], RESUME), hooks=QUICK) if ended.code else ended
        found = [again.output] if again.code else differences(references[name], run)
        wrong += faults.wrong([f"{where}: {each}" for each in found])
    assert not wrong, "\n".join(wrong)
    assert refused, "no limit was small enough"
