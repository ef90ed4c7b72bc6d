"""Datasets of the Hub, and local folders with the layout of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.base.errors import DataError
from toolkit.base.files import read_json
from toolkit.base.offline import DATASET, prepare_download, read_fetched
from toolkit.data.readers.arrow import ARROW_BATCH_ROWS, arrow_rows
from toolkit.data.readers.raw import RawRow, checked

if TYPE_CHECKING:
    import datasets

SPLITS = "splits.json"
"""File with the fingerprint of each split of a fetched dataset, in order; a split is in a subfolder of its name."""


def load_hub(
    dataset_name: str,
    config: str | None = None,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    offline_dir: str | None = None,
) -> datasets.DatasetDict:
    """Loads all splits of a hub dataset, or of a local folder with the layout of one.

    The rows of a fetched folder have the fingerprints that they had when they were fetched.

    Args:
        dataset_name: hub id or folder.
        config: configuration of the dataset; None means its default.
        revision: branch, tag or commit; None means `main`.
        cache_dir: folder of the cache; None means that of `datasets`.
        offline_dir: folder of `toolkit fetch`, which is read if it has the dataset; None if there is none.

    Raises:
        DataError: if the dataset cannot be found or downloaded.
        InputError: if `offline_dir` cannot be used.
    """
    import datasets

    if (folder := _fetched(dataset_name, config, revision, offline_dir)) is not None:
        return datasets.DatasetDict(_read_splits(folder))
    with _hub_errors(dataset_name, config, revision, cache_dir):
        return datasets.load_dataset(
            dataset_name, config, revision=revision, cache_dir=str(cache_dir) if cache_dir else None
        )


def find_hub(
    dataset_name: str, config: str | None = None, revision: str | None = None, offline_dir: str | None = None
) -> None:
    """Checks that a hub dataset, or a local folder with the layout of one, exists, without loading its rows.

    Raises:
        DataError: if the dataset cannot be found.
        InputError: if `offline_dir` cannot be used.
    """
    import datasets

    if _fetched(dataset_name, config, revision, offline_dir) is not None:
        return
    with _hub_errors(dataset_name, config, revision, None):
        datasets.load_dataset_builder(dataset_name, config, revision=revision)


def _fetched(dataset_name: str, config: str | None, revision: str | None, offline_dir: str | None) -> Path | None:
    """Returns the folder in which a fetched folder has the dataset, if there is one."""
    if offline_dir is None:
        return None
    return read_fetched(offline_dir).find(DATASET, dataset_name, revision, config)


def _read_splits(folder: Path) -> dict[str, datasets.Dataset]:
    import datasets

    splits = {}
    for split, fingerprint in read_json(folder / SPLITS).items():
        splits[split] = datasets.load_from_disk(folder / split)
        splits[split]._fingerprint = fingerprint  # `load_from_disk` makes a new one
    return splits


@contextmanager
def _hub_errors(
    dataset_name: str, config: str | None, revision: str | None, cache_dir: str | Path | None
) -> Iterator[None]:
    import datasets

    prepare_download(dataset_name)
    try:
        yield
    except (OSError, ValueError, RuntimeError, ImportError, datasets.exceptions.DatasetsError) as error:
        where = (
            f"the hub was not asked, because it cannot be reached or HF_HUB_OFFLINE is set; the local cache was "
            f"({cache_dir or datasets.config.HF_DATASETS_CACHE})"
            if datasets.config.HF_HUB_OFFLINE
            else f"the hub was asked ({datasets.config.HF_ENDPOINT})"
        )
        raise DataError(
            f"data.dataset_name: {dataset_name!r} (configuration {config or 'default'}, revision {revision or 'main'}) "
            f"cannot be loaded: {where}. The error was: {error.__cause__ or error}\n"
            "Check the name, load it once with a network connection, or give local files with data.train_file."
        ) from error


def hub_rows(dataset: datasets.Dataset, unescape_html: bool = False) -> Iterator[RawRow]:
    """Streams the rows of one split, numbered from 1, with class names instead of class numbers.

    Args:
        dataset: the split.
        unescape_html: whether to decode HTML entities in all texts.

    Raises:
        DataError: if the split has no rows.
    """
    # Arrow batches instead of Python rows, so that unused audio and images are not decoded.
    batches = dataset.with_format("arrow").iter(batch_size=ARROW_BATCH_ROWS)
    return checked(arrow_rows(batches, dataset.features), f"Split {dataset.split!s} of the dataset", unescape_html)
