"""Large files of a checkpoint are verified while they are loaded, and loaded exactly as saved."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from checkpoints import make, newest, save, train
from torch import nn

from toolkit.api.run import Checkpoint
from toolkit.base.errors import CheckpointError
from toolkit.checkpoint import manifest
from toolkit.checkpoint.contents import load_model_into, load_optimizer_into, load_tensors
from toolkit.checkpoint.manifest import verify
from toolkit.checkpoint.planning import Group, planned
from toolkit.checkpoint.store import latest, new_checkpoint, open_checkpoint, steps
from toolkit.checkpoint.tensors import DTYPES, DamagedCheckpoint
from toolkit.checkpoint.writing import write_groups
from toolkit.distributed.collectives import Peers

ONES = torch.ones(3)


def flip(path: Path, position: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def load_all(found: Checkpoint) -> None:
    model, optimizer = make()
    load_model_into(found, model)
    load_optimizer_into(found, optimizer, model)
    load_tensors(found, "ema")


@pytest.fixture
def large_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns two checkpoints whose tensor files count as large."""
    monkeypatch.setattr(manifest, "HASHED_BYTES", 0)
    model, optimizer = make()
    train(model, optimizer, range(3))
    for step in (9, 12):
        save(tmp_path, step, model, optimizer, {}, groups=[Group("ema", {"a": ONES})])
    return tmp_path


@pytest.mark.parametrize("name", ["model", "optimizer", "ema"])
def test_any_flipped_bit_of_a_large_file_is_found_while_it_is_loaded(large_files: Path, name: str) -> None:
    path = large_files / "step-12" / f"{name}.safetensors"
    intact = path.read_bytes()
    for position in range(0, len(intact), max(1, len(intact) // 40)):
        flip(path, position, position % 8)
        found, messages = newest(large_files)
        assert (found.step, messages) == (12, []), "only a reader of the complete file can know"
        with pytest.raises(DamagedCheckpoint) as caught:
            load_all(found)
        assert caught.value.problem == f"{name}.safetensors: sha256 differs"
        assert verify(found.path) == [caught.value.problem]
        before, messages = latest(large_files, {found.path: caught.value.problem})
        assert before is not None
        assert before.step == 9
        assert messages == [f"{large_files.name}/step-12 is damaged ({name}.safetensors: sha256 differs); using step-9"]
        path.write_bytes(intact)
    load_all(newest(large_files)[0])


def test_the_size_of_a_large_file_is_always_checked(large_files: Path) -> None:
    for name in ("model", "optimizer", "ema"):
        os.truncate(large_files / "step-12" / f"{name}.safetensors", 40)
    found, (message,) = newest(large_files)
    assert found.step == 9
    assert message.count("size differs (40 bytes instead of ") == 3


def test_small_files_and_others_than_tensors_are_hashed_before(large_files: Path) -> None:
    flip(large_files / "step-12" / "state.json", 1)
    assert newest(large_files)[1] == [
        f"{large_files.name}/step-12 is damaged (state.json: sha256 differs); using step-9"
    ]


@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json"])
def test_a_file_that_vanishes_before_it_is_loaded_is_damage(large_files: Path, name: str) -> None:
    found = newest(large_files)[0]
    (found.path / name).unlink()
    with pytest.raises(DamagedCheckpoint, match=f"{name}: missing"):
        load_all(found)


def test_damage_travels_between_ranks(large_files: Path) -> None:
    error = DamagedCheckpoint(newest(large_files)[0], "model.safetensors: sha256 differs")
    again = pickle.loads(pickle.dumps(error))
    assert (again.checkpoint, again.problem, str(again)) == (error.checkpoint, error.problem, str(error))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("sharded", [False, True])
def test_tensors_come_back_as_they_were(tmp_path: Path, dtype: torch.dtype, sharded: bool) -> None:
    saved = {"b": torch.arange(6).reshape(2, 3).to(dtype), "a": torch.ones((), dtype=dtype), "none": torch.ones(0, 2)}
    model, optimizer = make()
    path = save(tmp_path, 1, model, optimizer, {}, groups=[Group("x", saved)], sharded=sharded)
    loaded = load_tensors(open_checkpoint(path), "x")
    assert loaded.keys() == saved.keys()
    for name, tensor in saved.items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(loaded[name].double(), tensor.double())
    assert load_tensors(open_checkpoint(path), "y") == {}


def test_a_transaction_may_be_given_complete_tensors(tmp_path: Path) -> None:
    model, optimizer = make()
    save(tmp_path, 2, model, optimizer, {})
    complete = {name: tensor.clone() for name, tensor in model.state_dict().items() if name != "head.weight"}
    with new_checkpoint(tmp_path, 4) as folder:
        for name in ("optimizer.safetensors", "state.json"):
            shutil.copy(tmp_path / "step-2" / name, folder)
        write_groups(Peers(), folder, [planned(Peers(), Group("model", complete), spread=False)], sharded=False)
        assert steps(tmp_path) == [(2, tmp_path / "step-2")], "it has no name before it is complete"
    other, _ = make()
    load_model_into(open_checkpoint(tmp_path / "step-4"), other)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])


def test_weights_that_were_saved_apart_do_not_fit_tied_ones(tmp_path: Path) -> None:
    save(tmp_path, 2, *make(), {})
    untied, _ = make()
    untied.head.weight = nn.Parameter(untied.head.weight.detach().clone())
    path = save(tmp_path, 4, untied, torch.optim.SGD(untied.parameters()), {})
    with pytest.raises(CheckpointError, match=r"unexpected: head\.weight|unexpected: embedding\.weight"):
        load_model_into(open_checkpoint(path), make()[0])
    with pytest.raises(CheckpointError, match=r"missing: (head|embedding)\.weight"):
        load_model_into(open_checkpoint(tmp_path / "step-2"), untied)
