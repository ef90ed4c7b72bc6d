"""A model, a task, a loss, metrics and a callback of one's own, from a folder outside the repository."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from launching import launch, run
from runs import ROOT, assert_close, lines, train, weights

from toolkit.base.errors import ConfigError, InputError
from toolkit.engine.own_metrics import load_metric

RECIPE = '''
"""Texts by the mean of their embeddings: an own model, registered as Hugging Face's are, and an own loss."""

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from toolkit.main import main
from toolkit.recipe import load_task_type


class MeanConfig(PretrainedConfig):
    model_type = "mean_of_embeddings"

    def __init__(self, vocab_size=300, hidden_size=8, **others):
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        super().__init__(**others)


class Mean(PreTrainedModel):
    config_class = MeanConfig
    base_model_prefix = "mean"

    def __init__(self, config):
        super().__init__(config)
        self.embeddings = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.classifier = torch.nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, input_ids, attention_mask, **others):
        mask = attention_mask[..., None].to(self.classifier.weight.dtype)
        mean = (self.embeddings(input_ids) * mask).sum(1) / mask.sum(1)
        return SequenceClassifierOutput(logits=self.classifier(mean))


AutoConfig.register("mean_of_embeddings", MeanConfig, exist_ok=True)
AutoModelForSequenceClassification.register(MeanConfig, Mean, exist_ok=True)


class Squared(load_task_type("reviews")):
    """The squared distance of the logits from the classes, in place of cross entropy."""

    def loss_sum(self, outputs, batch):
        wanted = torch.nn.functional.one_hot(batch["labels"], outputs.logits.shape[-1]).to(outputs.logits.dtype)
        return ((outputs.logits - wanted) ** 2).sum()


TASK = Squared

if __name__ == "__main__":
    main(TASK)
'''
CODE = '''
from pathlib import Path

from toolkit.api.training import Callback


def share_of_positive(predictions, references):
    assert len(predictions) == len(references)
    return sum(each == "positive" for each in predictions) / len(predictions)


def several(predictions, references):
    return {"right": sum(map(str.__eq__, predictions, references)) / len(references), "rows": len(references)}


class Losses(Callback):
    """Keeps the losses of the steps in the run's folder."""

    def after_step(self, record):
        if self.training.run.accelerator.is_main_process:
            with (Path(self.training.run.output_dir) / "losses.txt").open("a") as file:
                file.write(f"{record['loss_sum']:.12g}\\n")
'''
MODULE = """
import datasets
import evaluate


class Agreement(evaluate.Metric):
    def _info(self):
        number = datasets.Value("int64")
        return evaluate.MetricInfo(description="", citation="", inputs_description="",
                                   features=datasets.Features({"predictions": number, "references": number}))

    def _compute(self, predictions, references):
        return {"agreement": float(sum(a == b for a, b in zip(predictions, references)) / len(references))}
"""
SETTINGS = (
    *("model.name_or_path=null", "model.from_config={model_type: mean_of_embeddings, vocab_size: 300}"),
    *("train.learning_rate=0.05", "train.max_steps=6", "eval.eval_steps=2", "data.max_eval_samples=21"),
    *("callbacks=[own_code.Losses]", "checkpoint.save_steps=2", "checkpoint.load_best_model_at_end=true"),
    "eval.metric_for_best_model=eval_agreement",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "mine.py").write_text(RECIPE)
    (folder / "own_code.py").write_text(CODE)
    (folder / "agreement").mkdir()
    (folder / "agreement/agreement.py").write_text(MODULE)
    return folder


def trained(folder: Path, name: str, *settings: str, processes: int = 1) -> Path:
    metrics = f"eval.metrics=[own_code.share_of_positive, own_code.several, {folder / 'agreement'}]"
    config = ROOT / "recipes/configs/reviews/smoke.yaml"
    given = ["--config", config, *SETTINGS, metrics, *settings, f"output_dir={folder / name}"]
    if processes > 1:
        launch([folder / "mine.py", *given], processes)
    else:
        run([sys.executable, str(folder / "mine.py"), *map(str, given)], env={**os.environ, "OMP_NUM_THREADS": "1"})
    return folder / name


def test_a_metric_that_is_not_found_says_where_it_is_looked_for():
    with pytest.raises(InputError) as raised:
        load_metric("gone.share")
    assert str(raised.value).startswith(
        "eval.metrics: cannot use 'gone.share': ModuleNotFoundError: No module named 'gone'"
    )
    assert "found from the current folder" in str(raised.value)


def accuracy(predictions: list[str], references: list[str]) -> float:
    return 0.25


def parts(predictions: list[str], references: list[str]) -> dict[str, float]:
    return {"a": 0.5}


OWN = ("train.max_steps=2", "eval.eval_steps=1", f"eval.metrics=[{__name__}.accuracy, {__name__}.parts]")


@pytest.mark.parametrize("setting", ["eval.metric_for_best_model={}", "train.target_metric.{}=9"])
def test_an_own_metric_with_a_taken_name_can_be_chosen_and_one_that_does_not_come_is_named(setting, tmp_path):
    train("reviews", tmp_path / "own", *OWN, setting.format("eval_own_accuracy"))
    facts = json.loads((tmp_path / "own/run.json").read_text())
    assert facts["result"]["eval_own_accuracy"] == 0.25
    assert "target" in setting or (facts["metric_for_best_model"], facts["result"]["best_metric"]) == (
        "eval_own_accuracy",
        0.25,
    )
    for name in ("eval_parts", "eval_parts_b"):
        with pytest.raises(ConfigError, match=rf"received '{name}', the evaluation has .*, parts_a"):
            train("reviews", tmp_path / name, *OWN, setting.format(name))
    with pytest.raises(ConfigError, match=r"this task has .*own_accuracy"):
        train("reviews", tmp_path / "typo", *OWN, setting.format("eval_own_acuracy"))


@pytest.mark.distributed
def test_own_code_gives_equal_numbers_with_both_engines_on_one_and_two_processes(folder):
    one = trained(folder, "one")
    runs = [trained(folder, "trainer", "engine=trainer"), trained(folder, "two", processes=2)]
    result = json.loads((one / "run.json").read_text())["result"]
    assert result["eval_agreement"] == result["eval_accuracy"] == result["eval_several_right"]
    assert result["eval_several_rows"] == 21
    assert 0 <= result["eval_share_of_positive"] <= 1
    assert json.loads((one / "run.json").read_text())["metric_for_best_model"] == "eval_agreement"
    best = max(line["eval_agreement"] for line in lines(one, "eval_agreement"))
    assert result["best_metric"] == best
    for other in runs:
        assert_close(lines(one, "eval_agreement"), lines(other, "eval_agreement"), 1e-5)
        left, right = weights(one), weights(other)
        assert_close({k: v.tolist() for k, v in left.items()}, {k: v.tolist() for k, v in right.items()}, 1e-5)
        sums = [[float(line) for line in (each / "losses.txt").read_text().splitlines()] for each in (one, other)]
        assert len(sums[0]) == len(sums[1]) == 6
