"""Exported models, loaded back as their users load them, behind the forward pass that tasks call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from toolkit.base.errors import InputError


class Graph(nn.Module):
    """A model of which only the forward pass was exported."""

    def generate(self, *arguments: Any, **settings: Any) -> Any:
        """Refuses what transformers' models also do.

        Raises:
            InputError: always.
        """
        raise InputError("--format: this task generates text with its model, which a graph does not; use zip or merged")


class OnnxModel(Graph):
    """A model that ONNX Runtime runs on the CPU.

    Args:
        file: the .onnx file.
        names: names of the tensors that it takes.
        outputs: names of its outputs.
    """

    def __init__(self, file: Path, names: list[str], outputs: list[str]) -> None:
        super().__init__()
        import onnxruntime

        self._session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        self._names, self._outputs = names, outputs

    def forward(self, **inputs: Any) -> Any:
        """Returns the outputs for a batch of the toolkit, as a model of transformers does."""
        found = self._session.run(self._outputs, {name: inputs[name].numpy() for name in self._names})
        return _output(dict(zip(self._outputs, map(torch.from_numpy, found), strict=True)))


class ProgramModel(Graph):
    """A program of `torch.export`.

    Args:
        file: the .pt2 file.
        names: names of the tensors that it takes.
    """

    def __init__(self, file: Path, names: list[str]) -> None:
        super().__init__()
        # In a tuple, so that it is no part of this module: a program has no `eval`.
        self._program, self._names = (torch.export.load(file).module(),), names

    def forward(self, **inputs: Any) -> Any:
        """Returns the outputs for a batch of the toolkit, as a model of transformers does."""
        return _output(self._program[0](**{name: inputs[name] for name in self._names}))


def _output(found: dict[str, Tensor]) -> Any:
    from transformers.utils import ModelOutput

    return ModelOutput(found)
