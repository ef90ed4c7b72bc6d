"""What the model's configuration tells is asked of it before any rows are read or weights are loaded."""

from __future__ import annotations

import pytest
import transformers
from runs import ROOT

from toolkit.checks import model
from toolkit.checks.check import Case
from toolkit.checks.run import CHECKS
from toolkit.recipe import load_settings, load_task_type

BERT = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def case(recipe: str, *overrides: str) -> Case:
    name, _, yaml = recipe.partition("/")
    task_type = load_task_type(ROOT / "recipes" / f"{name}.py")
    file = ROOT / "recipes" / "configs" / name / f"{yaml or 'smoke'}.yaml"
    cfg = load_settings(task_type, file, overrides).config
    return Case(cfg, task_type)


def problems(about: str, recipe: str, *overrides: str) -> list[str]:
    (check,) = [check for check in CHECKS if check.about == about]
    return list(check.find(case(recipe, *overrides)))


@pytest.mark.parametrize("recipe", ["reviews", "qa"])
@pytest.mark.parametrize("section", ["config_overrides", "from_config"])
@pytest.mark.parametrize("setting", ["num_labels=5", "id2label={}", "label2id={}", "problem_type=regression"])
def test_labels_are_set_by_the_task(recipe, section, setting):
    (problem,) = problems("the model's configuration", recipe, f"model.{section}.{setting}")
    assert problem.startswith(f"model.{section}.{setting.partition('=')[0]}: received ")
    assert "set by the task from its options and the training rows; remove it" in problem


@pytest.mark.parametrize(
    ("recipe", "kind", "setting"),
    [
        ("reviews", "bert", "vocab_size=300"),
        ("reviews", "bert", "pad_token_id=7"),
        ("translation", "bart", "decoder_start_token_id=9"),
        ("language_modeling", "gpt2", "eos_token_id=9"),
        ("language_modeling", "bert", "is_decoder=false"),
    ],
)
def test_an_override_that_would_be_replaced_is_rejected_before_rows_are_read(recipe, kind, setting):
    overrides = (f"model.from_config={{model_type: {kind}}}", f"model.config_overrides.{setting}")
    (problem,) = problems("model.config_overrides", recipe, *overrides)
    assert problem.startswith(f"model.config_overrides.{setting.partition('=')[0]}: received ")
    assert "set by the task or from its processor; remove it" in problem


def test_overrides_of_a_pretrained_model_are_kept_unless_its_processor_replaces_them(tmp_path):
    config = transformers.BertConfig(**BERT, vocab_size=30, max_position_embeddings=512)
    config.save_pretrained(tmp_path)
    words = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "good": 5, "bad": 6}
    transformers.BertTokenizer(words).save_pretrained(tmp_path)
    pretrained = ("model.from_config=null", f"model.name_or_path={tmp_path}")
    kept = ("model.config_overrides.pad_token_id=1", "model.config_overrides.hidden_dropout_prob=0.5")
    assert problems("model.config_overrides", "reviews", *pretrained, *kept) == []
    (problem,) = problems("model.config_overrides", "reviews", *pretrained, "model.config_overrides.pad_token_id=null")
    assert problem.startswith("model.config_overrides.pad_token_id: received None")


@pytest.mark.parametrize(
    ("kind", "max_length", "fits"),
    [("bert", 44, True), ("bert", 45, False), ("roberta", 42, True), ("roberta", 43, False)],
)
def test_a_prefix_and_the_longest_input_need_positions(kind, max_length, fits):
    overrides = (f"model.from_config={{model_type: {kind}, max_position_embeddings: 64}}",
                 f"task.max_length={max_length}", "model.peft.method=prompt_tuning",
                 "model.peft.num_virtual_tokens=20")  # fmt: skip
    found = model.fit_problems(case("reviews", *overrides))
    room = 64 if kind == "bert" else 62
    expected = (
        f"model.peft.num_virtual_tokens: received 20, but task.max_length allows inputs of {max_length} tokens, and "
        f"this {kind} has {room} positions for both; lower one of them"
    )
    assert found == ([] if fits else [expected])


def test_only_the_encoder_of_a_translation_model_has_a_prefix():
    prompt = ("model.from_config={model_type: bart, max_position_embeddings: 64}", "model.peft.method=prompt_tuning",
              "model.peft.num_virtual_tokens=20")  # fmt: skip
    lengths = ("task.max_source_length=44", "task.max_target_length=64")
    assert model.fit_problems(case("translation", *prompt, *lengths)) == []
