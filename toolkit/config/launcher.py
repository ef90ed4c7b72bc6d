"""Settings that `accelerate launch` passes to its processes; the YAML and the launcher must agree."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from toolkit.config.keys import _hints
from toolkit.config.messages import choices, show
from toolkit.config.sections import TrainConfig
from toolkit.config.source import Settings, Source

LAUNCHER: dict[str, tuple[str, str, Any]] = {
    "mixed_precision": ("ACCELERATE_MIXED_PRECISION", "no", "no"),
    "gradient_accumulation_steps": ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "auto", 1),
}
"""Field of `train`: the launcher's variable, the variable's value if the user did not set it, and our default.
`accelerate launch` always sets the precision, by default to `no`."""

USE_FSDP = "ACCELERATE_USE_FSDP"
"""Whether the launcher asks for FSDP; the toolkit shards the model itself, so accelerate must not see it."""
FSDP: dict[str, tuple[str, bool]] = {
    "reshard_after_forward": ("FSDP_RESHARD_AFTER_FORWARD", True),
    "offload": ("FSDP_OFFLOAD_PARAMS", False),
}
"""Field of `parallel`: the launcher's variable, and the default of both."""
NOT_TRANSLATED: dict[str, tuple[frozenset[str], str]] = {
    "FSDP_VERSION": (frozenset({"2"}), "set fsdp_version to 2"),
    "FSDP_AUTO_WRAP_POLICY": (
        frozenset({"TRANSFORMER_BASED_WRAP", "NO_WRAP"}),
        "remove fsdp_auto_wrap_policy: each layer of the model is sharded",
    ),
    "FSDP_TRANSFORMER_CLS_TO_WRAP": (frozenset(), "remove fsdp_transformer_layer_cls_to_wrap: layers are found"),
    "FSDP_ACTIVATION_CHECKPOINTING": (
        frozenset({"false"}),
        "remove fsdp_activation_checkpointing and set train.activation_checkpointing to full",
    ),
    "FSDP_IGNORED_MODULES": (frozenset(), "remove fsdp_ignored_modules: every parameter is sharded"),
}
"""Other variables of the launcher: values that change nothing, and what to do about any other."""
_TRUE = {"1", "true", "yes", "on", "t", "y"}


def ask_launcher(settings: Settings, environ: Mapping[str, str]) -> None:
    """Fills in values that the file leaves to the launcher; reports values that both set differently."""
    hints = _hints(TrainConfig)
    for field, (variable, silent, default) in LAUNCHER.items():
        key = ("train", field)
        text, own = environ.get(variable, "").strip().lower(), settings.get(key)
        asked = int(text) if text.isdecimal() else text
        allowed = choices(hints[field])
        if asked in ("", silent):
            if own is None:
                settings.set(key, default, settings.default)
        elif own is None or (allowed and asked not in allowed):
            settings.set(key, asked, Source("launcher", f"launcher {variable}={text}"))
        elif asked != own:
            settings.report(
                key,
                f"received {show(own)}, but the launcher says {show(asked)} ({variable}); set "
                f"train.{field} to null, which means the launcher's value, or start "
                f"`accelerate launch` with --{field} {own}",
            )
    if environ.get(USE_FSDP, "").lower() in _TRUE:
        _translate_fsdp(settings, environ)


def _translate_fsdp(settings: Settings, environ: Mapping[str, str]) -> None:
    """Translates a launcher file with `distributed_type: FSDP` into the section `parallel`."""
    given = settings.get(("parallel",))
    parallel = given if isinstance(given, dict) else {}
    key = ("parallel", "fsdp")
    if parallel.get("fsdp") == 1:
        settings.report(key, f"received 1, but the launcher asks for FSDP ({USE_FSDP}); remove one of the two")
    elif parallel.get("fsdp") is None and parallel.get("zero_stage") is None:
        others = [size for size in map(parallel.get, ("replicas", "tensor")) if isinstance(size, int) and size > 0]
        processes = int(environ.get("WORLD_SIZE", "1")) // prod(others)
        settings.set(key, max(1, processes), Source("launcher", f"launcher {USE_FSDP}=true"))
    for field, (variable, default) in FSDP.items():
        asked, own = environ.get(variable, str(default)).lower() in _TRUE, parallel.get(field)
        if own is None and asked != default:
            settings.set(("parallel", field), asked, Source("launcher", f"launcher {variable}={str(asked).lower()}"))
        elif own is not None and asked != own:
            settings.report(
                ("parallel", field),
                f"received {show(own)}, but the launcher says {show(asked)} ({variable}); set both to the same",
            )
    for variable, (harmless, remedy) in NOT_TRANSLATED.items():
        text = environ.get(variable, "")
        if text and text not in harmless and text.lower() != "none":
            settings.report(key, f"the launcher says {variable}={text}, which the toolkit does not use; {remedy}")
