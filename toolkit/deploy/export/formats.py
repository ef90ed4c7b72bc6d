"""The formats of an exported model: how each is written, loaded back and run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from toolkit.base.errors import InputError
from toolkit.deploy.export.graph import Example, quiet_exporters


class Graph(nn.Module):
    """A model of which only the forward pass was exported, with the names of its inputs."""

    def __init__(self, file: Path, names: Sequence[str]) -> None:
        super().__init__()
        from toolkit.deploy.export.generating import load_graph

        self._graph = load_graph(file, names)

    def forward(self, **inputs: Any) -> Any:
        """Returns the outputs for a batch of the toolkit, as a model of transformers does."""
        from transformers.utils import ModelOutput

        return ModelOutput(self._graph(**inputs))

    def generate(self, *arguments: Any, **settings: Any) -> Any:
        """Raises an InputError."""
        raise InputError("--format: this task generates text with its model, which a graph does not; use zip or merged")


TOLERANCE = 1e-4
"""Largest allowed difference of outputs in float32, relative to the largest output if that is above 1."""
MODEL = "model"
"""Name of a graph's file, without its ending."""


@dataclass(frozen=True)
class Written:
    """A model loaded back from its format, notes for `parity.json`, and names of its inputs, or by graph of two."""

    model: nn.Module
    notes: Mapping[str, Any]
    names: Sequence[str] | Mapping[str, Any]


@dataclass(frozen=True)
class Format:
    """A format in which a graph of a model is written."""

    write: Callable[[Example, Path, str], Written]
    """Writes a model into a folder, to a file of a name without its ending, and loads it back."""
    module: str
    load: str  # for the model card: an expression of `module` that loads the file of a `name`
    libraries: Sequence[str]  # those that run the model; `needs` write it
    needs: Sequence[str] = ()
    tolerance: float | None = TOLERANCE  # largest allowed difference of the outputs; None if it is only stated

    def usage(self, names: Sequence[str]) -> str:
        """Returns Python code that loads graphs of these names, for the model card."""
        return "\n".join([f"import {self.module}\n", *(f"{name} = {self.load.format(name=name)}" for name in names)])

    def check(self) -> None:
        """Raises an InputError that names the libraries that are not installed."""
        if missing := [name for name in self.needs if find_spec(name) is None]:
            names, verb = " and ".join(missing), "is" if len(missing) == 1 else "are"
            raise InputError(
                f"--format: needs {names}, which {verb} not installed; pip install 'finetune-toolkit[export]'"
            )


def _write_program(example: Example, folder: Path, name: str) -> Written:
    """Writes a program of `torch.export`."""
    file, shapes = folder / f"{name}.pt2", example.varying(lambda _: torch.export.Dim.DYNAMIC)
    inputs = dict(example.inputs)
    with quiet_exporters(), torch.no_grad():
        program = torch.export.export(example.forward, (), kwargs=inputs, dynamic_shapes=shapes, strict=False)
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # with paths of this machine
        torch.export.save(program, file)
        return Written(Graph(file, list(inputs)), {}, list(inputs))


def _write_onnx(example: Example, folder: Path, name: str) -> Written:
    """Writes ONNX, traced by `torch.export`; weights above 1.5 GiB go to a file beside it, as ONNX allows 2 GiB."""
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    file, inputs = folder / f"{name}.onnx", dict(example.inputs)
    with quiet_exporters(), torch.no_grad():
        program = torch.onnx.export(
            example.forward, (), kwargs=inputs, dynamic_shapes=example.varying(str), dynamo=True,
            output_names=example.outputs, verbose=False,
        )  # fmt: skip
        assert program is not None
        ClearMetadataAndDocStringPass()(program.model)  # stack traces, with paths of this machine
        program.save(str(file))
        return Written(Graph(file, list(inputs)), {}, list(inputs))


def _write_int8(example: Example, folder: Path, name: str) -> Written:
    """Writes ONNX whose linear layers have 8-bit weights, scaled per output, and quantise their inputs per call."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    file, whole = folder / f"{name}.onnx", folder / "float32"
    whole.mkdir()
    _write_onnx(example, whole, name)
    with quiet_exporters():
        quantize_dynamic(
            whole / file.name, file, op_types_to_quantize=["MatMul"], weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,  # 7 bits: sums of 8-bit products overflow on CPUs without VNNI, and differ by machine
            use_external_data_format=(whole / f"{file.name}.data").exists(),
        )  # fmt: skip
    for part in whole.iterdir():
        part.unlink()
    whole.rmdir()
    nodes = onnx.load(file, load_external_data=False).graph.node
    count = sum(node.op_type == "MatMulInteger" for node in nodes)
    if not count:
        raise InputError("--format int8: the model has no linear layer that can be quantised; use onnx")
    return Written(Graph(file, list(example.inputs)), {"quantised_layers": count}, list(example.inputs))


def write_pair(chosen: Format, examples: Mapping[str, Example], model: Any, folder: Path) -> Written:
    """Writes the encoder and the decoder of a model, and returns the model that generates with both."""
    from toolkit.deploy.export.generating import TwoGraphs

    graphs = [chosen.write(example, folder, name) for name, example in examples.items()]
    model.generation_config.save_pretrained(folder)
    notes = {name: sum(graph.notes[name] for graph in graphs) for name in graphs[0].notes}
    generation = copy.deepcopy(model.generation_config)
    names = {name: graph.names for name, graph in zip(examples, graphs, strict=True)}
    first, parts = next(iter(graphs[0].names)), [graph.model for graph in graphs]
    return Written(TwoGraphs(copy.deepcopy(model.config), generation, first, *parts), notes, names)


_FOR_ONNX = (
    "onnxruntime",
    'onnxruntime.InferenceSession("path/to/this/folder/{name}.onnx")',
    ("onnxruntime", "transformers"),
    ("onnx", "onnxscript", "onnxruntime"),
)
FORMATS = {
    "onnx": Format(_write_onnx, *_FOR_ONNX),
    "torch_export": Format(
        _write_program,
        "torch",
        'torch.export.load("path/to/this/folder/{name}.pt2").module()',
        ("torch", "transformers"),
    ),
    "int8": Format(_write_int8, *_FOR_ONNX, tolerance=None),
}
"""The formats in which a model is a graph."""
