"""The formats of an exported model: how each is written, and loaded back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from toolkit.base.errors import InputError
from toolkit.deploy.export.graph import Example, quiet_exporters
from toolkit.deploy.export.runners import OnnxModel, ProgramModel

TOLERANCE = 1e-4
"""Largest allowed difference of outputs in float32, relative to the largest output if that is above 1."""
ONNX, PROGRAM = "model.onnx", "model.pt2"


@dataclass(frozen=True)
class Written:
    """A model in its format.

    Args:
        model: the model, loaded back.
        notes: what is known about it, for `parity.json`.
        names: names of the tensors that it takes.
    """

    model: nn.Module
    notes: Mapping[str, Any]
    names: Sequence[str]


@dataclass(frozen=True)
class Format:
    """A format in which a graph of a model is written.

    Args:
        write: writes a model into a folder and loads it back.
        usage: Python code that loads it, for the model card.
        libraries: the libraries that run it.
        needs: the libraries that write it.
        tolerance: largest allowed difference of the outputs; None if it is only stated.
    """

    write: Callable[[Example, Path], Written]
    usage: str
    libraries: Sequence[str]
    needs: Sequence[str] = ()
    tolerance: float | None = TOLERANCE

    def check(self) -> None:
        """Checks that the libraries are installed.

        Raises:
            InputError: naming those that are not.
        """
        if missing := [name for name in self.needs if find_spec(name) is None]:
            names, verb = " and ".join(missing), "is" if len(missing) == 1 else "are"
            raise InputError(
                f"--format: needs {names}, which {verb} not installed; pip install 'finetune-toolkit[export]'"
            )


def _write_program(example: Example, folder: Path) -> Written:
    """Writes what `torch.export` traces."""
    varies = torch.export.Dim.DYNAMIC
    shapes = example.varying(varies, varies)
    inputs = dict(example.inputs)
    with quiet_exporters(), torch.no_grad():
        program = torch.export.export(example.forward, (), kwargs=inputs, dynamic_shapes=shapes, strict=False)
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # with paths of this machine
        torch.export.save(program, folder / PROGRAM)
        return Written(ProgramModel(folder / PROGRAM, list(inputs)), {}, list(inputs))


def _write_onnx(example: Example, folder: Path) -> Written:
    """Writes ONNX, traced by `torch.export`.

    Weights above 1.5 GiB are in a file beside it, because a file of ONNX has at most 2 GiB.
    """
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    inputs = dict(example.inputs)
    with quiet_exporters(), torch.no_grad():
        program = torch.onnx.export(
            example.forward, (), kwargs=inputs, dynamic_shapes=example.varying("batch", "length"), dynamo=True,
            output_names=example.outputs, verbose=False,
        )  # fmt: skip
        assert program is not None
        ClearMetadataAndDocStringPass()(program.model)  # stack traces, with paths of this machine
        program.save(str(folder / ONNX))
        return Written(OnnxModel(folder / ONNX, list(inputs), example.outputs), {}, list(inputs))


def _write_int8(example: Example, folder: Path) -> Written:
    """Writes ONNX whose linear layers have 8-bit weights, and quantise their inputs as they come.

    Weights have one scale for each output, inputs one scale for each call.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    whole = folder / "float32"
    whole.mkdir()
    _write_onnx(example, whole)
    with quiet_exporters():
        quantize_dynamic(
            whole / ONNX, folder / ONNX, op_types_to_quantize=["MatMul"], weight_type=QuantType.QInt8,
            per_channel=True, use_external_data_format=(whole / f"{ONNX}.data").exists(),
        )  # fmt: skip
    for file in whole.iterdir():
        file.unlink()
    whole.rmdir()
    nodes = onnx.load(folder / ONNX, load_external_data=False).graph.node
    count = sum(node.op_type == "MatMulInteger" for node in nodes)
    if not count:
        raise InputError("--format int8: the model has no linear layer that can be quantised; use onnx")
    return Written(
        OnnxModel(folder / ONNX, list(example.inputs), example.outputs),
        {"quantised_layers": count},
        list(example.inputs),
    )


_FOR_ONNX = (
    'import onnxruntime\n\nmodel = onnxruntime.InferenceSession("path/to/this/folder/model.onnx")',
    ("onnxruntime", "transformers"),
    ("onnx", "onnxscript", "onnxruntime"),
)
FORMATS = {
    "onnx": Format(_write_onnx, *_FOR_ONNX),
    "torch_export": Format(
        _write_program,
        'import torch\n\nmodel = torch.export.load("path/to/this/folder/model.pt2").module()',
        ("torch", "transformers"),
    ),
    "int8": Format(_write_int8, *_FOR_ONNX, tolerance=None),
}
"""The formats in which a model is a graph."""
