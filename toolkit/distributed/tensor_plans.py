"""Which layers of an architecture are split by tensor parallelism, and how."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class TensorPlan:
    """How the layers of an architecture are split over processes.

    Args:
        columns: regular expression of names of linear layers whose outputs are split: queries, keys, values, and the
            first layer of the MLP.
        rows: regular expression of names of linear layers whose inputs are split; their outputs are summed.
        divided: attributes of modules to divide by the number of processes, by regular expression of the names.
    """

    columns: str
    rows: str
    divided: Mapping[str, tuple[str, ...]] | None = None


_BERT = TensorPlan(
    columns=r".*\.(attention\.self\.(query|key|value)|intermediate\.dense)",
    rows=r".*\.(attention\.output\.dense|layer\.\d+\.output\.dense)",
)
PLANS: dict[str, TensorPlan] = {
    "bert": _BERT,
    "roberta": _BERT,
    "electra": _BERT,
    "t5": TensorPlan(
        columns=r".*\.((SelfAttention|EncDecAttention)\.([qkv]|relative_attention_bias)|DenseReluDense\.wi(_\d)?)",
        rows=r".*\.((SelfAttention|EncDecAttention)\.o|DenseReluDense\.wo)",
        divided={r".*\.(SelfAttention|EncDecAttention)": ("n_heads", "inner_dim")},
    ),
}
"""Plans of architectures for which transformers has none, by `model_type`."""
STYLES = {"colwise": "columns", "rowwise": "rows"}
"""Styles of transformers' own plans (`base_model_tp_plan` of a configuration) that are used."""


def plan_of(config: PreTrainedConfig) -> TensorPlan | None:
    """Returns the plan of a model's architecture, or None if it has none."""
    if config.model_type in PLANS:
        return PLANS[config.model_type]
    found = getattr(config, "base_model_tp_plan", None)
    if not found or set(found.values()) - set(STYLES):
        return None
    parts: dict[str, list[str]] = {"columns": [], "rows": []}
    for name, style in found.items():
        parts[STYLES[style]].append(re.escape(name).replace(r"\*", r"\d+"))
    return TensorPlan(**{kind: rf"(.*\.)?({'|'.join(names)})" for kind, names in parts.items()})  # type: ignore[arg-type]


def plan_problems(config: PreTrainedConfig, size: int) -> list[str]:
    """Returns why a model cannot be split over `size` processes, before its weights are loaded."""
    key = f"parallel.tensor: received {size}"
    if plan_of(config) is None:
        known = ", ".join(PLANS)
        return [
            f"{key}, but there is no plan for splitting the layers of {config.model_type}; the toolkit has plans for "
            f"{known}, and uses those of transformers (base_model_tp_plan); set parallel.fsdp instead"
        ]
    text = config.get_text_config()
    names = ("num_attention_heads", "num_key_value_heads", "num_heads", "intermediate_size", "d_ff")
    sizes = {name: getattr(text, name, None) for name in names}
    wrong = [f"{name} ({value})" for name, value in sizes.items() if isinstance(value, int) and value % size]
    return [f"{key}, which does not divide the model's {' and '.join(wrong)}"] if wrong else []


def split_layers(model: PreTrainedModel, mesh: DeviceMesh) -> None:
    """Splits the layers of a model's plan over the processes of a mesh, in place.

    Raises:
        ValueError: if no layer matches the plan.
    """
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = plan_of(model.config)
    assert plan is not None, "checked before the weights are loaded"
    styles: dict[str, Any] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding) and re.fullmatch(plan.columns, name):
            styles[name] = ColwiseParallel()
        elif isinstance(module, nn.Linear) and re.fullmatch(plan.rows, name):
            styles[name] = RowwiseParallel()
        for pattern, attributes in (plan.divided or {}).items():
            if re.fullmatch(pattern, name):
                for attribute in attributes:
                    setattr(module, attribute, getattr(module, attribute) // mesh.size())
    if not styles:
        raise ValueError(f"no layer of {type(model).__name__} matches the plan for {model.config.model_type}")
    parallelize_module(model, mesh, styles)
