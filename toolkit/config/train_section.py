"""The settings of training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from toolkit.config.fields import STRICT, Fraction, Positive


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How the model is trained. A step is one optimizer step."""

    __pydantic_config__ = STRICT

    per_device_train_batch_size: Positive = 8
    """Rows per process in one forward pass."""
    gradient_accumulation_steps: Positive | None = None
    """Forward passes per step. Null means the launcher's value, or 1."""
    num_train_epochs: Annotated[float, Field(gt=0)] = 3.0
    """Passes over the training rows; may be fractional."""
    max_steps: Annotated[int, Field(ge=-1)] = -1
    """Above 0: train exactly so many steps, whatever `num_train_epochs` says."""
    optim: Literal[
        "adamw_torch", "adamw_torch_fused", "adafactor", "adamw_bnb_8bit", "paged_adamw_8bit", "lion_8bit", "sgd",
        "rmsprop", "adagrad", "schedule_free_adamw", "adafactor_relative", "adam", "adam_bnb_8bit", "sgdw",
        "lamb_bnb_8bit", "muon",
    ] = "adamw_torch_fused"  # fmt: skip
    """Optimizer. Those with 8 bits, and `schedule_free_adamw`, need the extra `optimizers`; names from
    `adafactor_relative` on are the toolkit's own."""
    optim_args: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the optimizer's constructor, for instance `momentum: 0.9` for `sgd`."""
    learning_rate: Annotated[float, Field(ge=0)] = 5e-5
    """Peak learning rate."""
    layerwise_lr_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Below 1: each layer of the base model learns at so many times the rate of the one above it; the last one at
    that of the head times this, the embeddings slowest."""
    head_learning_rate: Annotated[float, Field(ge=0)] | None = None
    """Peak learning rate of the parameters outside the base model; null means `learning_rate`."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay, on weight matrices only: never on biases and normalisation layers."""
    adam_beta1: Fraction = 0.9
    """Decay of Adam's first moment."""
    adam_beta2: Fraction = 0.999
    """Decay of Adam's second moment."""
    adam_epsilon: Annotated[float, Field(gt=0)] = 1e-8
    """Adam's epsilon."""
    max_grad_norm: Annotated[float, Field(ge=0)] = 1.0
    """Clip the gradient's norm to this; 0 leaves it as it is (its norm is still reported)."""
    lr_scheduler_type: Literal[
        "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt",
        "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay", "step",
        "multi_step", "exponential", "cyclic", "one_cycle",
    ] = "linear"  # fmt: skip
    """Shape of the learning rate over the run, in steps (`toolkit lr-plot` draws it)."""
    lr_scheduler_kwargs: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the schedule, in the library's words, for instance `num_cycles: 4`."""
    snapshot_ensemble: bool = False
    """With `cosine_with_restarts`: keep the model at the end of each cycle, and score the mean of their predictions
    at the end (`ensemble_` metrics)."""
    warmup_steps: Annotated[float, Field(ge=0)] = 0
    """Steps of linear warm-up; below 1, a fraction of all steps."""
    early_stopping_patience: Positive | None = None
    """End training after so many evaluations without a better metric (`eval.metric_for_best_model`)."""
    early_stopping_threshold: Annotated[float, Field(ge=0)] = 0.0
    """By how much a metric must be better to count."""
    max_time: Annotated[str, Field(pattern=r"^\d+:[0-2]\d:[0-5]\d:[0-5]\d$")] | None = None
    """End training after so long, as `days:hours:minutes:seconds` (`00:11:30:00`), after the step that is being done;
    evaluations, checkpoints and former sessions of the run count, reading data and models do not."""
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Keep an average of the weights, which keeps this part of itself at each update (0.999, say). It is what is
    evaluated and what the run ends with; training itself does not change."""
    mixed_precision: Literal["no", "bf16", "fp16", "fp8"] | None = None
    """Arithmetic of the forward pass; weights stay float32. Null means the launcher's value, or no."""
    strategy: Literal["sync", "local_sgd"] = "sync"
    """How processes stay one model: by exchanging gradients in every step, or `local_sgd`, by training on their own and
    averaging parameters now and then."""
    local_sgd_steps: Positive = 8
    """Steps that processes train on their own before they average (`strategy: local_sgd`)."""
    local_sgd_warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Exchange gradients in so many steps first."""
    local_sgd_average_moments: bool = False
    """Average the optimizer's moments too."""
    local_sgd_outer_lr: Annotated[float, Field(gt=0)] | None = None
    """Learning rate of an outer optimizer, SGD with Nesterov momentum, that takes the way to the average as its
    gradient (DiLoCo: 0.7); null takes the average itself."""
    local_sgd_outer_momentum: Fraction = 0.9
    """Its momentum."""
    tf32: bool | None = None
    """Let float32 products on a GPU round their factors to TensorFloat32; null leaves it as PyTorch has it."""
    activation_checkpointing: Annotated[str, Field(pattern=r"^(none|full|every_[1-9]\d*_layers)$")] = "none"
    """Compute activations anew in the backward pass instead of keeping them: of no layer (`none`), of all (`full`), or
    of one in k (`every_2_layers`). The gradient stays the same."""
    activation_offload: bool = False
    """Keep activations in the CPU's memory between forward and backward pass. The gradient stays the same."""
    auto_batch_size: bool = False
    """When memory does not suffice for a micro-batch, train its rows in smaller parts from there on, on all processes
    alike; what makes a step stays the same. Evaluation has a batch size of its own."""
    torch_compile: bool = False
    """Compile the training pass with `torch.compile`. Numbers agree to rounding only."""
    torch_compile_backend: str | None = None
    """Its backend; null means `inductor`."""
    torch_compile_mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] | None = (
        None
    )
    """Mode of the backend `inductor`; null means `default`."""
    train_sampling_strategy: Literal["random", "sequential", "group_by_length", "balanced"] = "random"
    """Order of the rows: shuffled, as they are, shuffled so that a step's rows have similar lengths, or `balanced`: an
    epoch has as many rows as ever, but the same number of each class, those of small classes several times."""
    dataloader_num_workers: Annotated[int, Field(ge=0)] = 0
    """Processes that load and collate batches; 0 means in the training process."""
    dataloader_pin_memory: bool = True
    """Load batches into pinned memory (where there is a GPU)."""
    dataloader_persistent_workers: bool = False
    """Keep the loader's processes from epoch to epoch."""
    dataloader_prefetch_factor: Positive | None = None
    """Batches that each of the loader's processes prepares ahead; null means 2."""
    ddp_find_unused_parameters: bool = False
    """Let several processes train a model of which some parameters get no gradient."""
    ddp_timeout: Positive = 1800
    """Seconds after which processes that wait for each other give up."""
