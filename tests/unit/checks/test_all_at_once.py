"""All problems are reported together, by `toolkit validate` and by a run, before weights are loaded."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
from commands import run_command
from runs import ROOT

from toolkit.base.errors import ConfigError
from toolkit.checks import model
from toolkit.checks.check import Case, Told
from toolkit.main import main
from toolkit.recipe import load_settings, load_task_type, validate

RECIPE = ROOT / "recipes" / "reviews.py"
FAULTY = """
task: {max_length: 64, labels: [one]}
model:
  name_or_path: ./model
  freeze: ["bart.*"]
  peft: {method: lora, target_modules: [qurey]}
data:
  train_file: train.csv
  validation_file: validation.csv
  test_file: none.csv
train:
  learning_rte: 1.0e-3
  max_steps: two
  warmup_steps: -1
  mixed_precision: bf16
  optim: sgd
  optim_args: {momentun: 0.9}
  lr_scheduler_kwargs: {bar: 2}
  dataloader_num_workers: 0
  dataloader_prefetch_factor: 3
  activation_offload: true
eval: {metric_for_best_model: bananas}
tracking: {report_to: [wandb]}
engine: trainer
trainer: {args: {output_dir: elsewhere}}
output_dir: used
"""
FAULTS = {
    "unknown key": ["train.learning_rte: unknown key (did you mean train.learning_rate?)"],
    "wrong type": ["train.max_steps: received 'two' (text)"],
    "out of range": ["train.warmup_steps: received -1, expected a number of at least 0 or text such as '2 epochs'"],
    "launcher": ["train.mixed_precision: received 'bf16', but the launcher says 'fp16'"],
    "cannot go together": [
        "train.dataloader_prefetch_factor (3), train.dataloader_num_workers (0)",
        "model.freeze (['bart.*']), model.peft.method ('lora')",
    ],
    "task": ["task.labels: received ['one'], expected at least two different names"],
    "missing file": ["data.test_file: received 'none.csv', there is no such file"],
    "missing column": ["data.train_file: train.csv has no column 'label'"],
    "unusable row": ["data.validation_file: 1 of the first 2 rows of validation.csv cannot be used: row 3"],
    "arguments": [
        "train.optim_args.momentun: unknown argument of sgd",
        "train.lr_scheduler_kwargs.bar: unknown argument of linear",
        "trainer.args.output_dir: the toolkit does this itself",
    ],
    "metric": ["eval.metric_for_best_model: received 'bananas'"],
    "not installed": ["tracking.report_to: wandb is not installed"],
    "machine": ["train.activation_offload: no GPU is visible here"],
    "parameters": ["model.freeze: 'bart.*' matches no parameter"],
    "layers": ["model.peft.target_modules: BertForSequenceClassification has no layer whose name ends in 'qurey'"],
    "output folder": ["output_dir: the output folder "],
}
SIZES = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
         "max_position_embeddings": 64}  # fmt: skip


@pytest.fixture
def faulty(tmp_path, monkeypatch) -> Path:
    """Returns a YAML with all faults; loading weights fails the test, and wandb is not installed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "wandb" else find(name, *more))
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES))
    model.save_pretrained("model")
    words = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "good": 5, "bad": 6}
    transformers.BertTokenizer(words).save_pretrained("model")
    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", None)
    Path("train.csv").write_text("text,lable\ngood,a\nbad,b\n")
    Path("validation.csv").write_text("text,label\ngood,one\nbad,\n")
    Path("used").mkdir()
    Path("used", "metrics.jsonl").touch()
    Path("a.yaml").write_text(FAULTY)
    return tmp_path / "a.yaml"


def contents() -> set[str]:
    return {str(path) for path in Path().rglob("*")}


def assert_all_are_named(text: str) -> None:
    messages = [message for kind in FAULTS.values() for message in kind]
    assert len(FAULTS) >= 12
    assert len(messages) >= 15
    assert {message: text.count(message) for message in messages} == dict.fromkeys(messages, 1), text
    assert f"{len(messages)} settings are wrong in total" in text


def test_15_faults_of_12_kinds_are_named_at_once_by_validate(faulty, capsys):
    before = contents()
    assert run_command("validate", RECIPE, "--config", faulty) == 2
    assert_all_are_named(capsys.readouterr().err)
    assert contents() == before


def test_15_faults_of_12_kinds_are_named_at_once_by_a_run(faulty, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(RECIPE)])
    monkeypatch.setattr("toolkit.base.processes.end_process", sys.exit)
    before = contents()
    with pytest.raises(SystemExit) as ended:
        main(load_task_type(RECIPE), ["--config", str(faulty)])
    assert ended.value.code == 2
    assert_all_are_named(capsys.readouterr().err)
    assert contents() == before


AT_FIRST_HEAVY_IMPORT = """
import os, runpy, sys

class Stop:
    def find_spec(self, name, path=None, target=None):
        if name in ("accelerate", "datasets", "numpy", "torch", "transformers"):
            os._exit(9)

sys.meta_path.insert(0, Stop())
"""
START = {
    "validate": "from toolkit.commands.cli import main; sys.argv[1:1] = ['validate', 'reviews']; main()",
    "run": f"sys.argv[0] = {str(RECIPE)!r}; runpy.run_path(sys.argv[0], run_name='__main__')",
}


@pytest.mark.parametrize("start", START)
def test_a_wrong_setting_is_told_before_anything_heavy_is_imported(start, tmp_path):
    code = AT_FIRST_HEAVY_IMPORT + START[start]
    given = ["--config", str(ROOT / "recipes/configs/reviews/smoke.yaml"), f"output_dir={tmp_path}/run"]
    command = [sys.executable, "-c", code, *given, "train.lerning_rate=1", "train.max_steps=0"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.returncode == 9, ended.stderr  # it goes on, to find the rest
    heading, first, second, more = ended.stderr.strip().splitlines()
    assert heading == "2 settings are wrong:"
    assert "train.lerning_rate: unknown key" in first
    assert "train.max_steps (0)" in second
    assert more.startswith("looking for more (")


def test_nothing_is_told_twice_and_python_gets_everything(faulty, monkeypatch):
    task_type, told, printed = load_task_type(RECIPE), Told(), []
    monkeypatch.setattr("toolkit.checks.check.report_error", lambda text, **options: printed.append(text))
    with pytest.raises(ConfigError) as wrong:
        load_settings(task_type, faulty, starts_run=True, told=told)
    assert wrong.value.told
    text = "\n".join(printed)
    assert [each for each in wrong.value.problems if text.count(f"  - {each}\n") != 1] == []
    printed.clear()
    with pytest.raises(ConfigError) as silent:
        load_settings(task_type, faulty, starts_run=True)
    assert not silent.value.told
    assert silent.value.problems == wrong.value.problems
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ConfigError):
        load_settings(task_type, faulty, starts_run=True, told=Told())
    assert printed == []


def test_what_cannot_be_asked_is_listed_with_its_reason(faulty):
    Path("a.yaml").write_text(FAULTY.replace("max_length: 64", "modality: txet"))
    with pytest.raises(ConfigError) as wrong:
        load_settings(load_task_type(RECIPE), faulty, starts_run=True)
    assert any("task.modality: received 'txet'" in problem for problem in wrong.value.problems)
    assert "the first rows of the data files, because of task.modality" in wrong.value.unchecked
    assert not any("no column" in problem for problem in wrong.value.problems)
    assert "  not checked: the first rows of the data files, because of task.modality" in str(wrong.value)


def test_elsewhere_leaves_out_what_only_the_other_machine_knows(faulty):
    found = validate(load_task_type(RECIPE), faulty, elsewhere=True)
    text = "\n".join(found.problems)
    theirs = ("launcher", "missing file", "missing column", "unusable row", "not installed", "machine", "parameters",
              "layers", "output folder")  # fmt: skip
    named = {kind for kind, messages in FAULTS.items() if all(message in text for message in messages)}
    assert named == FAULTS.keys() - set(theirs)
    assert [what.removesuffix(" (depends on the other machine)") for what in found.unchecked] == [
        "libraries of optimizers, adapters and parallelism, and callbacks",
        "GPUs, compilers, trackers and logins",
        "the data files and their rows",
        "output_dir",
        "the model './model', its cache, and patterns of its parameters",
    ]


def test_a_model_that_is_not_cached_is_named_offline(faulty):
    found = validate(load_task_type(RECIPE), faulty, ["model.name_or_path=nobody/nothing"])
    assert sum("model.name_or_path: cannot load 'nobody/nothing'" in problem for problem in found.problems) == 1
    assert "the patterns of model.freeze, because the model's configuration is wrong" in found.unchecked
    Path("model", "model.safetensors").unlink()
    found = validate(load_task_type(RECIPE), faulty)
    assert sum("no safetensors weights in the folder" in problem for problem in found.problems) == 1


@pytest.mark.parametrize("method", ["lora", "dora", "rslora", "ia3", "prompt_tuning"])
def test_adapters_are_tried_on_a_model_without_weights(method):
    sizes = [f"model.from_config.{name}={size}" for name, size in SIZES.items() if name != "vocab_size"]
    settings = [f"model.peft.method={method}", f"data.train_file={ROOT / 'recipes/data/reviews/train.csv'}", *sizes]
    task_type = load_task_type(RECIPE)
    settings.append("data.validation_file=null")
    cfg = load_settings(task_type, ROOT / "recipes/configs/reviews/smoke.yaml", settings).config
    assert model.adapter_fit_problems(Case(cfg, task_type)) == []


def test_validate_reads_all_rows_unless_it_is_told_not_to(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [f"text {row},{'ab'[row % 2]}" for row in range(150)]
    Path("rows.csv").write_text("\n".join(["text,label", *rows, "text 0,b", "text 1,b"]) + "\n")
    config = RECIPE.parent / "configs" / "reviews" / "smoke.yaml"
    command = ("validate", RECIPE, "--config", config, "data.train_file=rows.csv", "data.validation_file=null")
    before = contents()
    assert run_command(*command) == 0
    out = capsys.readouterr().out
    assert "smoke.yaml: all settings are valid\n" in out
    said = (ROOT / "docs/data.md").read_text().partition("```text\nthe rows were read")[2].partition("```")[0]
    assert out.partition("the rows were read")[2] == said
    assert run_command(*command, "--settings-only") == 0
    assert "not checked: all rows of the data; a run checks them when it starts" in capsys.readouterr().out

    Path("rows.csv").write_text("\n".join(["text,label", *rows, ",b"]) + "\n")
    assert run_command(*command, "--settings-only") == 0
    capsys.readouterr()
    assert run_command(*command) == 2
    assert "1 of 151 rows cannot be used:\n  rows.csv, row 152: column 'text' is empty" in capsys.readouterr().err
    # A wrong setting hides later rows, but not the first ones.
    Path("rows.csv").write_text("\n".join(["text,label", ",b", *rows]) + "\n")
    assert run_command(*command, "train.max_steps=0") == 2
    error = capsys.readouterr().err
    assert "no step would be trained" in error
    assert "row 2: column 'text' is empty" in error
    assert contents() == before
