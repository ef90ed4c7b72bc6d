"""The content of `state.json`."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from toolkit.api.mesh import Mesh
from toolkit.api.state import TrainState
from toolkit.base.errors import CheckpointError
from toolkit.checkpoint.state import SavedState, layout, layout_of


def test_the_names_in_the_file_stay_and_what_is_not_there_is_left_out() -> None:
    train = asdict(TrainState(step=3, best_metric=0.1))
    plain = SavedState(train, {"seed": 1}).to_json()
    assert plain == {"train": train, "identity": {"seed": 1}, "extensions": {}}
    full = SavedState(train, {"seed": 1}, {"ema": {"n": 1}}, {"Mine": {"seen": 2}}, {"scale": 2.0})
    assert set(full.to_json()) == {"train", "identity", "extensions", "trainer_callbacks", "scaler"}
    for state in (SavedState(train, {"seed": 1}), full):
        assert SavedState.from_json(json.loads(json.dumps(state.to_json()))) == state


def test_a_checkpoint_of_an_older_version_is_read() -> None:
    content = {"train": {"step": 3, "evaluations_since_best": 2}, "task": {"labels": ["a"]}, "identity": {"seed": 1}}
    saved = SavedState.from_json(content)
    state = TrainState()
    state.restore(saved.train)
    assert (state, saved.identity, saved.callbacks) == (TrainState(step=3), {"seed": 1}, {})


@pytest.mark.parametrize(
    "content",
    [[], {"train": {"step": 1}}, {"train": [1], "identity": {}}, {"train": {"step": "1"}, "identity": {}},
     {"train": {"step": 1}, "identity": {}, "extensions": [1]}],
)  # fmt: skip
def test_what_the_toolkit_did_not_write_is_rejected(content) -> None:
    with pytest.raises(CheckpointError, match=r"state\.json .* no usable"):
        SavedState.from_json(content)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"train": {"step": 1, "num_items": "many"}, "identity": {}}, "train.num_items"),
        ({"train": {"step": -1}, "identity": {}}, "train.step"),
        ({"train": {"step": 1}, "identity": {}, "metrics": {"bytes": "1"}}, "metrics"),
        ({"train": {"step": 1}, "identity": {}, "extensions": {"ema": True}}, "extensions.ema"),
        ({"train": {"step": 1}, "identity": {}, "trainer_callbacks": {"Mine": [1]}}, "trainer_callbacks.Mine"),
    ],
)
def test_values_that_the_toolkit_does_not_write_are_rejected(content, named):
    with pytest.raises(CheckpointError, match=f"no usable {named};"):
        SavedState.from_json(content)


@pytest.mark.parametrize("count", [None, 0, "2"])
def test_an_identity_without_processes_is_rejected(count):
    with pytest.raises(CheckpointError, match="no usable num_processes"):
        layout_of({"num_processes": count})


def test_a_run_of_a_version_without_context_split_no_positions():
    saved = layout(Mesh(replicas=2, tensor=3))
    del saved["mesh.context"]
    assert layout_of(saved) == Mesh(replicas=2, tensor=3)
