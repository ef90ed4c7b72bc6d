"""Recordings with transcripts: the layouts of folders and archives, and what is without the other."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from audio_files import encoded, tone
from containers import tar_of, zip_of

from toolkit.base.errors import DataError
from toolkit.data.media.files import open_file, reference
from toolkit.data.readers.raw import RECOGNISED, Reading
from toolkit.data.sources import fingerprint, folder_of, read_rows, reading_notes

SOUND = encoded(tone(0.1))


def tree(folder: Path, *recordings: str, **texts: str | bytes) -> Path:
    """Writes recordings, and files with texts: their names have `__` for a slash and `_` for a dot."""
    for name in recordings:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(SOUND)
    for name, text in texts.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def rows(source: Path, labelled: bool = True, reading: Reading = RECOGNISED) -> list[dict[str, Any]]:
    """Returns the usable rows, whose recordings are there."""
    found = [row for row in read_rows(source, reading, labelled) if row.reason is None]
    for row in found:
        with open_file(reference(row.values["audio"], folder_of(source), row.number)) as file:
            assert file.read() == SOUND
    return [row.values for row in found]


def reasons(source: Path, labelled: bool = True) -> list[str]:
    return [row.reason for row in read_rows(source, labelled=labelled) if row.reason]


def texts_beside(folder: Path) -> Path:
    return tree(folder, "a.wav", "in/b.FLAC", a_txt="two\nlines \n", in__b_txt="one")


def tar_with(archive: Path) -> Path:
    """Writes an archive in which a transcript is a link to something else."""
    link = tarfile.TarInfo("a.txt")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    sound = tarfile.TarInfo("a.wav")
    sound.size = len(SOUND)
    with tarfile.open(archive, "w") as tar:
        tar.addfile(sound, io.BytesIO(SOUND))
        tar.addfile(link)
    return archive


def librispeech(folder: Path) -> Path:
    lines = "84-121123-0000 GO\n\n84-121123-0001 AND SO ON\n"
    names = [f"84/121123/84-121123-000{n}.flac" for n in range(2)]
    path = tree(folder, *names) / "84/121123/84-121123.trans.txt"
    path.write_text(lines)
    return folder


def audiofolder(folder: Path) -> Path:
    table = 'file_name,transcription,speaker_id\na.wav,"Yes, I do",7\nin/b.wav,So,8\n'
    return tree(folder, "a.wav", "in/b.wav", metadata_csv="\ufeff" + table)


def ljspeech(folder: Path) -> Path:
    lines = 'LJ001-0001|Dr. "No said 2|Doctor "No said two\nLJ001-0002|Only raw\n'
    return tree(folder, "wavs/LJ001-0001.wav", "wavs/LJ001-0002.wav", metadata_csv=lines, README="about")


LAYOUTS = {
    texts_beside: [("two lines", None), ("one", None)],
    librispeech: [("GO", "84"), ("AND SO ON", "84")],
    audiofolder: [("Yes, I do", None), ("So", None)],
    ljspeech: [('Doctor "No said two', None), ("Only raw", None)],
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("pack", [None, tar_of, zip_of])
def test_a_layout_gives_recordings_with_their_transcripts(layout, pack, tmp_path) -> None:
    folder = layout(tmp_path / "speech")
    source = pack(folder, tmp_path / f"speech.{'tar' if pack is tar_of else 'zip'}") if pack else folder
    found = rows(source)
    assert [(row["text"], row.get("speaker")) for row in found] == LAYOUTS[layout]
    assert reasons(source) == []
    assert rows(source, labelled=False) == [{**row} for row in map(without_label, found)]


def without_label(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "label"}


def test_further_columns_of_metadata_are_kept(tmp_path) -> None:
    assert [row["speaker_id"] for row in rows(audiofolder(tmp_path))] == ["7", "8"]
    parts = "file_name;start;end;sentence\na.wav;0;0.05;one\na.wav;0.05;0.1;two\n"
    found = rows(tree(tmp_path / "parts", "a.wav", metadata_csv=parts))
    assert [(row["audio"], row["start"], row["text"]) for row in found] == [
        ("a.wav", "0", "one"), ("a.wav", "0.05", "two"),
    ]  # fmt: skip
    labels = tree(tmp_path / "labels", "a.wav", "b.wav", metadata_csv="file_name,label\na.wav,yes\nb.wav,no\n")
    assert rows(labels) == [{"audio": "a.wav", "label": "yes"}, {"audio": "b.wav", "label": "no"}]


def test_what_is_without_the_other_is_named(tmp_path) -> None:
    plain = tree(tmp_path / "plain", "a.wav", "b.wav", "c.wav", a_txt="one", b_txt=" \n", z_txt="lost", README_txt="?")
    assert reasons(plain) == [
        "b.wav: has no transcript", "c.wav: has no transcript", "z: a transcript without a recording",
    ]  # fmt: skip
    assert reasons(tar_of(plain, tmp_path / "plain.tar")) == reasons(plain)
    assert reasons(plain, labelled=False) == reasons(plain)[2:]  # predictions need no transcripts
    libri = librispeech(tmp_path / "libri")
    (libri / "84/121123/84-121123-0001.flac").rename(libri / "84/121123/84-121123-0007.flac")
    assert reasons(libri) == [
        "84/121123/84-121123-0001: a transcript without a recording",
        "84/121123/84-121123-0007.flac: has no transcript",
    ]
    table = audiofolder(tmp_path / "table")
    (table / "in/b.wav").rename(table / "new.wav")
    assert reasons(table) == ["new.wav: has no transcript"]
    assert [row.values["audio"] for row in read_rows(table) if not row.reason] == ["a.wav", "in/b.wav"]
    with pytest.raises(Exception, match=r"there is no file in/b.wav"):  # as of every table
        rows(table)


def test_bad_lines_are_named_and_two_transcripts_are_two_rows(tmp_path) -> None:
    table = "file_name,text\na.wav\nb.wav,one,two\nc.wav,three\n"
    folder = tree(tmp_path / "x", "a.wav", "b.wav", "c.wav", metadata_csv=table, c_txt="four")
    said = reasons(folder)
    assert "metadata.csv, line 2: 1 fields where the header has 2" in said
    assert "metadata.csv, line 3: 3 fields where the header has 2" in said
    assert len(said) == 2
    assert [row["text"] for row in rows(folder)] == ["four", "three"]  # both of c.wav
    other = tree(tmp_path / "y", "yes/a.wav", "no/b.wav", metadata_csv="name,size\na,1\n")
    assert reasons(other) == ["metadata.csv: has no column file_name, and is not LJSpeech's `id|transcript`"]
    assert [row["label"] for row in rows(other)] == ["no", "yes"]


def test_folders_of_classes_stay_folders_of_classes(tmp_path) -> None:
    folder = tree(tmp_path / "x", "yes/a.wav", "no/b.wav", README_txt="about", yes__notes_txt="about")
    assert rows(folder) == [{"audio": "no/b.wav", "label": "no"}, {"audio": "yes/a.wav", "label": "yes"}]
    assert "2 text files are skipped" in reading_notes(folder, RECOGNISED)[0]
    before = fingerprint(folder)
    (folder / "README.txt").write_text("changed")
    assert fingerprint(folder) == before
    tree(folder, yes__a_txt="the words")
    assert rows(folder) == [
        {"audio": "no/b.wav", "label": "no", "text": None},
        {"audio": "yes/a.wav", "label": "yes", "text": "the words"},
    ]
    assert "2 text files are skipped (README.txt)" in reading_notes(folder, RECOGNISED)[0]


def test_a_text_about_the_data_is_a_transcript_only_of_a_recording_of_its_name(tmp_path) -> None:
    folder = tree(tmp_path, "a.wav", "notes.wav", a_txt="one", notes_txt="two", licence_txt="three")
    assert [row["text"] for row in rows(folder)] == ["one", "two"]
    assert reasons(folder) == []


def test_a_folder_of_neither_says_what_is_expected(tmp_path) -> None:
    for source in (folder := tree(tmp_path / "x", "a.wav"), tar_of(folder, tmp_path / "x.tar")):
        with pytest.raises(DataError, match=r"recordings with their transcripts \(a.wav and a.txt\)"):
            rows(source)
        assert rows(source, labelled=False) == [{"audio": "a.wav"}]


def test_transcripts_are_part_of_the_fingerprint(tmp_path) -> None:
    for layout in LAYOUTS:
        folder = layout(tmp_path / layout.__name__)
        before = fingerprint(folder)
        (file,) = [*folder.rglob("*.trans.txt"), *folder.rglob("metadata.csv"), *folder.glob("a.txt")]
        file.write_text(file.read_text(encoding="utf-8-sig").lower() + " ", encoding="utf-8")
        assert fingerprint(folder) != before, layout


def test_encodings_of_transcripts(tmp_path) -> None:
    texts = {"a_txt": "café".encode("latin-1"), "b_txt": "Grüße".encode("utf-16"), "c_txt": b"\xef\xbb\xbfna\xc3\xafve"}
    folder = tree(tmp_path, "a.wav", "b.wav", "c.wav", **texts)
    assert reasons(folder) == ["column 'text' is not UTF-8 text (byte 0xe9 at character 4)"]
    assert [row["text"] for row in rows(folder, reading=Reading(encoding="latin-1"))] == ["café", "Grüße", "naïve"]
    (folder / "b.txt").write_bytes(b"\xff\xfe\x00")
    assert sum("column 'text' is not UTF-8 text" in reason for reason in reasons(folder)) == 2
    loose = tar_with(tmp_path / "x.tar")
    with pytest.raises(DataError, match=r"a.txt, a file with transcripts, cannot be read: is a link"):
        rows(loose)


def test_recordings_of_tables_may_be_in_clips_or_wavs_beside_them(tmp_path) -> None:
    for folder in ("clips", "wavs"):
        table = tree(tmp_path / folder, f"{folder}/a.wav", "b.wav") / "train.tsv"
        table.write_text("client_id\tpath\tsentence\n1\ta.wav\tHello\n2\tb.wav\tThere\n3\tc.wav\tNo\n")
        found = [reference(row.values["path"], folder_of(table), 1)["path"] for row in list(read_rows(table))[:2]]
        assert found == [str(table.parent / folder / "a.wav"), str(table.parent / "b.wav")]
        with pytest.raises(Exception, match=rf"there is no file c.wav \(tried {table.parent}/c.wav\)"):
            reference("c.wav", folder_of(table), 1)


def test_files_in_tables_have_transcripts_beside_them(tmp_path) -> None:
    content = [{"bytes": SOUND, "path": name} for name in ("a.wav", None)]
    parquet.write_table(pa.table({"audio": content, "text": ["one", "two"]}), tmp_path / "x.parquet")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        sounds = file.create_dataset("audio", 2, h5py.vlen_dtype(np.uint8))
        sounds[:] = [np.frombuffer(SOUND, np.uint8)] * 2
        file.create_dataset("text", data=["one", "two"], dtype=h5py.string_dtype())
    for name in ("x.parquet", "x.h5"):
        assert [row["text"] for row in rows(tmp_path / name)] == ["one", "two"]


def test_several_folders_to_predict_keep_their_transcripts(tmp_path) -> None:
    one, two = texts_beside(tmp_path / "one"), librispeech(tmp_path / "two")
    found = [row.values for row in read_rows([str(one), str(two)], labelled=False)]
    assert [row["text"] for row in found] == ["two lines", "one", "GO", "AND SO ON"]
    assert found[0]["audio"] == str(one / "a.wav")
