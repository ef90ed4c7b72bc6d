"""Losses of preferences are those of the papers' formulas, the same for every split, strategy and engine."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import preference_runs
import pytest
import torch
from launching import fork
from preference_runs import RECIPE, RUNS, SETTINGS, loss_of, settings_of
from runs import assert_close, assert_equal_runs, assert_same_weights, lines, numbers, predictions, train_recipe
from tolerances import FLOAT64
from torch.nn.functional import logsigmoid, softplus

ONE = [name for name, (processes, _) in RUNS.items() if processes == 1]
SEVERAL = [name for name, (processes, _) in RUNS.items() if processes > 1]
BETA, LR, CLIP = 0.5, SETTINGS["train"]["learning_rate"], SETTINGS["train"]["max_grad_norm"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The rows."""
    made = tmp_path_factory.mktemp("preferences")
    preference_runs.write_rows(made)
    return made


@pytest.fixture(scope="module")
def one(folder):
    """Returns a function that gives the folder of a run of one process, trained when it is first asked for."""

    @cache
    def trained(name: str) -> Path:
        preference_runs.main(folder, name)
        return folder / name

    return trained


@pytest.fixture(scope="module")
def several(folder):
    """The folder, with all runs of two processes."""
    fork([Path(preference_runs.__file__), folder, *SEVERAL], 2)
    return folder


SPLITS = [name for name in ONE if not name.endswith("-8x1") and name != "lora"]
FURTHER = ("ipo-2x4", "simpo-2x4")
"""Splits that the slow tests compare: their losses are sums over pairs as DPO's and ORPO's."""


@pytest.mark.fast(4)
@pytest.mark.parametrize("name", [pytest.param(each, marks=[pytest.mark.slow] * (each in FURTHER)) for each in SPLITS])
def test_every_split_of_one_process(one, name):
    assert_equal_runs(one(f"{loss_of(name)}-8x1"), one(name))
    steps = lines(one(name), "loss")
    assert len({step["num_items"] for step in steps}) == 2  # a short window at the end of the epoch
    assert steps[0]["loss"] != steps[-1]["loss"]


@pytest.mark.distributed
@pytest.mark.parametrize("name", SEVERAL)
def test_every_strategy(one, several, name):
    assert_equal_runs(one(f"{loss_of(name)}-8x1"), several / name)


@pytest.mark.parametrize("loss", ["dpo", "kto"])
def test_resumed_it_is_equal_to_the_bit(folder, one, loss):
    name, saved, resumed = f"{loss}-2x4", folder / f"{loss}-saved", folder / f"{loss}-resumed"
    own = settings_of(folder, name)
    train_recipe(RECIPE, SETTINGS, *own, "checkpoint.save_steps=2", f"output_dir={saved}", double=True)
    (checkpoint,) = saved.glob("checkpoints/*2")
    train_recipe(RECIPE, SETTINGS, *own, f"checkpoint.resume={checkpoint}", f"output_dir={resumed}", double=True)
    assert_same_weights(one(name), resumed)


def twelve(folder: Path, loss: str) -> tuple[Path, list[dict[str, object]]]:
    """Trains on 12 rows, all of which are in every window; returns the run and the rows."""
    given = folder / f"{'single' if loss == 'kto' else 'pairs'}.jsonl"
    rows = [json.loads(line) for line in given.read_text().splitlines()[:12]]
    file, run = folder / f"twelve-{loss}.jsonl", folder / f"twelve-{loss}"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = [each for each in settings_of(folder, f"{loss}-8x1") if not each.startswith("data.")]
    train_recipe(
        RECIPE, SETTINGS, *own, f"data.train_file={file}", "data.validation_split=0", "train.global_batch_size=12",
        "train.per_device_train_batch_size=3", "task.max_length=40", f"output_dir={run}", double=True,
    )  # fmt: skip
    return run, rows


class Plain:
    """The formulas of the papers, one answer at a time, without padding, with a second, frozen model."""

    def __init__(self, run: Path, loss: str) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

        kind = AutoModelForSequenceClassification if loss == "reward" else AutoModelForCausalLM
        config = AutoConfig.from_pretrained(run / "model")
        self.loss, self.tokenizer = loss, AutoTokenizer.from_pretrained(run / "model")

        def built():
            torch.manual_seed(SETTINGS["seed"])
            return kind.from_config(config, dtype=torch.float32).double()

        self.model, self.frozen = built(), built()

    def value(self, network, prompt, answer):
        """The score, or the log-probability of an answer, and its number of tokens."""
        first = self.tokenizer(prompt)["input_ids"]
        ids = self.tokenizer(prompt + answer)["input_ids"] + [self.tokenizer.eos_token_id]
        assert ids[: len(first)] == first
        if self.loss == "reward":
            return network(torch.tensor([ids])).logits[0, 0], 1
        found = network(torch.tensor([ids])).logits[0, len(first) - 1 : -1].log_softmax(-1)
        own = torch.tensor(ids[len(first) :])
        return found.gather(1, own[:, None]).sum(), len(own)

    def moved(self, prompt, answer):
        with torch.no_grad():
            before, _ = self.value(self.frozen, prompt, answer)
        return self.value(self.model, prompt, answer)[0] - before

    def of_pair(self, row):
        pair = [(row["prompt"], row[name]) for name in ("chosen", "rejected")]
        if self.loss in ("dpo", "ipo"):
            difference = self.moved(*pair[0]) - self.moved(*pair[1])
            return -logsigmoid(BETA * difference) if self.loss == "dpo" else (difference - 1 / (2 * BETA)) ** 2
        (good, m), (bad, n) = (self.value(self.model, *each) for each in pair)
        if self.loss == "reward":
            return softplus(bad - good)
        if self.loss == "simpo":
            return -logsigmoid(BETA * (good / m) - BETA * (bad / n) - 0.5)
        likely, unlikely = (good / m).exp(), (bad / n).exp()
        ratio = (likely / (1 - likely)) / (unlikely / (1 - unlikely))
        return -good / m - BETA * logsigmoid(ratio.log())

    def of_all(self, rows):
        if self.loss != "kto":
            return torch.stack([self.of_pair(row) for row in rows]).mean()
        answers = [row["completion"] for row in rows]
        with torch.no_grad():
            others = zip(rows, answers[1:] + answers[:1], strict=True)
            moved = torch.stack([self.moved(row["prompt"], other) for row, other in others])
            point = (BETA * moved.mean()).clamp(min=0)
        gaps = [BETA * self.moved(row["prompt"], row["completion"]) - point for row in rows]
        return torch.stack(
            [1 - torch.sigmoid(gap if row["label"] else -gap) for row, gap in zip(rows, gaps, strict=True)]
        ).mean()


@pytest.mark.fast(3)
@pytest.mark.parametrize("loss", ["dpo", "ipo", "orpo", "simpo", "kto", "reward"])
def test_it_is_the_formula_of_the_paper(folder, loss):
    run, rows = twelve(folder, loss)
    plain = Plain(run, loss)
    optimizer, losses = torch.optim.SGD(plain.model.parameters(), lr=LR), []
    for _ in range(preference_runs.STEPS):
        total = plain.of_all(rows)
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(plain.model.parameters(), CLIP)
        optimizer.step()
        losses.append(total.item())
    assert_close(losses, [step["loss"] for step in lines(run, "loss")], FLOAT64)
    expected = {name: each.detach().tolist() for name, each in plain.model.state_dict().items()}
    assert_close({name: each for name, each in numbers(run).items() if name in expected}, expected, FLOAT64)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # peft's own
def test_the_reference_is_the_model_without_its_adapters(one):
    from peft import PeftModel
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    run, config = one("lora"), AutoConfig.from_pretrained(one("dpo-8x1") / "model")
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    torch.manual_seed(SETTINGS["seed"])
    base = AutoModelForCausalLM.from_config(config, dtype=torch.float32).double()
    model = PeftModel.from_pretrained(base, run / "model").eval()

    def logp(prompt, answer):
        first = len(tokenizer(prompt)["input_ids"])
        ids = (tokenizer(prompt + answer)["input_ids"] + [tokenizer.eos_token_id])[:15]
        found = model(torch.tensor([ids])).logits[0, first - 1 : -1].log_softmax(-1)
        return float(found.gather(1, torch.tensor(ids[first:])[:, None]).sum())

    for row in predictions(run):
        for name in ("chosen", "rejected"):
            with torch.no_grad():
                after = logp(row["prompt"], row[name])
                with model.disable_adapter():
                    before = logp(row["prompt"], row[name])
            assert row[f"{name}_reward"] == pytest.approx(BETA * (after - before), abs=1e-9)
            assert abs(after - before) > 1e-4


def test_a_later_run_reads_what_the_model_predicted_before_training(folder, tmp_path, monkeypatch, caplog):
    """With another loss, the same rows and weights are not predicted again; a damaged file is."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    said = "the model before training predicts"

    def trained(name, *more):
        caplog.clear()
        settings = (*settings_of(folder, "dpo-8x1"), "train.max_steps=1", *more)
        train_recipe(RECIPE, SETTINGS, *settings, f"output_dir={tmp_path / name}", double=True)
        return sum(said in record.message for record in caplog.records)

    assert trained("first") == 2  # training and validation rows
    assert trained("second", "task.loss=ipo") == 0
    assert trained("seed", "seed=2") == 2
    for file in (tmp_path / "cache").rglob("initial.safetensors"):
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert trained("third") == 2
    assert_same_weights(tmp_path / "first", tmp_path / "third")


def test_a_synthetic_preference_is_learned(tmp_path):
    """Answers are numbers, and larger ones are preferred."""
    rows = [
        {"prompt": f"{k % 7} more? ", "chosen": f"n{max(a, b)}", "rejected": f"n{min(a, b)}"}
        for k in range(400) for a, b in [(k * 7 % 11, (k * 5 + 3) % 11)] if a != b
    ]  # fmt: skip
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = ("task.max_length=24", "train.optim=adamw_torch", "train.learning_rate=0.003", "train.max_steps=60",
                "train.global_batch_size=32", "train.per_device_train_batch_size=32")  # fmt: skip
    train_recipe(RECIPE, SETTINGS, f"data.train_file={file}", *settings, f"output_dir={tmp_path / 'run'}")
    result = json.loads((tmp_path / "run" / "run.json").read_text())["result"]
    assert result["eval_reward_accuracy"] > 0.95
    assert result["eval_reward_margin"] > 0
