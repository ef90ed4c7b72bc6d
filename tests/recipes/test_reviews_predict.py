"""`toolkit predict` in parts: resumed after a kill, on several processes, and in bf16, with equal files."""

from __future__ import annotations

import csv
import os
import random
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from commands import run_command
from launching import begin, run
from runs import train

from toolkit.deploy.predict import Parts

WORDS = ("fine", "boots", "broke", "good", "bad", "zip", "dry", "day", "one", "it")
FORMATS = (".csv", ".jsonl", ".parquet", ".xlsx")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predict") / "run"
    train("reviews/smoke", folder, "train.max_steps=2", "eval.eval_steps=null")
    return folder


def texts(path: Path, count: int) -> Path:
    """Writes rows of mixed lengths, some of which are empty."""
    draw = random.Random(count)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["ID", "text"])
        for number in range(count):
            words = draw.choices(WORDS, k=draw.randint(1, 50)) if number % 9 else []
            writer.writerow([number, " ".join(words)])
    return path


def command(finished: Path, given: Path, output: Path, *options: str) -> list[str | Path]:
    """Returns a command with parts of eight rows, or a sixteenth of all."""
    return ["predict", finished, "--input", given, "--output", output, "--per-device-eval-batch-size", "1", *options]


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch):
    """Returns a function that runs a command and stops it, as by Ctrl-C, instead of writing the part after `parts`."""

    def stop(parts: int, *words: str | Path) -> None:
        write, left = Parts.write, [parts]

        def writing(self: Parts, *part: object) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            write(self, *part)

        with monkeypatch.context() as patched:
            patched.setattr(Parts, "write", writing)
            assert run_command(*words) == 130

    return stop


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--processes", "0"), "received 0, must be a whole number of at least 1"),
        (("--processes", "-1"), "received -1, must be a whole number of at least 1"),
        (("--mixed-precision", "fp16"), "invalid choice: 'fp16'"),
        (("--input-text", "Fine.", "--processes", "2"), "--processes: answers on the terminal come from one process"),
    ],
)
def test_wrong_options_are_named(options, message, capsys):
    given = () if "--input-text" in options else ("--input", "new.csv")
    assert run_command("predict", "run", *given, *options) == 2
    assert message in capsys.readouterr().err


@pytest.mark.fast(1)
@pytest.mark.parametrize("suffix", FORMATS)
def test_a_stopped_prediction_goes_on_to_an_equal_file(finished, tmp_path, stopped, capsys, suffix):
    given = texts(tmp_path / "new.csv", 43)
    assert run_command(*command(finished, given, tmp_path / f"whole{suffix}")) == 0
    output, partial = tmp_path / f"out{suffix}", tmp_path / f"out{suffix}.partial"
    for _ in range(2):
        stopped(2, *command(finished, given, output))
        assert not output.exists()
    assert len([*partial.glob("0*.jsonl")]) == 4
    said = capsys.readouterr()
    assert f"{partial}, which has the answers to 16 of 43 rows" in said.out
    assert "rerun the same command to continue with the remaining rows" in said.err
    assert run_command(*command(finished, given, output)) == 0
    said = capsys.readouterr().out
    assert f"{partial}, which has the answers to 32 of 43 rows" in said
    assert "5 of 43 rows have no prediction" in said
    assert "The first predictions" in said
    assert not partial.exists()
    if suffix == ".xlsx":  # an archive, with times
        from openpyxl import load_workbook

        read = [
            [[cell.value for cell in row] for row in load_workbook(file).active] for file in tmp_path.glob("*.xlsx")
        ]
        assert read[0] == read[1]
        return
    assert output.read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()


def test_other_rows_or_options_begin_anew_and_so_does_a_damaged_part(finished, tmp_path, stopped, capsys):
    given, output = texts(tmp_path / "new.csv", 43), tmp_path / "out.csv"
    stopped(2, *command(finished, given, output))
    stopped(2, *command(finished, given, output, "--threshold", "0.7"))
    assert f"{output}.partial was made with another set of options: all rows" in capsys.readouterr().out
    texts(given, 44)
    assert run_command(*command(finished, given, tmp_path / "whole.csv", "--threshold", "0.7")) == 0
    stopped(3, *command(finished, given, output, "--threshold", "0.7"))
    assert f"{output}.partial was made with another set of rows: all rows" in capsys.readouterr().out
    part = tmp_path / "out.csv.partial" / "000001.jsonl"
    part.write_bytes(part.read_bytes().replace(b"0.5", b"0.6", 1))
    assert run_command(*command(finished, given, output, "--threshold", "0.7")) == 2
    assert f"{part} is damaged, and was removed: start the same command again" in capsys.readouterr().err
    assert run_command(*command(finished, given, output, "--threshold", "0.7")) == 0
    assert output.read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_a_folder_of_someone_else_is_kept(finished, tmp_path, capsys):
    given, folder = texts(tmp_path / "new.csv", 3), tmp_path / "out.csv.partial"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    assert run_command(*command(finished, given, tmp_path / "out.csv")) == 2
    assert f"{folder} is not a folder of this command" in capsys.readouterr().err
    assert (folder / "notes.txt").read_text() == "mine"


def test_bf16_changes_digits(finished, tmp_path):
    given, found = texts(tmp_path / "new.csv", 30), {}
    for precision in ("no", "bf16"):
        output = tmp_path / f"{precision}.csv"
        assert run_command(*command(finished, given, output, "--mixed-precision", precision)) == 0
        with output.open(newline="") as file:
            found[precision] = [float(row["score"]) for row in csv.DictReader(file) if row["score"]]
    assert found["no"] != found["bf16"]
    assert found["no"] == pytest.approx(found["bf16"], abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "2"])
def test_killed_twice_the_file_is_that_of_one_process(finished, tmp_path, processes):
    given, output, partial = texts(tmp_path / "new.csv", 1600), tmp_path / "out.csv", tmp_path / "out.csv.partial"
    words = [sys.executable, "-m", "toolkit", *command(finished, given, output, "--processes", processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for least in (2, 5):
        started = begin(words, tmp_path / "log.txt", env=environment)
        while len([*partial.glob("0*.jsonl")]) < least:
            assert started.poll() is None, (tmp_path / "log.txt").read_text()
            time.sleep(0.02)
        for process in [*psutil.Process(started.pid).children(recursive=True), psutil.Process(started.pid)]:
            process.send_signal(signal.SIGKILL)
        started.wait()
        assert not output.exists()
    assert "going on with" in run(words, env=environment).stdout
    run([sys.executable, "-m", "toolkit", *command(finished, given, tmp_path / "whole.csv")], env=environment)
    assert output.read_bytes() == (tmp_path / "whole.csv").read_bytes()


@pytest.mark.slow
def test_a_process_that_dies_ends_the_command(finished, tmp_path):
    given, output = texts(tmp_path / "new.csv", 3200), tmp_path / "out.csv"
    words = [sys.executable, "-m", "toolkit", *command(finished, given, output, "--processes", "2")]
    started = begin(words, tmp_path / "log.txt")
    while len([*(tmp_path / "out.csv.partial").glob("0*.jsonl")]) < 2:
        assert started.poll() is None, (tmp_path / "log.txt").read_text()
        time.sleep(0.02)
    second = psutil.Process(started.pid).children()[-1]
    second.send_signal(signal.SIGKILL)
    assert started.wait() == 1
    assert "rank 1 was killed by signal 9 (SIGKILL)" in (tmp_path / "log.txt").read_text()
    assert not output.exists()
