"""Every setting, declared once: its name, type, range, default and meaning.

The docstring of a field is its help, its JSON Schema description and its documentation. Names and defaults are those
of `transformers.TrainingArguments` (5.x) wherever it has the setting. This module imports nothing but settings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from toolkit.config.fields import STRICT, ColumnName, Every, Fraction, Positive, Room
from toolkit.config.train import ParallelConfig, TrainConfig

DEFAULT_SPLIT = 0.1
"""Fraction of the training rows to set aside for validation if `data.validation_split` is null."""


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """Parameter-efficient fine-tuning: trains a few new parameters beside a frozen model (extra `peft`).

    Names are those of peft.
    """

    __pydantic_config__ = STRICT

    method: Literal["none", "lora", "dora", "rslora", "ia3", "prompt_tuning", "qlora"] = "none"
    """Low-rank updates (`lora`; `dora` also trains their magnitude, `rslora` scales them by the square root of `r`,
    `qlora` stores the frozen weights in 4 bits), learned factors of activations (`ia3`), or virtual tokens
    before the text (`prompt_tuning`). A new head is trained and saved in full."""
    r: Positive = 8
    """Rank of the updates."""
    lora_alpha: Positive = 8
    """Updates are scaled by `lora_alpha / r` (`rslora`: `lora_alpha / sqrt(r)`)."""
    lora_dropout: Fraction = 0.0
    """Dropout on the input of the updates."""
    init_lora_weights: Annotated[str, Field(pattern=r"^(default|pissa(_niter_[1-9]\d*)?|olora)$")] = "default"
    """Initial updates (`lora`, `rslora`): none, or the principal part of each weight, the rest of which is frozen, by
    singular values (`pissa`; `pissa_niter_16` approximates them, much faster for large layers) or QR decomposition
    (`olora`). Adapters are saved with rank `2 * r`, relative to the unchanged weights."""
    trainable_token_indices: list[Annotated[int, Field(ge=0)]] = field(default_factory=list)
    """Tokens, by id, whose embeddings and rows of the output layer are trained (low-rank methods): new ones."""
    target_modules: Literal["auto"] | Annotated[list[str], Field(min_length=1)] = "auto"
    """Layers to adapt, by the ends of their names. `auto` adapts every linear layer of attention and MLP (for `ia3`,
    the layers that peft lists for the architecture, if it does)."""
    num_virtual_tokens: Positive = 20
    """Number of virtual tokens (`prompt_tuning`)."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The model to train. Give exactly one of `name_or_path` and `from_config`."""

    __pydantic_config__ = STRICT

    name_or_path: str | None = None
    """Hub id or local folder of a pretrained model (safetensors weights), or the folder of a run."""
    revision: str | None = None
    """Branch, tag or commit of a hub id; pin a commit for repeatable runs."""
    from_config: dict[str, Any] | None = None
    """Build a new model with random weights: `model_type` (for instance `bert`) and any field of that model's
    configuration. Its tokenizer is trained on the training text, with at most `vocab_size` entries."""
    initializer: Literal[
        "default", "xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal", "orthogonal"
    ] = "default"
    """Distribution of the new weights of linear and convolutional layers with `from_config`: the model's own, or that
    of `torch.nn.init` (Kaiming for ReLU). Biases, norms and embeddings, also as tied heads, keep the model's own."""
    config_overrides: dict[str, Any] = field(default_factory=dict)
    """Fields of the model's configuration to change, for instance `hidden_dropout_prob: 0.0`."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Leave this off unless you have read that code."""
    peft: AdapterConfig = field(default_factory=AdapterConfig)
    """Adapters."""
    freeze: Literal["backbone", "feature_extractor"] | list[str] = field(default_factory=list)
    """Parameters that are not trained: patterns of names (`bert.embeddings.*`), `backbone` (everything except the head
    and the pooler), or `feature_extractor` (the convolutional feature encoder of speech models). Entries can be
    combined in a list."""
    unfreeze: dict[str, list[str]] = field(default_factory=dict)
    """Gradual unfreezing: maps `epoch_<n>` or `step_<n>` to the patterns of parameters that are trained after it."""
    attn_implementation: Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"] | None = (
        None
    )
    """Code that computes attention; the numbers differ in rounding. Null means the model's default, `sdpa` mostly."""


DATA_FILES = ("train_file", "validation_file", "test_file")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The data. Give `train_file` or `dataset_name`."""

    __pydantic_config__ = STRICT

    dataset_name: str | None = None
    """Hub id of a dataset."""
    dataset_config_name: str | None = None
    """Configuration of the hub dataset."""
    revision: str | None = None
    """Branch, tag or commit of the hub dataset; pin a commit for repeatable runs."""
    train_file: str | list[str] | None = None
    """Training rows: .csv, .tsv, .json (a list, or SQuAD's nested format), .jsonl, .parquet, .arrow and .feather (Arrow
    IPC), .h5 and .hdf5 (HDF5; a group as in `reviews.h5#train`; extra `hdf5`), .tmx, .xlsx (the first sheet, or the one
    in `reviews.xlsx#Sheet2`; extra `excel`) or .txt (one row per line); line-aligned text files as columns, written
    `train.{en,de}`; or a folder of `<class>/<file>`, also as an archive (.tar, .zip). A list of files is one table;
    scores of rows that are set aside from it are also shown by file. Relative paths start at the current directory."""
    mix: list[Annotated[float, Field(gt=0)]] = field(default_factory=list)
    """Shares of the files in `train_file`, in their order, in epochs of as many rows as all have, for instance
    `[0.7, 0.3]`. A file's rows are drawn in shuffled passes, which continue in the next epoch. Empty: each row once."""
    validation_file: str | None = None
    """Validation rows, in any of these formats."""
    test_file: str | None = None
    """Test rows, evaluated once, after training."""
    validation_split: Fraction | None = None
    """Fraction of the training rows to set aside if there are no validation rows (seeded; stratified where rows have a
    class). Null means 0.1; 0 trains without evaluation. Rows with equal inputs, and groups (`group_column`), stay
    together."""
    test_split: Fraction = 0.0
    """Fraction of the training rows to set aside as test rows if there are none, in the same way; the validation rows
    do not depend on it."""
    folds: Annotated[int, Field(ge=2)] | None = None
    """Divide the training rows into this many folds of equal size, of which one (`fold`) has the validation rows
    (seeded; stratified where rows have a class; rows with equal inputs, and groups, stay together). Test rows are set
    aside first, and are the same for every fold. A hub dataset's own validation rows are not read."""
    fold: Positive = 1
    """Number of the fold with the validation rows, from 1."""
    group_column: str | None = None
    """Column of the data files, for instance of the speaker, customer or document: rows with the same value stay
    together when rows are set aside or divided into folds. Null means the task's own (question answering groups by
    context), or none."""
    columns: dict[str, ColumnName] = field(default_factory=dict)
    """Maps the toolkit's column names to yours, for instance `text: review_body`, or to numbers from 1 if there is no
    header. A template in quotes makes one text of several columns: `text: "{title}\\n{body}"`; a line whose columns are
    all empty is omitted, and `{{` is a brace. Columns that are not listed keep their names."""
    delimiter: str | None = None
    """Separator of the columns of .csv and .tsv files: one character, or `tab`. Null recognises a comma, semicolon, tab
    or `|` from the header."""
    encoding: str | None = None
    """Encoding of text files that are not UTF-8, for instance `cp1252`. UTF-8 and byte-order marks are recognised."""
    header: bool = True
    """Whether the first row of a .csv, .tsv or .xlsx file names its columns; otherwise `columns` has their numbers."""
    quoting: Literal["minimal", "none"] | None = None
    """Whether fields of .csv and .tsv files may be quoted (`minimal`), or quotes are part of the text (`none`). Null
    recognises tab-separated files without quoting."""
    unescape_html: bool = False
    """Decode HTML entities such as `&amp;` in all texts."""
    strip_html: bool = False
    """Remove HTML tags, scripts and comments from all texts, decode their entities, and merge blanks."""
    drop_duplicates: bool = False
    """Skip training rows that equal an earlier one in inputs and label, before rows are set aside; they are counted."""
    join_validation: bool = False
    """Train on the validation rows, too, and evaluate on none; `train.refit` sets it for its second run."""
    id_column: str | None = None
    """Column of the data files whose values are written beside predictions, as `id`."""
    bad_rows: Literal["error", "skip"] = "error"
    """What to do with rows that cannot be used: `error` stops and lists them, `skip` skips them, says how many,
    and lists them in `bad_rows.jsonl`."""
    max_bad_rows: Annotated[float, Field(ge=0, le=1)] = 0.1
    """With `bad_rows: skip`, the largest fraction of bad rows in a file; with more, the run stops."""
    max_train_samples: Positive | None = None
    """Maximum number of training examples; the first ones are used, of several files in proportion to their rows."""
    train_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of them to use: random ones (seeded, stratified by class), of which a smaller fraction is a part."""
    max_eval_samples: Positive | None = None
    """Maximum number of examples of each evaluation set; the first ones are used."""
    preprocessing_num_workers: Positive | None = None
    """Number of processes that preprocess rows; null uses the training process."""
    media_cache: Room = "auto"
    """How much of images and audio is kept after it was decoded, for later epochs and evaluations of the run, for
    instance `20GiB`, on each machine. It is in a file in the temporary folder, which nothing else sees and which is
    gone after the run. `auto` is a quarter of the free memory or of the free space there; 0 decodes every time."""
    fingerprint: Literal["content", "stat"] = "content"
    """What tells whether data files have changed since they were cached, or since the run that is resumed: their bytes
    (`content`), or their path, size and time of modification (`stat`), for which no file is opened."""
    stage_to: str | None = None
    """Folder on a fast disk of each machine, for instance `/dev/shm/me`, to which one process copies the data files
    before training. Copies stay there for later runs; where there is too little room, those that no run uses are
    removed."""

    def files(self, *settings: str) -> list[str]:
        """Returns the data files of these settings, or of all; the training files may be a list."""
        given = [getattr(self, name, None) for name in settings or DATA_FILES]
        return [file for value in given for file in (value if isinstance(value, list) else [value]) if file]

    @property
    def file_names(self) -> dict[str, str]:
        """The names by which rows know their files if training files are a list; their paths if two have one name."""
        files = self.files() if isinstance(self.train_file, list) else []
        names = [file.rpartition("/")[2] for file in files]
        return {file: file if names.count(name) > 1 else name for file, name in zip(files, names, strict=True)}


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Evaluation. The model is always evaluated at the end of training."""

    __pydantic_config__ = STRICT

    per_device_eval_batch_size: Positive = 8
    """Rows per process in each evaluation forward pass; metrics do not depend on it."""
    max_tokens_per_batch: Positive | None = None
    """Maximum number of tokens in each evaluation forward pass, padding included, beside the maximum number of rows
    (`per_device_eval_batch_size`, so raise that too); audio is counted in samples. A longer row is evaluated alone.
    Metrics do not depend on it. Null means no limit."""
    eval_steps: Every = None
    """Steps between evaluations; a value below 1 is a fraction of all steps, `epoch` evaluates after each epoch. Null
    evaluates only at the end."""
    eval_on_start: bool = False
    """Evaluate once before the first step. The scores are the first point of the curves and a column of the report, so
    that not training is an option with a number; they choose no best model and stop nothing."""
    metric_for_best_model: str | None = None
    """Metric that selects the best model, for instance `eval_accuracy`; null means the task's own."""
    greater_is_better: bool = True
    """Whether a greater value is better, for metrics in `metrics`."""
    generate: bool = False
    """Generate the answers to the first `generate_rows` rows in each evaluation, and score them against the given ones
    (language models of prompts and conversations): exact match, F1 of words, ROUGE-L and chrF."""
    generate_rows: Positive = 100
    """Rows of each evaluation set whose answers are generated, with `generate`."""
    slices: list[str] = field(default_factory=list)
    """Columns of the data files, for instance of the language or customer: the report has the score of the rows with
    each value, with its interval, and names the worst three. Predictions have the values, too."""
    metrics: list[str] = field(default_factory=list)
    """Further metrics: functions `f(predictions, references)` of a number or a dictionary by their dotted names, and
    modules of the library `evaluate`, each a local folder or an id. They see all rows of an evaluation set at once."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are written, which are kept, and how to resume."""

    __pydantic_config__ = STRICT

    save_steps: Every = 500
    """Steps between checkpoints; a value below 1 is a fraction of all steps, `epoch` saves after each epoch. Null: no
    periodic checkpoints (one is still written on SIGTERM and Ctrl-C)."""
    save_total_limit: Positive | None = None
    """Maximum number of checkpoints to keep, newest first; the best one is kept in addition if it is needed. Null keeps
    all."""
    format: Literal["full", "sharded"] = "full"
    """`full` writes complete tensors into one file each for model and optimizer, through the main process; `sharded`
    lets every process write its part, for which all of them must see the output folder. Both resume on any number of
    processes."""
    async_save: Literal["auto"] | bool = "auto"
    """Whether training continues while a thread writes a copy of the checkpoint, which takes CPU memory. `auto`: if
    twice that memory is free, and without DeepSpeed and `trainer.callbacks`."""
    resume: str = "none"
    """`none` starts a new run in an empty output folder; `auto` resumes from the newest valid checkpoint, if there is
    one; a path resumes from that checkpoint."""
    load_best_model_at_end: bool = False
    """Keep the checkpoint with the best metric, and save it as the final model instead of the last step."""
    push_to_hub: bool = False
    """Push the final model and its model card to the hub (needs `hf auth login` or HF_TOKEN)."""
    hub_model_id: str | None = None
    """Repository to push to; null means the output folder's name, in your namespace."""
    hub_private_repo: bool | None = None
    """Whether a new repository is private; null means your default on the hub."""
    hub_revision: str | None = None
    """Branch to push to; null means the main branch."""


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """Logging. `metrics.jsonl` is always written."""

    __pydantic_config__ = STRICT

    logging_steps: Positive | Literal["auto"] = "auto"
    """Steps between training lines; the loss of a line is the mean over all items since the previous line. `auto` is
    the smallest of 1, 2, 4, 5, 10, 20, 40, 50, ... that gives at most 100 lines, so 50 to 100 for 50 steps or more."""
    report_to: list[Literal["tensorboard", "wandb", "mlflow", "trackio"]] = field(default_factory=list)
    """Trackers that receive the same numbers, and at the end figures, examples and the final metrics (extra `tracking`,
    for Trackio the extra `trackio`)."""
    histogram_steps: Positive | None = None
    """Steps between histograms of the trained weights and their gradients in trackers; null for none."""
    graph: bool = False
    """Show the operations of the model's forward pass as a graph in TensorBoard."""
    project: str = "finetune-toolkit"
    """Project name for trackers."""
    run_name: str | None = None
    """Run name for trackers; null means the output folder's name."""
    system_interval: Annotated[float, Field(ge=0.5, le=3600)] | None = 2.0
    """Seconds between samples of what each process uses: CPU, memory, disk, network, GPU (extra `system`). They are
    written to `system.jsonl`, and energy is computed from them. Null takes none."""
    count_memory: bool = False
    """Count the bytes of all tensors of each process in the second step (`counted_peak_bytes` in `run.json`), which
    `toolkit plan` estimates. The step then takes several times as long."""
    grid_intensity: Annotated[float, Field(ge=0)] | None = None
    """Grams of CO2 for a kWh of electricity where the run takes place, to compute its emissions from its energy."""
    price_per_hour: Annotated[float, Field(ge=0)] | None = None
    """Price of an hour of all processes together, in any currency, to compute what the run costs."""


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """Additional settings of `transformers.Trainer`, for `engine: trainer`."""

    __pydantic_config__ = STRICT

    callbacks: list[str] = field(default_factory=list)
    """Import paths of callbacks, `package.module.Name`: each a `TrainerCallback`, its class, or a function that returns
    one."""
    args: dict[str, Any] = field(default_factory=dict)
    """Fields of `TrainingArguments` that no other setting covers, for instance `neftune_noise_alpha: 5.0`."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of a run. `task` is the recipe's own section, `Task.Options`."""

    task: Any
    model: ModelConfig
    data: DataConfig
    train: TrainConfig
    parallel: ParallelConfig
    eval: EvalConfig
    checkpoint: CheckpointConfig
    tracking: TrackingConfig
    trainer: TrainerConfig
    output_dir: str
    engine: Literal["loop", "trainer"] = "loop"
    seed: int = 42
    offline_dir: str | None = None
    callbacks: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class TopLevel:
    """The settings outside any section."""

    __pydantic_config__ = STRICT

    output_dir: str
    """Folder for everything the run writes."""
    engine: Literal["loop", "trainer"] = "loop"
    """Training loop: `loop` is the toolkit's own, on accelerate; `trainer` is `transformers.Trainer`. The numbers are
    the same."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42
    """Random seed: new weights, row order, dropout, augmentation."""
    offline_dir: str | None = None
    """Folder that `toolkit fetch` wrote: the model, the dataset and the data files that the settings name are read from
    it, and every file is verified. The run is the same one as without it. What the folder does not have must be on this
    machine."""
    callbacks: list[str] = field(default_factory=list)
    """Dotted names of your own callbacks, classes that derive from `toolkit.api.training.Callback`; both engines call
    them."""
