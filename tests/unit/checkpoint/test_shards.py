"""Sharded checkpoints: parts of tensors, written by several processes and read by others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from checkpoints import make, newest, save, train
from torch import nn

from toolkit.api.mesh import Mesh
from toolkit.api.run import Checkpoint
from toolkit.base.errors import CheckpointError
from toolkit.base.shards import Box
from toolkit.checkpoint import manifest, writing
from toolkit.checkpoint.contents import load_model_into, load_optimizer_into, load_tensors
from toolkit.checkpoint.manifest import FileEntry, read_manifest, verify
from toolkit.checkpoint.planning import Group, Part, Plan, Saved, planned, values_of
from toolkit.checkpoint.store import new_checkpoint, open_checkpoint
from toolkit.checkpoint.tensors import DamagedCheckpoint, TensorFile, verified_tensors
from toolkit.distributed.collectives import Peers

COMPLETE = {
    "rows": torch.arange(35, dtype=torch.float64).reshape(7, 5),
    "columns": torch.arange(24, dtype=torch.bfloat16).reshape(2, 3, 4),
    "whole": torch.tensor(3),
}
PARTS = {
    "rows": [Box((0, 0), (4, 5)), Box((4, 0), (3, 5))],
    "columns": [Box((0, 0, 0), (2, 1, 4)), Box((0, 1, 0), (2, 2, 4))],
    "whole": [Box((), ()), None],
}
"""What each of two processes saves of each tensor: an uneven number of rows, of columns, and nothing."""


def plan_of(rank: int, group: Group, saved: dict[str, Saved]) -> Plan:
    return Plan(group.name, saved, values_of(rank, group, saved))


def save_in_two_shards(root: Path) -> Checkpoint:
    """Writes a checkpoint as two processes do; its tensors of `ema` are those above."""
    save(root, 1, *make(), {})  # for the files that are not of interest here
    boxes = {
        name: [Part(box, rank, Box.of(box.shape)) for rank, box in enumerate(parts) if box]
        for name, parts in PARTS.items()
    }
    saved = {name: Saved(each.dtype, tuple(each.shape), boxes[name]) for name, each in COMPLETE.items()}
    written: dict[str, FileEntry] = {}
    with new_checkpoint(root, 2, written) as folder:
        for rank in range(2):
            own = {name: COMPLETE[name][box.slices(Box.of(COMPLETE[name].shape))] for name, parts in PARTS.items()
                   if (box := parts[rank]) is not None}  # fmt: skip
            for name in ("model", "optimizer", "ema"):
                written |= writing.write_shard(Peers(rank, 2), folder, plan_of(rank, Group(name, own), saved))
        (folder / "state.json").write_text("{}")
    return open_checkpoint(root / "step-2")


def test_shards_are_read_as_complete_tensors(tmp_path: Path) -> None:
    found = save_in_two_shards(tmp_path)
    assert verify(found.path) == []
    assert read_manifest(found.path).format == "sharded"
    loaded = load_tensors(found, "ema")
    assert loaded.keys() == COMPLETE.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in COMPLETE.items())


@pytest.mark.parametrize("rank", [0, 1], ids=["hashes some files", "hashes the others"])
def test_a_process_reads_the_part_that_it_needs(tmp_path: Path, rank: int) -> None:
    found = save_in_two_shards(tmp_path)
    wanted = {"rows": Box((3, 1), (2, 3)), "columns": Box((1, 0, 2), (1, 3, 2)), "whole": Box((), ())}
    targets = {name: torch.zeros(box.shape, dtype=COMPLETE[name].dtype) for name, box in wanted.items()}
    with verified_tensors(found, "ema", Mesh(replicas=2, rank=rank)) as saved:
        for name, box, part in saved.read(wanted):
            targets[name][box.slices(wanted[name])] = part
    for name, box in wanted.items():
        assert torch.equal(targets[name], COMPLETE[name][box.slices(Box.of(COMPLETE[name].shape))]), name


def test_nothing_is_read_that_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, sizes = save_in_two_shards(tmp_path), list[int]()
    read = TensorFile.part_of

    def counted(self: TensorFile, file: Any, name: str, box: Box) -> torch.Tensor:
        sizes.append(box.size)
        return read(self, file, name, box)

    monkeypatch.setattr(TensorFile, "part_of", counted)
    with verified_tensors(found, "ema", Mesh(replicas=100, rank=99)) as saved:  # which hashes no file
        list(saved.read({"rows": Box((4, 0), (1, 5))}))
    assert sizes == [5]


def test_processes_share_the_verification(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "HASHED_BYTES", 0)
    found = save_in_two_shards(tmp_path)
    for file in sorted(found.path.glob("ema/*")):
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        noticed = []
        for rank in range(3):
            try:
                load_tensors(found, "ema", Mesh(replicas=3, rank=rank))
            except DamagedCheckpoint as error:
                noticed.append((rank, error.problem))
        assert [problem for _, problem in noticed] == [f"ema/{file.name}: sha256 differs"]
        assert verify(found.path) == [f"ema/{file.name}: sha256 differs"]
        file.write_bytes(content)
    load_tensors(found, "ema")


@pytest.mark.parametrize("change", ["missing", "renamed"])
def test_a_shard_that_is_not_there_is_found(tmp_path: Path, change: str) -> None:
    found = save_in_two_shards(tmp_path)
    shard = found.path / "optimizer" / "shard-00002-of-00002.safetensors"
    shard.unlink() if change == "missing" else shard.rename(shard.with_name("shard-00002-of-00003.safetensors"))
    assert verify(found.path)[0] == "optimizer/shard-00002-of-00002.safetensors: missing"


def test_a_manifest_without_all_shards_is_rejected(tmp_path: Path) -> None:
    found = save_in_two_shards(tmp_path)
    (found.path / "model" / "shard-00001-of-00002.safetensors").unlink()
    (found.path / "manifest.json").unlink()
    manifest.write_manifest(found.path, 2, {})
    assert verify(found.path) == ["model/shard-00001-of-00002.safetensors: not in the manifest"]


def test_several_parts_of_a_tensor_take_several_files(tmp_path: Path) -> None:
    save(tmp_path, 1, *make(), {})
    complete = torch.arange(12.0).reshape(2, 6)
    boxes = [Box((0, column), (2, 1)) for column in range(6)]  # rank 1 has every other column
    parts = [Part(box, box.start[1] % 2, Box((0, box.start[1] // 2), (2, 1))) for box in boxes]
    written: dict[str, FileEntry] = {}
    with new_checkpoint(tmp_path, 2, written) as folder:
        for rank in range(2):
            group, saved = Group("ema", {"columns": complete[:, rank::2]}), Saved(complete.dtype, (2, 6), parts)
            written |= writing.write_shard(Peers(rank, 2), folder, plan_of(rank, group, {"columns": saved}))
            for name in ("model", "optimizer"):
                written |= writing.write_shard(Peers(rank, 2), folder, plan_of(rank, Group(name, {}), {}))
        (folder / "state.json").write_text("{}")
    found = open_checkpoint(tmp_path / "step-2")
    assert len(list(found.path.glob("ema/*"))) == 6
    assert verify(found.path) == []
    assert torch.equal(load_tensors(found, "ema")["columns"], complete)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_torch_reads_the_shards(tmp_path: Path) -> None:
    found = save_in_two_shards(tmp_path)
    state = {name: torch.zeros_like(COMPLETE[name]) for name in ("rows", "columns")}
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(found.path / "ema")), no_dist=True)
    assert all(torch.equal(state[name], COMPLETE[name]) for name in state)


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_both_formats_hold_the_same_bits(tmp_path: Path, optimizer: Any) -> None:
    model, optim = make(optimizer)
    train(model, optim, range(4))
    found = []
    for step, sharded in ((1, False), (2, True)):
        save(tmp_path, step, model, optim, {}, sharded=sharded)
        other = make(optimizer)
        checkpoint = newest(tmp_path)[0]
        load_model_into(checkpoint, other[0])
        load_optimizer_into(checkpoint, other[1], other[0])
        train(*other, range(4, 6))
        found.append(other[0].state_dict())
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())


def test_what_several_processes_hold_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Peers, "objects", lambda self, own: [own, own])
    tensors = {f"{number}": torch.zeros(8) for number in range(6)} | {"buffer": torch.zeros(2)}
    group = Group("model", tensors, first_only=["buffer"])
    owners = {name: each.parts[0].owner for name, each in planned(Peers(0, 2), group, spread=True).saved.items()}
    assert sorted(owners[str(number)] for number in range(6)) == [0, 0, 0, 1, 1, 1]
    assert owners["buffer"] == 0
    complete = planned(Peers(0, 2), group, spread=False).saved
    assert {part.owner for each in complete.values() for part in each.parts} == {0}


def test_a_type_that_no_checkpoint_holds_is_rejected() -> None:
    with pytest.raises(CheckpointError, match=r"torch\.complex64: phase"):
        planned(Peers(), Group("model", {"phase": torch.zeros(2, dtype=torch.complex64)}), spread=False)


def test_a_view_of_a_larger_weight_is_saved_once(tmp_path: Path) -> None:
    model = nn.Module()
    model.register_parameter("table", nn.Parameter(torch.arange(12.0).reshape(4, 3)))
    model.register_buffer("first", model.table.detach()[:2])
    save(tmp_path, 1, model, torch.optim.SGD([model.table], lr=0.1), {})
    with torch.no_grad():
        model.table.zero_()
    load_model_into(newest(tmp_path)[0], model)
    assert torch.equal(model.first, torch.arange(6.0).reshape(2, 3))
