"""The sections `train` and `parallel`: how a model is trained, and how processes share it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from toolkit.config.fields import STRICT, Epochs, Fraction, Positive

DEFAULT_BATCH_SIZE = 8
"""`per_device_train_batch_size` of transformers."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Training. A step is one optimizer step."""

    __pydantic_config__ = STRICT

    global_batch_size: Positive | None = None
    """Rows per step over all processes, whatever their number: each process computes an equal part of them, to within a
    row. Null means `per_device_train_batch_size` x `gradient_accumulation_steps` on each process, so that another
    number of processes trains another run."""
    per_device_train_batch_size: Positive | None = None
    """Micro-batch size: rows per process in each forward pass. Null means a process's whole part of
    `global_batch_size` (in a pipeline, a micro-batch or more for each stage), or 8 without it."""
    gradient_accumulation_steps: Positive | None = None
    """Forward passes per step. With `global_batch_size`, it follows from the micro-batch size, and must be null or
    agree. Otherwise, null means the launcher's value, or 1."""
    max_tokens_per_batch: Positive | None = None
    """Token budget: cuts the rows of a step into micro-batches of at most this many tokens, balanced over processes,
    instead of micro-batches of `per_device_train_batch_size` rows. A step keeps its rows. Padding counts, unless the
    model computes without it (`unpadded`); for translation and summarization both sides count; audio is counted in
    samples. A longer row is a micro-batch of its own. Null means no budget."""
    num_train_epochs: Annotated[float, Field(gt=0)] = 3.0
    """Number of epochs; may be fractional."""
    max_steps: Annotated[int, Field(ge=-1)] = -1
    """If above 0, the total number of steps; `num_train_epochs` is then ignored."""
    optim: Literal[
        "adamw_torch", "adamw_torch_fused", "adafactor", "adamw_bnb_8bit", "paged_adamw_8bit", "lion_8bit", "sgd",
        "rmsprop", "adagrad", "schedule_free_adamw", "adafactor_relative", "adam", "adam_bnb_8bit", "sgdw",
        "adadelta", "lars",
        "lamb_bnb_8bit", "muon",
    ] = "adamw_torch_fused"  # fmt: skip
    """Optimizer. The 8-bit optimizers and `schedule_free_adamw` need the extra `optimizers`. Names from
    `adafactor_relative` on are the toolkit's own."""
    optim_args: dict[str, Any] = field(default_factory=dict)
    """Additional arguments of the optimizer's constructor, for instance `momentum: 0.9` for `sgd`."""
    learning_rate: Annotated[float, Field(ge=0)] = 5e-5
    """Peak learning rate."""
    layerwise_lr_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Layer-wise learning-rate decay: each layer's rate is this factor times that of the layer above it. The top
    layer's is this factor times `learning_rate`; embeddings have the lowest rate. 1.0 turns it off."""
    head_learning_rate: Annotated[float, Field(ge=0)] | None = None
    """Peak learning rate of the head (all parameters outside the base model). Null means `learning_rate`."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay of weight matrices; never applied to biases and normalisation layers."""
    adam_beta1: Fraction = 0.9
    """Decay rate of Adam's first moment."""
    adam_beta2: Fraction = 0.999
    """Decay rate of Adam's second moment."""
    adam_epsilon: Annotated[float, Field(gt=0)] = 1e-8
    """Adam's epsilon."""
    max_grad_norm: Annotated[float, Field(ge=0)] = 1.0
    """Maximum norm of the gradient, which is clipped to it; 0 turns clipping off (the norm is still logged)."""
    max_grad_value: Annotated[float, Field(gt=0)] | None = None
    """Largest absolute value of each element of the gradient; larger ones are set to it, after the norm was clipped
    (set `max_grad_norm: 0` to clip by value alone). Unlike the norm, this changes the gradient's direction. Null turns
    it off."""
    lr_scheduler_type: Literal[
        "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt",
        "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay", "step",
        "multi_step", "exponential", "cyclic", "one_cycle", "range_test",
    ] = "linear"  # fmt: skip
    """Learning-rate schedule (`toolkit lr-plot` draws it). `range_test` is that of `toolkit lr-find`."""
    lr_scheduler_kwargs: dict[str, Any] = field(default_factory=dict)
    """Additional arguments of the schedule, for instance `num_cycles: 4`. Lengths are in steps, or in epochs as in
    `step_size: 2 epochs`. `cycle_momentum: true` (`cyclic`, `one_cycle`) moves the optimizer's momentum, or Adam's
    first beta, from `max_momentum` to `base_momentum` and back while the rate rises and falls."""
    snapshot_ensemble: bool = False
    """With `cosine_with_restarts`: save the model at the end of each cycle and, at the end of the run, evaluate the
    average of the saved models' predictions (`ensemble_` metrics)."""
    warmup_steps: Annotated[float, Field(ge=0)] | Epochs = 0
    """Steps of linear warm-up; a value below 1 is a fraction of all steps, and `0.5 epochs` is a length in epochs."""
    early_stopping_patience: Positive | None = None
    """Stop after this many evaluations without an improvement of `eval.metric_for_best_model`."""
    early_stopping_threshold: Annotated[float, Field(ge=0)] = 0.0
    """By how much the metric must improve to count."""
    refit: bool = False
    """After the run, train again on the training and validation rows together, with the same settings and as many
    steps as the chosen model had, in the folder `refit` of `output_dir`. Its scores are not known; expect those of the
    run. Test rows stay test rows."""
    target_metric: Annotated[dict[str, float], Field(max_length=1)] = field(default_factory=dict)
    """Stop once an evaluation on the validation rows reaches a value, for instance `eval_accuracy: 0.93`, and report
    the steps, the time and the energy until then (DAWNBench's time to accuracy)."""
    max_time: Annotated[str, Field(pattern=r"^\d+:[0-2]\d:[0-5]\d:[0-5]\d$")] | None = None
    """Stop after this time, as `days:hours:minutes:seconds` (`00:11:30:00`). The current step is finished first. Counts
    training, evaluation and checkpointing across resumes, but not loading."""
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Decay of an exponential moving average (EMA) of the weights, for instance 0.999. The EMA is evaluated and saved;
    training is unaffected."""
    mixed_precision: Literal["no", "bf16", "fp16", "fp8"] | None = None
    """Precision of the forward pass; weights stay float32. Null means the launcher's value, or `no`. With `fp16`, all
    processes skip an update if a gradient of one overflows."""
    strategy: Literal["sync", "local_sgd"] = "sync"
    """How processes share the training: `sync` averages gradients in every step; `local_sgd` trains each process on its
    own and averages parameters periodically."""
    local_sgd_steps: Positive = 8
    """Steps between two averages of the parameters (`strategy: local_sgd`)."""
    local_sgd_warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Number of synchronous steps before processes train on their own."""
    local_sgd_average_moments: bool = False
    """Average the optimizer's moments too."""
    local_sgd_outer_lr: Annotated[float, Field(gt=0)] | None = None
    """Learning rate of an outer optimizer (SGD with Nesterov momentum), whose gradient is the change from the last
    average to the new one (DiLoCo uses 0.7). Null uses the average as it is."""
    local_sgd_outer_momentum: Fraction = 0.9
    """Momentum of the outer optimizer."""
    tf32: bool | None = None
    """Allow TensorFloat32 in float32 matrix products and convolutions on a GPU; null keeps PyTorch's defaults."""
    activation_checkpointing: Annotated[
        str, Field(pattern=r"^(none|full|selective|nested_segments|segments(_[1-9]\d*)?|every_[1-9]\d*_layers)$")
    ] = "none"
    """Recompute activations in the backward pass instead of storing them: in no layer (`none`), in every layer
    (`full`), in one of k layers (`every_2_layers`), in every layer except for the products with its weights, which
    take longest (`selective`), or in about the square root of n segments of the n layers, of which only the inputs are
    stored (`segments`; `segments_3` has three). `nested_segments` halves segments down to single layers: it stores the
    inputs of about log2(n) of them, and computes each about log2(n) / 2 + 1 times again. The gradient does not change.
    """
    activation_compression: Literal["none", "bf16", "int8"] = "none"
    """Store activations between the forward and the backward pass with fewer bits: bfloat16, or whole numbers of 8 bits
    with a scale for each vector. The gradient is no longer exact; the run measures its error in the first step."""
    activation_offload: bool = False
    """Keep activations in CPU memory between the forward and the backward pass. The gradient does not change."""
    fast_dropout: Literal["auto"] | bool = "auto"
    """Draw dropout with 16-bit random numbers, several times as fast on a CPU; rates are rounded to multiples of
    1/65536. `auto` does so on CPUs, except with `torch_compile`."""
    chunked_loss: Literal["auto"] | bool = "auto"
    """Compute the cross entropy of a language model from at most 512 tokens at a time, so that the logits of all tokens
    are never in memory; the gradient does not change but for rounding. `auto` does so for vocabularies of 32,000 tokens
    or more, unless the model is a pipeline or compiled."""
    auto_batch_size: bool = False
    """After an out-of-memory error, split each micro-batch into smaller parts from then on, on all processes. The rows
    and the gradient of a step do not change. Evaluation has its own batch size."""
    unpadded: Literal["auto", "packed"] | bool = "auto"
    """Compute layers on the tokens of a batch only, without its padding. Results stay the same, but dropout draws other
    random numbers. `auto` turns it on where the model is covered (docs/unpadded.md) and its rows have different
    lengths; on a GPU, only if attention of all rows is computed in one call. `packed` is for causal models that cannot:
    short rows of a batch share one, without attention between them. It also applies to evaluation."""
    pad_to_multiple_of: Positive | None = None
    """Pad training batches of text to a multiple of this many tokens instead of to their longest row, so that they have
    few different shapes, for instance 64 with `torch_compile`; with `unpadded: true`, the tokens of all rows together,
    in evaluation, too. Results stay the same up to rounding."""
    torch_compile: bool = False
    """Compile the training pass with `torch.compile`. Results agree only up to rounding."""
    torch_compile_backend: str | None = None
    """Backend of `torch.compile`; null means `inductor`."""
    torch_compile_mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] | None = (
        None
    )
    """Mode of the backend `inductor`; null means `default`."""
    train_sampling_strategy: Literal["random", "sequential", "group_by_length", "balanced"] = "random"
    """Order of the training rows: `random`; `sequential`, as in the file; `group_by_length`, random but with rows of
    similar length in each step; `balanced`, where every class is drawn equally often (small classes are oversampled;
    the epoch length does not change)."""
    dataloader_num_workers: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    """Number of worker processes per process that load and collate batches; 0 uses the training process. `auto` is 0
    for text, and where training itself uses the CPU; for images and audio, the number of spare cores, at most 8. The
    results do not depend on it."""
    dataloader_pin_memory: bool = True
    """Load batches into pinned memory if there is a GPU."""
    dataloader_persistent_workers: bool = False
    """Keep worker processes alive between epochs."""
    dataloader_prefetch_factor: Positive | None = None
    """Number of batches that each worker prepares in advance; null means 2."""
    ddp_find_unused_parameters: bool = False
    """Allow parameters without a gradient when several processes train."""
    ddp_comm_hook: Literal["no", "fp16", "power_sgd"] = "no"
    """What replicas send instead of their gradients: the gradients in 16 bits, or factors of a low rank with the rest
    kept for the next step (PowerSGD). Results then depend on the number of processes."""
    power_sgd_rank: Positive = 4
    """Rank of the factors (`ddp_comm_hook: power_sgd`); a matrix is sent whole if they have not half its elements."""
    ddp_timeout: Positive = 1800
    """Seconds after which processes that wait for another one in a collective end the run and name it, even if it
    computes; at least 1.25 times `heartbeat_timeout` and one second more, since that finds those that do not compute.
    What the first process does for all has no limit."""
    non_finite: Literal["stop", "skip", "rollback"] = "stop"
    """What happens at a gradient or a parameter that is not finite: `stop` ends the run before the update; `skip`
    leaves the update out; `rollback` also goes back to the newest checkpoint (or the beginning) and leaves the window
    out there, so that an update that broke the parameters is undone. What the fp16 scaler skips does not count."""
    max_non_finite_steps: Positive = 10
    """Maximum number of updates to skip (`non_finite: skip` or `rollback`)."""
    heartbeat_timeout: Annotated[float, Field(gt=0)] = 120.0
    """Seconds after which a run on several processes ends if one of them is dead or stopped, or does not come to a
    collective in which others wait and does not compute. A process that computes, reads or writes is limited by
    `ddp_timeout` only, and what the first process does for all by nothing."""

    def rows_per_step(self, data_ranks: int) -> int:
        """Returns the rows of a complete step over all processes, of which `data_ranks` have rows of their own."""
        return self.global_batch_size or self.micro_batch * self.accumulation * data_ranks

    @property
    def micro_batch(self) -> int:
        """Rows per process in each forward pass."""
        return self.per_device_train_batch_size or DEFAULT_BATCH_SIZE

    @property
    def accumulation(self) -> int:
        """Forward passes per step."""
        return self.gradient_accumulation_steps or 1


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How processes share the model. The product of the sizes must be the number of processes.

    Processes that are not used to split the model are replicas of it. Results do not depend on these settings, except
    for rounding and the random numbers of dropout.
    """

    __pydantic_config__ = STRICT

    replicas: Positive | None = None
    """Number of copies of the model (data parallel). Null: as many as the processes allow."""
    fsdp: Positive = 1
    """Number of processes that split each copy's parameters, gradients and optimizer state, and gather a layer when it
    is needed (FSDP2). Each reads other rows. With `replicas` above 1: hybrid sharding (HSDP)."""
    tensor: Positive = 1
    """Number of processes that split the attention heads and the MLP of each layer (tensor parallel). They read the
    same rows. Language models also split embeddings, output head and logits by the vocabulary. Norms and other heads
    stay complete on each. An architecture needs a plan, and the number must divide its heads."""
    sequence: bool = False
    """Splits hidden states between split layers by tokens (sequence parallel), so that norms, dropout and residuals
    are not repeated on each process of `tensor`. Activations take less memory."""
    context: Positive = 1
    """Number of processes that split the positions of each sequence (context parallel). They read the same rows, and
    each holds the activations of its positions. Attention gathers keys and values of all positions, layer by layer.
    Evaluation and generation run whole sequences."""
    pipeline: Positive = 1
    """Number of processes that split the layers into stages (pipeline parallel). They read the same rows; the
    micro-batches of a window (`train.gradient_accumulation_steps`) pass through the stages one after another."""
    expert: Positive = 1
    """Number of processes that split the experts of each layer of a mixture (expert parallel); an all-to-all sends
    tokens to them. They read different rows, so the number is no further factor of the processes: it must divide
    `replicas` x `fsdp`, and the experts. What is no expert is replicated, or sharded by `fsdp`."""
    schedule: Literal["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"] = "1f1b"
    """Order of the passes in a pipeline. `gpipe`: all forward passes, then all backward passes; `1f1b`: backward passes
    as early as possible, which keeps fewer activations; `interleaved_1f1b`: 1F1B with two chunks of layers per process,
    which wait less and send more; `zero_bubble`: 1F1B that computes gradients of weights while it would wait (ZB-H1).
    Gradients do not depend on the schedule."""
    reshard_after_forward: bool = True
    """Frees gathered parameters between the forward and the backward pass, which gathers them again (`fsdp`)."""
    gradient_sync: Literal["micro_batch", "window"] = "micro_batch"
    """When gradients of sharded parameters are exchanged: after each micro-batch, so that a process never holds all of
    them, or once per window, which sends less in float32 and holds a complete gradient (`fsdp`). Replicas of a sharded
    model (HSDP) exchange once per window in both cases."""
    offload: bool = False
    """Keeps parameters, gradients and optimizer state in CPU memory while they are not needed on the GPU (`fsdp`). With
    `backend: deepspeed`, stages 1 and 2 keep only the optimizer's state there."""
    zero_stage: Literal[1, 2, 3] | None = None
    """ZeRO's names. 1: replicas that each keep a part of the optimizer's state. 2 and 3: FSDP over all processes, where
    2 keeps gathered parameters for a window."""
    backend: Literal["torch", "deepspeed"] = "torch"
    """The library that does `zero_stage`. `deepspeed` (extra `deepspeed`) splits over all processes, in float32."""

    @property
    def shards(self) -> bool:
        """Whether parameters are sharded."""
        return self.fsdp > 1 or self.zero_stage in (2, 3)

    @property
    def splits(self) -> bool:
        """Whether processes share a model, or its inputs."""
        return self.shards or max(self.context, self.tensor, self.pipeline, self.expert) > 1
