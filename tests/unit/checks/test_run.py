"""Problems that only libraries, machine and task can find are reported together, before anything is loaded."""

from __future__ import annotations

import re

import pytest
from runs import ROOT, train

from toolkit.base.errors import ConfigError
from toolkit.recipe import load_task_type, validate


def test_all_that_is_wrong_with_what_is_here_is_said_at_once(tmp_path):
    settings = ("eval.metric_for_best_model=bleu", "train.optim_args.momentun=0.9", "train.optim=sgd", "engine=trainer",
                "trainer.args.learning_rate=1.0", "checkpoint.push_to_hub=true")  # fmt: skip
    with pytest.raises(ConfigError) as wrong:
        train("reviews", tmp_path / "run", *settings)
    keys = [problem.split(":")[0] for problem in wrong.value.problems]
    assert keys == ["eval.metric_for_best_model", "train.optim_args.momentun", "trainer.args.learning_rate",
                    "checkpoint.push_to_hub"]  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_what_the_trainer_cannot_do_is_said_with_the_rest_by_a_run_and_by_validate(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.utils.is_liger_kernel_available", lambda: False)
    settings = ("engine=trainer", "trainer.args.log_level=bananas", "trainer.args.use_liger_kernel=true",
                "trainer.args.neftune_noise_alpha=5.0", "data.max_train_samples=8")  # fmt: skip
    with pytest.raises(ConfigError) as wrong:
        train("reviews/smoke_image", tmp_path / "run", *settings)
    task_type = load_task_type(ROOT / "recipes" / "reviews.py")
    found = validate(task_type, ROOT / "recipes/configs/reviews/smoke_image.yaml", settings)
    for problems in (wrong.value.problems, found.problems):
        keys = [re.search(r"(trainer\.args\.\w+): ", problem)[1] for problem in problems]
        assert keys == ["trainer.args.log_level", "trainer.args.use_liger_kernel", "trainer.args.neftune_noise_alpha"]


def test_what_a_task_cannot_do_is_said_with_the_rest(tmp_path):
    settings = ("train.train_sampling_strategy=balanced", "train.snapshot_ensemble=true",
                "train.lr_scheduler_type=cosine_with_restarts", "train.lr_scheduler_kwargs.num_cycles=2",
                "data.media_cache=2GiB")  # fmt: skip
    with pytest.raises(ConfigError) as wrong:
        train("translation", tmp_path / "run", *settings)
    keys = [problem.split(":")[0] for problem in wrong.value.problems]
    assert keys == ["train.train_sampling_strategy", "train.snapshot_ensemble", "data.media_cache"]


def test_names_that_no_file_can_have_are_wrong_settings():
    name = "x" * 5000
    settings = (f"output_dir={name}", f"data.train_file={name}.csv", f"model.name_or_path={name}")
    found = validate(load_task_type("reviews"), ROOT / "recipes/configs/reviews/smoke.yaml", settings).problems
    keys = [re.search(r"(output_dir|data\.train_file|model\.name_or_path): ", problem)[1] for problem in found]
    assert sorted(set(keys)) == ["data.train_file", "model.name_or_path", "output_dir"]
