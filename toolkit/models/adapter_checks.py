"""Checks whether adapters fit the installed libraries, the machine, the task and the rows."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from toolkit.config.sections import ModelConfig

if TYPE_CHECKING:
    from toolkit.api.task import Prepared

PROMPTABLE = {
    "AutoModelForSequenceClassification": "SEQ_CLS",
    "AutoModelForCausalLM": "CAUSAL_LM",
    "AutoModelForSeq2SeqLM": "SEQ_2_SEQ_LM",
}
"""Heads that work with a prefix of virtual tokens, and peft's names of their tasks. Other methods omit the task for the
remaining heads, because peft's class for question answering drops `token_type_ids`."""


def adapter_problems(model: ModelConfig) -> list[str]:
    """Returns why the installed libraries or the machine do not support `model.peft.method`, as full messages."""
    method = model.peft.method
    needed = {"none": (), "qlora": ("peft", "bitsandbytes")}.get(method, ("peft",))
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        extra = "qlora" if method == "qlora" else "peft"
        return [
            f"model.peft.method: {method} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} "
            f"not installed; pip install 'finetune-toolkit[{extra}]'"
        ]
    if method == "qlora" and not torch.cuda.is_available():
        return ["model.peft.method: qlora needs a GPU for its 4-bit weights, and none is visible here; use lora"]
    return []


def prompt_problems(model: ModelConfig, auto_model: str) -> list[str]:
    """Returns why this task's inputs cannot be prefixed with virtual tokens, as a full message, or nothing."""
    if model.peft.method != "prompt_tuning" or auto_model in PROMPTABLE:
        return []
    reasons = {
        "AutoModelForQuestionAnswering": "answers are positions in the text, which virtual tokens would shift",
        "AutoModelForMaskedLM": "masked tokens are predicted at their positions, which virtual tokens would shift",
    }
    why = reasons.get(auto_model, "virtual tokens are a prefix of a text, and this model takes no text")
    return [f"model.peft.method: received 'prompt_tuning', but {why}; use lora"]


def room_problems(model: ModelConfig, config: Any, data: Prepared) -> list[str]:
    """Returns a full message if inputs with virtual tokens exceed the model's length, or nothing."""
    room = getattr(config, "max_position_embeddings", None)
    if model.peft.method != "prompt_tuning" or room is None:
        return []
    longest = max(max(rows["length"]) for rows in (data.train, *(data.features for data in data.evals.values())))
    if longest + model.peft.num_virtual_tokens <= room:
        return []
    return [
        f"model.peft.num_virtual_tokens: received {model.peft.num_virtual_tokens}, but the longest input has "
        f"{longest} tokens and the model only {room} positions; use shorter inputs or fewer virtual tokens"
    ]
