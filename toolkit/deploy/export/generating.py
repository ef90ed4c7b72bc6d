"""The model that generates with the two graphs of an encoder-decoder; its classes are also part of `predict.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput


class Encoder(nn.Module):
    """An encoder as transformers calls it; its graph takes `input_ids` and `attention_mask`."""

    def __init__(self, graph: Callable[..., Mapping[str, Tensor]]) -> None:
        super().__init__()
        self._graph = (graph,)  # in a tuple, so that it is no part of this module: a program has no `eval`

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **further: Any) -> BaseModelOutput:
        """Returns the states of the texts, `[B, S, H]`."""
        states = self._graph[0](input_ids=input_ids, attention_mask=attention_mask)["last_hidden_state"]
        return BaseModelOutput(last_hidden_state=states)


class TwoGraphs(PreTrainedModel, GenerationMixin):
    """Generates as transformers does, without a cache: for every token, the decoder computes the whole text again.

    The decoder returns `logits` for `encoder_hidden_states`, `attention_mask`, and `decoder_input_ids` with their
    `decoder_attention_mask`.
    """

    main_input_name = "input_ids"
    device = torch.device("cpu")
    dtype = torch.float32
    _supports_sdpa = True  # or transformers rejects the configurations of models that use it

    def __init__(
        self,
        config: Any,
        generation_config: Any,
        encoder: Callable[..., Mapping[str, Tensor]],
        decoder: Callable[..., Mapping[str, Tensor]],
    ) -> None:
        super().__init__(config)
        self.generation_config = generation_config
        self.generation_config.use_cache = False
        self._encoder, self._decoder = Encoder(encoder), (decoder,)

    def get_encoder(self, modality: str | None = None) -> Encoder:
        """Returns the encoder."""
        return self._encoder

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        **further: Any,
    ) -> Seq2SeqLMOutput:
        """Returns the logits `[B, T, vocabulary]` and the encoder's states."""
        states = (encoder_outputs or self._encoder(input_ids, attention_mask)).last_hidden_state
        if decoder_attention_mask is None and decoder_input_ids is not None:
            decoder_attention_mask = torch.ones_like(decoder_input_ids)
        found = self._decoder[0](
            encoder_hidden_states=states,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
        )
        return Seq2SeqLMOutput(logits=found["logits"], encoder_last_hidden_state=states)

    def prepare_inputs_for_generation(self, input_ids: Any, *arguments: Any, **kwargs: Any) -> dict[str, Any]:
        """Returns the arguments of `forward` for the next token; transformers looks for the name `kwargs`."""
        kept = ("attention_mask", "encoder_outputs")
        return {"decoder_input_ids": input_ids, **{name: kwargs[name] for name in kept}}
