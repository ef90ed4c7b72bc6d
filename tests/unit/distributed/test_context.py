"""What cannot be split by positions, and where the ranks of a context group are."""

from __future__ import annotations

import pytest
from runs import ROOT

from toolkit.api.mesh import Mesh
from toolkit.checks.check import Case
from toolkit.checks.model import context_problems
from toolkit.recipe import load_settings, load_task_type


@pytest.mark.parametrize(
    ("name", "setting", "why"),
    [
        ("translation", "engine=loop", "is not supported for t5, only for bert, "),
        ("embeddings", "engine=loop", "the loss compares whole rows of a window; set parallel.fsdp"),
        ("reviews", "model.attn_implementation=eager", "set model.attn_implementation to sdpa"),
        (
            "language_modeling",
            "model.from_config.rope_parameters={rope_type: dynamic, factor: 2.0, rope_theta: 10000.0}",
            "rotary positions of the type dynamic depend on the length of a sequence, not of a part; set parallel.fsdp",
        ),
        ("language_modeling", "model.from_config.rope_parameters={rope_type: default, rope_theta: 10000.0}", None),
        ("reviews", "model.attn_implementation=sdpa", None),
        ("qa", "engine=trainer", None),
    ],
)
def test_what_cannot_be_split_is_rejected_before_weights_are_loaded(name, setting, why):
    task_type = load_task_type(ROOT / f"recipes/{name}.py")
    cfg = load_settings(task_type, ROOT / f"recipes/configs/{name}/smoke.yaml", [setting, "parallel.context=2"]).config
    problems = context_problems(Case(cfg, task_type))
    assert len(problems) == (why is not None)
    assert all(each.startswith("parallel.context: received 2, but") and why in each for each in problems)


def test_a_context_group_lies_between_tensor_and_fsdp_groups():
    ranks = [Mesh(replicas=2, fsdp=2, context=2, tensor=2, rank=rank) for rank in range(16)]
    assert [each.tensor_rank for each in ranks[:4]] == [0, 1, 0, 1]
    assert [each.context_rank for each in ranks[:6]] == [0, 0, 1, 1, 0, 0]
    assert [each.data_rank for each in ranks] == [rank // 4 for rank in range(16)]
    assert [each.rank for each in ranks if each.counts] == [0, 4, 8, 12]
    assert len({(*each.random_key, each.tensor_rank) for each in ranks}) == 16
    assert Mesh(replicas=3, rank=2).random_key == (2,)  # as it was without context
