"""Every check declares the settings that it reads, so that nothing is reported that follows from a wrong one."""

from __future__ import annotations

import pytest
from recording import recording, undeclared
from runs import ROOT

from toolkit.checks.check import Case
from toolkit.checks.run import CHECKS
from toolkit.config import read_config
from toolkit.config.problems import CannotCheck
from toolkit.recipe import load_task_type

OPTIONAL = ("train.optim_args.foreach=true", "train.target_metric.loss=1", "eval.metric_for_best_model=loss",
            "train.lr_scheduler_kwargs.x=1", "tracking.report_to=[wandb]", "checkpoint.push_to_hub=true",
            "train.tf32=true", "train.torch_compile=true", "train.mixed_precision=fp16",
            "train.activation_offload=true", "model.attn_implementation=sdpa", "data.columns.text=text",
            "checkpoint.resume=auto", "data.max_bad_rows=0.5", "model.config_overrides.vocab_size=400")  # fmt: skip
SUBJECTS = {
    "reviews/smoke": (),
    "reviews/smoke optional": OPTIONAL,
    "reviews/smoke lora": ("model.peft.method=lora", "train.head_learning_rate=1e-3", "train.unpadded=true"),
    "reviews/smoke prompts": ("model.peft.method=prompt_tuning", "train.pad_to_multiple_of=8"),
    "reviews/smoke frozen": ("model.freeze=[bert.*]", "model.unfreeze.step_1=['*']", "parallel.tensor=2"),
    "reviews/smoke trainer": ("engine=trainer", "trainer.args.neftune_noise_alpha=1.0", "trainer.callbacks=[a.b]",
                              "trainer.args.use_liger_kernel=true", "train.activation_checkpointing=full"),
    "reviews/smoke deepspeed": ("parallel.backend=deepspeed", "parallel.zero_stage=2", "model.peft.method=qlora"),
    "reviews/smoke hub": ("data.train_file=null", "data.dataset_name=nobody/nothing", "model.from_config=null",
                          "model.name_or_path=nobody/nothing", "offline_dir=none"),
    "reviews/smoke_image": ("train.max_tokens_per_batch=9", "eval.max_tokens_per_batch=9"),
    "qa/smoke": (),
    "translation/smoke": ("data.media_cache=2GiB", "train.snapshot_ensemble=true", "parallel.pipeline=2"),
    "language_modeling/smoke context": ("parallel.context=2",),
    "language_modeling/smoke": ("parallel.pipeline=2", "parallel.schedule=gpipe"),
}  # fmt: skip


@pytest.mark.parametrize("subject", SUBJECTS)
def test_checks_declare_what_they_read(subject, monkeypatch):
    monkeypatch.chdir(ROOT)
    recipe, _, yaml = subject.split(" ")[0].partition("/")
    task_type, found = load_task_type(recipe), {}
    config = read_config(
        task_type.Options, ROOT / f"recipes/configs/{recipe}/{yaml}.yaml", SUBJECTS[subject], {}
    ).config
    for check in CHECKS:
        if not check.reads:  # of the recipe's own checks, each message names what it depends on
            continue
        read = set()
        case = Case(recording(config, read), task_type, {"WORLD_SIZE": "2"})
        try:
            problems = [str(each) for each in check.find(case)]
        except CannotCheck as reason:
            problems = [str(reason)]
        if check.about and (keys := undeclared(read, check.reads)):
            found[check.about] = keys, problems
    assert found == {}
