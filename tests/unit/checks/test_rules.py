"""Settings that cannot be combined, and missing paths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from checked import load_checked
from recording import recording, undeclared
from runs import ROOT, shipped

from toolkit.base.errors import ConfigError
from toolkit.checks.rules import RULES
from toolkit.checks.rules.parallel import OTHER_LAUNCHES
from toolkit.config import STRICT, Config, TrainConfig, read_config
from toolkit.config.paths import ARCHIVES, FILE_FORMATS
from toolkit.data.sources import READERS


@dataclass(frozen=True, kw_only=True)
class Options:
    """No options."""

    __pydantic_config__ = STRICT


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("text,label\n")
    Path("rows.ods").write_text("")
    Path("local").mkdir()
    Path("a.yaml").write_text("output_dir: out\nmodel: {name_or_path: some-model}\ndata: {train_file: rows.csv}\n")


def load(*overrides: str, **environ: str) -> Config:
    return load_checked(Options, "a.yaml", overrides, environ).config


ZERO = "parallel.backend=deepspeed parallel.zero_stage="
CYCLED = "train.lr_scheduler_type=one_cycle train.lr_scheduler_kwargs.cycle_momentum=true"
CONFLICTS = {
    "data.folds=3 data.validation_file=rows.csv": "set data.validation_file to null, or remove data.folds",
    "data.folds=3 data.validation_split=0.1": "the validation rows are a fold of the training rows; remove one of them",
    "data.fold=2": "there are no folds; set data.folds",
    "data.train_file=[a.csv,b.csv,a.csv]": "a file is listed twice; remove the duplicate",
    "data.train_file=[]": "no training rows are given; set data.train_file to a file",
    "data.mix=[1]": "each file of a list has one share; set data.train_file to a list",
    "data.train_file=[a.csv,b.csv] data.mix=[1]": "each file of a list has one share; set data.train_file to a list",
    "data.train_file=[a.csv,b.csv] data.mix=[1,2] train.train_sampling_strategy=balanced": "which rows an epoch has",
    "data.train_file=[a.csv,b.csv] data.mix=[1,2] train.train_sampling_strategy=sequential": "which rows an epoch has",
    "data.train_file=[a.csv,b.csv] data.mix=[1,2] data.validation_file=rows.csv train.refit=true": "rows have no share",
    "data.train_file=null data.dataset_name=x data.fingerprint=stat": "datasets of the Hub have a fingerprint of th",
    "data.train_file=null data.dataset_name=x data.stage_to=/dev/shm/x": "datasets of the Hub are in the cache, whose",
    "data.folds=3 data.fold=4": "there is no such fold; set data.fold to at most data.folds",
    "eval.eval_on_start=true data.validation_split=0": "there are no validation rows to evaluate",
    "train.unpadded=packed parallel.pipeline=2": "the stages of a pipeline exchange batches of one shape",
    "train.unpadded=packed train.torch_compile=true": "compiled code would be compiled again",
    "train.unpadded=true train.torch_compile=true train.activation_checkpointing=full": "would not be compiled",
    "train.unpadded=packed parallel.context=2": "the processes of a group compute equally many positions of each row",
    "train.unpadded=true parallel.context=2": "the processes of a group compute equally many positions of each row",
    "train.unpadded=true train.mixed_precision=fp8": "need multiples of 16",
    "train.unpadded=true parallel.pipeline=2": "the stages of a pipeline exchange batches of one shape",
    "train.unpadded=true parallel.backend=deepspeed": "this has not been compared under DeepSpeed",
    "train.activation_compression=int8 train.activation_offload=true": "an activation is stored in one way",
    "train.activation_compression=int8 train.torch_compile=true": "decide by themselves what they store",
    "train.activation_checkpointing=segments train.torch_compile=true": "decide by themselves what they recompute",
    "train.activation_checkpointing=nested_segments train.torch_compile=true": "decide by themselves what they recomp",
    "train.activation_checkpointing=segments_2 parallel.pipeline=2 train.gradient_accumulation_steps=2": (
        "the layers of a segment may be on several stages"
    ),
    "train.activation_compression=bf16 parallel.pipeline=2 train.gradient_accumulation_steps=2": "a schedule of its ow",
    "train.activation_compression=int8 parallel.tensor=2": "set train.activation_compression to bf16, or remove",
    f"{ZERO}1 train.activation_compression=bf16": "it has not been compared under DeepSpeed",
    "train.power_sgd_rank=2": "only PowerSGD has a rank",
    "train.ddp_comm_hook=fp16 train.strategy=local_sgd": "gradients are not exchanged in the backward pass",
    "train.ddp_comm_hook=power_sgd train.mixed_precision=fp16": "would have the loss scale of this one",
    "train.ddp_comm_hook=power_sgd train.non_finite=skip": "a gradient that is not finite would be kept",
    "train.ddp_comm_hook=power_sgd model.freeze=[a] model.unfreeze.step_1=[a]": "would be applied later",
    "train.ddp_comm_hook=fp16 parallel.fsdp=2": "only replicas exchange complete gradients",
    f"{ZERO}1 train.ddp_comm_hook=fp16": "DeepSpeed exchanges gradients itself",
    f"{ZERO}2 train.max_grad_value=1.0": "DeepSpeed keeps the gradient in parts of its own",
    f"{CYCLED} train.optim=adagrad": "this optimizer has no momentum to cycle",
    f"{CYCLED} train.adam_beta1=0.8": "the cycle sets the first beta",
    f"{CYCLED} train.optim=sgd train.optim_args.momentum=0.9": "the cycle sets the momentum",
    "model.name_or_path=null": "no model is given",
    "model.from_config.model_type=bert model.name_or_path=a": "remove one of them",
    "model.from_config.model_type=''": "it needs a model_type",
    "model.from_config.model_type=3": "it needs a model_type",
    "model.from_config.model_type=bert model.revision=main": "remove model.revision",
    "model.name_or_path=owner/name model.initializer=orthogonal": "a pretrained model has its weights",
    "model.from_config.model_type=bert model.trust_remote_code=true": "remove model.trust_remote_code",
    "model.name_or_path=local model.revision=main": "'local' is a local folder; remove it",
    "model.peft.r=4": "model.peft.r (4), model.peft.method ('none'): only lora, dora, rslora, qlora use",
    "model.peft.method=ia3 model.peft.r=4": "set model.peft.method to lora or dora or rslora or qlora, or remove",
    "model.peft.method=ia3 model.peft.lora_alpha=4": "remove model.peft.lora_alpha",
    "model.peft.method=ia3 model.peft.trainable_token_indices=[3]": "remove model.peft.trainable_token_indices",
    "model.peft.method=prompt_tuning model.peft.lora_dropout=0.5": "remove model.peft.lora_dropout",
    "model.peft.method=prompt_tuning model.peft.target_modules=[a]": "remove model.peft.target_modules",
    "model.peft.method=lora model.peft.num_virtual_tokens=4": "only prompt_tuning uses this setting",
    "model.peft.method=lora model.freeze=backbone": "remove model.freeze, or set model.peft.method to none",
    "model.unfreeze.epoch_1=[a]": "nothing is frozen; set model.freeze, or remove model.unfreeze",
    "model.freeze=backbone model.unfreeze.later=[a]": "keys must be epoch_<n> or step_<n>",
    "model.freeze=backbone model.unfreeze.step_9=[a] train.max_steps=9": "set an earlier step in model.unfreeze",
    "model.freeze=backbone model.unfreeze.epoch_3=[a]": "train.num_train_epochs (3.0): the run would end before these",
    "model.from_config.model_type=bert model.peft.method=qlora": "to lora, or set model.name_or_path",
    "model.peft.method=dora model.peft.init_lora_weights=pissa": "set model.peft.method to lora or rslora, or remove",
    "data.dataset_name=glue": "both name training rows; remove one of them",
    "data.train_file=null": "no training rows are given",
    "data.dataset_config_name=sst2": "remove data.dataset_config_name",
    "data.revision=main": "remove data.revision",
    "data.delimiter=;;": "data.delimiter (';;'): a delimiter is one character; set data.delimiter to a character such",
    "data.encoding=latin-x": "data.encoding ('latin-x'): no such encoding; set data.encoding to one that Python knows",
    "data.train_file=rows.parquet data.delimiter=;": "only .csv and .tsv files have a delimiter; remove data.delimiter",
    "data.train_file=rows.parquet data.quoting=none": "only .csv and .tsv files have quoted fields; remove data.quot",
    "data.train_file=rows.parquet data.header=false": "only .csv, .tsv and .xlsx files have a header; remove data.h",
    "data.train_file=rows.parquet data.encoding=cp1252": "no data file is a text file; remove data.encoding",
    "data.validation_split=0 eval.slices=[shop]": "remove eval.slices, or set data.validation_file",
    "data.validation_split=0 data.max_eval_samples=3": "remove data.max_eval_samples, or set data.validation_file",
    "data.validation_split=0 checkpoint.load_best_model_at_end=true": "checkpoint.load_best_model_at_end (true), data.",
    "data.validation_split=0 eval.eval_steps=2": "set eval.eval_steps to null, or set data.validation_file",
    "data.validation_split=0 eval.metric_for_best_model=f1": "remove eval.metric_for_best_model",
    "checkpoint.load_best_model_at_end=true": "set eval.eval_steps, for instance to epoch",
    "train.max_steps=0": "no step would be trained",
    "train.max_steps=9 train.warmup_steps=10": "train.warmup_steps (10.0), train.max_steps (9): the run would end",
    "train.warmup_steps=1.5": "set train.warmup_steps to a whole number, or to a fraction of all steps below 1",
    "train.lr_scheduler_type=constant train.warmup_steps=2": "set train.lr_scheduler_type to constant_with_warmup",
    "train.lr_scheduler_type=one_cycle train.warmup_steps=2": "this schedule has its own warm-up; set train",
    "train.lr_scheduler_type=cyclic train.warmup_steps=2": "this schedule has its own warm-up; set train",
    "train.lr_scheduler_type=reduce_lr_on_plateau": "set eval.eval_steps, for instance to epoch",
    "train.refit=true data.validation_split=0": "there are no validation rows to add to the others; remove train.refit",
    "train.refit=true train.snapshot_ensemble=true train.lr_scheduler_type=cosine_with_restarts": (
        "the second run has no validation rows for an ensemble or such a schedule; remove one of them"
    ),
    "train.snapshot_ensemble=true": "set train.lr_scheduler_type to cosine_with_restarts",
    "train.snapshot_ensemble=true train.lr_scheduler_type=cosine_with_restarts data.validation_split=0": (
        "there are no validation rows to evaluate; remove train.snapshot_ensemble"
    ),
    "train.optim=adafactor_relative": "set train.lr_scheduler_type to constant, or train.optim to adafactor",
    "train.optim=adafactor_relative train.learning_rate=1": "remove train.learning_rate, or set train.optim",
    "train.optim=adafactor_relative train.layerwise_lr_decay=0.5": "remove train.layerwise_lr_decay",
    "train.optim=adafactor_relative train.head_learning_rate=1": "remove train.head_learning_rate",
    "train.optim=schedule_free_adamw": "set train.lr_scheduler_type to constant or constant_with_warmup",
    "train.optim=schedule_free_adamw train.optim_args.warmup_steps=2": "set train.warmup_steps",
    "train.optim=adam_bnb_8bit train.weight_decay=0.1": "set train.optim to adamw_bnb_8bit",
    "train.optim=lion_8bit train.adam_epsilon=0.5": "remove train.adam_epsilon",
    "train.optim=adafactor train.adam_beta1=0.5": "remove train.adam_beta1",
    "train.optim=sgd train.adam_beta1=0.5": "remove train.adam_beta1",
    "train.optim=sgd train.adam_beta2=0.5": "remove train.adam_beta2",
    "train.optim=sgd train.adam_epsilon=0.5": "remove train.adam_epsilon",
    "train.optim_args.lr=1": "train.optim_args.lr (1): this argument has a dedicated setting; set train.learning_rate",
    "train.optim_args.learning_rate=1": "set train.learning_rate",
    "train.optim_args.weight_decay=1": "set train.weight_decay",
    "train.optim_args.betas=[0.5,0.6]": "set train.adam_beta1 and train.adam_beta2",
    "train.optim_args.eps=1": "set train.adam_epsilon",
    "train.optim_args.fused=true": "set train.optim",
    "train.local_sgd_steps=4": "only local_sgd has this setting; set train.strategy to local_sgd",
    "train.local_sgd_warmup_steps=4": "set train.strategy to local_sgd, or remove train.local_sgd_warmup_steps",
    "train.local_sgd_average_moments=true": "or remove train.local_sgd_average_moments",
    "train.local_sgd_outer_lr=0.7": "or remove train.local_sgd_outer_lr",
    "train.local_sgd_outer_momentum=0.5": "or remove train.local_sgd_outer_momentum",
    "train.max_non_finite_steps=3": "the run stops at the first one; set train.non_finite to skip or rollback",
    "train.non_finite=rollback train.strategy=local_sgd": "set train.non_finite to skip, or train.strategy to sync",
    "train.non_finite=rollback train.mixed_precision=fp16": "set train.non_finite to skip, or train.mixed_precision",
    "train.strategy=local_sgd train.local_sgd_outer_momentum=0.5": "there is no outer optimizer; set train.local_sgd_o",
    "train.strategy=local_sgd train.local_sgd_warmup_steps=9 train.max_steps=9": "the run would end before processes",
    "train.strategy=local_sgd train.auto_batch_size=true": "both decide how gradients are exchanged",
    "train.strategy=local_sgd train.ema_decay=0.9": "each process would average different weights",
    "train.strategy=local_sgd train.optim=schedule_free_adamw train.lr_scheduler_type=constant": "average different on",
    "model.freeze=[a] model.unfreeze.epoch_1=[a] train.optim=schedule_free_adamw train.lr_scheduler_type=constant": (
        "the first updates of those that come later would be far too large"
    ),
    "model.peft.method=qlora train.snapshot_ensemble=true": "bitsandbytes cannot reload the scales",
    "train.ema_decay=0.9 train.optim=schedule_free_adamw train.lr_scheduler_type=constant": "averages the weights",
    "train.strategy=local_sgd train.local_sgd_average_moments=true train.optim=adamw_bnb_8bit": "8-bit moments are",
    "train.strategy=local_sgd train.mixed_precision=fp16": "set train.mixed_precision to bf16 or no, or train.strategy",
    "tracking.run_name=a": "set tracking.report_to, or remove tracking.run_name",
    "tracking.project=a": "set tracking.report_to, or remove tracking.project",
    "tracking.graph=true tracking.report_to=[mlflow]": "set tracking.report_to to a list with tensorboard",
    "tracking.graph=true tracking.report_to=[tensorboard] train.torch_compile=true": "code is not made of the model's",
    "tracking.graph=true tracking.report_to=[tensorboard] parallel.pipeline=2": "the operations of its stage only",
    "tracking.histogram_steps=5 tracking.report_to=[mlflow]": "set tracking.report_to to a list with tensorboard",
    "tracking.histogram_steps=5 tracking.report_to=[wandb] parallel.backend=deepspeed parallel.zero_stage=2": (
        "set parallel.backend to torch, or remove tracking.histogram_steps"
    ),
    "tracking.report_to=[wandb,wandb]": "a tracker is listed twice",
    "data.validation_split=0.2 data.validation_file=rows.csv": "either from a separate file or from the training",
    "data.test_split=0.2 data.test_file=rows.csv": "test rows come either from a separate file or from the training",
    "data.test_split=0.2 data.validation_split=0.8": "set data.validation_split and data.test_split to fractions whose",
    "data.test_split=0.95": "together they leave no training rows",
    "data.max_bad_rows=0.5": "set data.bad_rows to skip, or remove data.max_bad_rows",
    "train.early_stopping_patience=2": "the only evaluation is the one of the last step; set eval.eval_steps",
    "train.target_metric.accuracy=0.9": "the metric is not computed during training; set eval.eval_steps",
    "tracking.grid_intensity=400 tracking.system_interval=null": "set tracking.system_interval",
    "train.early_stopping_threshold=0.1": "set train.early_stopping_patience, or remove",
    "checkpoint.hub_model_id=a": "set checkpoint.push_to_hub to true, or remove checkpoint.hub_model_id",
    "checkpoint.hub_private_repo=true": "set checkpoint.push_to_hub to true, or remove checkpoint.hub_private_repo",
    "checkpoint.hub_revision=a": "set checkpoint.push_to_hub to true, or remove checkpoint.hub_revision",
    "trainer.callbacks=[a.b]": "set engine to trainer, or remove the section trainer",
    "model.attn_implementation=flash_attention_2": "or fp16, or model.attn_implementation to sdpa",
    "train.torch_compile_backend=inductor": "set train.torch_compile to true, or remove train.torch_compile_backend",
    "train.torch_compile_mode=default": "it has no effect without compilation",
    "train.torch_compile=true train.torch_compile_backend=eager train.torch_compile_mode=default": "only inductor",
    "train.torch_compile=true train.fast_dropout=true": "set train.fast_dropout to auto",
    "train.torch_compile=true train.chunked_loss=true": "compiled passes compute all logits",
    "train.ddp_find_unused_parameters=true train.chunked_loss=true": "unused parameters are looked for from the logits",
    "parallel.pipeline=2 train.gradient_accumulation_steps=2 train.chunked_loss=true": "passes all logits to the loss",
    f"{ZERO}3 train.chunked_loss=true": "it has not been compared under DeepSpeed; set train.chunked_loss to auto",
    f"{ZERO}2 train.activation_checkpointing=nested_segments": "set train.activation_checkpointing to full, or set",
    "train.pad_to_multiple_of=8 train.max_tokens_per_batch=64": "a budget makes micro-batches of many numbers of rows",
    "train.dataloader_num_workers=0 train.dataloader_persistent_workers=true": "loaded in the training process",
    "train.dataloader_num_workers=0 train.dataloader_prefetch_factor=3": "set train.dataloader_num_workers above 0",
    "train.auto_batch_size=true train.per_device_train_batch_size=1": "a micro-batch of one row cannot be split",
    "parallel.gradient_sync=window": "only sharded parameters have this setting; set parallel.fsdp, or remove",
    f"{ZERO}2 parallel.gradient_sync=window": "DeepSpeed's stage decides when gradients are exchanged",
    "parallel.reshard_after_forward=false": "only sharded parameters have this setting; set parallel.fsdp, or remove",
    "parallel.offload=true": "set parallel.fsdp, or remove parallel.offload",
    "parallel.zero_stage=3 parallel.reshard_after_forward=false": "set parallel.zero_stage to 2",
    "parallel.zero_stage=1 parallel.fsdp=2": "stage 1 is for replicas",
    "parallel.zero_stage=1 parallel.tensor=2 parallel.replicas=1": "set parallel.replicas to null or to a larger",
    "parallel.zero_stage=1 train.auto_batch_size=true": "each process updates only a part of the parameters",
    "parallel.zero_stage=1 train.optim=schedule_free_adamw": "set parallel.zero_stage to 3, or train.optim",
    "parallel.tensor=2 train.strategy=local_sgd": "train.strategy ('local_sgd'), parallel.tensor (2): local SGD needs",
    "parallel.fsdp=2 train.auto_batch_size=true": "processes that share a model cannot begin a window again",
    "parallel.zero_stage=2 train.mixed_precision=fp8": "are not synchronised over the parts of a model; set",
    "parallel.pipeline=2 train.gradient_accumulation_steps=2 train.mixed_precision=fp16": "without the loss scale",
    "parallel.fsdp=2 train.optim=lion_8bit": "the states of bitsandbytes' optimizers cannot be split",
    "parallel.fsdp=2 train.torch_compile=true": "the model is compiled before it is split",
    "parallel.fsdp=2 train.snapshot_ensemble=true": "snapshots are complete models",
    "parallel.fsdp=2 model.peft.method=lora model.peft.trainable_token_indices=[1]": "a weight that is in parts",
    "parallel.fsdp=2 model.peft.method=qlora": "weights of 4 bits cannot be split",
    "parallel.tensor=2 train.optim=schedule_free_adamw": "this optimizer counts its steps for all parameters together",
    "parallel.expert=2 train.optim=schedule_free_adamw": "parallel.expert (2), train.optim ('schedule_free_adamw')",
    "parallel.sequence=true parallel.tensor=2 parallel.context=2": "context splits the same tokens already",
    "parallel.expert=2 parallel.tensor=2": "experts are exchanged between processes that read different rows",
    "parallel.expert=2 parallel.fsdp=2 parallel.offload=true": "would stay on the device; remove parallel.offload",
    "parallel.expert=2 parallel.zero_stage=1": "replicas would share the updates of experts",
    "parallel.expert=2 parallel.context=2": "experts are exchanged between processes that read different rows",
    "parallel.expert=2 train.strategy=local_sgd": "local SGD needs a complete model on each process",
    "parallel.expert=2 train.torch_compile=true": "the model is compiled before it is split",
    "parallel.expert=2 train.mixed_precision=fp8": "are not synchronised over the parts of a model",
    "parallel.schedule=gpipe": "only a pipeline has a schedule; set parallel.pipeline, or remove parallel.schedule",
    "parallel.pipeline=2 parallel.schedule=zero_bubble train.gradient_accumulation_steps=2 "
    "train.activation_checkpointing=full": "would be kept from its backward pass until",
    "parallel.pipeline=2 parallel.schedule=zero_bubble train.gradient_accumulation_steps=2 "
    "train.activation_offload=true": "set parallel.schedule to 1f1b, or remove",
    "parallel.pipeline=4 train.gradient_accumulation_steps=3": "set train.global_batch_size to at least",
    "parallel.pipeline=2 train.global_batch_size=7 train.per_device_train_batch_size=8": "train.per_device_train_batch_"
    "size and train.gradient_accumulation_steps to null",
    "parallel.pipeline=2 parallel.schedule=interleaved_1f1b train.gradient_accumulation_steps=3": "to a multiple of",
    "parallel.pipeline=2 parallel.fsdp=2 parallel.schedule=zero_bubble train.gradient_accumulation_steps=2": (
        "shards exchange gradients in the backward pass, which computes none of matrices with this schedule"
    ),
    "parallel.pipeline=2 parallel.fsdp=2 parallel.offload=true train.gradient_accumulation_steps=2": (
        "add up gradients of tied embeddings where they compute"
    ),
    "parallel.sequence=true": "tokens are split between layers that are split; set parallel.tensor, or remove",
    "parallel.sequence=true parallel.tensor=2 parallel.pipeline=2 train.gradient_accumulation_steps=2": (
        "stages exchange complete hidden states; remove parallel.sequence or parallel.pipeline"
    ),
    "parallel.sequence=true parallel.tensor=2 train.unpadded=true": "layers would find the tokens of some processes",
    "parallel.sequence=true parallel.tensor=2 train.unpadded=packed": "layers would find the tokens of some processes",
    "parallel.pipeline=2 model.peft.method=prompt_tuning train.gradient_accumulation_steps=2": "virtual tokens are",
    "parallel.context=2 parallel.pipeline=2 train.gradient_accumulation_steps=2": "are split before the first one",
    "parallel.context=2 model.peft.method=prompt_tuning": "virtual tokens would move the positions of the labels",
    "parallel.context=2 engine=trainer trainer.args.neftune_noise_alpha=5": "of which a process sees a part; remove",
    "parallel.backend=deepspeed": "DeepSpeed is used for ZeRO only; set parallel.zero_stage to 1, 2 or 3",
    f"{ZERO}1 train.non_finite=skip": "DeepSpeed keeps the gradient of a window until it has updated; set",
    f"{ZERO}2 checkpoint.async_save=true": "set checkpoint.async_save to auto or false, or set parallel.backend",
    f"{ZERO}3 parallel.fsdp=2": "splits over all processes; remove the other sizes",
    f"{ZERO}3 parallel.expert=2": "splits over all processes; remove the other sizes",
    f"{ZERO}2 parallel.replicas=2": "so there are no replicas; remove parallel.replicas",
    f"{ZERO}2 parallel.reshard_after_forward=false": "DeepSpeed's stage decides when parameters are freed",
    f"{ZERO}2 train.optim=muon": "DeepSpeed updates flat parts of many parameters; set train.optim to adamw_torch",
    f"{ZERO}2 train.optim=schedule_free_adamw": "and DeepSpeed evaluates a copy of them",
    f"{ZERO}2 train.optim=adagrad": "replaces this optimizer by one without the groups for weight decay",
    f"{ZERO}2 train.ema_decay=0.9": "cannot be exchanged for their averages; remove train.ema_decay",
    f"{ZERO}2 model.freeze=backbone model.unfreeze.step_2=[a.*]": "splits the parameters that are trained at the start",
    f"{ZERO}2 train.activation_offload=true": "with parameters that DeepSpeed gathers and frees",
    f"{ZERO}1 train.optim=lion_8bit": "bitsandbytes needs parameters in their shape",
    f"{ZERO}1 train.mixed_precision=fp16": "would scale losses and cast in its own way; set train.mixed_precision",
    f"{ZERO}1 train.torch_compile=true": "the model is compiled before DeepSpeed changes it",
    f"{ZERO}1 train.snapshot_ensemble=true": "snapshots cannot be loaded into DeepSpeed's parameters",
    f"{ZERO}1 model.peft.method=qlora": "DeepSpeed updates float32 parameters",
    "parallel.tensor=2 model.peft.method=lora": "adapters change the layers that tensor parallelism splits",
    "output_dir=": "output_dir: received '', expected the name of a folder",
    "output_dir=rows.csv": "output_dir: received 'rows.csv', which is a file",
    "checkpoint.resume=": "checkpoint.resume: received '', expected text that is not blank",
    "checkpoint.resume=Auto": "(did you mean 'auto'?)",
    "data.train_file=": "data.train_file: received '', expected text that is not blank",
    "data.test_file=rows.ods": "data.test_file: received 'rows.ods', whose format is not supported; in the program "
    "that made it, save it as .xlsx or 'CSV UTF-8'",
    "model.name_or_path=./no-model": "model.name_or_path: received './no-model', there is no such folder",
}


@pytest.mark.parametrize(("words", "message"), CONFLICTS.items(), ids=CONFLICTS)
def test_conflict(words: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(*words.split(" "))
    (problem,) = [problem for problem in caught.value.problems if message in problem]
    assert problem.startswith("override ")


IDLE = {
    "reviews task.modality=image task.image.rand_augment_magnitude=5": (
        "task.image.rand_augment_magnitude: has no effect without task.image.rand_augment; set that, or remove it"
    ),
    "reviews task.modality=audio task.audio.noise_snr=5": "noise_snr: has no effect without task.audio.noise",
    "speech_recognition task.audio.noise_snr=5": "task.audio.noise_snr: has no effect without task.audio.noise",
    "speech_recognition task.audio.frequency_mask_width=0.5": "has no effect without task.audio.frequency_masks;",
    "reviews task.augment.synonym_replacement=0.5": "has no effect without task.augment.synonyms_file; set that, or",
    "reviews task.augment.synonyms_file=rows.csv": "has no effect without task.augment.synonym_replacement; set that",
    "reviews task.augment.random_swap=0.5 task.modality=audio": "has no effect with task.modality 'audio'",
    "reviews task.augment.random_swap=0.5 task.long_texts=windows": "may have other windows than its row was planned",
    "reviews task.augment.random_deletion=1.5": "task.augment.random_deletion: received 1.5, must be at most 1",
    "reviews task.modality=image task.image.rand_augment_magnitude=31 task.image.rand_augment=1": "must be at most 30",
    "reviews task.modality=audio task.audio.noise=0.5 task.audio.noise_snr=40": "received 40, must be below 40",
    "token_classification task.augment.random_swap=0.5": "task.augment",
    "qa task.augment.random_swap=0.5": "task.augment",
    "language_modeling task.augment.random_swap=0.5": "task.augment",
    "translation task.augment.random_swap=0.5": "task.augment",
}


@pytest.mark.parametrize(("words", "message"), IDLE.items(), ids=IDLE)
def test_options_of_augmentation_without_effect(words: str, message: str) -> None:
    recipe, *overrides = words.split(" ")
    with pytest.raises(ConfigError) as caught:
        load_checked(shipped(ROOT / "recipes" / f"{recipe}.py").Options, "a.yaml", overrides, {})
    (problem,) = caught.value.problems
    assert message in problem


def test_a_list_of_synonyms_must_be_there_for_training_only() -> None:
    options = shipped(ROOT / "recipes" / "reviews.py").Options
    overrides = ["task.augment.synonyms_file=none.txt", "task.augment.synonym_replacement=0.1"]
    with pytest.raises(ConfigError, match=r"task\.augment\.synonyms_file: received 'none\.txt', .*No such file"):
        load_checked(options, "a.yaml", overrides, {})
    load_checked(options, "a.yaml", overrides, {}, check_files=False)


def test_missing_data_file_names_the_path_that_was_tried(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load("data.train_file=none.csv", "data.validation_file=sub/none.csv")
    assert [problem.partition("; ")[0] for problem in caught.value.problems] == [
        f"override data.train_file=none.csv: data.train_file: received 'none.csv', there is no such file (tried "
        f"{tmp_path}/none.csv)",
        f"override data.validation_file=sub/none.csv: data.validation_file: received 'sub/none.csv', there is no such "
        f"file (tried {tmp_path}/sub/none.csv)",
    ]


def test_files_of_a_run_that_is_over_need_not_be_there() -> None:
    overrides = ["data.train_file=none.csv", "checkpoint.resume=none-1", "model.name_or_path=./none"]
    loaded = load_checked(Options, "a.yaml", overrides, {}, check_files=False)
    assert loaded.config.data.train_file == "none.csv"


GPU_ONLY = {
    "train.mixed_precision=fp16": "fp16 needs a GPU, and the launcher selects the CPU; set train.mixed_precision to",
    "train.mixed_precision=fp8": "fp8 needs a GPU that supports it, and the launcher selects the CPU; set .* to bf16",
    "train.tf32=true": "TensorFloat32 is a format of NVIDIA GPUs, and the launcher selects the CPU; remove train.tf32",
    "train.activation_offload=true": "activations are already in CPU memory, because the launcher selects the CPU",
    "model.attn_implementation=flex_attention": "it can be trained only on a GPU, and the launcher selects the CPU",
}


@pytest.mark.parametrize(("words", "message"), GPU_ONLY.items(), ids=GPU_ONLY)
def test_what_wants_no_cpu(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(words, ACCELERATE_USE_CPU="True")
    load(words, ACCELERATE_USE_CPU="False")
    load("train.mixed_precision=bf16", "train.tf32=false", ACCELERATE_USE_CPU="True")


def problems(words: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(*words.split(" "), **environ)
    return caught.value.problems


def test_every_rule_is_tested() -> None:
    """Checks that the cases above break every rule, and show its reason and remedy."""
    met = [problem for words in CONFLICTS for problem in problems(words)]
    met += [problem for words in GPU_ONLY for problem in problems(words, ACCELERATE_USE_CPU="True")]
    met += [problem for name in OTHER_LAUNCHES for problem in problems("train.strategy=sync", **{name: "true"})]
    untested = [rule.keys for rule in RULES if not any(f": {rule.why}; {rule.instead}" in problem for problem in met)]
    assert untested == []
    assert len(RULES) >= 25


def test_every_rule_declares_what_it_reads() -> None:
    found = set()
    for words in [*CONFLICTS, *GPU_ONLY]:
        read: set[tuple[str, ...]] = set()
        config = recording(read_config(Options, "a.yaml", words.split(" "), {}).config, read)
        for rule in RULES:
            read.clear()
            rule.when(config)
            found |= {(*rule.keys, "reads", key) for key in undeclared(read, rule.check.reads)}
    assert found == set()


def test_what_to_do_is_an_imperative() -> None:
    words = {rule.instead.split()[0] for rule in RULES}
    assert words == {"set", "remove", "launch"}


def test_of_a_section_the_settings_that_differ_from_their_defaults_are_shown() -> None:
    found = problems("trainer.args.neftune_noise_alpha=5.0")
    assert found == [
        "override trainer.args.neftune_noise_alpha=5.0: engine ('loop'), trainer.args ({'neftune_noise_alpha': 5.0}): "
        "only transformers.Trainer has these settings; set engine to trainer, or remove the section trainer"
    ]


@pytest.mark.parametrize("strategy", get_args(get_type_hints(TrainConfig)["strategy"]))
@pytest.mark.parametrize(("variable", "name"), OTHER_LAUNCHES.items())
def test_a_launch_that_no_strategy_implements_is_rejected(variable: str, name: str, strategy: str) -> None:
    with pytest.raises(
        ConfigError, match=f"the launcher asks for {name}, which no strategy implements.*launch without"
    ):
        load(f"train.strategy={strategy}", **{variable: "true"})
    assert load(f"train.strategy={strategy}", **{variable: "false"}).train.strategy == strategy


@pytest.mark.parametrize(
    "words",
    [
        "train.strategy=local_sgd train.local_sgd_outer_lr=0.7 train.local_sgd_outer_momentum=0.5",
        "model.peft.method=rslora model.peft.r=4 model.peft.target_modules=[query]",
        "model.freeze=[backbone,head.*] model.unfreeze.step_10=[backbone.*] model.unfreeze.epoch_2=['*']",
        "model.freeze=backbone model.unfreeze.step_9=[a] train.max_steps=10 train.num_train_epochs=0.5",
        "model.freeze=backbone model.unfreeze.epoch_2=[a] train.num_train_epochs=2.5",
        "train.auto_batch_size=true train.per_device_train_batch_size=1 train.max_tokens_per_batch=64",
        "train.max_tokens_per_batch=64 parallel.pipeline=4 parallel.schedule=interleaved_1f1b",
        "train.max_tokens_per_batch=64 parallel.fsdp=2 eval.max_tokens_per_batch=64",
        "data.train_file=local",
        "data.train_file=null data.dataset_name=glue data.dataset_config_name=sst2 data.revision=main",
        "data.validation_file=rows.csv eval.eval_steps=epoch checkpoint.load_best_model_at_end=true",
        "data.validation_split=0 data.validation_file=rows.csv eval.eval_steps=2",
        "data.validation_split=0 data.test_file=rows.csv data.max_eval_samples=3",
        "data.validation_split=0 data.test_file=rows.csv eval.slices=[shop]",
        "train.warmup_steps=0.5 train.max_steps=1",
        "train.lr_scheduler_type=constant_with_warmup train.warmup_steps=2",
        "train.optim=sgd train.optim_args.momentum=0.9",
        "train.optim=rmsprop train.optim_args.eps=1e-6",
        "train.optim=lion_8bit train.adam_beta1=0.5 train.adam_beta2=0.5",
        "train.optim=adam train.optim_args.fused=true",
        "train.optim=adafactor_relative train.lr_scheduler_type=constant train.weight_decay=0.1",
        "train.optim=schedule_free_adamw train.lr_scheduler_type=constant_with_warmup train.warmup_steps=2",
        "train.lr_scheduler_type=warmup_stable_decay train.warmup_steps=2 train.lr_scheduler_kwargs.num_decay_steps=2",
        "train.lr_scheduler_type=reduce_lr_on_plateau eval.eval_steps=2 train.warmup_steps=2",
        "model.name_or_path=owner/name model.revision=main",
        "model.name_or_path=./local checkpoint.resume=local",
        "tracking.report_to=[wandb] tracking.run_name=a tracking.project=b",
        "train.dataloader_persistent_workers=true train.dataloader_prefetch_factor=3",
    ],
)
def test_what_can_go_together(words: str) -> None:
    load(*words.split(" "))


def test_what_follows_from_a_wrong_setting_is_not_reported_and_the_rest_is() -> None:
    with pytest.raises(ConfigError) as caught:
        load("data.trian_file=a", "data.train_file=null", "train.max_steps=0", "train.optim=adamx", "task.x=1",
             "train.optim_args.fused=true", "data.revision=main", "train.warmup_steps=-1")  # fmt: skip
    assert [problem.split(": ")[1] for problem in caught.value.problems] == [
        "data.trian_file",
        "task.x",
        "train.optim",
        "train.warmup_steps",
        "data.revision ('main'), data.dataset_name (null)",
        "train.max_steps (0)",
    ]


def test_formats_are_those_that_can_be_read() -> None:
    assert set(FILE_FORMATS) == {*READERS, *ARCHIVES}
