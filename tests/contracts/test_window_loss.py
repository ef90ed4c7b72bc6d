"""A loss that compares all rows of a window is the same for every split, strategy and engine (C1, C2, C9)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import window_runs
from launching import fork
from runs import assert_close, assert_equal_runs, assert_same_weights, lines, numbers, train_recipe
from tolerances import FLOAT64
from window_runs import RECIPE, RUNS, SETTINGS

from toolkit.base.errors import ConfigError
from toolkit.recipe import load_settings, load_task_type, validate

ONE = [name for name, (processes, _) in RUNS.items() if processes == 1]
SEVERAL = [name for name, (processes, _) in RUNS.items() if processes > 1]
OWN = ("symmetric", "triplet", "cosent", "cosine")
"""Runs with another loss, which have a reference of their own."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The rows."""
    made = tmp_path_factory.mktemp("windows")
    window_runs.write_rows(made)
    return made


@pytest.fixture(scope="module")
def one(folder):
    """Returns a function that gives the folder of a run of one process, trained when it is first asked for."""

    @cache
    def trained(name: str) -> Path:
        window_runs.main(folder, name)
        return folder / name

    return trained


@pytest.fixture(scope="module")
def several(folder):
    """The folder, with all runs of two and three processes."""
    for processes in (2, 3):
        names = [name for name in SEVERAL if RUNS[name][0] == processes]
        fork([Path(window_runs.__file__), folder, *names], processes)
    return folder


SPLITS = [name for name in ONE if not name.endswith("16x1") and not name.startswith("dropout")]
FURTHER = ("8x2", "padded", "auto_batch_size", "cosine-2x8")
"""Splits that the slow tests compare; the fast ones have others of their kind."""


@pytest.mark.fast(4)
@pytest.mark.parametrize("name", [pytest.param(each, marks=[pytest.mark.slow] * (each in FURTHER)) for each in SPLITS])
def test_every_split_of_one_process(one, name):
    own = name.split("-")[0]
    assert_equal_runs(one(f"{own}-16x1" if own in OWN else "16x1"), one(name))
    steps = lines(one(name), "loss")
    assert [step["num_items"] for step in steps] == [16, 16, 16, 12, 16]  # a short window at the end of the epoch
    assert steps[0]["loss"] != steps[-1]["loss"]


@pytest.mark.distributed
@pytest.mark.parametrize("name", SEVERAL)
def test_every_strategy(one, several, name):
    assert_equal_runs(one("16x1"), several / name)


def test_both_engines_draw_the_same_dropout(one):
    loop, trainer = one("dropout-loop"), one("dropout-trainer")
    assert_same_weights(loop, trainer)
    assert lines(loop, "loss") == lines(trainer, "loss")
    assert lines(loop, "loss")[0]["loss"] != lines(one("16x1"), "loss")[0]["loss"]


def test_resumed_with_dropout_it_is_equal_to_the_bit(folder, one):
    names = (f"data.train_file={folder / 'triples.jsonl'}", *RUNS["dropout-loop"][1])
    saved, resumed = folder / "saved", folder / "resumed"
    train_recipe(RECIPE, SETTINGS, *names, "checkpoint.save_steps=2", f"output_dir={saved}", double=True)
    (checkpoint,) = saved.glob("checkpoints/*2")
    resume = f"checkpoint.resume={checkpoint}"
    train_recipe(RECIPE, SETTINGS, *names, resume, f"output_dir={resumed}", double=True)
    assert_same_weights(one("dropout-loop"), resumed)


def test_it_is_plain_training_on_the_whole_batch(folder):
    """All rows are in every window, so that their order does not matter, and a plain loop can see the same rows."""
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    rows = [json.loads(line) for line in (folder / "triples.jsonl").read_text().splitlines()[:12]]
    file = folder / "twelve.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = ("data.validation_split=0", "train.global_batch_size=12", "train.per_device_train_batch_size=3")
    run = folder / "twelve"
    train_recipe(RECIPE, SETTINGS, f"data.train_file={file}", *settings, f"output_dir={run}", double=True)
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    torch.manual_seed(SETTINGS["seed"])
    model = AutoModel.from_config(AutoConfig.from_pretrained(run / "model"), dtype=torch.float32).double()

    def embedded(texts: list[str]) -> torch.Tensor:
        found = []
        for each in texts:  # one at a time, without padding
            ids = torch.tensor([tokenizer(each, truncation=True, max_length=24)["input_ids"]])
            found.append(model(ids).last_hidden_state[0].mean(0))
        return torch.nn.functional.normalize(torch.stack(found), dim=-1)

    owners = {}
    for row in rows:
        owners.setdefault(row["anchor"], set()).add(row["positive"])
    trained = [parameter for name, parameter in model.named_parameters() if not name.startswith("pooler")]
    optimizer, losses = torch.optim.SGD(trained, lr=SETTINGS["train"]["learning_rate"]), []
    documents = [text for row in rows for text in (row["positive"], *row["negative"])]
    for _ in range(5):
        scores = embedded([row["anchor"] for row in rows]) @ embedded(documents).T / 0.05
        loss, place = torch.zeros((), dtype=torch.float64), 0
        for row, line in zip(rows, scores, strict=True):
            kept = [k for k, text in enumerate(documents) if k == place or text not in owners[row["anchor"]]]
            loss = (
                loss - line.log_softmax(0)[place]
                if len(kept) == len(line)
                else loss - (line[place] - line[kept].logsumexp(0))
            )
            place += 1 + len(row["negative"])
        loss = loss / len(rows)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, SETTINGS["train"]["max_grad_norm"])
        optimizer.step()
        losses.append(loss.item())
    assert_close(losses, [step["loss"] for step in lines(run, "loss")], FLOAT64)
    plain = {name: value.detach().tolist() for name, value in model.state_dict().items()}
    assert_close(numbers(run), plain, FLOAT64)


def test_the_gradient_with_dropout_is_that_of_one_graph(folder):
    from accelerate import Accelerator

    from toolkit.api.mesh import Mesh
    from toolkit.distributed.strategies.ddp import DataParallel
    from toolkit.distributed.window import accumulate, seed_all

    class Pairs(load_task_type(RECIPE)):
        """Embeddings by a layer that drops half of its inputs."""

        def forward(self, model, batch):
            return model(batch["inputs"]["x"])

    given = [f"data.train_file={folder / 'triples.jsonl'}", f"output_dir={folder / 'none'}"]
    cfg = load_settings(load_task_type(RECIPE), SETTINGS, given).config
    task, accelerator = Pairs(cfg), Accelerator(cpu=True)
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(6, 4)).double()
    torch.manual_seed(0)
    window = [
        {
            "inputs": {"x": torch.randn(rows, 2, 6, dtype=torch.float64)},
            "labels": torch.arange(2 * rows).view(rows, 2) + 100 * number,
            "row_ids": torch.arange(rows),
        }
        for number, rows in enumerate((3, 1, 4))
    ]
    seed_all(7)
    strategy = DataParallel(accelerator, Mesh(), cfg)
    strategy.replica = SimpleNamespace(task=task, beat=lambda: None)
    loss = accumulate(strategy, model, window, 0.5)
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    seed_all(7)
    seeds, outputs = torch.randint(2**62, (3,)).tolist(), []
    for seed, batch in zip(seeds, window, strict=True):
        seed_all(seed)
        outputs.append(model(batch["inputs"]["x"]))
    whole = task.window_loss(torch.cat(outputs), torch.cat([batch["labels"] for batch in window]))
    (whole * 0.5).backward()
    torch.testing.assert_close(loss, whole.detach(), rtol=0, atol=1e-12)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=0, atol=1e-12)
    apart = sum(float(task.loss_sum(outputs[k].detach(), batch)) for k, batch in enumerate(window))
    assert abs(apart - float(loss)) > 0.1  # negatives of one micro-batch only are another task


@pytest.mark.parametrize(
    ("setting", "processes", "message"),
    [
        ("train.strategy=local_sgd", 2, "train.strategy: received 'local_sgd'"),
        ("train.auto_batch_size=true", 2, "train.auto_batch_size: received true with 2 processes"),
        ("parallel.pipeline=2", 2, "parallel.pipeline: received 2"),
    ],
)
def test_what_would_compute_something_else_is_rejected(folder, monkeypatch, setting, processes, message):
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    given = [f"data.train_file={folder / 'triples.jsonl'}", f"output_dir={folder / 'none'}", setting]
    with pytest.raises(ConfigError, match=message):
        validate(load_task_type(RECIPE), SETTINGS, given).raise_problems()
