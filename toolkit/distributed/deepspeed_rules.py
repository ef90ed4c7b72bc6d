"""Settings that cannot be combined with DeepSpeed; part of the table in `toolkit.checks.rules`."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from toolkit.config.problems import Rule
from toolkit.config.sections import Config
from toolkit.config.train import ParallelConfig
from toolkit.optim.presets import PRESETS

_TORCH = "set parallel.backend to torch"


def deepspeed_problems(cfg: Config) -> list[str]:
    """Returns the problem, as a complete message, if DeepSpeed is configured and not installed."""
    if cfg.parallel.backend != "deepspeed" or find_spec("deepspeed") is not None:
        return []
    return [
        "parallel.backend: received 'deepspeed', but deepspeed is not installed (pip install "
        "'finetune-toolkit[deepspeed]'); torch needs no other library"
    ]


def _refused_by_deepspeed(when: Callable[[Config], bool], keys: tuple[str, ...], why: str, instead: str) -> Rule:
    return Rule(lambda c: c.parallel.backend == "deepspeed" and when(c), keys, why, instead)


def _stage_one(key: str, when: Callable[[Config], bool], why: str, instead: str) -> Rule:
    """Returns a rule for stage 1; the other stages are split models, for which `parallel_rules` has such a rule."""
    keys = (key, "parallel.zero_stage", "parallel.backend")
    return _refused_by_deepspeed(lambda c: c.parallel.zero_stage == 1 and when(c), keys, why, f"{instead}, or {_TORCH}")


DEEPSPEED_RULES = (
    _refused_by_deepspeed(
        lambda c: c.checkpoint.async_save is True,
        ("checkpoint.async_save", "parallel.backend"),
        "DeepSpeed makes complete copies for each checkpoint, for which training waits",
        f"set checkpoint.async_save to auto or false, or {_TORCH}",
    ),
    _refused_by_deepspeed(
        lambda c: c.parallel.zero_stage is None,
        ("parallel.backend", "parallel.zero_stage"),
        "DeepSpeed is used for ZeRO only",
        "set parallel.zero_stage to 1, 2 or 3, or remove parallel.backend",
    ),
    _refused_by_deepspeed(
        lambda c: c.parallel.tensor > 1 or c.parallel.pipeline > 1 or c.parallel.fsdp > 1,
        ("parallel",),
        "DeepSpeed's ZeRO splits over all processes",
        f"remove parallel.fsdp, parallel.tensor and parallel.pipeline, or {_TORCH}",
    ),
    _refused_by_deepspeed(
        lambda c: c.parallel.replicas not in (None, 1) and c.parallel.zero_stage in (2, 3),
        ("parallel",),
        "DeepSpeed's ZeRO splits over all processes, so there are no replicas",
        f"remove parallel.replicas, or {_TORCH}",
    ),
    _refused_by_deepspeed(
        lambda c: c.parallel.reshard_after_forward != ParallelConfig().reshard_after_forward,
        ("parallel.reshard_after_forward", "parallel.backend"),
        "DeepSpeed's stage decides when parameters are freed",
        f"remove parallel.reshard_after_forward, or {_TORCH}",
    ),
    _refused_by_deepspeed(
        lambda c: not PRESETS[c.train.optim].elementwise and PRESETS[c.train.optim].library != "bitsandbytes",
        ("train.optim", "parallel.backend"),
        "this optimizer needs complete matrices, and DeepSpeed updates flat parts of many parameters",
        f"set train.optim to adamw_torch, or {_TORCH}",
    ),
    _refused_by_deepspeed(
        lambda c: PRESETS[c.train.optim].averages and c.parallel.zero_stage != 1,
        ("train.optim", "parallel.backend"),
        "this optimizer evaluates an average of the weights that it updates, and DeepSpeed evaluates a copy of them",
        f"set train.optim to adamw_torch, or {_TORCH}",
    ),
    _refused_by_deepspeed(
        lambda c: c.train.optim == "adagrad",
        ("train.optim", "parallel.backend"),
        "DeepSpeed replaces this optimizer by one without the groups for weight decay",
        f"set train.optim to adamw_torch, or {_TORCH}",
    ),
    _refused_by_deepspeed(
        lambda c: c.train.ema_decay is not None,
        ("train.ema_decay", "parallel.backend"),
        "DeepSpeed's parameters cannot be exchanged for their averages",
        f"remove train.ema_decay, or {_TORCH}",
    ),
    _refused_by_deepspeed(
        lambda c: c.train.max_grad_value is not None,
        ("train.max_grad_value", "parallel.backend"),
        "DeepSpeed keeps the gradient in parts of its own",
        f"remove train.max_grad_value, or {_TORCH}",
    ),
    _refused_by_deepspeed(
        lambda c: bool(c.model.unfreeze),
        ("model.unfreeze", "parallel.backend"),
        "DeepSpeed splits the parameters that are trained at the start",
        f"remove model.unfreeze, or {_TORCH}",
    ),
    _refused_by_deepspeed(
        lambda c: c.train.activation_offload,
        ("train.activation_offload", "parallel.backend"),
        "it has not been shown to work with parameters that DeepSpeed gathers and frees",
        f"remove train.activation_offload, or {_TORCH}",
    ),
    _stage_one(
        "train.optim",
        lambda c: PRESETS[c.train.optim].library == "bitsandbytes",
        "bitsandbytes needs parameters in their shape, and DeepSpeed updates flat parts of many",
        "set train.optim to adamw_torch",
    ),
    _stage_one(
        "train.mixed_precision",
        lambda c: c.train.mixed_precision in ("fp16", "fp8"),
        "DeepSpeed would scale losses and cast in its own way",
        "set train.mixed_precision to bf16 or no",
    ),
    _stage_one(
        "train.torch_compile",
        lambda c: c.train.torch_compile,
        "the model is compiled before DeepSpeed changes it",
        "remove train.torch_compile",
    ),
    _stage_one(
        "train.activation_compression",
        lambda c: c.train.activation_compression != "none",
        "it has not been compared under DeepSpeed",
        "remove train.activation_compression",
    ),
    _stage_one(
        "train.ddp_comm_hook",
        lambda c: c.train.ddp_comm_hook != "no",
        "DeepSpeed exchanges gradients itself",
        "remove train.ddp_comm_hook",
    ),
    _stage_one(
        "train.snapshot_ensemble",
        lambda c: c.train.snapshot_ensemble,
        "snapshots cannot be loaded into DeepSpeed's parameters",
        "remove train.snapshot_ensemble",
    ),
    _stage_one(
        "model.peft.method",
        lambda c: c.model.peft.method == "qlora",
        "DeepSpeed updates float32 parameters",
        "set model.peft.method to lora",
    ),
)
