"""What the model before training predicts for each row, for losses that compare both models (`Task.initial`).

It is predicted once, so that no second model is in memory, and kept in the verified cache of rows, by the weights, the
feature rows and the precision: later runs with other settings of the loss, and resumes, use the same numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.numpy import load_file, save_file

from toolkit.api.batch import EvalData
from toolkit.api.run import Predictor, Run
from toolkit.base.console import say
from toolkit.data.row_cache import code_fingerprint, from_cache
from toolkit.distributed.collectives import on_main
from toolkit.engine.evaluation import predict
from toolkit.system.environment import versions

if TYPE_CHECKING:
    import datasets
    import numpy as np
    from torch import nn

FILE = "initial.safetensors"
CHUNK = 1000
"""Feature rows that are hashed at once."""


def weights_digest(model: nn.Module) -> str:
    """Returns a hash of a model's weights, before it is split or wrapped."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def with_initial(run: Run, weights: str) -> Run:
    """Returns the run with the columns that its task asks for, in training and evaluation rows.

    Every process must call it before training, with the `weights_digest` of the model on the main one.
    """
    if not run.task.initial:
        return run
    data = run.data
    every = {"train": EvalData(data.train, data.train, run.processor, kept=data.kept), **data.evals}
    own = {name: _with_columns(run, each, weights, name) for name, each in every.items()}
    sets = {name: replace(each, features=own[name]) for name, each in data.evals.items()}
    return replace(run, data=replace(data, train=own["train"], evals=sets))


def _with_columns(run: Run, data: EvalData, weights: str, name: str) -> datasets.Dataset:
    key = on_main(run.accelerator, _key, run, data.features, weights)
    found = on_main(run.accelerator, _cached, key, {})
    if not found:
        rows = f"{len(data.features):,} rows"
        say(f"{name}: the model before training predicts {rows}, once for all runs with these rows")
        with run.strategy.full_model() as model, run.accelerator.autocast():
            kept = _predicted(run, data, model, f"{name} before training")
        found = on_main(run.accelerator, _cached, key, kept)
    return _extended(data.features, found)


def compared_with(predictor: Predictor, data: EvalData, model: nn.Module) -> EvalData:
    """Returns an evaluation set with the columns that the task asks for, of a model before training.

    Every process must call it.
    """
    own = _predicted(predictor, data, model, "before training")
    found = on_main(predictor.accelerator, lambda: own)
    return replace(data, features=_extended(data.features, found))


def _predicted(predictor: Predictor, data: EvalData, model: nn.Module, title: str) -> Mapping[str, np.ndarray]:
    """Returns the numbers on the main process; nothing on others."""
    predictions, *_ = predict(predictor, model, data, title)
    return {each: predictions[each] for each in predictor.task.initial} if predictions else {}


def _extended(features: datasets.Dataset, found: Mapping[str, np.ndarray]) -> datasets.Dataset:
    for name, values in found.items():
        mark = f"{features._fingerprint[:-3]}ini"
        features = features.add_column(f"initial_{name}", values.tolist(), new_fingerprint=mark)
    return features


def _key(run: Run, features: datasets.Dataset, weights: str) -> str:
    digest = hashlib.sha256(f"{weights} {run.cfg.train.mixed_precision} {versions()}".encode())
    digest.update(code_fingerprint(run.task).encode())
    for table in features.with_format("arrow").iter(CHUNK):
        for batch in table.combine_chunks().to_batches():
            digest.update(batch.serialize())
    return digest.hexdigest()


def _cached(key: str, numbers: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """Returns the numbers of a key in the cache, where these are written if it has none; nothing without any."""

    def kept(folder: Path) -> dict[str, np.ndarray]:
        if not (folder / FILE).exists():
            if not numbers:
                raise LookupError
            folder.mkdir(exist_ok=True)
            save_file(dict(numbers), folder / FILE)
        return load_file(folder / FILE)

    with suppress(LookupError):
        return from_cache(key, kept)
    return {}
