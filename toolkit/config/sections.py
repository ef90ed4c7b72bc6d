"""Every setting, declared once: its name, type, range, default and meaning.

The text below a field is its help, its JSON Schema description and its documentation. Names and defaults are
those of `transformers.TrainingArguments` (5.x) wherever it has the setting. Nothing of ours is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

STRICT = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False)
"""What every section sets as `__pydantic_config__`: unknown keys and wrong types are errors."""

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Every = Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, lt=1)] | Literal["epoch"] | None


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model is trained. Give exactly one of `name_or_path` and `from_config`."""

    __pydantic_config__ = STRICT

    name_or_path: str | None = None
    """Hub id or local folder of a pretrained model (safetensors weights)."""
    revision: str | None = None
    """Branch, tag or commit of a hub id; pin it for a run that must be repeatable."""
    from_config: dict[str, Any] | None = None
    """Build a new model instead: `model_type` (for instance `bert`) and any field of that model's configuration.
    Its tokenizer is trained on the training text, with at most `vocab_size` entries."""
    config_overrides: dict[str, Any] = field(default_factory=dict)
    """Fields of the model's configuration to change, for instance `hidden_dropout_prob: 0.0`."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Leave it off unless you have read that code."""
    attn_implementation: Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"] | None = (
        None
    )
    """Code that computes attention; the numbers differ in rounding. Null means the model's default, `sdpa` mostly."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the rows come from. Give `train_file` or `dataset_name`."""

    __pydantic_config__ = STRICT

    dataset_name: str | None = None
    """Hub id of a data set."""
    dataset_config_name: str | None = None
    """Configuration of the hub data set."""
    revision: str | None = None
    """Branch, tag or commit of the hub data set; pin it for a run that must be repeatable."""
    train_file: str | None = None
    """Training rows: .csv, .tsv, .json (a list, or SQuAD nesting), .jsonl, .parquet or .txt (one row a line), or
    line-aligned text files as columns, written `train.{en,de}`. A relative path starts at the current directory."""
    validation_file: str | None = None
    """Validation rows, in any of the same formats."""
    test_file: str | None = None
    """Test rows: evaluated once, after training."""
    validation_split: Fraction | None = None
    """Without validation rows of their own, this part of the training rows is set aside (seeded; stratified where
    rows have a class); null means 0.1, and 0 trains without evaluation."""
    columns: dict[str, str] = field(default_factory=dict)
    """The toolkit's column names to yours, for instance `text: review_body`. Names not given stand for themselves."""
    bad_rows: Literal["error", "skip"] = "error"
    """What to do with rows that cannot be used: stop and list them, or leave them out and write `bad_rows.jsonl`."""
    max_train_samples: Positive | None = None
    """Use only the first so many training examples."""
    max_eval_samples: Positive | None = None
    """Use only the first so many examples of each evaluation set."""
    preprocessing_num_workers: Positive | None = None
    """Processes that preprocess rows; null means in this process."""


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
    optim: Literal["adamw_torch", "adamw_torch_fused", "sgd"] = "adamw_torch_fused"
    """Optimizer."""
    optim_args: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the optimizer's constructor, for instance `momentum: 0.9` for `sgd`."""
    learning_rate: Annotated[float, Field(ge=0)] = 5e-5
    """Peak learning rate."""
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
    lr_scheduler_type: Literal["linear", "cosine", "constant", "constant_with_warmup"] = "linear"
    """Shape of the learning rate over the run, in steps."""
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


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """When and how the model is evaluated; always once more at the end of training."""

    __pydantic_config__ = STRICT

    per_device_eval_batch_size: Positive = 8
    """Rows per process in one evaluation forward pass; metrics do not depend on it."""
    eval_steps: Every = None
    """Evaluate every so many steps (below 1: that part of all steps), or every `epoch`; null: only at the end."""
    metric_for_best_model: str | None = None
    """Metric that names the best model, for instance `eval_accuracy`; null means the task's own."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are written, how many are kept, and how a run goes on."""

    __pydantic_config__ = STRICT

    save_steps: Every = 500
    """Save every so many steps (below 1: that part of all steps), or every `epoch`; null: none but on SIGTERM."""
    save_total_limit: Positive | None = None
    """Keep only so many of the newest checkpoints (and the best one, if it is needed); null keeps all."""
    resume: str = "none"
    """`none` starts anew and wants an empty output folder, `auto` goes on from the newest valid checkpoint if there
    is one, a path goes on from that checkpoint."""
    load_best_model_at_end: bool = False
    """Keep the checkpoint with the best metric and write that one as the final model, not the last step."""
    push_to_hub: bool = False
    """Push the final model, with its card, to the hub (needs `hf auth login` or HF_TOKEN)."""
    hub_model_id: str | None = None
    """Repository to push to; null means one named after the output folder, in your own name space."""
    hub_private_repo: bool | None = None
    """Whether a new repository is private; null means the hub's default for you."""
    hub_revision: str | None = None
    """Branch to push to; null means the main one."""


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """What is written down while training; `metrics.jsonl` always."""

    __pydantic_config__ = STRICT

    logging_steps: Positive = 500
    """Write a training line every so many steps; its loss is the mean over all items since the line before."""
    report_to: list[Literal["tensorboard", "wandb", "mlflow"]] = field(default_factory=list)
    """Trackers that get the same numbers (extra `tracking`)."""
    project: str = "finetune-toolkit"
    """Project name given to trackers."""
    run_name: str | None = None
    """Run name given to trackers; null means the output folder's name."""


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """What `engine: trainer` gives to `transformers.Trainer` besides."""

    __pydantic_config__ = STRICT

    callbacks: list[str] = field(default_factory=list)
    """Importable callbacks, `package.module.Name` each: a `TrainerCallback`, its class, or a function that returns
    one."""
    args: dict[str, Any] = field(default_factory=dict)
    """Fields of `TrainingArguments` that no other setting stands for, for instance `neftune_noise_alpha: 5.0`."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run. `task` is the recipe's own section, `Task.Options`."""

    task: Any
    model: ModelConfig
    data: DataConfig
    train: TrainConfig
    eval: EvalConfig
    checkpoint: CheckpointConfig
    tracking: TrackingConfig
    trainer: TrainerConfig
    output_dir: str
    engine: Literal["loop", "trainer"] = "loop"
    seed: int = 42


@dataclass(frozen=True, kw_only=True)
class TopLevel:
    """The keys that stand outside any section."""

    __pydantic_config__ = STRICT

    output_dir: str
    """Folder for everything the run writes."""
    engine: Literal["loop", "trainer"] = "loop"
    """Who runs the training loop: the toolkit, on accelerate, or `transformers.Trainer`. The numbers are the same."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42
    """Seed of everything random: new weights, row order, dropout, augmentation."""
