"""The optimizers by their names in the YAML, as data; imports nothing heavy.

Code that depends on the optimizer checks a field of its preset, never its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BETAS = frozenset({"adam_beta1", "adam_beta2"})
ADAM = BETAS | {"adam_epsilon"}
_EIGHT_BIT: dict[str, Any] = {"library": "bitsandbytes", "eight_bit": True}
_OF_LIBRARY = _EIGHT_BIT | {"hidden": frozenset({"amsgrad", "args", "is_paged", "optim_bits"})}
"""The hidden arguments have no effect, or another choice of `train.optim` replaces them."""
_EIGHT_BIT_ADAM = _OF_LIBRARY | {"state_bytes": 2.03, "takes": ADAM}
_FOREACH: dict[str, Any] = {"elementwise": True, "foreach": True}


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One optimizer."""

    constructor: str  # full name of its class, imported when needed
    summary: str  # short description, for the table in docs/switches.md
    source: str  # its paper or library
    state_bytes: float  # bytes of state per weight of a 384 x 384 matrix; a test measures it
    takes: frozenset[str] = frozenset()  # the settings `train.adam_*` that it uses
    fixed: Mapping[str, Any] = field(default_factory=dict)  # arguments that the name implies and the YAML cannot change
    hidden: frozenset[str] = frozenset()  # other arguments that the YAML cannot set
    library: str | None = None  # optional library that it needs, part of the extra `optimizers`
    relative_step: bool = False  # whether it computes its own learning rate
    averages: bool = False  # whether it returns the average of its weights; it then has `train()` and `eval()`
    has_momentum: bool = False  # whether its constructor takes `momentum`
    takes_matrices: bool = False  # whether its parameter groups need the key `matrices`
    elementwise: bool = False  # whether any part of a parameter can be updated separately, element by element
    foreach: bool = False  # whether it updates all parameters at once on a GPU, with temporary memory of their size
    eight_bit: bool = False  # whether it keeps its state in 8 bits
    unpaged: str | None = None  # of an optimizer whose state may move to CPU memory: the same one without paging
    with_decay: str | None = None  # of an optimizer without weight decay: the same one with it


PRESETS: dict[str, Preset] = {
    "adamw_torch": Preset(
        constructor="torch.optim.AdamW",
        summary="Adam with decoupled weight decay",
        source="arXiv 1711.05101",
        state_bytes=8,
        takes=ADAM,
        hidden=frozenset({"fused"}),
        **_FOREACH,
    ),
    "adamw_torch_fused": Preset(
        constructor="torch.optim.AdamW",
        summary="AdamW in one fused kernel",
        source="arXiv 1711.05101",
        state_bytes=8,
        takes=ADAM,
        fixed={"fused": True},
        hidden=frozenset({"foreach"}),
        elementwise=True,
    ),
    "adafactor": Preset(
        constructor="transformers.optimization.Adafactor",
        summary="keeps the second moment as one row and one column per matrix; takes the schedule's learning rate",
        source="arXiv 1804.04235",
        state_bytes=0.0208,
        fixed={"scale_parameter": False, "relative_step": False},
        hidden=frozenset({"warmup_init"}),
    ),
    "adamw_bnb_8bit": Preset(
        constructor="bitsandbytes.optim.AdamW8bit",
        summary="AdamW with moments in 8 bits; embeddings and tensors under 4096 elements keep 32 bits",
        source="arXiv 2110.02861",
        **_EIGHT_BIT_ADAM,
    ),
    "paged_adamw_8bit": Preset(
        constructor="bitsandbytes.optim.PagedAdamW8bit",
        summary="8-bit AdamW whose state may move to CPU memory; on a CPU it equals `adamw_bnb_8bit`",
        source="arXiv 2305.14314",
        unpaged="adamw_bnb_8bit",
        **_EIGHT_BIT_ADAM,
    ),
    "lion_8bit": Preset(
        constructor="bitsandbytes.optim.Lion8bit",
        summary="sign of a momentum, in 8 bits; needs a lower learning rate, and its own default is `adam_beta2: 0.99`",
        source="arXiv 2302.06675",
        state_bytes=1.016,
        takes=BETAS,
        **_OF_LIBRARY,
    ),
    "sgd": Preset(
        constructor="torch.optim.SGD",
        summary="SGD; momentum (4 bytes) and Nesterov through `optim_args`",
        source="`torch.optim`",
        state_bytes=0,
        has_momentum=True,
        **_FOREACH,
    ),
    "rmsprop": Preset(
        constructor="torch.optim.RMSprop",
        summary="divides by the root of a moving average of squared gradients",
        source="`torch.optim`",
        state_bytes=4,
        has_momentum=True,
        **_FOREACH,
    ),
    "adagrad": Preset(
        constructor="torch.optim.Adagrad",
        summary="divides by the root of the sum of squared gradients",
        source="`torch.optim`",
        state_bytes=4,
        **_FOREACH,
    ),
    "schedule_free_adamw": Preset(
        constructor="schedulefree.AdamWScheduleFree",
        summary="AdamW that averages instead of following a schedule; needs a copy of the weights while evaluating",
        source="arXiv 2405.15682",
        state_bytes=8,
        takes=ADAM,
        library="schedulefree",
        averages=True,
        elementwise=True,
    ),
    # The following names are the toolkit's; Hugging Face has none for these.
    "adafactor_relative": Preset(
        constructor="transformers.optimization.Adafactor",
        summary="Adafactor with its own learning rate; only with `lr_scheduler_type: constant`",
        source="arXiv 1804.04235",
        state_bytes=0.0208,
        fixed={"scale_parameter": True, "relative_step": True},
        relative_step=True,
    ),
    "adam": Preset(
        constructor="torch.optim.Adam",
        summary="Adam with weight decay added to the gradient",
        source="arXiv 1412.6980",
        state_bytes=8,
        takes=ADAM,
        hidden=frozenset({"decoupled_weight_decay"}),
        **_FOREACH,
    ),
    "adam_bnb_8bit": Preset(
        constructor="bitsandbytes.optim.Adam8bit",
        summary="Adam with moments in 8 bits, without weight decay",
        source="arXiv 2110.02861",
        with_decay="adamw_bnb_8bit",
        **_EIGHT_BIT_ADAM,
    ),
    "sgdw": Preset(
        constructor="toolkit.optim.algorithms.SGDW",
        summary="SGD with decoupled weight decay; momentum (4 bytes) and Nesterov through `optim_args`",
        source="arXiv 1711.05101",
        state_bytes=0,
        has_momentum=True,
        elementwise=True,
    ),
    "adadelta": Preset(
        constructor="torch.optim.Adadelta",
        summary="scales by moving averages of squared gradients and squared updates; often `learning_rate: 1.0`",
        source="Zeiler 2012, arXiv 1212.5701",
        state_bytes=8,
        **_FOREACH,
    ),
    "lars": Preset(
        constructor="toolkit.optim.algorithms.LARS",
        summary="SGD with momentum and a learning rate per tensor, for large batches; its rates are far larger",
        source="You et al. 2017, arXiv 1708.03888",
        state_bytes=4,
        has_momentum=True,
    ),
    "lamb_bnb_8bit": Preset(
        constructor="toolkit.optim.lamb.Lamb8bit",
        summary="8-bit Adam with a learning rate per tensor, for large batches; copies one tensor at a time",
        source="arXiv 1904.00962",
        state_bytes=2.03,
        takes=ADAM,
        **_EIGHT_BIT,
    ),
    "muon": Preset(
        constructor="toolkit.optim.algorithms.MuonWithAdamW",
        summary="orthogonal updates of hidden matrices (5 Newton-Schulz steps each), AdamW (8 bytes) for the rest",
        source="arXiv 2502.16982",
        state_bytes=4,
        has_momentum=True,
        takes=ADAM,
        takes_matrices=True,
    ),
}
