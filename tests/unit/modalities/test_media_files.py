"""Photos of phones and recordings of call centres: HEIC, AAC, WebP, and what to install for them."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
from audio_files import compressed, tone
from audio_files import encoded as recording
from image_files import encoded, noise
from PIL import Image

from toolkit.api.batch import BadRow
from toolkit.data.media.files import reference
from toolkit.modalities import audio, image, image_files
from toolkit.modalities.audio_files import FORMATS
from toolkit.modalities.options import AudioOptions, ImageOptions


class Options:
    image = ImageOptions()
    audio = AudioOptions()


def written(folder: Path, name: str, content: bytes) -> dict[str, Any]:
    (folder / name).write_bytes(content)
    return reference(name, folder, 1)


@pytest.fixture
def without_heif(monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    image_files.image_formats.cache_clear()
    yield
    image_files.image_formats.cache_clear()


def test_webp_and_heic_are_decoded(tmp_path):
    smooth = Image.linear_gradient("L").resize((40, 24)).convert("RGB")
    assert np.array_equal(
        image.decode(written(tmp_path, "a.webp", encoded(smooth, "WEBP", lossless=True)), 999), smooth
    )
    buffer = io.BytesIO()
    pillow_heif.from_pillow(smooth).save(buffer, quality=-1)
    decoded = image.decode(written(tmp_path, "IMG_1.HEIC", buffer.getvalue()), 999)
    assert decoded.size == (40, 24)
    assert np.abs(np.asarray(decoded, int) - np.asarray(smooth, int)).max() <= 3


def test_without_the_library_the_message_says_what_to_install(tmp_path, without_heif):
    with pytest.raises(BadRow) as error:
        image.check(written(tmp_path, "IMG_1.HEIC", b"any"), Options())
    assert str(error.value) == (
        "IMG_1.HEIC: HEIC images need pillow-heif, which is not installed; pip install 'finetune-toolkit[heic]', or "
        "convert them to JPEG"
    )
    assert image.decode(written(tmp_path, "a.png", encoded(noise(4, 4))), 99).size == (4, 4)
    with pytest.raises(BadRow, match=r"\(PNG, JPEG, WEBP, BMP, GIF, TIFF\)"):
        image.check(written(tmp_path, "a.jpg", b"any"), Options())


@pytest.mark.parametrize(
    ("name", "form", "codec"),
    [("call.m4a", "ipod", "aac"), ("CALL.AAC", "adts", "aac"), ("call.wma", "asf", "wmav2"), ("call.opus", "OGG", "")],
)
def test_other_formats_are_decoded_like_the_wave_they_were_made_from(tmp_path, name, form, codec):
    wave = tone(1.5)
    content = compressed(wave, form, codec) if codec else recording(wave, form=form, subtype="OPUS")
    file = audio.check(written(tmp_path, name, content), Options())
    assert file["rate"] == 16000
    assert file["frames"] == pytest.approx(len(wave), abs=4200)  # codecs pad to full blocks
    clip = audio.read(file, 16000, AudioOptions(), None)
    assert len(clip) == file["frames"]
    middle = slice(6000, 18000)
    assert np.abs(np.fft.rfft(clip[middle])).argmax() == np.abs(np.fft.rfft(wave[middle, 0])).argmax()
    assert np.array_equal(clip, audio.read(file, 16000, AudioOptions(), None))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"words", "cannot be decoded: "),
        (compressed(tone(1.0))[:900], "cannot be decoded: "),
        (b"ffconcat version 1.0\nfile other.m4a\n", "cannot be decoded: Invalid argument"),  # names another file
    ],
)
def test_a_broken_file_is_a_bad_row(tmp_path, content, reason):
    with pytest.raises(BadRow, match=f"^call.m4a: {reason}"):
        audio.check(written(tmp_path, "call.m4a", content), Options())


FFMPEG = f"""#!{sys.executable}
import shutil, sys
from pathlib import Path
place = Path(__file__).parent
(place / "arguments").write_text(" ".join(sys.argv[1:]))
if not (place / "wave").exists():
    sys.exit(sys.argv[sys.argv.index("-i") + 1] + ": Invalid data found")
shutil.copy(place / "wave", sys.argv[-1])
"""


@pytest.fixture
def ffmpeg(tmp_path, monkeypatch) -> Path:
    """Returns the folder of a program `ffmpeg` that answers with the file `wave` beside it; PyAV is missing."""
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def test_without_pyav_the_program_ffmpeg_decodes(tmp_path, ffmpeg):
    program = ffmpeg / "ffmpeg"
    program.write_text(FFMPEG)
    program.chmod(0o755)
    (ffmpeg / "wave").write_bytes(recording(tone(0.5), subtype="FLOAT"))
    assert audio.check(written(tmp_path, "-call.m4a", b"any"), Options())["frames"] == 8000
    assert f"-nostdin -format_whitelist {FORMATS} -i /" in (ffmpeg / "arguments").read_text()
    (ffmpeg / "wave").unlink()
    with pytest.raises(BadRow, match=r"^call\.wma: .*ffmpeg: it: Invalid data found$"):
        audio.check(written(tmp_path, "call.wma", b"any"), Options())


def test_without_both_the_message_names_the_ways_out(tmp_path, ffmpeg):
    with pytest.raises(BadRow) as error:
        audio.check(written(tmp_path, "call.m4a", b"any"), Options())
    assert str(error.value) == (
        "call.m4a: .m4a files need PyAV (pip install 'finetune-toolkit[m4a]') or the program ffmpeg, or "
        "convert them: ffmpeg -i call.m4a call.wav"
    )


@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_that_is_checked_at_a_small_size_is_read_whole(tmp_path, progressive):
    blank, dot = (Image.new("RGB", (640, 480), "white") for _ in range(2))
    dot.putpixel((333, 222), (225, 225, 225))  # half a grey value of the block that it is in
    blank, dot, busy = (
        encoded(each, "JPEG", quality=95, progressive=progressive) for each in (blank, dot, noise(480, 640, 3))
    )
    found = [image.check(written(tmp_path, "a.jpg", each), Options())["flat"] for each in (blank, dot, busy)]
    assert found == [True, False, False]
    narrow = encoded(noise(200, 7, 3), "JPEG", progressive=progressive)
    assert not image.check(written(tmp_path, "a.jpg", narrow), Options())["flat"]
    with pytest.raises(BadRow, match=r"^a\.jpg: cannot be decoded: "):
        image.check(written(tmp_path, "a.jpg", busy[: len(busy) * 9 // 10]), Options())


def test_empty_files_say_so(tmp_path):
    for name in ("call.m4a", "photo.png"):
        with pytest.raises(BadRow, match=f"^{name}: the file is empty \\(0 bytes\\)$"):
            written(tmp_path, name, b"")
