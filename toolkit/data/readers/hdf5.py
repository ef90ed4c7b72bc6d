"""HDF5 files: each dataset of the file, or of one of its groups, is a column.

A file may come from anywhere: nothing outside it is read (external links and storage, virtual datasets), no filter is
loaded that HDF5 does not bring along, and no dataset is read that declares much more than the file can hold.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.base.errors import DataError
from toolkit.base.files import cached_while_unchanged
from toolkit.config.messages import did_you_mean
from toolkit.data.readers.raw import RawRow, Reading

if TYPE_CHECKING:
    import h5py
    import numpy as np

RATE = "sampling_rate"
"""Attribute of a dataset of waveforms: samples per second."""
MOST_RATE = 2**20
_HEAP = b"GCOL\x01\0\0\0"
"""How a heap with values of variable length begins; the size of the whole heap follows."""
_OBJECT = struct.Struct("<H6xQ")
"""Header of an object in a heap: its number, which is 0 for free room, and its size."""
MOST_ROW_BYTES = 2**28
"""Largest size of a row, and of a chunk, of a dataset."""
BATCH_BYTES, BATCH_ROWS = 2**24, 1000
FEW_ROWS = 32
"""Rows of any length, such as texts or files, that are read together."""
MOST_COMPRESSED = 1100
"""Largest compression: deflate makes at most one byte of 1,032."""
_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
"""Filters that h5py has itself; others are libraries that HDF5 would load."""

_WAVE = struct.Struct("<4sI4s4sIHHIIHH4sI")
"""Header of a WAV file."""

Convert = Callable[[Any], Any]


def read(file: Path, reading: Reading) -> Iterator[RawRow]:
    """Streams the rows, numbered from 1.

    Text, numbers, names of enumerations, and lists of numbers are kept as they are, NaN is no value; bytes
    (variable-length or opaque) are the content of an image or audio file; 8-bit arrays of two or three axes are images;
    arrays of one axis with the attribute `sampling_rate` are recordings.
    """
    with _opened(file) as opened:
        group = _group(file, opened, reading.sheet)
        columns = {name: _dataset(file, group, name) for name in _names(file, group)}
        if any(dataset.dtype.hasobject for dataset in columns.values()):
            _check_heaps(file)
        converts = {name: _converter(file, name, dataset) for name, dataset in columns.items()}
        lengths = {name: len(dataset) for name, dataset in columns.items()}
        if len(set(lengths.values())) > 1:
            sizes = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise DataError(f"{file}: its datasets have different numbers of rows: {sizes}.")
        total = next(iter(lengths.values()), 0)
        step = min(map(_rows_at_once, columns.values()), default=1)
        for start in range(0, total, step):
            parts = {name: dataset[start : start + step] for name, dataset in columns.items()}
            for place in range(len(next(iter(parts.values())))):
                values = {name: converts[name](part[place]) for name, part in parts.items()}
                yield RawRow(start + place + 1, values)


@contextmanager
def _opened(file: Path) -> Iterator[h5py.File]:
    try:
        import h5py
    except ImportError as error:
        raise DataError(
            f"{file}: HDF5 files need h5py, which is not installed; pip install 'finetune-toolkit[hdf5]'."
        ) from error
    try:
        with h5py.File(file, "r", locking=False) as opened:  # some network file systems have no locks
            if opened.id.get_create_plist().get_sizes() != (8, 8):
                raise DataError(f"{file}: its addresses or lengths do not have 8 bytes, as h5py writes them.")
            yield opened
    except DataError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise DataError(f"{file} is not a valid HDF5 file: {error}") from error


@cached_while_unchanged
def _check_heaps(file: Path) -> None:
    """Rejects values of variable length (heaps) in which HDF5 would search without an end."""
    with file.open("rb") as opened:
        start, before = 0, b""
        while block := opened.read(BATCH_BYTES):
            content = before + block
            place = content.find(_HEAP)
            while place >= 0:
                if not _is_sound(file, start - len(before) + place):
                    what = f"damaged, or one has more than {MOST_ROW_BYTES:,} bytes"
                    raise DataError(f"{file} is not a valid HDF5 file: its values of variable length are {what}.")
                place = content.find(_HEAP, place + 1)
            start, before = start + len(block), content[1 - len(_HEAP) :]


def _is_sound(file: Path, place: int) -> bool:
    """Whether the objects of the heap at a place of a file follow each other to its end."""
    with file.open("rb") as opened:
        opened.seek(place + len(_HEAP))
        (size,) = struct.unpack("<Q", opened.read(8).ljust(8, b"\0"))
        if size > MOST_ROW_BYTES:
            return False
        heap = opened.read(max(0, size - 16))
    at = 0
    while at + _OBJECT.size <= len(heap):
        number, length = _OBJECT.unpack_from(heap, at)
        step = _OBJECT.size + -(-length // 8) * 8 if number else length  # free room includes its own header
        if step < _OBJECT.size or at + step > size - 16:
            return False
        at += step
    return True


def _group(file: Path, opened: h5py.File, name: str | None) -> h5py.Group:
    import h5py

    if name is None:
        return opened
    found: Any = opened
    for part in name.strip("/").split("/"):
        present = [each for each in found if _is_inside(found, each) and isinstance(found[each], h5py.Group)]
        if part not in present:
            has = f"; it has {', '.join(map(repr, present))}" if present else ""
            raise DataError(f"{file} has no group {name!r}{did_you_mean(part, present)}{has}.")
        found = found[part]
    return found


def _names(file: Path, group: h5py.Group) -> list[str]:
    """Returns the names of the datasets of a group, whose links all stay inside the file."""
    import h5py

    if away := [name for name in group if not _is_inside(group, name)]:
        raise DataError(f"{file}: {away[0]!r} is a link, and may lead to another file, which is not allowed.")
    names = [name for name in group if isinstance(group[name], h5py.Dataset)]
    groups = [name for name in group if isinstance(group[name], h5py.Group)]
    if not names and groups:
        raise DataError(
            f"{file} has groups instead of datasets: {', '.join(map(repr, groups))}. Add the name of one, as in "
            f"'{file.name}#{groups[0]}'."
        )
    return names


def _is_inside(group: h5py.Group, name: str) -> bool:
    import h5py

    return isinstance(group.get(name, getlink=True), h5py.HardLink)


def _dataset(file: Path, group: h5py.Group, name: str) -> h5py.Dataset:
    """Returns a dataset that can be read without danger."""
    dataset = group[name]
    if dataset.external or dataset.is_virtual:
        raise DataError(f"{file}: the values of {name!r} are in other files, which is not allowed. Copy them into it.")
    settings = dataset.id.get_create_plist()
    filters = [settings.get_filter(number)[0] for number in range(settings.get_nfilters())]
    if unknown := [number for number in filters if number not in _FILTERS]:
        raise DataError(
            f"{file}: {name!r} is compressed by HDF5 filter {unknown[0]}, which needs a plug-in; use one of "
            f"{', '.join(_FILTERS.values())}."
        )
    if not dataset.shape:
        raise DataError(f"{file}: {name!r} is a single value, not a column; remove it, or make it an attribute.")
    chunk = dataset.dtype.itemsize * math.prod(dataset.chunks or (0,))
    if max(_row_bytes(dataset), chunk) > MOST_ROW_BYTES:
        raise DataError(f"{file}: a row or chunk of {name!r} has more than {MOST_ROW_BYTES:,} bytes.")
    stored = dataset.id.get_storage_size()
    if dataset.nbytes > MOST_COMPRESSED * stored + BATCH_BYTES:
        raise DataError(f"{file}: {name!r} declares {dataset.nbytes:,} bytes, but only {stored:,} are in the file.")
    return dataset


def _row_bytes(dataset: h5py.Dataset) -> int:
    return int(dataset.dtype.itemsize) * math.prod(dataset.shape[1:])


def _rows_at_once(dataset: h5py.Dataset) -> int:
    """Returns how many rows are read together: whole chunks if they are small: each is decompressed as a whole."""
    if dataset.dtype.hasobject:
        return FEW_ROWS
    rows = max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, _row_bytes(dataset))))
    chunk = dataset.chunks[0] if dataset.chunks else 1
    return rows // chunk * chunk or min(chunk, BATCH_ROWS)


def _converter(file: Path, name: str, dataset: h5py.Dataset) -> Convert:
    """Returns the function that makes a row's value of a dataset's element."""
    import h5py
    import numpy as np

    kind, axes = dataset.dtype, len(dataset.shape) - 1
    inner = h5py.check_vlen_dtype(kind)
    if h5py.check_string_dtype(kind) is not None and not axes:
        return _text
    if (names := h5py.check_enum_dtype(kind)) is not None and kind.kind in "iu" and not axes:
        labels = {number: label for label, number in names.items()}
        return lambda value: labels.get(int(value), int(value))
    if (inner == np.uint8 or kind.kind == "V") and not axes and kind.names is None and kind.subdtype is None:
        return lambda value: {"bytes": value.tobytes(), "path": None}
    if inner is not None and inner.kind in "iufb" and not axes:
        return _plain
    if kind.kind in "iufb":
        if axes == 1 and RATE in dataset.attrs and (kind.kind == "f" or (kind.kind == "i" and kind.itemsize in (2, 4))):
            rate = _rate(file, name, dataset)
            return lambda samples: {"bytes": _wave(samples, rate), "path": None}
        if kind == np.uint8 and (axes == 2 or (axes == 3 and dataset.shape[-1] in (1, 3, 4))):
            return _image
        if axes <= 1 and RATE not in dataset.attrs:
            return _plain
    raise DataError(
        f"{file}: {name!r} has {axes + 1} axes of the type {kind}, which is no column; a column is text, numbers, "
        "lists of numbers, bytes of files, 8-bit images [rows, height, width, channels], or waveforms [rows, samples] "
        f"with the attribute {RATE}."
    )


def _text(value: Any) -> str:
    content = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
    return content.decode("utf-8", "surrogateescape")


def _plain(value: Any) -> Any:
    """Returns Python numbers; NaN, which stands for a missing value, is None."""
    import numpy as np

    found = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    if isinstance(found, list):
        return [None if each != each else each for each in found]
    return None if found != found else found


def _image(pixels: np.ndarray) -> Mapping[str, Any]:
    """Returns `[height, width]` or `[height, width, channels]` as the bytes of an image file without loss."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 and pixels.ndim == 3 else pixels).save(
        stream, "PNG", compress_level=1
    )
    return {"bytes": stream.getvalue(), "path": None}


def _rate(file: Path, name: str, dataset: h5py.Dataset) -> int:
    """Returns the samples per second of a dataset of waveforms."""
    import numpy as np

    is_text = dataset.attrs.get_id(RATE).dtype.hasobject  # which is in a heap, and is not read
    value = "text" if is_text else dataset.attrs[RATE]
    number = float(value) if isinstance(value, np.number) else 0.0
    if not 1 <= number <= MOST_RATE or number != int(number):
        raise DataError(f"{file}: the attribute {RATE} of {name!r} is {value}, expected samples per second.")
    return int(number)


def _wave(samples: np.ndarray, rate: int) -> bytes:
    """Returns samples, `[samples]`, as a WAV file; libsndfile would write the time into it, and equal ones differ."""
    import numpy as np

    kind = np.dtype("<f4" if samples.dtype.kind == "f" else f"<i{samples.itemsize}")
    content, width, code = samples.astype(kind).tobytes(), kind.itemsize, 3 if kind.kind == "f" else 1
    header = _WAVE.pack(
        b"RIFF", _WAVE.size - 8 + len(content), b"WAVE", b"fmt ", 16, code, 1, rate, rate * width, width, 8 * width,
        b"data", len(content),
    )  # fmt: skip
    return header + content
