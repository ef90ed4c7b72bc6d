"""Histograms in trackers are those of complete tensors, however processes share a model."""

from __future__ import annotations

from pathlib import Path

import histogram_runs
import pytest
from launching import fork
from runs import assert_close
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tolerances import FLOAT64

pytestmark = pytest.mark.distributed


def histograms(run: Path) -> dict[str, list[float]]:
    """Returns number, least, greatest and sum of each tensor's values at the last step."""
    (file,) = run.rglob("events.out.tfevents*")
    events = EventAccumulator(str(file.parent)).Reload()
    found = {name: events.Histograms(name)[-1].histogram_value for name in events.Tags()["histograms"]}
    return {name: [each.num, each.min, each.max, each.sum] for name, each in sorted(found.items())}


def operations(run: Path) -> list[tuple[str, list[str]]]:
    """Returns the linear operations of the model's graph, and what they use."""
    (file,) = run.rglob("events.out.tfevents*")
    nodes = EventAccumulator(str(file.parent)).Reload().Graph().node
    return [(node.name, [*node.input]) for node in nodes if node.op == "linear"]


def test_every_strategy_shows_the_tensors_of_one_process(tmp_path):
    names = ("ddp", "fsdp", "zero2", "tensor", "pipeline")
    fork([Path(histogram_runs.__file__), tmp_path, *names], 2)
    histogram_runs.main(tmp_path, "one")
    expected = histograms(tmp_path / "one")
    assert len([name for name in expected if name.startswith("gradients/")]) == len(expected) / 2 > 20
    assert len(operations(tmp_path / "ddp")) > 10
    assert operations(tmp_path / "ddp") == operations(tmp_path / "fsdp")
    assert [name for name, _ in operations(tmp_path / "tensor")] == [name for name, _ in operations(tmp_path / "ddp")]
    for name in names:
        assert_close(histograms(tmp_path / name), expected, FLOAT64, name)
