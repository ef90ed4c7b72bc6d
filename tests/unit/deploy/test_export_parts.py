"""Parts of `toolkit export`: what is compared and allowed, what is traced, and what is in scripts and other files."""

from __future__ import annotations

import ast
import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from runs import ROOT
from torch import nn

from toolkit.base.errors import InputError, RunError
from toolkit.deploy.export.archive import shorten_paths
from toolkit.deploy.export.formats import FORMATS
from toolkit.deploy.export.graph import example_of
from toolkit.deploy.export.parity import Pair, Parity, compared, largest_difference
from toolkit.deploy.export.script import write_script
from toolkit.recipe import load_settings, load_task_type


def test_the_allowed_difference_grows_with_the_outputs_and_nan_is_rejected():
    parity = Parity("onnx", 2, 5e-3, 60.0, 1e-4, "f1", {"f1": Pair(1, 1)}, Pair(1, 1), 8, 1, Pair(1, 1))
    assert parity.allowed == pytest.approx(6e-3)
    parity.check()
    for wrong in (math.nan, math.inf, 7e-3):
        with pytest.raises(RunError, match=r"6\.0e-03"):
            dataclasses.replace(parity, difference=wrong).check()
    stated = dataclasses.replace(parity, format="int8", tolerance=None, difference=7.0)
    stated.check()
    with pytest.raises(RunError, match=r"int8 .* nan on 2 rows"):
        dataclasses.replace(stated, difference=math.nan).check()


def test_equal_masks_do_not_differ_and_other_shapes_do():
    one = torch.tensor([[-math.inf, torch.finfo(torch.float32).min, 2.0]])
    assert largest_difference(one, one.clone()) == 0
    assert largest_difference(one, one + torch.tensor([0.0, 0.0, 0.5])) == 0.5
    assert largest_difference(one, one.where(one > 0, 1.0)) == math.inf
    assert largest_difference(one, one.repeat(2, 1)) == math.inf
    assert largest_difference(one, one * math.nan).isnan()


@pytest.mark.parametrize("mask", [torch.finfo(torch.float32).min, -math.inf])
def test_masks_do_not_widen_what_is_allowed(mask, monkeypatch):
    class Model(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.scale = scale

        def forward(self, x):
            return {"logits": (self.scale * x).masked_fill(x == 3, mask)}

    batch = {"inputs": {"x": torch.tensor([[1.0, 2.0, 3.0]])}, "row_ids": torch.tensor([0])}
    monkeypatch.setattr("toolkit.deploy.export.parity.evaluation_loader", lambda *_: [batch])
    task = SimpleNamespace(forward=lambda model, batch: model(**batch["inputs"]))
    run = SimpleNamespace(model=Model(1.0), task=task, processor=None, cfg=None, mesh=None)
    difference, largest, _ = compared(run, Model(2.0), SimpleNamespace(features=None))
    assert (difference, largest) == (2.0, 2.0)
    monkeypatch.setattr("toolkit.deploy.export.parity.OUTPUTS", ("start_logits",))
    with pytest.raises(InputError, match="none of start_logits"):
        compared(run, Model(1.0), SimpleNamespace(features=None))


@pytest.mark.slow
def test_a_single_row_is_repeated_and_what_cannot_be_traced_is_rejected(tmp_path):
    class Model(nn.Module):
        def forward(self, input_ids, scale):
            return {"logits": input_ids.float() * scale}

    class Unknown(nn.Module):
        def forward(self, input_ids, scale):
            return {"hidden": input_ids}

    def batch(length: int) -> dict:
        return {"inputs": {"input_ids": torch.ones(1, length, dtype=torch.int64), "scale": 2}}

    example = example_of(Model(), batch(3))
    assert example.inputs["input_ids"].shape == (2, 3)
    assert example.outputs == ["logits"]
    assert example.varying(str) == {"input_ids": {0: "batch", 1: "length"}}
    with pytest.raises(InputError, match="single token"):
        example_of(Model(), batch(1))
    with pytest.raises(InputError, match=r"logits, .*last_hidden_state; use zip or merged"):
        example_of(Unknown(), batch(3))
    with pytest.raises(InputError, match=r"no linear layer .*onnx"):
        FORMATS["int8"].write(example, tmp_path, "model")


@pytest.mark.slow
def test_large_weights_are_in_a_file_beside_the_graph(tmp_path, monkeypatch):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, input_features):
            return {"logits": self.layer(input_features)}

    monkeypatch.setattr("torch.onnx._internal.exporter._onnx_program._LARGE_MODEL_THRESHOLD", 1024)
    torch.manual_seed(0)
    example = example_of(Model().eval(), {"inputs": {"input_features": torch.randn(3, 4, 64)}})
    with torch.no_grad():
        expected = example.forward(**example.inputs)["logits"]
    for name, tolerance in (("onnx", 1e-5), ("int8", 0.1)):
        folder = tmp_path / name
        folder.mkdir()
        written = FORMATS[name].write(example, folder, "model")
        assert sorted(path.name for path in folder.iterdir()) == ["model.onnx", "model.onnx.data"]
        assert torch.allclose(written.model(**example.inputs).logits, expected, rtol=0, atol=tolerance)


def test_what_files_of_a_model_say_is_never_code_of_a_script(tmp_path):
    hostile = '"""\nraise SystemExit("it ran")\n"""\\'
    task_type = load_task_type(ROOT / "recipes/language_modeling.py")
    file = ROOT / "recipes/configs/language_modeling/smoke_masked.yaml"
    cfg = load_settings(task_type, file, [f"output_dir={tmp_path}"]).config
    cfg = dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, columns={"text": hostile}))
    model, tokenizer = SimpleNamespace(config=None), SimpleNamespace(mask_token=hostile)
    values = {"names": [hostile], "program": True}
    write_script(tmp_path, "graph/fill_mask", cfg, task_type(cfg), model, tokenizer, ("torch",), **values)
    script = ast.parse((tmp_path / "predict.py").read_text())
    assert not any(isinstance(node, ast.Raise) for node in ast.walk(script))
    assert hostile in [node.value for node in ast.walk(script) if isinstance(node, ast.Constant)]


def test_tokens_that_look_like_paths_are_kept(tmp_path):
    for name in ("vocab.txt", "config.json"):
        (tmp_path / name).write_text("/of/me/base")
    shorten_paths(tmp_path, [Path("/of/me/base")])
    assert (tmp_path / "vocab.txt").read_text() == "/of/me/base"
    assert (tmp_path / "config.json").read_text() == "base"
