"""Runs that are killed while a checkpoint is written in the background end as one that never was."""

from __future__ import annotations

import json
from pathlib import Path

import killed_saves
import pytest
from faults import Faults
from forked import ForkServer
from runs import assert_same_weights, lines

pytestmark = [pytest.mark.faults, pytest.mark.timeout(5400)]

KILLED = {
    "one": (1, 16, ()),
    "two": (2, 10, ("checkpoint.format=full",)),
    "two-sharded": (2, 10, ("checkpoint.format=sharded",)),
    "two-split": (2, 8, ("checkpoint.format=sharded", "parallel.fsdp=2")),
    "two-gathered": (2, 6, ("checkpoint.format=full", "parallel.fsdp=2")),
}
"""Number of processes, of kills, and settings: 50 kills."""
EPOCHS = 2
"""Beside one for each kill."""
ENOUGH = 6
"""With fewer kills, chance decides how many of them come while a checkpoint is written."""


def killed(server: ForkServer, output: Path, kills: int, seed: int, processes: int, *settings: str) -> dict[str, int]:
    given = [str(output), *map(str, (kills, seed, processes)), *settings]
    ended = server.run(["python", killed_saves.__file__, *given], seconds=1800)
    assert ended.code == 0, ended.output
    return json.loads(ended.output.splitlines()[-1])


@pytest.mark.parametrize("name", KILLED)
def test_a_run_that_is_killed_in_flight_ends_as_one_that_never_was(
    name: str, tmp_path: Path, faults: Faults, server: ForkServer
) -> None:
    """Each part of the run has the other engine than the one before."""
    processes, every, settings = KILLED[name]
    kills, seed = len(faults.sample(range(every), name, least=1)), faults.random(name).randrange(10**6)
    settings = (f"train.num_train_epochs={kills + EPOCHS}", *settings)
    counts = killed(server, tmp_path / "parts", kills, seed, processes, *settings)
    faults.count("kills", counts["killed"])
    assert counts["killed"] == kills
    assert counts["in_flight"] > kills / 3 or kills < ENOUGH
    killed(server, tmp_path / "whole", 0, seed, processes, *settings)
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    assert lines(tmp_path / "whole") == lines(tmp_path / "parts")
