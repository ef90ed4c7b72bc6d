"""After training, no process waits in a collective, from Python and from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import slow_report
from launching import launch

pytestmark = [pytest.mark.slow, pytest.mark.distributed]


@pytest.fixture(scope="module")
def output(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("slow")
    done = launch([Path(slow_report.__file__), folder], 2)
    (folder / "log").write_text(done.stdout + done.stderr)
    return folder


def said(output: Path) -> list[dict]:
    return [json.loads((output / f"said-{rank}.json").read_text()) for rank in (0, 1)]


def test_a_report_may_take_longer_than_a_collective(output):
    for run in ("python", "recipe"):
        assert (output / run / "report.md").exists()
        assert (output / run / "predictions.jsonl").exists()
    assert (output / "recipe" / "group").read_text() == "False"


def test_every_process_gets_the_same_result(output):
    first, second = said(output)
    assert first == second
    assert first["metrics"] == {
        name: value
        for name, value in json.loads((output / "python" / "run.json").read_text())["result"].items()
        if value is not None
    }
    assert [record["text"] for record in first["records"]] == [row["text"] for row in slow_report.ROWS]
    assert first["scores"].keys() <= first["metrics"].keys()


def test_a_report_that_fails_is_an_error_everywhere_and_the_model_is_there(output):
    assert said(output)[1]["error"].startswith("cannot write the report: KeyError: 'no curves'")
    assert (output / "failing" / "model" / "model.safetensors").exists()


def test_only_the_command_line_prints_and_once(output):
    log = (output / "log").read_text()
    assert log.count("Model, report and predictions are in") == 1
    assert "Error" not in log
