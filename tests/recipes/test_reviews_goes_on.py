"""Runs that start from the model of another run: the head's rows go with their labels, and reports compare both."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
from runs import train
from safetensors.torch import load_file

from toolkit.base.errors import ConfigError

WORDS = {"fish": "trout salmon net", "bird": "wing nest feather", "tree": "leaf root bark", "frog": "pond jump croak"}


def written(path: Path, labels: list[str], count: int = 60) -> Path:
    """Writes rows whose words tell their label."""
    draw = random.Random(str(path.name))
    rows = [{"text": " ".join(draw.choices(WORDS[label].split(), k=5)), "label": label}
            for label in (labels * count)[:count]]  # fmt: skip
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def data(folder: Path, name: str, labels: list[str]) -> tuple[str, ...]:
    files = [written(folder / f"{name}_{part}.jsonl", labels) for part in ("train", "validation")]
    return f"data.train_file={files[0]}", f"data.validation_file={files[1]}", "data.max_eval_samples=null"


FEW = ("train.max_steps=1", "train.learning_rate=0.0", "model.from_config=null", "eval.eval_steps=null")


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a run that knows three labels."""
    folder = tmp_path_factory.mktemp("goes_on")
    train("reviews/smoke", folder / "old", *data(folder, "old", ["tree", "fish", "bird"]), "train.num_train_epochs=10",
          "train.learning_rate=0.003")  # fmt: skip
    return folder / "old"


def head_rows(run: Path) -> dict[str, tuple[list[float], float]]:
    """Returns weights and bias of the head by label."""
    weights = load_file(run / "model" / "model.safetensors")
    labels = json.loads((run / "model" / "config.json").read_text())["id2label"]
    weight, bias = weights["classifier.weight"], weights["classifier.bias"]
    return {label: (weight[int(place)].tolist(), bias[int(place)].item()) for place, label in labels.items()}


@pytest.mark.fast(2)
@pytest.mark.parametrize("engine", ["loop", "trainer"])
@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["bird", "fish", "frog", "tree"], "for 3 of 4 labels; new: 'frog'."),
        (["tree", "frog", "bird"], "for 2 of 3 labels; new: 'frog'; dropped: 'fish'."),
        (["tree", "bird"], "for 2 of 2 labels; dropped: 'fish'."),
        (["tree", "fish", "bird"], "for 3 of 3 labels."),
    ],
)
def test_rows_of_the_head_go_with_their_labels(labels, said, engine, old, tmp_path, caplog):
    own = (*FEW, f"engine={engine}", f"task.labels={json.dumps(labels)}", f"model.name_or_path={old}")
    train("reviews/smoke", tmp_path / "new", *data(tmp_path, "new", labels), *own)
    assert f"The head of {old}/model keeps its weights {said}" in caplog.text
    before, after = head_rows(old), head_rows(tmp_path / "new")
    assert list(after) == labels
    for label in labels:
        assert (after[label] == before.get(label)) == (label in before)
    report = (tmp_path / "new" / "report.md").read_text()
    section = report.partition("## Before and after, on the validation rows of")[2].partition("\n## ")[0]
    shown = [label for label in WORDS if f"| {label} | 20 |" in section]
    assert sorted(shown) == sorted({*labels} & {*before})
    lost = 20 * len({*before} - {*labels})
    assert (f"{lost} of its 60 rows cannot be read now" in section) == bool(lost)


def test_forgotten_labels_are_named(old, tmp_path):
    settings = ("model.from_config=null", f"model.name_or_path={old}", "train.num_train_epochs=8",
                "task.labels=[bird, fish, tree]")  # fmt: skip
    train("reviews/smoke", tmp_path / "new", *data(tmp_path, "new", ["bird"]), *settings, "train.learning_rate=0.01")
    report = (tmp_path / "new" / "report.md").read_text()
    assert "Forgotten in part: fish, tree." in report
    lines = (tmp_path / "new" / "predictions_earlier.jsonl").read_text().splitlines()
    assert {json.loads(line)["prediction"] for line in lines} == {"bird"}


def test_a_run_without_its_validation_rows_is_still_a_model(old, tmp_path, caplog):
    shutil.copytree(old, tmp_path / "old")
    config = tmp_path / "old" / "config.yaml"
    config.write_text(config.read_text().replace("old_validation", "gone_validation"))
    own = (*FEW, f"model.name_or_path={tmp_path / 'old' / 'model'}")
    train("reviews/smoke", tmp_path / "new", *data(tmp_path, "new", ["bird", "fish", "tree"]), *own)
    assert f"No scores on the validation rows of {tmp_path / 'old'}" in caplog.text
    assert "Before and after" not in (tmp_path / "new" / "report.md").read_text()


def test_adapters_alone_are_no_model(old, tmp_path):
    own = (*FEW, f"model.name_or_path={old}", "model.peft.method=lora")
    train("reviews/smoke", tmp_path / "lora", *data(tmp_path, "new", ["bird", "fish", "tree"]), *own)
    with pytest.raises(ConfigError, match="which has adapters only; merge them"):
        train("reviews/smoke", tmp_path / "next", *data(tmp_path, "new", ["bird", "fish", "tree"]), *FEW,
              f"model.name_or_path={tmp_path / 'lora'}")  # fmt: skip


def test_validation_rows_may_be_set_aside_from_several_files(tmp_path):
    files = [written(tmp_path / f"{name}.jsonl", ["bird", "fish"], 40) for name in ("one", "other")]
    settings = (f"data.train_file={json.dumps([str(file) for file in files])}", "data.validation_file=null",
                "data.validation_split=0.5", "data.max_eval_samples=null", "train.max_steps=1",
                "eval.eval_steps=null")  # fmt: skip
    train("reviews/smoke", tmp_path / "old", *settings)
    train(
        "reviews/smoke", tmp_path / "new", *settings, "model.from_config=null", f"model.name_or_path={tmp_path / 'old'}"
    )
    report = (tmp_path / "new" / "report.md").read_text()
    assert "cannot be read now" not in report
    assert "| bird | 20 |" in report.partition("## Before and after")[2]
