"""What `transformers.Trainer` refuses only after the model is built is refused before weights are loaded."""

from __future__ import annotations

import pytest
import transformers
from runs import ROOT

from toolkit.checks import model, trainer
from toolkit.checks.check import Case
from toolkit.config import Config
from toolkit.distributed.launch import own_process_state
from toolkit.recipe import load_settings, load_task_type

REVIEWS = load_task_type(ROOT / "recipes" / "reviews.py")


def settings(*overrides: str, name: str = "smoke") -> Config:
    file = ROOT / "recipes" / "configs" / "reviews" / f"{name}.yaml"
    return load_settings(REVIEWS, file, ["engine=trainer", *overrides]).config


REFUSED = {
    "log_level=bananas": "received 'bananas', must be detail, debug, info, warning, error, critical or passive",
    "log_level_replica=loud": "received 'loud', must be ",
    "debug=undreflow": "received 'undreflow', must be underflow_overflow",
    "debug='underflow_overflow overflow'": "received 'underflow_overflow overflow', must be",
}


@pytest.mark.parametrize(("setting", "message"), REFUSED.items(), ids=REFUSED)
def test_values_that_the_trainer_rejects_are_rejected(setting, message, tmp_path):
    cfg = settings(f"trainer.args.{setting}")
    (problem,) = trainer.argument_problems(cfg)
    assert problem.startswith(f"trainer.args.{setting.partition('=')[0]}: {message}")
    with own_process_state(), pytest.raises((ValueError, KeyError)):  # the Trainer does so as well
        transformers.TrainingArguments(str(tmp_path), use_cpu=True, **cfg.trainer.args).get_process_log_level()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("debug=tpu_metrics_debug", "trainer.args.debug: received 'tpu_metrics_debug', must be underflow_overflow"),
        ("neftune_noise_alpha=-1.0", "trainer.args.neftune_noise_alpha: received -1.0, must be at least 0"),
        ("liger_kernel_config.rope=true", "trainer.args.liger_kernel_config: it has no effect without the kernels"),
    ],
)
def test_values_without_effect_or_that_fail_at_the_first_step_are_rejected(setting, message):
    (problem,) = trainer.argument_problems(settings(f"trainer.args.{setting}"))
    assert problem.startswith(message)


@pytest.mark.parametrize(
    "setting", ["log_level=passive", "log_level_replica=error", "debug=''", "debug=underflow_overflow"]
)
def test_values_that_the_trainer_accepts_are_accepted(setting):
    assert trainer.argument_problems(settings(f"trainer.args.{setting}")) == []


def test_liger_kernels_need_their_library(monkeypatch):
    cfg = settings("trainer.args.use_liger_kernel=true", "trainer.args.liger_kernel_config.rope=true")
    assert trainer.argument_problems(cfg) == []
    for available in (False, True):
        monkeypatch.setattr("transformers.utils.is_liger_kernel_available", lambda found=available: found)
        assert len(trainer.library_problems(cfg)) == int(not available)


def test_noise_needs_embeddings():
    noise = "trainer.args.neftune_noise_alpha=5.0"
    text, image = settings(noise), settings(noise, "model.from_config={model_type: resnet}", name="smoke_image")
    assert model.noise_problems(Case(text, REVIEWS)) == []
    (problem,) = model.noise_problems(Case(image, REVIEWS))
    assert problem.startswith("trainer.args.neftune_noise_alpha: noise is added to embeddings, which a resnet lacks")
