"""What mixtures of experts can be split, and the loss of their routers, against transformers' own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from expert_models import mixture
from runs import ROOT, shipped

from toolkit.api.mesh import Mesh
from toolkit.base.errors import ConfigError
from toolkit.checks.check import Case
from toolkit.checks.model import expert_problems, router_problems
from toolkit.config.train import ParallelConfig
from toolkit.distributed.routing import BALANCED, Routing, routing_of
from toolkit.recipe import load_settings


def balanced(kind: str) -> Any:
    """Returns a small model whose loss of balance counts by half."""
    return mixture(kind, output_router_logits=True, router_aux_loss_coef=0.5)


@pytest.mark.parametrize("kind", BALANCED)
def test_the_loss_of_a_row_is_that_of_transformers(kind):
    model = balanced(kind)
    routing = routing_of(model)
    assert routing is not None
    layers = len(routing.routers)
    assert layers == 1 + (kind != "ernie4_5_moe")
    ids, mask = torch.randint(1, 40, (3, 7)), torch.ones(3, 7, dtype=torch.int64)
    mask[0, 4:] = mask[2, 6:] = 0
    labels = torch.where(mask > 0, ids, -100)
    labels[1, 3:] = -100
    batch: Any = {
        "inputs": {"input_ids": ids, "attention_mask": mask}, "labels": labels, "row_ids": torch.arange(3)
    }  # fmt: skip
    with routing.recording():
        model(**batch["inputs"], output_router_logits=False)
    found = routing.loss_sum(batch)
    losses = [
        model(input_ids=ids[row : row + 1], attention_mask=mask[row : row + 1], output_router_logits=True).aux_loss
        for row in range(3)
    ]
    expected = 0.5 * sum(loss * count for loss, count in zip(losses, (4, 3, 6), strict=True))
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    assert routing.counts.sum(1).tolist() == [2 * 17] * layers
    theirs, ours = (
        torch.autograd.grad(loss, list(routing.routers[0].parameters())[:1], retain_graph=True)[0]
        for loss in (expected, found)
    )
    assert torch.allclose(theirs, ours, rtol=1e-4, atol=1e-6)


def test_placeholder_rows_and_models_without_experts_have_no_load():
    model = balanced("mixtral")
    routing = Routing(routing_of(model).routers, 0.0)  # type: ignore[union-attr]
    batch: Any = {"inputs": {}, "labels": torch.full((1, 3), -100), "row_ids": torch.tensor([-1])}
    with routing.recording():
        model(input_ids=torch.ones(1, 3, dtype=torch.int64))
    assert routing.loss_sum(batch) == 0
    assert routing.counts.sum(1).tolist() == [0, 0]
    assert routing_of(torch.nn.Linear(2, 2)) is None


def test_the_number_divides_the_data_ranks():
    mesh = Mesh.of(ParallelConfig(fsdp=2, expert=4), 8, rank=5)
    assert (mesh.replicas, mesh.fsdp, mesh.expert, mesh.rank, mesh.is_split) == (4, 2, 4, 5, True)
    with pytest.raises(
        ConfigError, match=r"parallel\.expert: received 4, which does not divide the number of data ranks, 2"
    ):
        Mesh.of(ParallelConfig(expert=4), 2)


MOE = "language_modeling/smoke_moe"


@pytest.mark.parametrize(
    ("config", "words", "message"),
    [
        (MOE, "parallel.expert=2", ""),
        (MOE, "parallel.expert=3", "parallel.expert: received 3, which does not divide the 4 experts of a layer"),
        ("language_modeling/smoke", "parallel.expert=2", "parallel.expert: received 2, but a llama has no experts"),
        (MOE, "train.torch_compile=true", "output_router_logits: received true, but train.torch_compile leaves out"),
        (MOE, "model.peft.method=prompt_tuning", "prompt_tuning (model.peft.method) adds tokens that no row has"),
        (MOE, "model.from_config.output_router_logits=false", "from_config.router_aux_loss_coef: has no effect with"),
        ("language_modeling/smoke", "model.from_config={model_type: gpt_oss, output_router_logits: true}",
         "model.from_config.output_router_logits: received true, but the loss of a gpt_oss's routers has not been"),
        ("preference/smoke", "model.from_config={model_type: mixtral, output_router_logits: true}",
         "but Preference has its own forward pass, whose rows may be others"),
    ],
)  # fmt: skip
def test_what_cannot_be_split_or_balanced_is_refused(config, words, message):
    recipe, name = config.split("/")
    task_type = shipped(ROOT / "recipes" / f"{recipe}.py")
    file = ROOT / "recipes" / "configs" / recipe / f"{name}.yaml"
    case = Case(load_settings(task_type, file, [words]).config, task_type)
    found = [*expert_problems(case), *router_problems(case)]
    assert len(found) == bool(message), found
    assert all(message in each for each in found)
