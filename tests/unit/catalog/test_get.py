"""`toolkit data get`: converts published datasets into the files that recipes read, and verifies them.

The sources here are small, or made from the real datasets where a machine has them; none is downloaded from elsewhere.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest
from image_files import drawn, write_batches
from PIL import Image

from toolkit.base.errors import InputError
from toolkit.catalog import entries
from toolkit.catalog.entries import CATALOG, CIFAR_CLASSES, CLASSES, Source, command_for
from toolkit.catalog.get import NOTE, DownloadError, digest, download, get_dataset
from toolkit.commands.cli import main as toolkit_command
from toolkit.config.paths import DATA_FILES, data_file_problems
from toolkit.recipe import load_settings, load_task_type

AGXQA = CATALOG["agxqa"].sources[0].file


def dealt(count: int, seed: int = 0) -> list[int]:
    """Returns the numbers below `count` in the order of `random.shuffle`."""
    numbers = list(range(count))
    random.Random(seed).shuffle(numbers)
    return numbers


def write_agxqa(mirror: Path, documents: list[dict]) -> None:
    (mirror / AGXQA).write_text(json.dumps({"data": documents}, indent=2), encoding="utf-8")


def write_sprite(mirror: Path, cell: Callable[[int, int], Image.Image | None]) -> None:
    """Writes Fashion-MNIST's sprite from its cells by class and number."""
    sprite = Image.new("L", (840, 840))
    for number in range(len(CLASSES)):
        for index in range(90):
            if image := cell(number, index):
                sprite.paste(image, (index % 30 * 28, (number * 3 + index // 30) * 28))
    sprite.save(mirror / "fashion-mnist-sprite.png")


def write_archive(mirror: Path, clips: dict[str, bytes], extra: list[tarfile.TarInfo] | None = None) -> None:
    with tarfile.open(mirror / "free-spoken-digit-dataset.tar.gz", "w:gz", compresslevel=1) as archive:
        for member in extra or []:
            archive.addfile(member)
        for name, content in clips.items():
            member = tarfile.TarInfo(f"free-spoken-digit-dataset-1/recordings/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def clip_names() -> list[str]:
    """Returns the names of clips in the archive, including some that are not used."""
    speakers = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
    clips = (*range(20), *range(20, 50, 2))
    return [f"{digit}_{speaker}_{clip}.wav" for digit in range(10) for speaker in speakers for clip in clips]


def shades(number: int, index: int) -> Image.Image:
    return Image.new("L", (28, 28), number * 25 + index % 25)


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    """Returns a folder with small sources of the texts in their published format."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    write_agxqa(folder, [{"paragraphs": [{"context": f"Maïs {n}", "qas": []}]} for n in range(20)])
    (folder / "custrev.all").write_bytes("".join(f"{n % 2} caf\xe9 {n:02d} . \n" for n in range(30)).encode("latin-1"))
    (folder / "amazon_cells_labelled.txt").write_text("Good\tcase \t1\nGood\tcase\t1\nBad.\t0\n", encoding="utf-8")
    for part, count in (("train", 3), ("val", 2)):
        for language, text in (("en", "A dog"), ("de", "Ein Hündchen\u2028 ")):
            lines = "".join(f"{text} {n} \n" for n in range(count))
            (folder / f"{part}.{language}.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    write_wikitext2(folder)
    return folder


def write_wikitext2(mirror: Path, train: str = " \n = Lobster = \r\n\n") -> None:
    with zipfile.ZipFile(mirror / "wikitext-2-raw-v1.zip", "w") as archive:
        for part, text in (("train", train), ("valid", " = Maïs = \n"), ("test", " = Robert = \n")):
            archive.writestr(f"wikitext-2-raw/wiki.{part}.raw", text)


def made(name: str, mirror: Path, tmp_path: Path) -> Path:
    return get_dataset(name, tmp_path / "data", mirror)


def test_agxqa_is_dealt_out_by_document(mirror, tmp_path):
    folder = made("agxqa", mirror, tmp_path)
    train, validation = (json.loads((folder / f"{part}.json").read_text("utf-8")) for part in ("train", "validation"))
    contexts = [document["paragraphs"][0]["context"] for document in (*train["data"], *validation["data"])]
    assert contexts == [f"Maïs {n}" for n in dealt(20)[:17]]
    assert (train["version"], len(train["data"]), len(validation["data"])) == ("1.1", 14, 3)


def test_questions_of_agxqa_are_paired_with_texts_of_their_own_part(mirror, tmp_path):
    """A text in which the same question is asked is no wrong answer, and no text or question is in both parts."""

    def document(number: int) -> dict:
        questions = ["what is said?", f"is it {number}?"] if number % 2 else [f"is it {number}? "]
        return {"paragraphs": [{"context": f"Maïs {number}", "qas": [{"question": text} for text in questions]}]}

    write_agxqa(mirror, [document(n) for n in range(20)])
    folder, order = made("agxqa", mirror, tmp_path), dealt(20)
    for part, numbers in (("train", order[:14]), ("validation", order[14:17])):
        with (folder / f"relevance_{part}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        right = {(row["question"], row["context"]) for row in rows if row["label"] == "relevant"}
        wrong = [(row["question"], row["context"]) for row in rows if row["label"] == "not relevant"]
        own = {(text["question"].strip(), f"Maïs {n}") for n in numbers for text in document(n)["paragraphs"][0]["qas"]}
        assert right == own
        assert len(wrong) == len(set(wrong))
        assert not set(wrong) & own
        assert {text for _, text in wrong} <= {f"Maïs {n}" for n in numbers}
        others = {"what is said?": sum(n % 2 == 0 for n in numbers)}
        for question in {question for question, _ in own}:
            found = sum(each == question for each, _ in wrong)
            assert found == min(3, others.get(question, len(numbers) - 1))


def test_customer_reviews_are_joined_without_duplicates(mirror, tmp_path):
    folder = made("customer_reviews", mirror, tmp_path)
    rows = []
    for part, count in (("train", 24), ("validation", 3)):
        with (folder / f"{part}.csv").open(encoding="utf-8", newline="") as file:
            header, *found = csv.reader(file)
        assert header == ["text", "label"]
        assert len(found) == count
        rows += found
    known = {f"café {n:02d} .": "positive" if n % 2 else "negative" for n in range(30)}
    known |= {"Good\tcase": "positive", "Bad.": "negative"}
    everything = sorted(known.items())
    assert rows == [list(everything[place]) for place in dealt(32)[:27]]


def test_multi30k_is_paired_by_line(mirror, tmp_path):
    folder = made("multi30k", mirror, tmp_path)
    for part, count in (("train", 3), ("validation", 2)):
        rows = [json.loads(line) for line in (folder / f"{part}.jsonl").read_text("utf-8").split("\n")[:-1]]
        assert rows == [{"translation": {"en": f"A dog {n}", "de": f"Ein Hündchen\u2028  {n}"}} for n in range(count)]


def test_fashion_is_cut_out_of_the_sprite(mirror, tmp_path):
    write_sprite(mirror, shades)
    folder = made("fashion", mirror, tmp_path)
    for number, name in enumerate(CLASSES):
        for index, cell in enumerate(dealt(90, number)[:75]):
            path = folder / ("train" if index < 60 else "validation") / name / f"{index:03d}.png"
            with Image.open(path) as image:
                assert (image.size, set(image.tobytes())) == ((28, 28), {number * 25 + cell % 25})
    assert len(list(folder.rglob("*.png"))) == 750


def test_spoken_digits_are_taken_by_speaker(mirror, tmp_path):
    write_archive(mirror, {name: name.encode() for name in clip_names()})
    folder = made("spoken_digits", mirror, tmp_path)
    assert (folder / "train/7/lucas_48.wav").read_bytes() == b"7_lucas_48.wav"
    parts = [{path.name for path in (folder / part).rglob("*.wav")} for part in ("train", "validation", "test")]
    assert parts[0] == {
        f"{name}_{n}.wav" for name in ("george", "jackson", "lucas", "nicolas") for n in range(6, 50, 2)
    }
    assert parts[1:] == [{f"theo_{n}.wav" for n in range(5, 20)}, {f"theo_{n}.wav" for n in range(5)}]


def write_librispeech(mirror: Path, speakers: int = 7, lost: str = "") -> None:
    """Writes the archive of so many speakers, each with a chapter of two recordings, of which one may be lost."""
    with tarfile.open(mirror / "dev-clean.tar.gz", "w:gz", compresslevel=1) as archive:
        files = {"LibriSpeech/SPEAKERS.TXT": b"about", "LibriSpeech/dev-clean/../../9-9-9.flac": b"elsewhere"}
        for number in range(speakers):
            folder, chapter = f"LibriSpeech/dev-clean/{9 * number + 1}/5/", f"{9 * number + 1}-5"
            files |= {f"{folder}{chapter}-000{n}.flac": f"sound {number} {n}".encode() for n in range(2)}
            lines = [f"{chapter}-000{n} SAID BY {number}, {n}\n" for n in range(2)]
            files[f"{folder}{chapter}.trans.txt"] = "".join(lines).encode()
        files["LibriSpeech/dev-clean/9/9/9-9.trans.txt"] = b"9-9-9 ELSEWHERE\n"
        for name, content in files.items():
            if not lost or lost not in name:
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def test_whole_speakers_of_librispeech_are_in_one_part_with_their_transcripts(mirror, tmp_path):
    write_librispeech(mirror)
    lines: list[str] = []
    folder = get_dataset("librispeech_dev_clean", tmp_path / "data", mirror, lines.append)
    assert "CC BY 4.0" in "\n".join(lines)
    assert "The source has changed: dev-clean.tar.gz" in "\n".join(lines)  # the published one is 338 MB
    speakers = {}
    for part in ("train", "validation", "test"):
        with (folder / f"{part}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert all((folder / row["audio"]).is_file() and row["text"].isupper() for row in rows)
        speakers[part] = {int(row["speaker"]) for row in rows}
        assert all(row["audio"].startswith(f"{row['speaker']}/{row['speaker']}-") for row in rows)
    assert speakers == {"train": {1, 9, 10, 19, 46, 55}, "validation": {28}, "test": {37}}  # by number, not as text
    with (folder / "train.csv").open(encoding="utf-8", newline="") as file:
        assert next(csv.DictReader(file)) == {"audio": "1/1-5-0000.flac", "text": "SAID BY 0, 0", "speaker": "1"}
    assert (folder / "1/1-5-0001.flac").read_bytes() == b"sound 0 1"
    assert not list(tmp_path.parent.glob("9-9*"))


def test_recordings_of_librispeech_without_transcripts_are_named(mirror, tmp_path):
    for lost, named in (("10-5-0001.flac", "10-5-0001"), ("19-5.trans", "19-5-0000, 19-5-0001")):
        write_librispeech(mirror, lost=lost)
        with pytest.raises(DownloadError, match=rf"the source .* alone are {named}"):
            made("librispeech_dev_clean", mirror, tmp_path)


SICK_HEADER = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"


def write_sick(mirror: Path, header: str = SICK_HEADER) -> dict[str, str]:
    """Writes the three published files, and returns their texts by part."""
    files = {"train": "SICK_train.txt", "validation": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
    texts = {part: f'{header}{n}\tA "dog" runs\tNobody runs\t3.5\tNEUTRAL\n' for n, part in enumerate(files)}
    for part, file in files.items():
        (mirror / file).write_bytes(texts[part].encode())
    return texts


def test_sick_has_its_published_parts(mirror, tmp_path):
    texts = write_sick(mirror)
    folder = made("sick", mirror, tmp_path)
    assert {part: (folder / f"{part}.tsv").read_bytes().decode() for part in texts} == texts


def test_trec_qa_has_its_published_parts(mirror, tmp_path):
    files = {"train": "train.csv", "validation": "dev.csv", "test": "test.csv"}
    texts = {part: f'qtext,label,atext\nwho,{n},"a, b"\n' for n, part in enumerate(files)}
    for part, file in files.items():
        (mirror / file).write_text(texts[part])
    folder = made("trec_qa", mirror, tmp_path)
    assert {part: (folder / f"{part}.csv").read_text() for part in texts} == texts


def test_another_file_is_not_taken_for_sick(mirror, tmp_path):
    write_sick(mirror, header="<html>\n")
    with pytest.raises(DownloadError, match=r"SICK_train.txt does not begin with the names of the columns"):
        made("sick", mirror, tmp_path)


@pytest.mark.real
def test_known_checksums_are_of_the_published_files(real_data):
    for name in ("sick", "trec_qa"):
        if not (real_data / name).is_dir():
            pytest.skip(f"not here: run `toolkit data get {name}`")
        for file in (real_data / name).glob("*.[ct]sv"):
            assert digest(file) == CATALOG[name].sha256[file.name]


def test_wikitext2_has_its_published_parts(mirror, tmp_path):
    folder = made("wikitext2", mirror, tmp_path)
    texts = [(folder / f"{part}.txt").read_bytes().decode() for part in ("train", "validation", "test")]
    assert texts == [" \n = Lobster = \r\n\n", " = Maïs = \n", " = Robert = \n"]


def test_published_test_images_of_cifar10_are_in_no_other_part(mirror, tmp_path):
    batches = {f"data_batch_{n}": [(c, drawn(c, 4 * n + k)) for k in range(4) for c in range(10)] for n in range(1, 6)}
    write_batches(mirror, {**batches, "test_batch": [(9, drawn(9, 200)), (0, drawn(0, 201))]})
    folder = made("cifar10", mirror, tmp_path)
    found: dict[tuple[str, str], list[int]] = {}
    for path in sorted(folder.rglob("*.png")):
        with Image.open(path) as image:
            number, index, blue = image.getpixel((0, 31))
            assert (image.mode, image.size, image.getpixel((31, 0)), blue) == ("RGB", (32, 32), (1, 2, 3), 7)
        assert path.parent.name == CIFAR_CLASSES[number // 20]
        found.setdefault((path.parts[-3], path.parent.name), []).append(index)
    every = range(4, 24)
    for name in CIFAR_CLASSES:
        assert found.pop(("validation", name)) == [every[9], every[19]]
        assert found.pop(("train", name)) == [index for index in every if index not in (every[9], every[19])]
    assert found == {("test", "truck"): [200], ("test", "airplane"): [201]}


def test_a_dataset_of_an_earlier_version_is_not_taken_for_the_present_one(mirror, tmp_path):
    """Its files are as they were recorded, but training rows may be among those that are now for testing."""
    folder = made("wikitext2", mirror, tmp_path)
    note = json.loads((folder / NOTE).read_text())
    (folder / NOTE).write_text(json.dumps({**note, "summary": "half of the test text"}))
    with pytest.raises(InputError, match=r"of an earlier version.* Move the folder away"):
        made("wikitext2", mirror, tmp_path)


def test_an_archive_cannot_write_elsewhere(mirror, tmp_path):
    outside = tmp_path / "outside"
    link = tarfile.TarInfo("free-spoken-digit-dataset-1/recordings/0_george_6.wav")
    link.type, link.linkname = tarfile.SYMTYPE, str(outside)
    names = ("../../recordings/../../evil.wav", f"{outside}/recordings/evil.wav")
    write_archive(mirror, dict.fromkeys(clip_names(), b"clip"), [link, *map(tarfile.TarInfo, names)])
    folder = made("spoken_digits", mirror, tmp_path)
    assert (folder / "train/0/george_6.wav").read_bytes() == b"clip"
    assert not outside.exists()
    assert list(tmp_path.rglob("evil*")) == []


def test_a_real_conversion_gives_the_known_checksums(real_data, tmp_path):
    """The sources are put together from what came out of them; what was left aside is made up."""
    for name, write in REAL.items():
        folder = tmp_path / name
        folder.mkdir()
        write(real_data / name, folder)
        target = get_dataset(name, tmp_path / "data", folder)
        assert json.loads((target / NOTE).read_text())["as_measured"], name


def real_agxqa(source: Path, mirror: Path) -> None:
    parts = [json.loads((source / f"{part}.json").read_text("utf-8"))["data"] for part in ("train", "validation")]
    known = [document for part in parts for document in part]
    write_agxqa(mirror, restored(155, known, lambda before: {"paragraphs": []}))


def restored(count: int, known: list, invent: Callable, seed: int = 0) -> list:
    """Returns the order before a shuffle, of which the first entries are known."""
    entries = dict(zip(dealt(count, seed), known, strict=False))
    for place in range(count):
        if place not in entries:
            entries[place] = invent(entries[place - 1] if place else None)
    return [entries[place] for place in range(count)]


def real_customer_reviews(source: Path, mirror: Path) -> None:
    rows = []
    for part in ("train", "validation"):
        with (source / f"{part}.csv").open(encoding="utf-8", newline="") as file:
            rows += [(row["text"], row["label"]) for row in csv.DictReader(file)]
    everything = restored(4756, rows, lambda before: ((before or ("",))[0] + "\x01", "positive"))
    lines = [f"{int(label == 'positive')} {text}\n" for text, label in everything]
    (mirror / "custrev.all").write_bytes("".join(lines[1000:]).encode("latin-1"))
    lines = [f"{text}\t{int(label == 'positive')}\n" for text, label in everything]
    (mirror / "amazon_cells_labelled.txt").write_text("".join(lines[:1000]), encoding="utf-8")


def real_multi30k(source: Path, mirror: Path) -> None:
    for part, name in (("train", "train"), ("validation", "val")):
        rows = [json.loads(line) for line in (source / f"{part}.jsonl").read_text("utf-8").split("\n")[:-1]]
        for language in ("en", "de"):
            text = "".join(row["translation"][language] + "\n" for row in rows)
            (mirror / f"{name}.{language}.gz").write_bytes(gzip.compress(text.encode(), 1, mtime=0))


def real_fashion(source: Path, mirror: Path) -> None:
    def cell(number: int, index: int) -> Image.Image | None:
        place = dealt(90, number).index(index)
        part = "train" if place < 60 else "validation"
        return Image.open(source / part / CLASSES[number] / f"{place:03d}.png") if place < 75 else None

    write_sprite(mirror, cell)


def real_spoken_digits(source: Path, mirror: Path) -> None:
    clips = {f"{path.parent.name}_{path.name}": path.read_bytes() for path in source.rglob("*.wav")}
    write_archive(mirror, clips)


REAL = {
    "agxqa": real_agxqa,
    "customer_reviews": real_customer_reviews,
    "multi30k": real_multi30k,
    "fashion": real_fashion,
    "spoken_digits": real_spoken_digits,
}


def test_where_it_came_from_is_noted_and_shown(mirror, tmp_path):
    lines: list[str] = []
    folder = get_dataset("agxqa", tmp_path / "data", mirror, lines.append)
    note = json.loads((folder / NOTE).read_text("utf-8"))
    (source,) = note["sources"]
    assert source == {
        "url": CATALOG["agxqa"].sources[0].url,
        "bytes": (mirror / AGXQA).stat().st_size,
        "sha256": digest(mirror / AGXQA),
    }
    parts = [*CATALOG["agxqa"].sha256]
    assert note["files"] == {part: digest(folder / part) for part in parts}
    assert (note["licence"], note["as_measured"]) == ("Apache-2.0", False)
    said = "\n".join(lines)
    assert source["sha256"] in said
    assert "Apache-2.0" in said
    assert f"The source has changed: {', '.join(parts)} differs from the data that this toolkit knows" in said
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["agxqa"]


def test_a_complete_dataset_is_left_alone_and_missing_files_are_made_again(mirror, tmp_path):
    folder, lines = made("wikitext2", mirror, tmp_path), []
    get_dataset("wikitext2", tmp_path / "data", tmp_path / "no-mirror", lines.append)
    assert lines == [f"{folder} is already complete; nothing to do."]

    (folder / "mine.txt").write_text("kept")
    former = (folder / "train.txt").read_bytes()
    (folder / "train.txt").unlink()
    get_dataset("wikitext2", tmp_path / "data", mirror, lines.append)
    assert "1 of its files are missing, for instance train.txt" in lines[1]
    assert (folder / "train.txt").read_bytes() == former
    assert (folder / "mine.txt").exists()

    (folder / "train.txt").unlink()
    write_wikitext2(mirror, train="other")
    with pytest.raises(DownloadError, match=r"train.txt differs from the checksum in .*raw-v1.zip has changed"):
        made("wikitext2", mirror, tmp_path)
    assert not (folder / "train.txt").exists()


def test_what_is_damaged_or_something_else_is_named_and_left_as_it_is(mirror, tmp_path):
    folder = made("wikitext2", mirror, tmp_path)
    (folder / "train.txt").write_text("other")
    with pytest.raises(InputError, match=r"the content of train.txt has changed"):
        made("wikitext2", mirror, tmp_path)
    (folder / NOTE).write_text("{")
    with pytest.raises(InputError, match=r"its SOURCE.json is missing, unreadable or"):
        made("wikitext2", mirror, tmp_path)
    assert (folder / "train.txt").read_text() == "other"


def test_a_folder_with_the_known_content_is_complete_without_its_note(real_data, tmp_path):
    lines: list[str] = []
    shutil.copytree(real_data / "customer_reviews", tmp_path / "customer_reviews", copy_function=shutil.copyfile)
    (tmp_path / "customer_reviews" / NOTE).unlink(missing_ok=True)
    get_dataset("customer_reviews", tmp_path, tmp_path / "no-mirror", lines.append)
    assert "is already complete; nothing to do" in lines[0]


@pytest.mark.parametrize(
    ("name", "file", "content", "reason"),
    [
        ("agxqa", AGXQA, b'{"data": [', "JSONDecodeError"),
        ("agxqa", AGXQA, b'{"version": 2}', "KeyError: 'data'"),
        ("multi30k", "val.de.gz", gzip.compress(b"one\n", mtime=0), "shorter"),
        ("multi30k", "train.en.gz", gzip.compress(b"line\n" * 99, mtime=0)[:-9], "EOFError"),
        ("fashion", "fashion-mnist-sprite.png", b"<html>", "cannot identify image"),
        ("spoken_digits", "free-spoken-digit-dataset.tar.gz", b"<html>", "not a gzip file"),
        ("customer_reviews", "custrev.all", b"2 a third class\n", "KeyError: '2'"),
        ("wikitext2", "wikitext-2-raw-v1.zip", b"<html>", "BadZipFile"),
        ("cifar10", "cifar-10-binary.tar.gz", b"<html>", "not a gzip file"),
        ("librispeech_dev_clean", "dev-clean.tar.gz", b"<html>", "not a gzip file"),
    ],
)
def test_a_source_that_is_not_what_it_was_is_named(mirror, tmp_path, name, file, content, reason):
    (mirror / file).write_bytes(content)
    with pytest.raises(DownloadError, match=rf"{name}: the source .* or its format has changed: .*{reason}"):
        made(name, mirror, tmp_path)
    assert list((tmp_path / "data").iterdir()) == []


def test_an_archive_without_all_clips_is_named(mirror, tmp_path):
    write_archive(mirror, dict.fromkeys(set(clip_names()) - {"0_george_6.wav"}, b"clip"))
    with pytest.raises(DownloadError, match=r"1 clips are not in the archive, for instance recordings/0_george_6\.wav"):
        made("spoken_digits", mirror, tmp_path)


@pytest.mark.parametrize(
    ("images", "cut", "reason"),
    [
        ({}, 0, "data_batch_1 is not a file, is empty"),
        ({f"data_batch_{n}": [(3, drawn(3, n))] for n in range(1, 6)}, 0, "test_batch is not a file, is empty"),
        ({"data_batch_1": [(3, drawn(3, 1))]}, 5, "data_batch_1 has 3,068 bytes, expected 3,073 for each image"),
        ({"data_batch_1": [(10, drawn(3, 1))]}, 0, "IndexError"),
    ],
)
def test_batches_that_are_not_those_of_cifar10_are_named(mirror, tmp_path, images, cut, reason):
    write_batches(mirror, images, cut)
    with pytest.raises(DownloadError, match=reason):
        made("cifar10", mirror, tmp_path)


@pytest.mark.parametrize("name", ["wikitext2", "cifar10", "spoken_digits", "librispeech_dev_clean"])
def test_an_archive_that_unpacks_to_too_much_is_rejected(mirror, tmp_path, monkeypatch, name):
    write_batches(mirror, {"data_batch_1": [(3, drawn(3, 1))]})
    write_archive(mirror, dict.fromkeys(clip_names(), b"clip"))
    write_librispeech(mirror)
    monkeypatch.setattr(entries, "MAX_FILE_BYTES", 3)
    with pytest.raises(DownloadError, match="unpacks to more than 3 bytes"):
        made(name, mirror, tmp_path)


class Server(BaseHTTPRequestHandler):
    """Serves a folder; some paths simulate network errors."""

    def __init__(self, folder: Path, released: Event, *arguments: object) -> None:
        self.folder, self.released = folder, released
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        content = (self.folder / Path(self.path).name).read_bytes() if "missing" not in self.path else None
        if content is None:
            self.send_error(404)
            return
        if "silent" in self.path:
            self.released.wait(20)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content) + 5 * ("short" in self.path)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(mirror: Path) -> Iterator[str]:
    """Returns the address of a local server with the files of `mirror`."""
    released = Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Server, mirror, released)) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        released.set()
        server.shutdown()
        thread.join()


def test_sources_are_downloaded(server, mirror, tmp_path, monkeypatch):
    entry = CATALOG["multi30k"]
    sources = tuple(Source(f"{server}/{source.file}", source.file) for source in entry.sources)
    monkeypatch.setitem(CATALOG, "multi30k", replace(entry, sources=sources))
    folder = get_dataset("multi30k", tmp_path / "data")
    for part in ("train", "validation"):
        assert digest(folder / f"{part}.jsonl") == digest(made("multi30k", mirror, tmp_path / "b") / f"{part}.jsonl")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/missing/custrev.all", "Not Found"),
        ("/short/amazon_cells_labelled.txt", "the connection ended after 32 of 37 bytes"),
        ("/silent/custrev.all", "timed out"),
        ("/custrev.all", "larger than 40 bytes"),
    ],
)
def test_a_bad_download_leaves_nothing(server, tmp_path, path, reason):
    with pytest.raises(DownloadError, match=reason):
        download(server + path, tmp_path / "file", timeout=0.2, max_bytes=40)
    assert [entry.name for entry in tmp_path.iterdir()] == ["mirror"]


def test_no_network_is_one_message_that_says_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with pytest.raises(SystemExit) as ended:
        toolkit_command(["data", "get", "agxqa", "--output", str(tmp_path)])
    assert ended.value.code == 1
    message = capsys.readouterr().err
    assert f"agxqa: cannot download {CATALOG['agxqa'].sources[0].url}: " in message
    assert "run `toolkit data get agxqa --from FOLDER`" in message
    assert "Traceback" not in message
    assert list(tmp_path.iterdir()) == []


def test_the_command_reads_a_mirror(mirror, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        toolkit_command(["data", "get", "wikitext2", "--from", str(mirror)])
    assert (ended.value.code, (tmp_path / "data" / "wikitext2" / "train.txt").is_file()) == (0, True)
    assert "data/wikitext2 is complete" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        toolkit_command(["data", "get", "agxqa", "--from", str(tmp_path / "nowhere")])
    assert ended.value.code == 2


def test_the_help_names_every_dataset_and_its_licence(capsys):
    with pytest.raises(SystemExit):
        toolkit_command(["data", "--help"])
    said = capsys.readouterr().out
    assert all(name in said and entry.licence in said for name, entry in CATALOG.items())


def test_a_missing_file_names_the_command_that_makes_it():
    root = Path(__file__).parents[3]
    task_type = load_task_type(root / "recipes/qa.py")
    overrides = ["data.train_file=no/data/agxqa/train.json", "data.validation_file=no/agxqa/validation.json"]
    loaded = load_settings(task_type, root / "recipes/configs/qa/agxqa.yaml", overrides, environ={}, check_files=False)
    train, validation = (
        problem for name in DATA_FILES for problem in data_file_problems(loaded.config, f"data.{name}")
    )
    assert train.endswith("; `toolkit data get agxqa --output no/data` downloads this public dataset")
    assert "toolkit data" not in validation
    assert command_for("data/fashion/train") == "toolkit data get fashion"
    assert command_for("data/my/train.csv") is None
