"""Log records of the logger `toolkit`, which command lines print."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from toolkit.base.console import (
    LOGGER,
    counted,
    log_to_console,
    print_table,
    printable,
    progress,
    report_error,
    say,
    warn,
)


@pytest.fixture
def records(monkeypatch):
    """Returns the records that a handler of a library user receives."""
    got: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: got.append(f"{record.levelname} {record.getMessage()}")
    LOGGER.addHandler(handler)
    yield got
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(logging.INFO)


def speak() -> None:
    say("a line", blank_line_before=True)
    warn("a warning")
    print_table("a table", {"steps": 3})
    report_error("an error")


def test_a_command_line_prints_lines_and_a_handler_gets_records(records, capsys):
    log_to_console()
    speak()
    printed = capsys.readouterr()
    first, *table = printed.out.split("a table")
    assert first == "\na line\nwarning: a warning\n"
    assert "steps" in table[0]
    assert printed.err == "\nan error\n"
    assert records[:2] == ["INFO a line", "WARNING a warning"]
    assert records[2].startswith("INFO a table\n")
    assert "steps" in records[2]
    assert records[3:] == ["ERROR an error"]


def test_a_title_is_not_wrapped_to_the_width_of_its_table(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    log_to_console()
    title = "demo on validation.csv: 120 rows, 3 skipped as unusable (2.4%)"
    print_table(title, {"loss": 0.5})
    assert capsys.readouterr().out.splitlines()[:2] == [title, " loss  0.5 "]


def test_one_is_not_a_plural():
    assert [counted(number, "row") for number in (0, 1, 1234)] == ["0 rows", "1 row", "1,234 rows"]


def test_lines_and_bars_can_be_turned_down(records, capsys):
    log_to_console()
    assert not progress(3, "train").disable
    LOGGER.setLevel(logging.WARNING)
    log_to_console()  # keeps a level that was set
    speak()
    assert records == ["WARNING a warning", "ERROR an error"]
    assert capsys.readouterr().out == "warning: a warning\n"
    assert progress(3, "train").disable


def test_other_ranks_report_errors_only(records, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    speak()
    assert records == ["ERROR an error"]


def test_importing_the_toolkit_is_quick_and_installs_nothing():
    script = (
        "import sys, logging, time; start = time.perf_counter(); import toolkit; took = time.perf_counter() - start\n"
        "from toolkit.base.console import warn, progress; warn('nobody sees this'); assert progress(1, 'x').disable\n"
        "assert not logging.root.handlers; assert 'torch' not in sys.modules; assert took < 0.3, took\n"
        "assert {'train', 'load', 'ConfigError', '__version__'} <= set(dir(toolkit))\n"
        "assert toolkit.ConfigError.__module__ == 'toolkit.base.errors'\n"
        "assert all(hasattr(toolkit, name) for name in toolkit.__all__)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


def test_control_characters_do_not_reach_the_terminal(capsys):
    log_to_console()
    nasty = "\x1b]0;title\x07 \x9b2J\r\x7f"
    say(f"a{nasty}\n\tb")
    warn(nasty)
    report_error(nasty)
    print_table(nasty, {nasty: nasty})
    out, err = capsys.readouterr()
    assert out.startswith("a\\x1b]0;title\\x07 \\x9b2J\\x0d\\x7f\n\tb\n")
    assert not [character for character in out + err if ord(character) < 32 and character not in "\n\t"]
    assert not {"\x7f", "\x9b"} & set(out + err)
    assert printable("\ud800") == "\\xd800"
