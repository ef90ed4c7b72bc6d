"""Pairs of texts in the reviews recipe: as transformers encodes them, trained as a plain loop does, and everywhere."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pair_runs
import pytest
import torch
import transformers
from commands import run_command
from exports import assert_equal_answers, exported, exported_as, write_rows
from fastapi.testclient import TestClient
from launching import fork
from runs import BY_SPLIT, SGD, assert_splits_agree, lines, predictions, train, weights
from tolerances import FLOAT64, float32_tolerance
from torch.nn.functional import cross_entropy

from toolkit.base.errors import ConfigError, DataError, InputError
from toolkit.deploy.demo import validation_examples
from toolkit.deploy.serving.app import build
from toolkit.deploy.serving.requests import Limits
from toolkit.deploy.trained import load

WORDS = ["does", "it", "rain", "in", "may", "the", "sun", "shines", "on", "hay", "and", "rye", "grows"]
LIMIT = 16
SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 80,
    "max_position_embeddings": 32, "initializer_range": 0.2, "dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2,
}  # fmt: skip
NO_DROPOUT = dict.fromkeys((
    "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "seq_classif_dropout",
    "embedding_dropout", "mlp_dropout", "classifier_dropout", "pooler_dropout",
), 0.0)  # fmt: skip
BATCH = ("train.per_device_train_batch_size=4", "train.gradient_accumulation_steps=3")
PLAIN = (*SGD, "train.learning_rate=0.5", "train.max_grad_norm=1000", "train.weight_decay=0", "train.max_steps=2",
         f"task.max_length={LIMIT}", "eval.per_device_eval_batch_size=4")  # fmt: skip


def rows(count: int = 12) -> list[dict[str, str]]:
    """Returns pairs of uneven lengths, of which some are too long together, or either text alone."""
    text = lambda first, length: " ".join(WORDS[(first + n) % len(WORDS)] for n in range(length))  # noqa: E731
    return [
        {"text": text(n, 1 + (5 * n) % 17), "text_pair": text(3 * n, 1 + (7 * n) % 13), "label": ["no", "yes"][n % 2]}
        for n in range(count)
    ]


def tokenizer_of(family: str) -> transformers.PreTrainedTokenizerBase:
    """Returns the tokenizer class of a family with a vocabulary of `WORDS`."""
    if family in ("bert", "distilbert"):
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
        cls = transformers.BertTokenizer if family == "bert" else transformers.DistilBertTokenizer
        return cls(vocab={word: i for i, word in enumerate(words)})
    if family == "roberta":
        letters = sorted({letter for word in WORDS for letter in word} | {"Ġ"})
        return transformers.RobertaTokenizer(
            vocab={token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>", *letters])}, merges=[]
        )
    if family == "deberta-v2":
        pieces = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "▁", *(f"▁{word}" for word in WORDS), "[MASK]"]
        return transformers.DebertaV2Tokenizer(vocab=[(piece, -1.0 - i / 100) for i, piece in enumerate(pieces)])
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    own = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    own.pre_tokenizer = pre_tokenizers.Whitespace()
    own.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", [("[CLS]", 2), ("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=own, model_input_names=["input_ids", "attention_mask"], pad_token="[PAD]", unk_token="[UNK]",
        cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]",
    )  # fmt: skip


FAMILIES = ("bert", "roberta", "modernbert", "deberta-v2", "distilbert")


def saved(family: str, folder: Path) -> Path:
    """Saves a small random model of a family with its tokenizer."""
    tokenizer = tokenizer_of(family)
    torch.manual_seed(0)
    known = transformers.AutoConfig.for_model(family).to_dict()
    own = {name: value for name, value in (SIZES | NO_DROPOUT).items() if name in known}
    more = {"position_buckets": 8, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 2}
    own |= more if family == "deberta-v2" else {}
    config = transformers.AutoConfig.for_model(
        family, **own, pad_token_id=tokenizer.pad_token_id, id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1}
    )
    if family == "modernbert":
        config.cls_token_id, config.sep_token_id = tokenizer.cls_token_id, tokenizer.sep_token_id
        config.bos_token_id = config.eos_token_id = None
        config.local_attention = 6
    model = transformers.AutoModelForSequenceClassification.from_config(config).double()
    model.save_pretrained(folder / family)
    tokenizer.save_pretrained(folder / family)
    return folder / family


def plain_loop(folder: Path, truncation: str) -> dict[str, torch.Tensor]:
    """Returns the parameters after two steps on all rows, with nothing of the toolkit."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float64).train()
    given = rows()
    encoded = tokenizer(
        [row["text"] for row in given], [row["text_pair"] for row in given], truncation=truncation, max_length=LIMIT,
        padding=True, return_tensors="pt",
    )  # fmt: skip
    labels = torch.tensor([["no", "yes"].index(row["label"]) for row in given])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        cross_entropy(model(**encoded).logits, labels).backward()
        optimizer.step()
    return model.state_dict()


def data_of(folder: Path, count: int = 12) -> list[str]:
    file = write_rows(folder / "rows.csv", rows(count))
    return [f"data.train_file={file}", f"data.validation_file={file}"]


@pytest.mark.fast(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_pairs_are_trained_as_a_plain_loop_trains_them(family, tmp_path):
    model = saved(family, tmp_path)
    settings = [*PLAIN, *BATCH, *data_of(tmp_path), f"model.name_or_path={model}", "train.fast_dropout=false"]
    expected = plain_loop(model, "longest_first")
    before = transformers.AutoModelForSequenceClassification.from_pretrained(model, dtype=torch.float64).state_dict()
    runs = {"padded": "train.unpadded=false", "unpadded": "train.unpadded=true", "trainer": "engine=trainer"}
    for name, setting in runs.items():
        train("reviews", tmp_path / name, *settings, setting, double=True)
        found = weights(tmp_path / name)
        assert max(float((found[key] - before[key]).abs().max()) for key in found) > 1e-4
        for key, value in found.items():
            assert torch.allclose(value, expected[key], rtol=FLOAT64, atol=FLOAT64), (name, key)


@pytest.mark.distributed
@pytest.mark.parametrize("engine", ["loop", "trainer"])
def test_two_processes_train_pairs_as_a_plain_loop_does(engine, tmp_path):
    model = saved("bert", tmp_path)
    batch = ("train.per_device_train_batch_size=2", "train.gradient_accumulation_steps=3", f"engine={engine}")
    settings = [*PLAIN, *batch, *data_of(tmp_path), f"model.name_or_path={model}", "train.fast_dropout=false"]
    fork([Path(pair_runs.__file__), tmp_path / "run", *settings], 2)
    found, expected = weights(tmp_path / "run"), plain_loop(model, "longest_first")
    assert json.loads((tmp_path / "run/run.json").read_text())["num_processes"] == 2
    for key, value in found.items():
        assert torch.allclose(value, expected[key], rtol=FLOAT64, atol=FLOAT64), key


@pytest.mark.parametrize("truncation", ["only_first", "only_second"])
def test_the_other_text_stays_whole(truncation, tmp_path):
    short = {"only_first": "text_pair", "only_second": "text"}[truncation]
    model = saved("bert", tmp_path)
    given = [row | {short: " ".join(row[short].split()[:4])} for row in rows()]
    file = write_rows(tmp_path / "rows.csv", given)
    train("reviews", tmp_path / "run", *PLAIN, *BATCH, f"model.name_or_path={model}", f"task.truncation={truncation}",
          f"data.train_file={file}", f"data.validation_file={file}")  # fmt: skip
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    expected = tokenizer(
        [row["text"] for row in given], [row["text_pair"] for row in given], truncation=truncation, max_length=LIMIT
    )
    run = load(tmp_path / "run")
    columns = {name: [row[name] for row in given] for name in ("text", "text_pair")} | {"label": [None] * len(given)}
    found = run.task.preprocess(columns, run.processor, False)
    assert {name: found[name] for name in expected} == dict(expected)
    whole = tokenizer([row["text"] for row in given], [row["text_pair"] for row in given])["input_ids"]
    assert found["truncated_input"] == [len(ids) > LIMIT for ids in whole]
    assert any(found["truncated_input"])
    said = (tmp_path / "run/report.md").read_text()
    assert f"{sum(found['truncated_input'])} of 12" in said.replace("**", "")
    long = {"text": "rain " * 30, "text_pair": "rain " * 30}
    with pytest.raises(DataError, match=rf"task\.truncation={truncation}: .*use longest_first"):
        run.predict([long])


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    train("reviews", folder / "run", "train.max_steps=3", *data_of(folder, 24))
    return folder / "run"


def test_every_split_of_a_window_gives_the_same_training(tmp_path):
    assert_splits_agree("reviews", tmp_path, "train.max_steps=3", *SGD, *data_of(tmp_path, 24))


def test_predictions_name_both_texts(finished, capsys, tmp_path):
    assert [(each["text"], each["text_pair"]) for each in predictions(finished)] == [
        (row["text"], row["text_pair"]) for row in rows(23)
    ]
    texts = [{name: row[name] for name in ("text", "text_pair")} for row in rows(2)]
    answers = load(finished).predict(texts)
    assert run_command("predict", finished, "--input-text", json.dumps(texts[1])) == 0
    assert f"prediction: {answers[1]['prediction']}" in capsys.readouterr().out
    words = [word for name in ("text", "text_pair") for word in ("--input-text", f"{name}={texts[1][name]}")]
    assert run_command("predict", finished, *words) == 0
    assert f"prediction: {answers[1]['prediction']}" in capsys.readouterr().out
    assert run_command("predict", finished, "--input-text", "text=one") == 2
    assert "text without text_pair" in capsys.readouterr().err
    single = write_rows(tmp_path / "single.csv", [{"text": "one"}])
    assert run_command("predict", finished, "--input", single) == 2
    assert "no column 'text_pair'" in capsys.readouterr().err


@pytest.mark.slow
def test_exports_answer_as_predict_does(finished, tmp_path):
    given = [{name: row[name] for name in ("text", "text_pair")} for row in rows(7)] + [
        {"text": "rain", "text_pair": " "}
    ]
    file = write_rows(tmp_path / "new.csv", given)
    for folder in (exported(finished, tmp_path), exported_as(finished, "onnx", tmp_path)[0]):
        assert_equal_answers(finished, folder, file, float32_tolerance())


def test_requests_have_both_texts(finished):
    run = load(finished)
    row = {name: rows(2)[1][name] for name in ("text", "text_pair")}
    with TestClient(build(run, "run", Limits())) as server:
        found = server.post("/predict", json={"rows": [row]}).json()["predictions"]
        assert found[0]["score"] == pytest.approx(max(run.predict([row])[0]["scores"].values()), abs=1e-6)
        lacking = server.post("/predict", json={"rows": [{"text": "rain"}]})
        assert [each["column"] for each in lacking.json()["problems"]] == ["text_pair"]
    assert [each["text_pair"] for each in validation_examples(run, Path())] == [
        rows(24)[place * 23 // 6]["text_pair"] for place in range(6)
    ]


def test_the_doctor_measures_pairs_as_one_input(tmp_path, capsys):
    file = write_rows(tmp_path / "rows.csv", rows(24))
    settings = ["recipes/reviews.py", "--config", "recipes/configs/reviews/smoke.yaml", f"data.train_file={file}"]
    limit = ("data.validation_file=null", "task.max_length=16", "--output", tmp_path / "doctor")
    assert run_command("doctor", *settings, *limit) == 0
    found = json.loads((tmp_path / "doctor/doctor.json").read_text())
    both = next(each for each in found["histograms"] if each["name"] == "text and text_pair")
    assert (both["option"], both["limit"]) == ("task.max_length", 16)
    assert both["share_cut"] > 0.2


def test_a_tokenizer_without_a_separator_is_an_error(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    own = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["[PAD]", "[UNK]", *WORDS])}, unk_token="[UNK]"))
    own.pre_tokenizer = pre_tokenizers.Whitespace()
    model = saved("bert", tmp_path)
    transformers.PreTrainedTokenizerFast(tokenizer_object=own, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(
        model
    )
    with pytest.raises(InputError, match=r"puts nothing between the texts of a pair.*join them by a template"):
        train("reviews", tmp_path / "run", *PLAIN, *data_of(tmp_path), f"model.name_or_path={model}")
    assert not (tmp_path / "run/model").exists()


def test_a_row_without_a_second_text_is_a_bad_row(tmp_path):
    given = rows(24)
    given[5]["text_pair"] = " "
    file = write_rows(tmp_path / "rows.csv", given)
    data = (f"data.train_file={file}", "data.validation_file=null", "train.max_steps=1")
    run = partial(train, "reviews", tmp_path / "run", *data)
    with pytest.raises(DataError, match=r"1 of 24 training rows have no second text .*data\.columns\.text_pair="):
        run()
    named = "data.columns.text_pair=text_pair"
    with pytest.raises(DataError, match="column 'text_pair' is empty"):
        run(named)
    run(named, "data.bad_rows=skip")
    facts = json.loads((tmp_path / "run/run.json").read_text())
    assert facts["bad_rows"]["train"] == 1
    assert facts["task_state"]["text_pair"] is True


def test_a_second_text_that_training_lacks_is_not_read_silently(tmp_path, caplog):
    alone = write_rows(tmp_path / "alone.csv", [{name: row[name] for name in ("text", "label")} for row in rows(24)])
    both = write_rows(tmp_path / "both.csv", rows(6))
    data = (f"data.train_file={alone}", f"data.validation_file={both}", "train.max_steps=1")
    train("reviews", tmp_path / "run", *data)
    assert "text_pair" in next(line for line in caplog.messages if "columns not used" in line)
    assert all("text_pair" not in record for record in predictions(tmp_path / "run"))
    with pytest.raises(DataError, match=r"task\.truncation: has no effect"):
        train("reviews", tmp_path / "other", *data, "task.truncation=only_first")
    with pytest.raises(ConfigError, match=r"task\.truncation"):
        train("reviews/smoke_image", tmp_path / "image", "task.truncation=only_first")


@pytest.mark.slow
def test_baselines_read_both_texts(finished, tmp_path, capsys):
    settings = ["recipes/reviews.py", "--config", "recipes/configs/reviews/smoke_pair.yaml", "--no-model"]
    assert run_command("baseline", *settings, "--output", tmp_path / "baseline", "train.max_steps=1") == 0
    found = json.loads((tmp_path / "baseline/baseline.json").read_text())
    names = [each["name"] for each in found["baselines"]]
    assert names[1:] == ["TF-IDF with a linear model", "cosine of the texts' TF-IDF with a linear model"]
    assert all(0 <= each["scores"]["eval_accuracy"] <= 1 for each in found["baselines"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pair", "columns"])
def test_the_smoke_configurations_learn(name, tmp_path):
    train(f"reviews/smoke_{name}", tmp_path / "run", "train.num_train_epochs=12", sizes=BY_SPLIT)
    losses = [line["loss"] for line in lines(tmp_path / "run", "loss")]
    assert losses[-1] < losses[0]
