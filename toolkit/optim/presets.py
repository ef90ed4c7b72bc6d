"""The optimizers by their names in the YAML, as data: nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BETAS = frozenset({"adam_beta1", "adam_beta2"})
ADAM = BETAS | {"adam_epsilon"}
BITS = frozenset({"amsgrad", "args", "is_paged", "optim_bits"})
"""Arguments of bitsandbytes that do nothing, or that another name of `train.optim` stands for."""


@dataclass(frozen=True)
class Preset:
    """One optimizer.

    Args:
        constructor: `module.Class`, imported when it is asked for.
        takes: which of `train.adam_*` it has.
        fixed: arguments that make it what its name says, which the YAML cannot change.
        hidden: further arguments that the YAML cannot give.
        library: what must be installed besides, in the extra `optimizers`.
        relative_step: whether it sets its own rate.
    """

    constructor: str
    takes: frozenset[str] = frozenset()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    library: str | None = None
    relative_step: bool = False


PRESETS: dict[str, Preset] = {
    "adamw_torch": Preset("torch.optim.AdamW", ADAM, hidden=frozenset({"fused"})),
    "adamw_torch_fused": Preset("torch.optim.AdamW", ADAM, {"fused": True}, frozenset({"foreach"})),
    "adafactor": Preset(
        "transformers.optimization.Adafactor",
        fixed={"scale_parameter": False, "relative_step": False},
        hidden=frozenset({"warmup_init"}),
    ),
    "adamw_bnb_8bit": Preset("bitsandbytes.optim.AdamW8bit", ADAM, hidden=BITS, library="bitsandbytes"),
    "paged_adamw_8bit": Preset("bitsandbytes.optim.PagedAdamW8bit", ADAM, hidden=BITS, library="bitsandbytes"),
    "lion_8bit": Preset("bitsandbytes.optim.Lion8bit", BETAS, hidden=BITS, library="bitsandbytes"),
    "sgd": Preset("torch.optim.SGD"),
    "rmsprop": Preset("torch.optim.RMSprop"),
    "adagrad": Preset("torch.optim.Adagrad"),
    "schedule_free_adamw": Preset("schedulefree.AdamWScheduleFree", ADAM, library="schedulefree"),
    # Below: names of ours.
    "adafactor_relative": Preset(
        "transformers.optimization.Adafactor",
        fixed={"scale_parameter": True, "relative_step": True},
        relative_step=True,
    ),
    "adam": Preset("torch.optim.Adam", ADAM, hidden=frozenset({"decoupled_weight_decay"})),
    "adam_bnb_8bit": Preset("bitsandbytes.optim.Adam8bit", ADAM, hidden=BITS, library="bitsandbytes"),
    "sgdw": Preset("toolkit.optim.sgdw.SGDW"),
    "lamb_bnb_8bit": Preset("toolkit.optim.lamb.Lamb8bit", ADAM, library="bitsandbytes"),
    "muon": Preset("toolkit.optim.muon.MuonWithAdamW", ADAM),
}
