"""Plans of tensor parallelism: what they refuse before weights are loaded."""

from __future__ import annotations

import pytest
import tensor_models
import torch
import transformers
from runs import ROOT

from toolkit.base.errors import ConfigError
from toolkit.checks.check import Case
from toolkit.checks.model import tensor_problems
from toolkit.distributed.tensor import plans, sequence
from toolkit.distributed.tensor.plans import LIBRARY_PLANS, PLANS, TensorPlan, plan_of, plan_problems, split_modules
from toolkit.recipe import load_settings, load_task_type

DIVIDED = {
    "bert": "num_attention_heads (4)",
    "distilbert": "n_heads (4)",
    "t5": "num_heads (4)",
    "bart": "encoder_attention_heads (4) and decoder_attention_heads (4)",
    "whisper": "encoder_attention_heads (4) and decoder_attention_heads (4)",
    "gpt2": "n_head (4)",
    "wav2vec2": "num_attention_heads (4)",
    "llama": "num_attention_heads (4) and num_key_value_heads (2)",
}
"""Fields of the small models of `tensor_models` that 3 processes do not divide; widths of 12 they do."""


def config_of(name: str, **settings: object) -> transformers.PreTrainedConfig:
    return transformers.AutoConfig.for_model(name, **{**tensor_models.MODELS[name][1], **settings})


def model_of(name: str, **settings: object) -> transformers.PreTrainedModel:
    task = tensor_models.MODELS[name][0]
    with torch.device("meta"):
        return getattr(transformers, f"AutoModelFor{task}").from_config(config_of(name, **settings))


def problems_of_run(*overrides: str) -> list[str]:
    recipe = ROOT / "recipes" / "reviews.py"
    task_type = load_task_type(recipe)
    file = ROOT / "recipes" / "configs" / "reviews" / "smoke.yaml"
    cfg = load_settings(task_type, file, [*overrides]).config
    return tensor_problems(Case(cfg, task_type))


def test_each_architecture_of_the_table_is_compared_with_one_process():
    assert {*PLANS, *LIBRARY_PLANS} <= tensor_models.MODELS.keys()
    assert all(plan_of(config_of(name)) for name in [*PLANS, *LIBRARY_PLANS])


@pytest.mark.parametrize("name", DIVIDED)
def test_heads_that_do_not_divide_are_named(name):
    (problem,) = plan_problems(config_of(name), 3)
    assert (
        problem
        == f"parallel.tensor: received 3, which does not divide the model's {DIVIDED[name]}; set a number that does"
    )
    assert plan_problems(config_of(name), 2) == []


def test_the_width_of_each_layer_is_checked():
    # n_inner is null: 4 * n_embd.
    settings = {"n_embd": 6, "n_head": 3, "n_inner": None}
    assert plan_problems(config_of("gpt2", **settings), 3) == []
    assert len(split_modules(model_of("gpt2", **settings), 3)) == 4
    with pytest.raises(ConfigError, match=r"received 4, .*h\.0\.attn\.c_attn .*6"):
        split_modules(model_of("gpt2", **settings), 4)


@pytest.mark.parametrize("kind", ["convnext", "albert", "qwen2_moe", "gpt_oss"])
def test_an_architecture_without_a_plan_is_rejected(kind):
    (problem,) = plan_problems(transformers.AutoConfig.for_model(kind), 2)
    assert f"there is no plan for splitting the layers of {kind}" in problem
    assert "set parallel.fsdp instead" in problem


def test_a_style_that_is_not_known_rejects_the_plan(monkeypatch):
    config = config_of("llama")
    monkeypatch.setattr(type(config), "base_model_tp_plan", {"layers.*.mlp": "moe_tp_experts"})
    assert "there is no plan" in plan_problems(config, 2)[0]


def test_norms_of_heads_that_a_plan_leaves_out_are_rejected():
    (problem,) = plan_problems(config_of("phi", qk_layernorm=True), 2)
    assert "qk_layernorm adds norms" in problem


def test_a_plan_that_matches_no_module_is_an_error_before_weights_are_loaded(monkeypatch):
    monkeypatch.setitem(plans.PLANS, "bert", TensorPlan({r"encoder\.blocks\.\d+": "colwise"}, ()))
    (problem,) = problems_of_run("parallel.tensor=2")
    assert problem.startswith("parallel.tensor: received 2, but the plan for bert splits layers named")


def test_a_run_is_checked_before_weights_are_loaded():
    assert problems_of_run("parallel.tensor=2") == []
    assert "num_attention_heads (2)" in problems_of_run("parallel.tensor=4")[0]


def test_tokens_are_split_where_each_is_treated_by_itself():
    assert {*sequence.UNFIT} <= {*PLANS, *LIBRARY_PLANS}
    (problem,) = sequence.sequence_problems(transformers.AutoConfig.for_model("hubert", layerdrop=0.0))
    assert "but hubert has convolutions among the layers, which mix tokens; remove it" in problem
    (problem,) = sequence.sequence_problems(transformers.AutoConfig.for_model("bart", decoder_layerdrop=0.1))
    assert "set model.config_overrides.decoder_layerdrop to 0, or remove parallel.sequence" in problem
    assert sequence.sequence_problems(config_of("gpt2")) == []
