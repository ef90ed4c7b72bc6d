"""Prepares a model to be traced: named tensors as arguments, a dictionary of tensors as result, sizes that may vary."""

from __future__ import annotations

import inspect
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from toolkit.api.batch import Batch
from toolkit.base.errors import InputError
from toolkit.modalities.text import windows_of

STATES = "last_hidden_state"
OUTPUTS = ("logits", "start_logits", "end_logits", STATES)
"""The outputs of models that tasks use."""
TARGET = ("decoder_input_ids", "decoder_attention_mask")
LEAST = 2
"""Least number of rows, tokens or samples of an example: a size of 0 or 1 is traced as a constant."""
_LOGGERS = ("torch.onnx", "torch.export", "torch._export", "torch.fx", "onnxscript", "onnx_ir", "onnxruntime", "root")


class Forward(nn.Module):
    """A model whose forward pass takes tensors by name, beside `fixed` arguments, and returns some outputs by name."""

    def __init__(
        self, model: nn.Module, names: list[str], fixed: Mapping[str, Any], outputs: Sequence[str] = OUTPUTS
    ) -> None:
        super().__init__()
        self.model, self._fixed = model, dict(fixed)

        def forward(**inputs: Tensor) -> dict[str, Tensor]:
            found = self.model(**inputs, **self._fixed)
            return {name: found[name] for name in outputs if name in found}

        # Exporters read the names of the arguments from the signature.
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        vars(forward)["__signature__"] = inspect.Signature([inspect.Parameter(name, kind) for name in names])
        self.forward = forward


@dataclass(frozen=True)
class Example:
    """A model with the inputs that it is traced with; `lengths` names the second dimensions, by default `length`."""

    forward: Forward
    inputs: Mapping[str, Tensor]
    outputs: list[str]
    lengths: Mapping[str, str] = field(default_factory=dict)

    def varying(self, dimension: Callable[[str], Any]) -> dict[str, dict[int, Any]]:
        """Returns the dimensions of each input that vary: the rows, and the length of ids, waveforms and states."""
        return {
            name: {0: dimension("batch")}
            | ({1: dimension(self.lengths.get(name, "length"))} if each.dim() == 2 or name in self.lengths else {})
            for name, each in self.inputs.items()
        }


def example_of(model: nn.Module, batch: Batch) -> Example:
    """Returns a CPU model in evaluation mode with a batch to trace it with; a single row is repeated."""
    inputs = _repeated(batch)
    fixed = {name: each for name, each in batch["inputs"].items() if name not in inputs}
    forward = Forward(model, list(inputs), fixed).eval()
    with torch.no_grad():
        outputs = list(forward(**inputs))
    if not outputs:
        raise InputError(f"--format: the model returns none of {', '.join(OUTPUTS)}; use zip or merged")
    return Example(forward, inputs, outputs, _lengths(inputs))


def examples_of_pair(model: Any, batch: Batch) -> dict[str, Example]:
    """Returns the encoder and the decoder of such a model with their inputs, by Optimum's file names."""
    inputs = _repeated(batch)
    target = {name: inputs.pop(name) for name in TARGET if name in inputs}
    encoder = Forward(model.get_encoder(), list(inputs), {}, [STATES]).eval()
    with torch.no_grad():
        states = encoder(**inputs)[STATES]
    of_texts, mask = "input_ids" in inputs, {name: each for name, each in inputs.items() if name == "attention_mask"}
    given = {"encoder_hidden_states": states, **mask, **target}
    lengths = dict.fromkeys(target, "target_length")
    if mask:  # or inputs have one length, to which the clips are padded
        lengths["encoder_hidden_states"] = "length" if of_texts else "states"
    decoder = Forward(_AfterEncoder(model), list(given), {"use_cache": False}, ["logits"]).eval()
    return {
        "encoder_model": Example(encoder, inputs, [STATES], _lengths(inputs)),
        "decoder_model": Example(decoder, given, ["logits"], lengths),
    }


def _lengths(inputs: Mapping[str, Tensor]) -> dict[str, str]:
    """Returns the second dimension of features of recordings that are masked."""
    masked = inputs["attention_mask"].shape if "attention_mask" in inputs else ()
    return {name: "length" for name, each in inputs.items() if each.dim() == 3 and each.shape[:2] == masked}


class _AfterEncoder(nn.Module):
    """A model that takes the states of its encoder as a tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, encoder_hidden_states: Tensor, **inputs: Any) -> Any:
        return self.model(encoder_outputs=(encoder_hidden_states,), **inputs)


def _repeated(batch: Batch) -> dict[str, Tensor]:
    """Returns the tensors of a batch, with at least `LEAST` rows."""
    tensors = {name: each for name, each in batch["inputs"].items() if isinstance(each, Tensor)}
    if "input_ids" in tensors and tensors["input_ids"].dim() == 3:  # rows of windows
        tensors, _ = windows_of(tensors)
    inputs = {name: each if len(each) >= LEAST else each.repeat(LEAST, *[1] * (each.dim() - 1))
              for name, each in tensors.items()}  # fmt: skip
    if any(each.dim() == 2 and each.shape[1] < LEAST for each in inputs.values()):
        raise InputError("the rows to compare on have a single token; give longer ones as --data")
    return inputs


@contextmanager
def quiet_exporters() -> Iterator[None]:
    """Suppresses the warnings and logs of the exporters of torch and ONNX, not their errors."""
    with ExitStack() as after, open(os.devnull, "w") as nowhere:  # noqa: PTH123
        after.enter_context(warnings.catch_warnings(action="ignore"))
        after.enter_context(redirect_stdout(nowhere))
        for logger in map(logging.getLogger, _LOGGERS):
            after.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        yield
