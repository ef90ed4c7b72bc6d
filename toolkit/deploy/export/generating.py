"""The model that generates with the two graphs of an encoder-decoder; its classes are also part of `predict.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput


class Encoder(nn.Module):
    """An encoder as transformers calls it."""

    def __init__(self, graph: Callable[..., Mapping[str, Tensor]]) -> None:
        super().__init__()
        self._graph = (graph,)  # in a tuple, so that it is no part of this module: a program has no `eval`

    def forward(self, **kwargs: Any) -> BaseModelOutput:
        """Returns the states of the inputs, `[B, S, H]`; transformers looks for the name `kwargs`."""
        return BaseModelOutput(last_hidden_state=self._graph[0](**kwargs)["last_hidden_state"])


class TwoGraphs(PreTrainedModel, GenerationMixin):
    """Generates as transformers does, without a cache: for every token, the decoder computes the whole text again.

    The decoder returns `logits` for `encoder_hidden_states`, `decoder_input_ids` and, where it takes them, the masks of
    both.
    """

    device = torch.device("cpu")
    dtype = torch.float32
    _supports_sdpa = True  # or transformers rejects the configurations of models that use it

    def __init__(
        self,
        config: Any,
        generation_config: Any,
        main_input_name: str,
        encoder: Callable[..., Mapping[str, Tensor]],
        decoder: Callable[..., Mapping[str, Tensor]],
    ) -> None:
        super().__init__(config)
        self.generation_config = generation_config
        self.generation_config.use_cache = False
        self.main_input_name = main_input_name
        self._encoder, self._decoder = Encoder(encoder), (decoder,)

    def get_encoder(self, modality: str | None = None) -> Encoder:
        """Returns the encoder."""
        return self._encoder

    def forward(
        self,
        input_ids: Tensor | None = None,
        input_features: Tensor | None = None,
        input_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        **further: Any,
    ) -> Seq2SeqLMOutput:
        """Returns the logits `[B, T, vocabulary]` and the encoder's states."""
        source = {"input_ids": input_ids, "input_features": input_features, "input_values": input_values}
        given: dict[str, Any] = {**source, "attention_mask": attention_mask, "decoder_input_ids": decoder_input_ids}
        states = (encoder_outputs or self._encoder(**given)).last_hidden_state
        if decoder_attention_mask is None and decoder_input_ids is not None:
            decoder_attention_mask = torch.ones_like(decoder_input_ids)
        given |= {"encoder_hidden_states": states, "decoder_attention_mask": decoder_attention_mask}
        return Seq2SeqLMOutput(logits=self._decoder[0](**given)["logits"], encoder_last_hidden_state=states)

    def prepare_inputs_for_generation(self, input_ids: Any, *arguments: Any, **kwargs: Any) -> dict[str, Any]:
        """Returns the arguments of `forward` for the next token; transformers looks for the name `kwargs`."""
        kept = ("attention_mask", "encoder_outputs")
        return {"decoder_input_ids": input_ids, **{name: kwargs[name] for name in kept if name in kwargs}}


def load_graph(file: Path, names: Sequence[str]) -> Callable[..., Mapping[str, Tensor]]:
    """Returns a graph that takes tensors of these names, among others, and returns tensors by name."""
    if file.suffix == ".pt2":
        program: Any = torch.export.load(file).module()
        return lambda **given: program(**{name: given[name] for name in names})
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]

    def run(**given: Tensor) -> dict[str, Tensor]:
        found = session.run(outputs, {name: given[name].numpy() for name in names})
        return dict(zip(outputs, map(torch.from_numpy, found), strict=True))

    return run
