"""Checks whether adapters fit the installed libraries, the machine and the task."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from toolkit.config.sections import ModelConfig

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
        "AutoModelForTokenClassification": "tags belong to positions in the text, which virtual tokens would shift",
        "AutoModelForQuestionAnswering": "answers are positions in the text, which virtual tokens would shift",
        "AutoModelForMaskedLM": "masked tokens are predicted at their positions, which virtual tokens would shift",
    }
    why = reasons.get(auto_model, "virtual tokens are a prefix of a text, and this model takes no text")
    return [f"model.peft.method: received 'prompt_tuning', but {why}; use lora"]
