"""Reasons that are not in the file: a decoder that is missing, a disk or a machine that fails just now."""

from __future__ import annotations

import errno
import io
import sys
from pathlib import Path
from typing import Any

import datasets
import pillow_heif
import pytest
from audio_files import encoded as recording
from audio_files import tone
from image_files import encoded, noise
from pictures_task import Pictures

from toolkit.api.batch import BadRow
from toolkit.base.errors import DataError
from toolkit.data.media import files
from toolkit.data.row_cache import decoders
from toolkit.data.table import load_table
from toolkit.modalities import audio, image, image_files
from toolkit.modalities.options import AudioOptions, ImageOptions


class Options:
    image = ImageOptions()
    audio = AudioOptions()


class Photos(Pictures):
    """Images that must be decodable."""

    def check_row(self, row: dict[str, Any], labelled: bool) -> dict[str, Any]:
        image.check(row["image"], Options())
        return row


class Texts(Pictures):
    columns = {name: column for name, column in Pictures.columns.items() if not column.file}  # noqa: RUF012
    checked = 0

    def schema(self) -> datasets.Features:
        return datasets.Features({"label": datasets.Value("string")})

    def check_row(self, row: dict[str, Any], labelled: bool) -> dict[str, Any]:
        self.checked += 1
        return row


@pytest.fixture
def photos(tmp_path) -> Path:
    buffer = io.BytesIO()
    pillow_heif.from_pillow(noise(4, 4).convert("RGB")).save(buffer)
    (tmp_path / "set" / "a").mkdir(parents=True)
    (tmp_path / "set" / "a" / "1.heic").write_bytes(buffer.getvalue())
    return tmp_path / "set"


def test_a_row_that_needed_a_decoder_is_good_once_it_is_installed(photos, tmp_path, monkeypatch):
    image_files.image_formats.cache_clear()
    with monkeypatch.context() as hidden:
        hidden.setitem(sys.modules, "pillow_heif", None)
        before = load_table(photos, Photos(), {}, True, tmp_path / "cache")
        assert "pillow-heif, which is not installed" in before.bad[0].reason
    image_files.image_formats.cache_clear()
    assert load_table(photos, Photos(), {}, True, tmp_path / "cache").bad == []


def test_decoders_are_known_with_their_versions(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert decoders().keys() == {"pillow", "pillow-heif", "soundfile", "av"}
    (tmp_path / "ffmpeg").touch(0o755)
    monkeypatch.setitem(sys.modules, "av", None)
    assert decoders().keys() == {"pillow", "pillow-heif", "soundfile", "ffmpeg"}


def test_rows_without_files_do_not_depend_on_decoders(tmp_path, monkeypatch):
    (tmp_path / "rows.csv").write_text("label\na\n")
    task = Texts()
    for _ in range(2):
        load_table(tmp_path / "rows.csv", task, {}, True, tmp_path / "cache")
        monkeypatch.setitem(sys.modules, "av", None)
    assert task.checked == 1


FAILURES = [OSError(errno.EIO, "Input/output error"), OSError(errno.EMFILE, "Too many open files"), MemoryError()]


@pytest.mark.parametrize("failure", FAILURES, ids=repr)
@pytest.mark.parametrize(("modality", "name"), [(image, "1.png"), (audio, "1.wav")])
def test_a_failure_of_the_machine_is_no_bad_row(modality, name, failure, tmp_path, monkeypatch):
    (tmp_path / name).write_bytes(encoded(noise(4, 4)) if modality is image else recording(tone(0.5)))
    file = files.reference(name, tmp_path, 1)

    def failing(file: Any) -> Any:
        raise failure

    with monkeypatch.context() as patched:
        for place in ("image_files", "audio_files"):
            patched.setattr(f"toolkit.modalities.{place}.open_file", failing)
        with pytest.raises(DataError, match=rf"^{name}.*(could not be read|not enough memory)"):
            modality.check(file, Options())
        failure = PermissionError(errno.EACCES, "Permission denied")  # of the file
        with pytest.raises(BadRow, match=rf"^{name}: cannot be decoded"):
            modality.check(file, Options())
    modality.check(file, Options())


def test_a_failure_leaves_nothing_in_the_cache(photos, tmp_path, monkeypatch):
    opened = Path.stat

    def failing(path: Path, **arguments: Any) -> Any:
        if path.suffix == ".heic":
            raise OSError(errno.ESTALE, "Stale file handle")
        return opened(path, **arguments)

    image_files.image_formats.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", failing)
        with pytest.raises(DataError, match=r"1\.heic could not be read: Stale file handle"):
            load_table(photos, Photos(), {}, True, tmp_path / "cache")
    assert load_table(photos, Photos(), {}, True, tmp_path / "cache").bad == []
