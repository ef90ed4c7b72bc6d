"""Checks that the files of the model and the rows are on the machine, and complete."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from toolkit.base.console import counted
from toolkit.base.errors import problems_of
from toolkit.base.files import kind_of, read_json
from toolkit.base.offline import prepare_download, read_fetched
from toolkit.config.sections import Config
from toolkit.lab.preflight.found import Found
from toolkit.models.load import source_of

INDEX, WEIGHTS = "model.safetensors.index.json", "model.safetensors"


def connect(cfg: Config) -> None:
    """Finds out whether the Hub answers, if the run names anything there; otherwise only the cache is looked at."""
    for name in (source_of(cfg).name_or_path, cfg.data.dataset_name):
        if name is not None:
            prepare_download(name)


def inputs(cfg: Config) -> Iterator[Found]:
    """Yields the findings on the fetched folder, the model and the dataset.

    That a dataset is in the cache, and that data files can be read, is checked by `toolkit.checks`.
    """
    from huggingface_hub import constants

    if cfg.offline_dir is not None:
        fetched = read_fetched(cfg.offline_dir)
        problems = tuple(problems_of(fetched.refuse_damage))
        yield Found("offline_dir", f"{fetched.folder}: {counted(len(fetched.files), 'file')}, all intact", problems)
    name = source_of(cfg).name_or_path
    if name is not None and kind_of(Path(name)) != "folder":
        if constants.is_offline_mode():
            problems = tuple(_not_cached(name, cfg.model.revision))
            yield Found("model", f"{name}, in the cache {constants.HF_HUB_CACHE}", problems)
        else:
            yield Found("model", f"{name}; the Hub answers, so what is not in the cache is downloaded")
    elif name is not None:
        yield Found("model", str(Path(name).absolute()), tuple(_lacking(Path(name))))


def _not_cached(name: str, revision: str | None) -> Iterator[str]:
    """Yields a message about the weights that an index names and the cache lacks."""
    from huggingface_hub import try_to_load_from_cache

    if isinstance(try_to_load_from_cache(name, WEIGHTS, revision=revision), str):
        return
    index = try_to_load_from_cache(name, INDEX, revision=revision)
    if isinstance(index, str):  # otherwise `toolkit.checks.model` says that there are no weights
        yield from _lacking(Path(index).parent)


def _lacking(folder: Path) -> Iterator[str]:
    if kind_of(folder / WEIGHTS) == "file" or kind_of(folder / INDEX) != "file":
        return
    names = sorted(set(read_json(folder / INDEX).get("weight_map", {}).values()))
    missing = [name for name in names if kind_of(folder / name) != "file"]
    if missing:
        yield f"model.name_or_path: {', '.join(missing)} of {len(names)} files of weights are missing in {folder}"
