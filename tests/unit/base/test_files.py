"""Files are written completely or not at all."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from toolkit.base.cli_errors import unexpected
from toolkit.base.errors import ConfigError, RunError
from toolkit.base.files import (
    expanded,
    naming,
    read_file,
    read_json,
    remove_leftovers,
    temporary_file,
    temporary_name,
    write_json,
    write_text,
    written_folder,
    written_whole,
)
from toolkit.config.source import read_file as load_config_file
from toolkit.tracking.jsonl import has_changed, read_metrics, truncate_metrics


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_former_file_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("former")
    with written_whole(path) as file:
        file.write("nëw\n")
        file.flush()
        assert path.read_text() == "former"
    assert path.read_bytes() == "nëw\n".encode()
    with written_whole(path, "wb") as file:
        file.write(b"\xff")
    assert path.read_bytes() == b"\xff"
    assert names(tmp_path) == ["notes.txt"]


def test_after_an_error_the_former_file_is_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    for content in (None, "former"):
        if content is not None:
            path.write_text(content)
        with pytest.raises(TypeError), written_whole(path) as file:
            file.writelines(["half", 1])
        assert names(tmp_path) == ([] if content is None else ["notes.txt"])
    assert path.read_text() == "former"


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_full_disk_leaves_the_former_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("former")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full) if failing == "fsync" else patched.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space") as raised:
            write_text(path, "née")
    message = f"{re.escape(str(path))}: No space left on device; 4 B are needed, .* are free in {tmp_path}"
    assert re.fullmatch(message, unexpected(raised.value))
    assert (path.read_text(), names(tmp_path)) == ("former", ["notes.txt"])


def test_errors_that_are_not_of_the_file_are_not_named_after_it(tmp_path: Path) -> None:
    for error in (BrokenPipeError(32, "Broken pipe"), OSError("no number"), OSError(28, "No space", "other")):
        with pytest.raises(OSError, match=r"Broken|number|other"), naming(tmp_path / "file", 7):
            raise error
        assert error.filename == ("other" if error.errno == 28 else None)


def test_a_file_reaches_the_disk_before_its_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def noted(name: str, function: Callable[..., object]) -> Callable[..., object]:
        return lambda *arguments: (begun.append(name), function(*arguments))[1]

    monkeypatch.setattr("os.fsync", noted("fsync", lambda _: None))
    monkeypatch.setattr(Path, "replace", noted("replace", Path.replace))
    write_text(tmp_path / "notes.txt", "new")
    assert begun == ["fsync", "replace", "fsync"]


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.txt").symlink_to(Path("real") / "notes.txt")
    write_text(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real" / "notes.txt").read_text() == "new"


def test_a_library_may_replace_the_temporary_file(tmp_path: Path) -> None:
    write_text(tmp_path / "notes.txt", "")
    with temporary_file(tmp_path / "a.safetensors") as file:
        save_file({"a": torch.ones(2)}, file)
        assert names(tmp_path) == [file.name, "notes.txt"]
    assert torch.equal(load_file(tmp_path / "a.safetensors")["a"], torch.ones(2))
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1, "weights are as readable as text"


def test_only_leftovers_of_ours_are_removed(tmp_path: Path) -> None:
    kept = {"notes.txt", ".notes.txt.swp", ".other.tmp", "a.toolkit-tmp"}
    for name in (*kept, temporary_name(tmp_path / "run.json").name):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert set(names(tmp_path)) == kept


def test_a_folder_whose_replacement_was_killed_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second rename is not reached, and a killed process removes nothing."""
    (tmp_path / "model").mkdir()
    write_text(tmp_path / "model" / "a", "former")
    rename = Path.rename

    def killed(path: Path, target: Path) -> Path:
        if target.name == "model":
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        patch.setattr("shutil.rmtree", lambda *arguments, **more: None)
        with pytest.raises(KeyboardInterrupt), written_folder(tmp_path / "model") as folder:
            write_text(folder / "a", "new")
    assert not (tmp_path / "model").exists()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["model"]
    assert (tmp_path / "model" / "a").read_text() == "former"


def test_what_must_precede_the_new_folder_is_done_when_it_is_complete(tmp_path: Path) -> None:
    seen = []
    (tmp_path / "model").mkdir()
    with written_folder(tmp_path / "model", lambda: seen.extend(sorted(tmp_path.rglob("*")))) as new:
        (new / "a").touch()
    assert seen == [new, new / "a", tmp_path / "model"]
    assert names(tmp_path) == ["model"]


def test_json_has_no_infinity(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": [float("nan"), (float("inf"), 1.5)], "ü": None})
    text = '{\n  "a": [\n    null,\n    [\n      null,\n      1.5\n    ]\n  ],\n  "ü": null\n}\n'
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == text


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """A pipe without a writer, or a device without an end, would never return."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "file").write_bytes(b"content")
    assert read_file(tmp_path / "file", most=7) == b"content"
    with pytest.raises(OSError, match="larger than 6 bytes"):
        read_file(tmp_path / "file", most=6)
    for name in ("pipe", "device"):
        with pytest.raises(OSError, match="not a regular file"):
            read_file(tmp_path / name)
        with pytest.raises(OSError, match="not a regular file"):
            read_metrics(tmp_path / name)
        with pytest.raises(OSError, match="not a regular file"):
            has_changed(tmp_path / name, {"bytes": 1, "sha256": ""})
        with pytest.raises(OSError, match="not a regular file"):
            read_json(tmp_path / name)
        with pytest.raises(RunError, match="not a regular file"):
            truncate_metrics(tmp_path / name, 3)
        with pytest.raises(ConfigError, match=rf"{name}: cannot be read: not a regular file"):
            load_config_file(tmp_path / name)


@pytest.mark.parametrize(
    "content", ["[" * 200_000, "[" * 101 + "]" * 101, '{"a":' * 500 + "1" + "}" * 500, "9" * 400, "\xff"]
)
def test_json_that_would_stop_the_toolkit_later_is_a_value_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=r"too deeply|digits|decode"):
        read_json(tmp_path / "a.json")


def test_json_of_the_toolkit_is_read(tmp_path: Path) -> None:
    value = {"a": [1, -(2**127), 0.5, None, {"b": "ü"}], "deep": json.loads("[" * 98 + "]" * 98)}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value


def test_a_home_folder_is_expanded_if_there_is_such_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expanded("~/rows.csv") == tmp_path / "rows.csv"
    assert expanded("~nobody-of-this-name/rows.csv") == Path("~nobody-of-this-name/rows.csv")
    assert expanded("a/~") == Path("a/~")
