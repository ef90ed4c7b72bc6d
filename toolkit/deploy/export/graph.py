"""Prepares a model to be traced: named tensors as arguments, a dictionary of tensors as result, sizes that may vary."""

from __future__ import annotations

import inspect
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from toolkit.api.task import Batch
from toolkit.base.errors import InputError

OUTPUTS = ("logits", "start_logits", "end_logits")
"""The outputs of models that tasks use."""
LEAST = 2
"""Least number of rows, tokens or samples of an example: a size of 0 or 1 is traced as a constant."""
_LOGGERS = ("torch.onnx", "torch.export", "torch._export", "torch.fx", "onnxscript", "onnx_ir", "onnxruntime", "root")


class Forward(nn.Module):
    """A model whose forward pass takes the tensors of its batches by name and returns a dictionary of `OUTPUTS`.

    Args:
        model: a model of transformers, without the hooks and replacements of training.
        names: names of the tensors.
        fixed: further arguments of the forward pass, which are the same in every batch.
    """

    def __init__(self, model: nn.Module, names: list[str], fixed: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self._fixed = model, dict(fixed)

        def forward(**inputs: Tensor) -> dict[str, Tensor]:
            outputs = self.model(**inputs, **self._fixed)
            return {name: outputs[name] for name in OUTPUTS if name in outputs}

        # Exporters read the names of the arguments from the signature.
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        vars(forward)["__signature__"] = inspect.Signature([inspect.Parameter(name, kind) for name in names])
        self.forward = forward


@dataclass(frozen=True)
class Example:
    """A model with the inputs that it is traced with.

    Args:
        forward: the model.
        inputs: tensors by name.
        outputs: names of its outputs.
    """

    forward: Forward
    inputs: Mapping[str, Tensor]
    outputs: list[str]

    def varying(self, rows: Any, length: Any) -> dict[str, dict[int, Any]]:
        """Returns which dimensions of each input vary: the rows, and the length of ids and waveforms."""
        return {name: {0: rows, 1: length} if each.dim() == 2 else {0: rows} for name, each in self.inputs.items()}


def example_of(model: nn.Module, batch: Batch) -> Example:
    """Returns what a model is traced with.

    Args:
        model: a model of transformers in evaluation mode, on the CPU.
        batch: rows of the run; a single one is repeated.

    Raises:
        InputError: if the rows are too short to be traced, or the model returns none of `OUTPUTS`.
    """
    tensors = {name: each for name, each in batch["inputs"].items() if isinstance(each, Tensor)}
    fixed = {name: each for name, each in batch["inputs"].items() if name not in tensors}
    inputs = {name: each if len(each) >= LEAST else each.repeat(LEAST, *[1] * (each.dim() - 1))
              for name, each in tensors.items()}  # fmt: skip
    if any(each.dim() == 2 and each.shape[1] < LEAST for each in inputs.values()):
        raise InputError("the rows to compare on have a single token; give longer ones as --data")
    forward = Forward(model, list(inputs), fixed).eval()
    with torch.no_grad():
        outputs = list(forward(**inputs))
    if not outputs:
        raise InputError(f"--format: the model returns none of {', '.join(OUTPUTS)}; use zip or merged")
    return Example(forward, inputs, outputs)


@contextmanager
def quiet_exporters() -> Iterator[None]:
    """Suppresses what the exporters of torch and ONNX say about themselves; errors are raised."""
    loggers = [logging.getLogger(None if name == "root" else name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(), open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):  # noqa: PTH123
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
