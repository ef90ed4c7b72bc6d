"""The translation recipe from end to end."""

from __future__ import annotations

import csv
import json

import pytest
import torch
import transformers
from commands import run_command
from exports import assert_equal_answers, exported, write_rows
from runs import ROOT, assert_close, assert_same_weights, lines, predictions, train, without_rows
from sacrebleu import corpus_bleu, corpus_chrf
from seq2seq_models import nllb, small
from tolerances import FLOAT64, float32_tolerance

from toolkit.base.errors import ConfigError, DataError, InputError

FEW = ("train.max_steps=3", "data.max_train_samples=24", "data.max_eval_samples=9")
STEP = ("train.max_steps=1", "data.max_eval_samples=3", "train.gradient_accumulation_steps=1")
DATA = ROOT / "recipes/data/translation"
PAIRS = [json.loads(line)["translation"] for line in (DATA / "train.jsonl").read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translation") / "run"
    train("translation", folder, *FEW, "eval.eval_steps=2")
    return folder


def test_scores_are_sacrebleus_of_the_predictions_and_have_signatures(finished):
    records = predictions(finished)
    rows = [json.loads(line)["translation"] for line in (DATA / "validation.jsonl").read_text("utf-8").splitlines()[:9]]
    assert [(record["source"], record["reference"]) for record in records] == [(row["en"], row["de"]) for row in rows]
    texts, references = [record["prediction"] for record in records], [record["reference"] for record in records]
    evaluation = lines(finished, "eval_loss")[-1]
    assert evaluation["eval_bleu"] == pytest.approx(corpus_bleu(texts, [references]).score)
    assert evaluation["eval_chrf"] == pytest.approx(corpus_chrf(texts, [references]).score)
    assert 0 <= evaluation["eval_token_accuracy"] <= 1
    state = json.loads((finished / "run.json").read_text())["task_state"]
    assert state["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    report = (finished / "report.md").read_text()
    for name in ("bleu", "chrf"):
        assert f"| {name} | {state[name]} |" in report.replace("\\|", "|")
    assert rows[0]["de"] in report


def test_the_model_folder_is_enough_to_translate(finished):
    tokenizer = transformers.AutoTokenizer.from_pretrained(finished / "model")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(finished / "model")
    record = predictions(finished)[0]
    ids = model.generate(**tokenizer(record["source"], return_tensors="pt"), num_beams=2, max_new_tokens=16)
    assert tokenizer.decode(ids[0], skip_special_tokens=True).strip() == record["prediction"]


def test_an_exported_run_translates_with_transformers_as_the_toolkit_does(finished, tmp_path):
    rows = [{"source": record["source"]} for record in predictions(finished)]
    file = write_rows(tmp_path / "new.csv", [*rows, {"source": " "}])
    assert_equal_answers(finished, exported(finished, tmp_path), file, 0)


def test_predict_and_evaluate_repeat_the_runs_own_numbers(finished, tmp_path):
    rows = [json.loads(line)["translation"] for line in (DATA / "validation.jsonl").read_text("utf-8").splitlines()[:9]]
    new = tmp_path / "new.jsonl"
    new.write_text("\n".join(json.dumps({"translation": {"en": row["en"]}}) for row in rows))
    assert run_command("predict", finished, "--input", new, "--output", tmp_path / "out.jsonl") == 0
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [record["prediction"] for record in records] == [record["prediction"] for record in predictions(finished)]
    assert [record["translation"] for record in records] == [{"en": row["en"]} for row in rows]
    for language in ("source", "target"):
        texts = [row["en" if language == "source" else "de"] for row in rows]
        (tmp_path / f"{language}.txt").write_text("\n".join(texts))
    aligned = tmp_path / "{source,target}.txt"
    arguments = ("--data", aligned, "--per-device-eval-batch-size", "2", "--output", tmp_path / "scores.json")
    assert run_command("evaluate", finished, *arguments) == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    evaluation = lines(finished, "eval_loss")[-1]
    assert_close(
        scores, {name: value for name, value in evaluation.items() if name.startswith("eval_")}, float32_tolerance()
    )


def test_all_forms_of_pairs_are_the_same_data(tmp_path):
    rows = PAIRS[:20]
    nested = tmp_path / "nested.jsonl"
    nested.write_text("\n".join(json.dumps({"translation": row}) for row in rows))
    with (tmp_path / "columns.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("English", "target"), *((row["en"], row["de"]) for row in rows)])
    for language in ("en", "de"):
        (tmp_path / f"aligned.{language}").write_text("\n".join(row[language] for row in rows) + "\n")
    forms = {
        "nested": (f"data.train_file={nested}",),
        "columns": (f"data.train_file={tmp_path / 'columns.csv'}", "data.columns.source=English"),
        "aligned": (
            f"data.train_file={tmp_path}/aligned.{{en,de}}",
            "data.columns.source=en",
            "data.columns.target=de",
        ),
    }
    for name, settings in forms.items():
        split = ("data.validation_file=null", "data.validation_split=0.2")
        train("translation", tmp_path / name, *STEP, *settings, *split)
    for other in ("columns", "aligned"):
        assert_same_weights(tmp_path / "nested", tmp_path / other)
        assert without_rows(predictions(tmp_path / "nested")) == without_rows(predictions(tmp_path / other))


BAD = [
    ({"translation": {"en": "one", "de": " "}}, "the target is missing: 'de' of 'translation' is empty"),
    ({"translation": {"de": "eins"}}, "the source is missing: 'en' of 'translation' is empty or not there"),
    ({"translation": ["one", "eins"]}, "column 'translation' holds ['one', 'eins'], not a mapping"),
    ({"translation": {"en": "one", "de": 1}}, "'de' of 'translation' holds 1, not text"),
    ({"source": "", "target": "eins"}, "the source is missing: column 'source' is empty"),
    ({"source": "one"}, "the target is missing: column 'target' is empty or not there"),
]


def test_unpaired_rows_are_named_or_left_out_and_counted(tmp_path):
    rows = [{"translation": row} for row in PAIRS[:12]] + [row for row, _ in BAD]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    files = (f"data.train_file={tmp_path / 'rows.jsonl'}", "data.validation_file=null")
    with pytest.raises(DataError) as refused:
        train("translation", tmp_path / "error", *files, *STEP)
    for number, (_, reason) in enumerate(BAD, start=13):
        assert f"rows.jsonl, row {number}: {reason}" in str(refused.value)
    train("translation", tmp_path / "skip", *files, *STEP, "data.bad_rows=skip", "data.max_bad_rows=1")
    assert json.loads((tmp_path / "skip" / "run.json").read_text())["bad_rows"] == {"train": len(BAD)}
    assert len((tmp_path / "skip" / "bad_rows.jsonl").read_text().splitlines()) == len(BAD)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("task.target_lang=null",), "task.source_lang, task.target_lang: received 'en' and None"),
        (("task.target_lang=en",), "expected two different languages"),
        (("task.num_beams=1", "task.length_penalty=0.5"), "task.length_penalty: has no effect with a single beam"),
        (("data.train_file=gone.{en,de}",), "line-aligned files, but there is no file 'gone.en'"),
        (("data.train_file=recipes/configs/translation/README.md",), r"line-aligned files as in 'train.\{en,de\}'"),
        (("model.from_config={model_type: bert, vocab_size: 400}",), "received a bert, this task needs an encoder-dec"),
        (("model.from_config={model_type: bart, max_position_embeddings: 32}",), "bart supports at most 32 tokens"),
    ],
)
def test_wrong_settings_are_rejected(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        train("translation", tmp_path / "run", *settings)


def test_what_was_cut_is_in_the_report(tmp_path):
    train("translation", tmp_path / "run", *STEP, "task.max_source_length=6", "task.max_target_length=5")
    report = (tmp_path / "run" / "report.md").read_text()
    assert "| sources truncated to task.max_source_length=6 | 300 of 300 |" in report
    assert "| targets truncated to task.max_target_length=5 | 300 of 300 |" in report
    assert len(predictions(tmp_path / "run")[0]["reference"].split()) > 3  # what is scored against is not cut


def test_a_prefix_is_put_before_sources_only(tmp_path):
    train("translation", tmp_path / "plain", *STEP)
    train("translation", tmp_path / "prefix", *STEP, "task.source_prefix=translate English to German: ")
    plain, prefix = (lines(tmp_path / name, "loss")[0] for name in ("plain", "prefix"))
    assert plain["num_items"] == prefix["num_items"]
    assert plain["loss"] != prefix["loss"]
    assert not predictions(tmp_path / "prefix")[0]["source"].startswith("translate")


@pytest.mark.slow
def test_label_smoothing_keeps_the_equality_and_matters(tmp_path):
    exact = ("train.optim=sgd", "train.learning_rate=0.05", "train.lr_scheduler_type=constant", "train.warmup_steps=0",
             "data.max_train_samples=21", "train.num_train_epochs=1", "data.max_eval_samples=5")  # fmt: skip
    smooth = "task.label_smoothing_factor=0.1"
    for name, batch, accumulation, *more in (("one", 8, 1, smooth), ("other", 2, 4, smooth), ("plain", 8, 1)):
        split = (f"train.per_device_train_batch_size={batch}", f"train.gradient_accumulation_steps={accumulation}")
        train("translation", tmp_path / name, *exact, *split, *more, double=True)
    assert_close(lines(tmp_path / "one"), lines(tmp_path / "other"), FLOAT64)
    assert lines(tmp_path / "one", "loss")[0]["loss"] != pytest.approx(lines(tmp_path / "plain", "loss")[0]["loss"])


@pytest.mark.slow
def test_bfloat16_trains_and_generates(tmp_path, fresh_precision):
    train("translation", tmp_path / "run", *STEP, "train.mixed_precision=bf16")
    assert len(predictions(tmp_path / "run")) == 3


def pretrained(folder, **ids):
    """Returns the folder of a tiny pretrained multilingual model."""
    tokenizer = nllb()
    config = small("m2m_100", len(tokenizer), pad_token_id=tokenizer.pad_token_id, **ids)
    torch.manual_seed(0)
    transformers.AutoModelForSeq2SeqLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


@pytest.mark.slow
def test_a_multilingual_model_is_made_to_begin_with_the_target_language(tmp_path, monkeypatch):
    from toolkit.modalities import seq2seq

    tokenizer = pretrained(tmp_path / "nllb")
    rows = [{"source": "a b", "target": "b a"}, {"source": "b", "target": "a"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows * 6))
    settings = (
        f"model.name_or_path={tmp_path / 'nllb'}",
        f"data.train_file={tmp_path / 'rows.jsonl'}",
        "data.validation_file=null",
        "data.max_eval_samples=3",
        "train.max_steps=1",
        "tracking.logging_steps=1",
    )
    seen, decode = [], seq2seq.decode
    monkeypatch.setattr(seq2seq, "decode", lambda ids, tokenizer: seen.append(ids) or decode(ids, tokenizer))
    codes = ("task.source_lang=eng_Latn", "task.target_lang=deu_Latn")
    train("translation", tmp_path / "run", *settings, *codes, sizes=())
    assert seen[-1].dtype == "int32"
    assert set(seen[-1][:, 0]) == {tokenizer.convert_tokens_to_ids("deu_Latn")}
    with pytest.raises(InputError, match=r"task\.source_lang: received 'en'"):
        train("translation", tmp_path / "wrong", *settings, sizes=())


def test_a_model_that_does_not_say_where_to_start_is_rejected(tmp_path):
    pretrained(tmp_path / "nllb", decoder_start_token_id=None)
    (tmp_path / "nllb" / "tokenizer_config.json").unlink()
    (tmp_path / "nllb" / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "eos_token": "</s>"})
    )
    with pytest.raises(InputError, match=r"set model\.config_overrides\.decoder_start_token_id"):
        train("translation", tmp_path / "run", f"model.name_or_path={tmp_path / 'nllb'}", *STEP, sizes=())
