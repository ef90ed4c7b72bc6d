"""Every setting, declared once: its name, type, range, default and meaning.

The text below a field is its help, its JSON Schema description and its documentation. Names and defaults are
those of `transformers.TrainingArguments` (5.x) wherever it has the setting. Nothing but settings is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from toolkit.config.fields import STRICT, Every, Fraction, Positive
from toolkit.config.train_section import TrainConfig


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """Train a few new parameters beside a frozen model (extra `peft`); names as in peft."""

    __pydantic_config__ = STRICT

    method: Literal["none", "lora", "dora", "rslora", "ia3", "prompt_tuning", "qlora"] = "none"
    """Low-rank updates (`lora`; `dora` with a length of their own, `rslora` scaled by the root of `r`, `qlora` beside
    weights of 4 bits on a GPU), factors of activations (`ia3`), or virtual tokens before a text (`prompt_tuning`).
    A head that the base model does not have is trained, and saved, whole."""
    r: Positive = 8
    """Rank of an update."""
    lora_alpha: Positive = 8
    """Updates are scaled by this over `r` (`rslora`: over its root)."""
    lora_dropout: Fraction = 0.0
    """Dropout before the update."""
    target_modules: Literal["auto"] | Annotated[list[str], Field(min_length=1)] = "auto"
    """Layers that are adapted, by the ends of their names; `auto`: every linear layer of attention and MLP (for `ia3`
    those that peft knows for the architecture, if it does)."""
    num_virtual_tokens: Positive = 20
    """Virtual tokens (`prompt_tuning`)."""


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
    peft: AdapterConfig = field(default_factory=AdapterConfig)
    """Adapters."""
    freeze: Literal["backbone", "feature_extractor"] | list[str] = field(default_factory=list)
    """What is not trained: patterns of parameter names (`bert.embeddings.*`), `backbone` (all but the head and a
    pooler), or `feature_extractor` (the convolutions that hear, of speech models). A list may have all of them."""
    unfreeze: dict[str, list[str]] = field(default_factory=dict)
    """What of `freeze` is trained later: `epoch_<n>` or `step_<n>`, after which it is, to patterns."""
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
