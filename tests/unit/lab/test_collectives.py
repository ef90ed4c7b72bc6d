"""`toolkit collectives`: the times of collective operations, and what is read from them."""

from __future__ import annotations

import json

import pytest

from toolkit.base.console import format_seconds
from toolkit.commands.cli import main
from toolkit.lab import collectives
from toolkit.lab.collectives import OPERATIONS, SIZES, factor

pytestmark = pytest.mark.usefixtures("forked_trials")


def found(latency: float, rate: float, processes: int = 4) -> collectives.Collectives:
    """Returns what is found where each process sends `rate` bytes per second."""
    seconds = {name: [latency + factor(name, processes) * size / rate for size in SIZES] for name in OPERATIONS}
    measured = {"seconds": seconds, "backend": "gloo", "device": "cpu"}
    return collectives.report_of(measured, processes, "toolkit collectives")


def measure(*arguments: str, code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["collectives", *arguments])
    assert ended.value.code == code


def test_latency_and_bandwidth_are_found():
    operations = found(1e-3, 2e9).as_json()["operations"]
    assert set(operations) == set(collectives.USES) == set(OPERATIONS)
    for name, each in operations.items():
        assert each["latency"] == pytest.approx(1e-3, rel=0.01)
        assert each["bandwidth"] == pytest.approx(2e9, rel=1e-3)
        # Of this size, a tensor takes as long as the latency.
        assert factor(name, 4) * each["half_size"] / 2e9 == pytest.approx(1e-3, rel=0.01)
        assert each["bytes_per_second"][-1] == pytest.approx(2e9, rel=0.1)


def test_an_operation_sends_what_rings_send():
    assert [factor(name, 4) for name in OPERATIONS] == [1.5, 0.75, 0.75, 1.0]


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.234e-5, "12.3 us"), (0.0123, "12.3 ms"), (0.9999, "1 s"), (2.5, "2.5 s")]
)
def test_short_times_have_units(seconds, text):
    assert format_seconds(seconds) == text


def test_the_page_and_the_terminal_show_every_size():
    *tables, summary = found(1e-4, 1e12).on_terminal()
    assert [row[1].text for row in summary.rows] == ["100 us"] * 4
    for table in tables:
        assert len(table.rows) == len(SIZES)
        assert table.rows[0][0].text == "1 KiB"
        assert table.rows[-1][0].text == "64 MiB"


def test_one_process_exchanges_nothing(capsys):
    measure("--processes", "1", code=2)
    assert "must be a whole number of at least 2" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.distributed
def test_the_command_measures_two_processes(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    measure()
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    result = json.loads((tmp_path / "outputs/collectives/collectives.json").read_text())
    assert (result["processes"], result["backend"], result["device"]) == (2, "gloo", "cpu")
    for each in result["operations"].values():
        assert len(each["seconds"]) == len(SIZES)
        assert 0 < each["seconds"][0] < each["seconds"][-1]
        assert each["bandwidth"] > 0
    names = [f"collectives.{kind}" for kind in ("html", "json", "md", "svg")]
    assert sorted(file.name for file in (tmp_path / "outputs/collectives").iterdir()) == names
