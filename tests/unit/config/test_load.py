"""Loading configurations: accepted values, and messages for invalid ones."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest
from checked import load_checked
from launching import ROOT

from toolkit.base.errors import ConfigError
from toolkit.config import STRICT, Loaded
from toolkit.config.fields import Column
from toolkit.config.sections import Positive

COLUMNS = {"text": Column("what is read"), "label": Column("its class", label=True)}
GOOD = "output_dir: out\nmodel: {name_or_path: some-model}\ndata: {train_file: rows.csv}\n"  # three lines


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a task."""

    __pydantic_config__ = STRICT

    max_length: Positive = 384
    """Longest input."""
    labels: list[str] | None = None
    """Names of the classes."""
    weights: Literal["none", "balanced"] = "none"
    """How classes are weighed."""
    stride: int = 1
    """Must not exceed max_length."""

    def problems(self) -> list[str]:
        return ["task.stride: longer than task.max_length"] if self.stride > self.max_length else []


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("text,label\n")


def load(yaml: str | bytes, *overrides: str, **environ: str) -> Loaded:
    Path("a.yaml").write_bytes(yaml if isinstance(yaml, bytes) else yaml.encode())
    return load_checked(Options, "a.yaml", overrides, environ, COLUMNS)


def problems(yaml: str | bytes, *overrides: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(yaml, *overrides, **environ)
    return caught.value.problems


BAD_FILES = {
    "empty": ("# nothing\n", "a.yaml: the file is empty"),
    "list": ("- 1\n", "a.yaml: received [1] (a list), expected a mapping"),
    "text": ("train\n", "a.yaml: received 'train' (text), expected a mapping"),
    "not utf-8": (b"output_dir: out\nseed: \xff\n", "a.yaml:2: not UTF-8 text (byte 0xff)"),
    "utf-16": ("seed: 1".encode("utf-16"), "a.yaml:1: not UTF-8 text"),
    "open list": ("seed: 1\nmodel: [\n", "a.yaml:3:1: not valid YAML: while parsing a flow node"),
    "two colons": ("seed: 1\noutput_dir: a: b\n", "a.yaml:2:14: not valid YAML: mapping values are not allowed here"),
    "tab": ("train:\n\tseed: 1\n", "a.yaml:2:1: not valid YAML"),
    "control character": ("seed: 1\noutput_dir: \x01\n", "a.yaml:2: not valid YAML: unacceptable character #x0001"),
    "unknown anchor": ("seed: *seed\n", "a.yaml:1:7: not valid YAML: found undefined alias 'seed'"),
    "two documents": (GOOD + "---\nseed: 1\n", "a.yaml:4:1: not valid YAML: expected a single document"),
    "too deep": ("[" * 9999, "a.yaml:1:101: not valid YAML: nested too deeply"),
}


@pytest.mark.parametrize(("yaml", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_file_that_is_no_configuration(yaml: str | bytes, message: str) -> None:
    (problem,) = problems(yaml)
    assert problem.startswith(message)


BAD_SETTINGS = [
    ("train:\n  learning_rte: 1", "5: train.learning_rte: unknown key (did you mean train.learning_rate?)"),
    ("train: {bf16: true}", "4: train.bf16: unknown key (did you mean train.mixed_precision?)"),
    ("train: {eval_steps: 1}", "4: train.eval_steps: unknown key (did you mean eval.eval_steps?)"),
    ("learning_rate: 1", "4: learning_rate: unknown key (did you mean train.learning_rate?)"),
    ("trian: {max_steps: 1}", "4: trian: unknown key (did you mean train?)"),
    (
        "eval: {qqq: 1}",
        "4: eval.qqq: unknown key (eval can have per_device_eval_batch_size, max_tokens_per_batch, eval_steps, "
        "eval_on_start, metric_for_best_model, greater_is_better, "
        "generate, generate_rows, slices and metrics)",
    ),
    ("train: 5", "4: train: received 5, expected a mapping"),
    (
        "train:\n  optim: adamx",
        "5: train.optim: received 'adamx', allowed: 'adamw_torch', 'adamw_torch_fused', 'adafactor', 'adamw_bnb_8bit', "
        "'paged_adamw_8bit', 'lion_8bit', 'sgd', 'rmsprop', 'adagrad', 'schedule_free_adamw', 'adafactor_relative', "
        "'adam', 'adam_bnb_8bit', 'sgdw', 'adadelta', 'lars', 'lamb_bnb_8bit', 'muon' (did you mean 'adam'?)",
    ),
    (
        "tracking: {report_to: [wandbb]}",
        "4: tracking.report_to: received 'wandbb', allowed: 'tensorboard', 'wandb', 'mlflow', 'trackio' (did you mean",
    ),
    ("engine: lop", "4: engine: received 'lop', allowed: 'loop', 'trainer' (did you mean 'loop'?)"),
    ("train: {learning_rate: -1}", "4: train.learning_rate: received -1, must be at least 0"),
    ("seed: 4294967296", "4: seed: received 4294967296, must be below 4294967296"),
    ("train: {learning_rate: '3'}", "4: train.learning_rate: received '3' (text), expected a number of at least 0"),
    ("tracking: {run_name: 12}", "4: tracking.run_name: received 12, expected text or null"),
    ("task: {max_length: 1.5}", "4: task.max_length: received 1.5, expected a whole number of at least 1"),
    (
        "train: {dataloader_pin_memory: yes}",
        "4: train.dataloader_pin_memory: received 'yes' (text), expected true or false",
    ),
    ("train: {learning_rate: null}", "4: train.learning_rate: received null, expected a number"),
    ("task: {labels: 3}", "4: task.labels: received 3, expected text"),
    ("tracking: {report_to: wandbb}", "4: tracking.report_to: received 'wandbb', allowed: 'tensorboard', 'wandb'"),
    ("task: {labels: [a, 3]}", "4: task.labels: received 3, expected text"),
    (
        "eval: {eval_steps: 0}",
        "4: eval.eval_steps: received 0, expected a whole number of at least 1, a fraction between "
        "0 and 1, 'epoch' or null",
    ),
    (
        "eval: {eval_steps: epochs}",
        "4: eval.eval_steps: received 'epochs' (text), expected a whole number of at least 1, a fraction between 0 "
        "and 1, 'epoch' or null (did you mean 'epoch'?)",
    ),
    ("train: {weight_decay: .nan}", "4: train.weight_decay: received .nan, expected a finite number"),
    ("train: {optim_args: {a: -.inf}}", "4: train.optim_args.a: received -.inf, expected a finite number"),
    ("train: {learning_rate: 1e999}", "4: train.learning_rate: received 1e999, expected a finite number"),
    ("tracking: {run_name: 2024-01-31}", "4: tracking.run_name: received 2024-01-31 (a date), expected text"),
    (
        "tracking: {run_name: 2024-13-31}",
        "4: tracking.run_name: received '2024-13-31', not a valid timestamp; put quotes around text",
    ),
    (
        "task: {labels: !!python/object:os.system x}",
        "4: task.labels: the YAML tag !!python/object:os.system is not allowed",
    ),
    ("seed: 1\nseed: 2", "5: seed: given twice (first in line 4): keep one"),
    ("train:\n  max_steps: 1\n  max_steps: 1", "6: train.max_steps: given twice (first in line 5): keep one"),
    ("task: &a {labels: [*a]}", "4: task.labels: refers to itself"),
    ("train: {<<: text}", "4: train.<<: only another mapping can be merged here"),
    ("train: {optim_args: {true: 1}}", "4: train.optim_args.'true': a key must be text"),
    ("task:\n  stride: 400", "5: task.stride: longer than task.max_length"),
]


@pytest.mark.parametrize(("yaml", "message"), BAD_SETTINGS, ids=[yaml for yaml, _ in BAD_SETTINGS])
def test_bad_setting(yaml: str, message: str) -> None:
    (problem,) = problems(f"{GOOD}{yaml}\n")
    assert problem.startswith(f"a.yaml:{message}")


BAD_COLUMNS = [
    ("txt: body", "data.columns.txt: unknown column; this task has text and label (did you mean 'text'?)"),
    ("text: ''", "data.columns.text: received '', expected the name of a column of your data"),
    ("text: 3.5", "data.columns.text: received 3.5, expected text"),
]


@pytest.mark.parametrize(("columns", "message"), BAD_COLUMNS)
def test_bad_column(columns: str, message: str) -> None:
    (problem,) = problems(GOOD.replace("data: {", f"data:\n  {{columns:\n    {{{columns}}}, "))
    assert problem == f"a.yaml:5: {message}"


BAD_OVERRIDES = [
    ("train.optim", "no '='; write train.optim=VALUE"),
    ("train.optin", "no '='; write train.optim=VALUE"),
    ("data.column.text=b", "data.column.text: unknown key (did you mean data.columns.text?)"),
    ("eval.qqq.x=b", "eval.qqq.x: unknown key (eval can have per_device_eval_batch_size, "),
    ("qqq.x.y=b", "qqq.x.y: unknown key (there is no section qqq)"),
    ("model.freeze=backbon", "model.freeze: received 'backbon' (text), expected 'backbone', 'feature_extractor'"),
    ("=1", "a part of the key is empty"),
    ("data..x=1", "data..x: a part of the key is empty"),
    ("train=1", "train: this is a section; set one of its keys (train.key=value)"),
    ("train.learning_rte=1", "train.learning_rte: unknown key (did you mean train.learning_rate?)"),
    ("trian.learning_rate=1", "trian.learning_rate: unknown key (did you mean train.learning_rate?)"),
    ("learning_rate=1", "learning_rate: unknown key (did you mean train.learning_rate?)"),
    ("x-note=1", "x-note: unknown key"),
    ("train.optim.lr=1", "train.optim.lr: train.optim has no keys of its own"),
    ("seed.x=1", "seed.x: unknown key"),
    ("seed=", "seed: no value after '=', expected a whole number"),
    ("train.optim=adamx", "train.optim: received 'adamx', allowed: 'adamw_torch'"),
    ("train.max_steps=two", "train.max_steps: received 'two' (text), expected a whole number of at least -1"),
    ("train.max_steps=[", "not valid YAML: while parsing a flow node"),
    ("train.optim_args={a: 1, a: 1}", "train.optim_args.a: given twice"),
    ("train.optim_args=1", "train.optim_args: received 1, expected a mapping of names to any value"),
    ("model.config_overrides.a=.nan", "model.config_overrides.a: received .nan, expected a finite number"),
    ("data.columns.txt=body", "data.columns.txt: unknown column"),
    ("data.train_file=\udcff", "not UTF-8 text"),
]


@pytest.mark.parametrize(("override", "message"), BAD_OVERRIDES)
def test_bad_override(override: str, message: str) -> None:
    (problem,) = problems(GOOD, override)
    assert problem.startswith("override " + override.replace("\udcff", r"\udcff"))
    assert f": {message}" in problem


def test_all_problems_of_file_and_overrides_come_in_one_error() -> None:
    found = problems(
        "seed: -1\ntrain: {optim: x, max_step: 1, learning_rate: '1'}\n"
        "model: {name_or_path: a, from_config: {model_type: bert}}\n",
        "eval.eval_steps=0",
        "nonsense",
    )
    assert sorted(problem.split(": ")[0] + " " + problem.split(": ")[1].split(" ")[0] for problem in found) == [
        "a.yaml data.train_file",
        "a.yaml output_dir",
        "a.yaml:1 seed",
        "a.yaml:2 train.learning_rate",
        "a.yaml:2 train.max_step",
        "a.yaml:2 train.optim",
        "a.yaml:3 model.name_or_path",
        "override eval.eval_steps=0 eval.eval_steps",
        "override nonsense no",
    ]


def test_a_single_value_is_a_list_of_one_where_a_list_is_expected() -> None:
    yaml = "tracking: {report_to: wandb}\nmodel: {name_or_path: m, freeze: backbone, unfreeze: {step_2: 'bert.*'}}\n"
    config = load(f"output_dir: out\ndata: {{train_file: rows.csv}}\n{yaml}", "task.labels=good").config
    assert (config.tracking.report_to, config.task.labels) == (["wandb"], ["good"])
    assert (config.model.freeze, config.model.unfreeze) == ("backbone", {"step_2": ["bert.*"]})
    assert load(GOOD, "model.freeze=bert.*").config.model.freeze == ["bert.*"]


def test_missing_output_dir_is_named() -> None:
    assert problems(GOOD.replace("output_dir", "x-dir")) == ["a.yaml: output_dir: missing; it must be given (text)"]


def test_misspelt_required_key_is_one_problem() -> None:
    assert problems(GOOD.replace("output_dir", "outptu_dir")) == [
        "a.yaml:1: outptu_dir: unknown key (did you mean output_dir?)"
    ]


@pytest.mark.parametrize(
    ("file", "message"),
    [("b.yaml", "cannot be read: No such file or directory"), (".", "cannot be read: Is a directory")],
)
def test_file_that_cannot_be_read(file: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_checked(Options, file, [], {})
    (problem,) = caught.value.problems
    assert problem.startswith(f"{file}: {message}")
    assert f"(tried {tmp_path / file})" in problem


def test_notes_and_merged_mappings() -> None:
    loaded = load(
        GOOD + "x-a: &a {learning_rate: 1, x-why: .nan, max_steps: 5}\n"
        "x-b: &b {max_steps: 6, adam_beta1: 0}\n"
        "train:\n  <<: [*a, *b]\n  x-note: 2024-01-01\n  learning_rate: 2\n"
    )
    train = loaded.config.train
    assert (train.learning_rate, train.max_steps, train.adam_beta1) == (2, 5, 0)
    assert loaded.origins["train.max_steps"] == "file"
    (problem,) = problems(GOOD + "x-a: &a\n  max_steps: a\ntrain: {<<: *a}\n")
    assert problem.startswith("a.yaml:5: train.max_steps: received 'a' (text)")


def test_section_without_keys_is_as_good_as_none() -> None:
    assert load(GOOD + "train:\n").config == load(GOOD).config


def test_yaml_is_1_2() -> None:
    config = load(GOOD + "train: {mixed_precision: no, learning_rate: 3e-5}\ntask: {labels: [yes, off]}\n").config
    assert (config.train.mixed_precision, config.train.learning_rate) == ("no", 3e-5)
    assert config.task.labels == ["yes", "off"]


def test_overrides_of_text_are_taken_as_they_are() -> None:
    config = load(
        GOOD,
        "model.name_or_path=1234",
        "train.mixed_precision=no",
        "data.columns.text=null",
        "data.columns.label=a=b",
        "tracking.run_name=null",
        "output_dir=null",
        "tracking.project=[a",
        "tracking.report_to=[wandb]",
    ).config
    assert (config.model.name_or_path, config.train.mixed_precision, config.output_dir) == ("1234", "no", "null")
    assert config.data.columns == {"text": "null", "label": "a=b"}
    assert (config.tracking.run_name, config.tracking.project) == (None, "[a")


def test_other_overrides_are_yaml_and_the_last_wins() -> None:
    loaded = load(
        GOOD + "train: {max_steps: 7, optim_args: {foreach: true}}\n",
        "eval.eval_steps=epoch",
        "train.max_steps=x",
        "train.max_steps=3",
        "train.optim=sgd",
        "train.optim_args.momentum=0.9",
        "task.labels=[a, b]",
        "model.config_overrides={a: 1, b: 2}",
        "model.config_overrides.b.c=yes",
    )
    config, origins = loaded.config, loaded.origins
    assert (config.eval.eval_steps, config.train.max_steps, config.task.labels) == ("epoch", 3, ["a", "b"])
    assert config.train.optim_args == {"foreach": True, "momentum": 0.9}
    assert (origins["train.optim_args.foreach"], origins["train.optim_args.momentum"]) == ("file", "override")
    assert (origins["train.max_steps"], origins["train.learning_rate"]) == ("override", "default")
    assert (origins["output_dir"], origins["seed"]) == ("file", "default")


def test_override_into_something_that_is_no_mapping_leaves_that_mapping_wanted() -> None:
    (problem,) = problems(GOOD + "train: {optim_args: 3}\n", "train.optim_args.momentum=0.9")
    assert problem.startswith("a.yaml:4: train.optim_args: received 3, expected a mapping")


BUILT = GOOD.replace("name_or_path: some-model", "from_config: {model_type: bert, hidden_size: 64}")


def test_override_of_the_model_clears_what_the_file_says() -> None:
    loaded = load(BUILT, "model.name_or_path=other")
    assert (loaded.config.model.name_or_path, loaded.config.model.from_config) == ("other", None)
    assert loaded.origins["model.from_config"] == "override"
    loaded = load(GOOD, "model.from_config.model_type=vit", "model.from_config.hidden_size=32")
    assert loaded.config.model.name_or_path is None
    assert loaded.config.model.from_config == {"model_type": "vit", "hidden_size": 32}


def test_override_into_the_files_model_is_merged() -> None:
    assert load(BUILT, "model.from_config.hidden_size=32").config.model.from_config == {
        "model_type": "bert",
        "hidden_size": 32,
    }


def test_null_does_not_clear_the_other_way_to_name_a_model() -> None:
    assert load(BUILT, "model.name_or_path=null").config.model.from_config is not None
    assert load(GOOD, "model.name_or_path=other", "model.from_config=null").config.model.name_or_path == "other"


@pytest.mark.parametrize(
    ("yaml", "overrides", "message"),
    [
        (
            BUILT.replace("from_config", "name_or_path: a, from_config"),
            (),
            "a.yaml:2: model.name_or_path ('a'), "
            "model.from_config ({'model_type': 'bert', 'hidden_size': 64}): a model is either pretrained or trained",
        ),
        (
            GOOD,
            ("model.name_or_path=a", "model.from_config={model_type: bert}"),
            "override model.name_or_path=a: "
            "model.name_or_path ('a'), model.from_config ({'model_type': 'bert'}): a model is either pretrained or",
        ),
        (
            GOOD,
            ("model.name_or_path=null",),
            "override model.name_or_path=null: model.name_or_path (null), model.from_config (null): no model is given",
        ),
        (
            GOOD,
            ("model.from_config.hidden_size=1",),
            "override model.from_config.hidden_size=1: model.from_config ({'hidden_size': 1}): it needs a model_type",
        ),
    ],
)
def test_exactly_one_model(yaml: str, overrides: tuple[str, ...], message: str) -> None:
    (problem,) = problems(yaml, *overrides)
    assert problem.startswith(message)


def test_launcher_decides_what_is_left_open() -> None:
    loaded = load(
        GOOD + "train: {mixed_precision: null}\n",
        ACCELERATE_MIXED_PRECISION="bf16",
        ACCELERATE_GRADIENT_ACCUMULATION_STEPS="4",
    )
    assert (loaded.config.train.mixed_precision, loaded.config.train.gradient_accumulation_steps) == ("bf16", 4)
    assert loaded.origins["train.mixed_precision"] == loaded.origins["train.gradient_accumulation_steps"] == "launcher"


@pytest.mark.parametrize(
    "environ", [{}, {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "auto"}]
)
def test_a_launcher_that_was_asked_for_nothing_decides_nothing(environ: dict[str, str]) -> None:
    train = load(GOOD, **environ).config.train
    assert (train.mixed_precision, train.gradient_accumulation_steps) == ("no", 1)
    train = load(GOOD, "train.mixed_precision=bf16", "train.gradient_accumulation_steps=2", **environ).config.train
    assert (train.mixed_precision, train.gradient_accumulation_steps) == ("bf16", 2)


@pytest.mark.parametrize("own", ["no", "fp16"])
def test_launcher_and_file_must_not_differ(own: str) -> None:
    found = problems(
        GOOD + f"train: {{mixed_precision: {own}, gradient_accumulation_steps: 2}}\n",
        ACCELERATE_MIXED_PRECISION="bf16",
        ACCELERATE_GRADIENT_ACCUMULATION_STEPS="4",
    )
    assert [problem.partition(";")[0] for problem in found] == [
        f"a.yaml:4: train.mixed_precision: received '{own}', but the launcher says 'bf16' (ACCELERATE_MIXED_PRECISION)",
        "a.yaml:4: train.gradient_accumulation_steps: received 2, but the launcher says 4 "
        "(ACCELERATE_GRADIENT_ACCUMULATION_STEPS)",
    ]
    assert f"--mixed_precision {own}" in found[0]


@pytest.mark.parametrize("own", ["null", "bf16"])
def test_launcher_may_not_ask_for_what_there_is_not(own: str) -> None:
    (problem,) = problems(GOOD, f"train.mixed_precision={own}", ACCELERATE_MIXED_PRECISION="fp4")
    assert problem.startswith(
        "launcher ACCELERATE_MIXED_PRECISION=fp4: train.mixed_precision: received 'fp4', allowed:"
    )


FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "WORLD_SIZE": "4"}


def test_the_launcher_may_ask_for_fsdp() -> None:
    loaded = load(GOOD, FSDP_RESHARD_AFTER_FORWARD="false", FSDP_OFFLOAD_PARAMS="true", **FSDP)
    parallel = loaded.config.parallel
    assert (parallel.fsdp, parallel.reshard_after_forward, parallel.offload) == (4, False, True)
    assert loaded.origins["parallel.fsdp"] == "launcher"
    assert load(GOOD, "parallel.tensor=2", **FSDP).config.parallel.fsdp == 2
    assert load(GOOD, "parallel.fsdp=2", **FSDP).config.parallel.fsdp == 2  # and two replicas


def test_launcher_and_file_must_agree_about_fsdp() -> None:
    yaml = GOOD + "parallel: {zero_stage: 1, reshard_after_forward: true}\n"
    found = problems(yaml, FSDP_RESHARD_AFTER_FORWARD="false", **FSDP)
    assert [problem.partition(";")[0].partition(": ")[2] for problem in found] == [
        "parallel.zero_stage: received 1, but the launcher asks for FSDP (ACCELERATE_USE_FSDP)",
        "parallel.reshard_after_forward: received true, but the launcher says false (FSDP_RESHARD_AFTER_FORWARD)",
    ]
    found = problems(GOOD + "parallel: {fsdp: 1}\n", **FSDP)
    assert "parallel.fsdp: received 1, but the launcher asks for FSDP" in found[0]


DEEPSPEED = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}


def test_a_nul_in_a_path_is_a_wrong_setting() -> None:
    """The system would raise ValueError wherever the path is used."""
    found = problems('output_dir: "a\\0b"\nmodel: {name_or_path: "a\\0b"}\ndata: {train_file: "a\\0b.csv"}\n')
    for key in ("output_dir", "model.name_or_path", "data.train_file"):
        assert any(f"{key}: received 'a\\x00b" in problem and "without NUL" in problem for problem in found), found
    assert problems(GOOD, "output_dir=a\0b") == ["override output_dir=a\0b: not UTF-8 text"]


def test_aliases_that_stand_for_billions_of_values_are_rejected() -> None:
    lists = ["x-a: &a [1,1,1,1,1,1,1,1,1]"]
    lists += [f"x-{new}: &{new} [{','.join(['*' + old] * 9)}]" for old, new in pairwise("abcdefghijkl")]
    merged = ["x-m: &m {a: 1}"]
    merged += [f"x-{new}: &{new} {{<<: [{','.join(['*' + old] * 9)}]}}" for old, new in pairwise("mnopqrstuvwx")]
    for text in ("task: {labels: *l}", "model: {config_overrides: *x}"):
        found = problems("\n".join([*lists, *merged, text]))
        assert sum("more than 100,000 values, counting those of aliases (*name)" in problem for problem in found) == 1


def test_the_launcher_may_ask_for_deepspeed() -> None:
    parallel = load(GOOD, **DEEPSPEED).config.parallel
    assert (parallel.backend, parallel.zero_stage, parallel.offload) == ("deepspeed", 3, False)
    devices = {f"ACCELERATE_DEEPSPEED_OFFLOAD_{what}_DEVICE": "cpu" for what in ("OPTIMIZER", "PARAM")}
    loaded = load(GOOD, "parallel.zero_stage=3", ACCELERATE_GRADIENT_CLIPPING="0.5", **DEEPSPEED, **devices)
    assert (loaded.config.parallel.offload, loaded.config.train.max_grad_norm) == (True, 0.5)
    assert loaded.origins["parallel.offload"] == "launcher"


def test_launcher_and_file_must_agree_about_deepspeed() -> None:
    yaml = GOOD + "parallel: {backend: torch, zero_stage: 2, offload: true}\ntrain: {max_grad_norm: 2.0}\n"
    found = problems(yaml, ACCELERATE_GRADIENT_CLIPPING="0.5", **DEEPSPEED)
    assert [problem.partition(";")[0].partition(": ")[2] for problem in found] == [
        "parallel.backend: received 'torch', but the launcher says 'deepspeed' (ACCELERATE_USE_DEEPSPEED)",
        "parallel.zero_stage: received 2, but the launcher says 3 (ACCELERATE_DEEPSPEED_ZERO_STAGE)",
        "parallel.offload: received true, but the launcher says false (ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE)",
        "train.max_grad_norm: received 2.0, but the launcher says 0.5 (ACCELERATE_GRADIENT_CLIPPING)",
    ]


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("FSDP_VERSION", "1", "set fsdp_version to 2"),
        ("FSDP_AUTO_WRAP_POLICY", "SIZE_BASED_WRAP", "remove fsdp_auto_wrap_policy"),
        ("FSDP_ACTIVATION_CHECKPOINTING", "true", "set train.activation_checkpointing to full"),
        ("ACCELERATE_DEEPSPEED_CONFIG_FILE", "ds.json", "remove deepspeed_config_file"),
        ("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "nvme", "set offload_optimizer_device to none or cpu"),
        ("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "cpu", "in stage 3 both move to the CPU or none"),
        ("ACCELERATE_DEEPSPEED_ZERO3_INIT", "true", "set zero3_init_flag to false"),
        ("ACCELERATE_DEEPSPEED_ZERO_STAGE", "0", "parallel.zero_stage: received 0, allowed:"),
    ],
)
def test_what_the_launcher_asks_for_is_done_or_rejected(variable: str, value: str, message: str) -> None:
    kind = FSDP if variable.startswith("FSDP") else DEEPSPEED
    assert any(message in problem for problem in problems(GOOD, **kind | {variable: value}))


def test_bad_configuration_is_answered_without_torch() -> None:
    Path("a.yaml").write_text(GOOD + "trian: 1\n")
    code = """
        import sys
        from dataclasses import make_dataclass
        from toolkit.config import STRICT, load_config
        from toolkit.base.errors import ConfigError
        options = make_dataclass("Options", [], frozen=True, namespace={"__pydantic_config__": STRICT})
        try:
            load_config(options, "a.yaml", [])
        except ConfigError as error:
            print(error)
        print({"torch", "transformers", "datasets", "numpy"} & set(sys.modules))
    """
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert answer.stdout.splitlines() == [
        "1 setting is wrong:",
        "  - a.yaml:4: trian: unknown key (did you mean train?)",
        "set()",
    ]


def test_a_tilde_in_a_path_is_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = load(GOOD, "output_dir=~/runs/one", "data.train_file=~/rows.csv", "checkpoint.resume=auto").config
    assert config.output_dir == str(tmp_path / "runs" / "one")
    assert config.data.train_file == str(tmp_path / "rows.csv")
    assert (config.model.name_or_path, config.checkpoint.resume) == ("some-model", "auto")
