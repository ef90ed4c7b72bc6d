"""The language modelling recipe: blocks, masks, and runs from end to end."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commands import run_command
from exports import assert_equal_answers, code_lines, exported, write_rows
from launching import fork, launch
from runs import ROOT, SGD, TINY, assert_close, lines, predictions, train, weights
from tolerances import FLOAT64, float32_tolerance
from transformers import BertConfig, BertLMHeadModel

from toolkit.api.batch import IGNORE_INDEX
from toolkit.api.mesh import Mesh
from toolkit.base.errors import ConfigError, DataError, InputError
from toolkit.data import tokenise as tokenising
from toolkit.data.batching.batches import evaluation_loader, training_loader
from toolkit.data.tokenise import tokenise
from toolkit.modalities import text
from toolkit.recipe import load_settings, load_task_type
from toolkit.tasks.blocks import cut, encode_documents, mask_tokens, next_tokens
from toolkit.tasks.chat import example_columns, inputs_and_labels

TASK = "language_modeling"
CONFIGS = (TASK, f"{TASK}/smoke_masked")
FEW = ("train.max_steps=3", "data.max_train_samples=16", "data.max_eval_samples=7")
TEXTS = ["Rain fell.", "x", "  Two blanks, a tab\tand Ünïcödé — all kept.", "The river comes down from the hills. " * 9]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm") / "run"
    train(TASK, folder, *FEW)
    return folder


def new_tokenizer(objective="causal", block_size=8):
    task_type = load_task_type(ROOT / "recipes" / f"{TASK}.py")
    options = task_type.Options(objective=objective, block_size=block_size)
    return text.new_processor(iter(TEXTS * 3), SimpleNamespace(vocab_size=300, type_vocab_size=0), options)


def documents(*sizes, begin=1, end=1):
    """Returns documents with the given numbers of tokens, between the ids of start and end."""
    ids = iter(range(10, 10_000))
    return [{"tokens": [begin, *(next(ids) for _ in range(n)), end], "example": i} for i, n in enumerate(sizes)]


# Blocks


@pytest.mark.parametrize("block_size", [2, 5, 7, 64])
@pytest.mark.parametrize("end", [1, 2])
def test_joined_blocks_keep_every_token_and_predict_each_once(block_size, end):
    given = documents(3, 0, 20, 1, 11, end=end)
    blocks = list(cut(given, block_size, packing=True, causal=True))
    joined = [token for i, row in enumerate(given) for token in row["tokens"][int(i > 0 and end == 1) :]]
    assert [*blocks[0]["tokens"][:1], *(t for block in blocks for t in block["tokens"][1:])] == joined
    assert all(left["tokens"][-1] == right["tokens"][0] for left, right in pairwise(blocks))
    assert all(block["length"] == len(block["tokens"]) - 1 == sum(block["targets"]) for block in blocks)
    assert [block["length"] for block in blocks[:-1]] == [block_size] * (len(blocks) - 1)
    # Each document gets what is its own: its tokens and its end (and, if that is another token, its beginning).
    found = np.zeros(len(given), dtype=int)
    for block in blocks:
        found[block["example"] : block["example"] + len(block["targets"])] += block["targets"]
    own = [len(row["tokens"]) - (end == 1 or i == 0) for i, row in enumerate(given)]
    assert found.tolist() == own


def test_documents_of_their_own_begin_blocks_and_lose_nothing():
    given = documents(3, 0, 20, 1)
    blocks = list(cut(given, 7, packing=False, causal=True))
    for row in given:
        own = [block for block in blocks if block["example"] == row["example"]]
        assert [*own[0]["tokens"][:1], *(t for block in own for t in block["tokens"][1:])] == row["tokens"]
        assert all(len(block["targets"]) == 1 for block in own)


def test_the_model_reads_at_most_block_size_tokens_whatever_the_objective_and_the_format():
    tokenizer = new_tokenizer()
    for packing in (True, False):
        causal = [*cut(documents(30, 3, 9), 8, packing=packing, causal=True)]
        read = [len(next_tokens(np.array(block["tokens"]), tokenizer)[0]) for block in causal]
        assert max(read) == 8
        assert max(len(block["tokens"]) for block in cut(documents(30, 3), 8, packing=packing, causal=False)) == 8
    tokens = [*range(10, 40)]
    for mask in ([False] * 5 + [True] * 25, []):  # an example, and a prompt to be answered
        kept = example_columns([(tokens, mask)], 8)
        ids, labels = inputs_and_labels(np.array(kept["tokens"][0]), kept["answers"][0])
        assert len(ids) == len(labels) == kept["length"][0] == 8


def test_masked_blocks_do_not_overlap():
    given = documents(3, 0, 20, 1, end=2)
    blocks = list(cut(given, 7, packing=True, causal=False))
    assert [t for block in blocks for t in block["tokens"]] == [t for row in given for t in row["tokens"]]
    assert [len(block["tokens"]) for block in blocks[:-1]] == [7] * (len(blocks) - 1)


def test_what_has_nothing_to_predict_makes_no_block():
    rows = [{"tokens": [5], "example": 0}, {"tokens": [], "example": 1}, {"tokens": [5, 6], "example": 2}]
    assert [block["example"] for block in cut(rows, 4, packing=False, causal=True)] == [2]
    assert list(cut(rows[:2], 4, packing=True, causal=True)) == []


@pytest.mark.parametrize("package", tokenising.TOKENISERS)
def test_another_version_of_a_library_makes_the_tokens_again(package, monkeypatch):
    from datasets import Dataset

    rows = Dataset.from_dict({"text": ["rain"], "_number": [1]})
    task_type = load_task_type(ROOT / "recipes" / f"{TASK}.py")
    task = task_type(SimpleNamespace(task=task_type.Options()))
    key = lambda: tokenising.cache_key(rows, task, new_tokenizer(), True)  # noqa: E731
    before, versions = key(), tokenising.versions()
    assert key() == before
    monkeypatch.setattr(tokenising, "versions", lambda: versions | {package: "0.0.1"})
    assert key() != before


def test_blocks_cross_the_borders_of_preprocessing_batches(tmp_path):
    """2,500 short documents are preprocessed in three batches, and in two processes; the blocks know nothing of it."""
    from datasets import Dataset

    tokenizer = new_tokenizer()
    rows = Dataset.from_dict(
        {"text": [f"{i} rain" for i in range(2500)], "_number": list(range(1, 2501)), "_file": [None] * 2500}
    )
    task_type = load_task_type(ROOT / "recipes" / f"{TASK}.py")
    task = task_type(SimpleNamespace(task=task_type.Options(block_size=100)))
    blocks = tokenise(rows, task, tokenizer, labelled=True)
    assert set(blocks["length"][:-1]) == {100}
    tokens = [*blocks[0]["tokens"][:1], *(t for block in blocks for t in block["tokens"][1:])]
    eos = tokenizer.eos_token
    assert tokenizer.decode(tokens) == eos + eos.join(rows["text"]) + eos
    assert blocks["row_id"] == list(range(len(blocks)))
    assert blocks["number"] == [example + 1 for example in blocks["example"]]
    again = tokenise(rows, task, tokenizer, labelled=True)
    assert again.cache_files == blocks.cache_files  # cached, so the other processes of the node read the same


# Tokenizers


def test_the_new_tokenizer_of_a_causal_model_gives_the_text_back():
    tokenizer = new_tokenizer()
    for document in [*TEXTS, "Never seen: 漢字 \x07 ≠ \r end "]:
        (ids,) = encode_documents([document], tokenizer, causal=True)
        assert (ids[0], ids[-1]) == (tokenizer.bos_token_id, tokenizer.eos_token_id)
        assert tokenizer.decode(ids[1:-1]) == document
    assert tokenizer.pad_token_id not in (tokenizer.eos_token_id, None)


def test_a_tokenizer_without_the_tokens_that_the_objective_needs_is_rejected():
    with pytest.raises(InputError, match=r"causal .*end-of-text .*task\.objective=masked"):
        encode_documents(["a"], new_tokenizer("masked"), causal=True)
    with pytest.raises(InputError, match=r"masked .*mask token.*task\.objective=causal"):
        encode_documents(["a"], new_tokenizer("causal"), causal=False)


@pytest.mark.parametrize("data_format", ["text", "prompt_completion"])
def test_missing_tokens_are_found_before_a_run(tmp_path, capsys, data_format):
    model = {"model_type": "bert", "vocab_size": 300, "hidden_size": 8, "num_hidden_layers": 1,
             "num_attention_heads": 1, "intermediate_size": 8, "is_decoder": True}  # fmt: skip
    BertLMHeadModel(BertConfig(**model)).save_pretrained(tmp_path / "model")
    new_tokenizer("masked").save_pretrained(tmp_path / "model")
    (tmp_path / "rows.csv").write_text("text,prompt,completion\nRain.,Is it wet?,Yes.\nSun.,And now?,No.\n")
    (tmp_path / "my.yaml").write_text(f"data: {{train_file: {tmp_path / 'rows.csv'}}}")
    settings = (f"task.data_format={data_format}", f"model.name_or_path={tmp_path / 'model'}", "task.block_size=8")
    run = (TASK, "--config", tmp_path / "my.yaml", *settings, f"output_dir={tmp_path / 'run'}")
    assert run_command("validate", *run) == 2
    assert "causal needs an end-of-text token" in capsys.readouterr().err


# Masks


def test_masks_follow_bert():
    tokens = np.tile(np.arange(5, 105), 1000)
    special = np.array([0, 1, 5])
    inputs, labels = mask_tokens(tokens, special, 0.15, 4, 10_000, np.random.default_rng(0))
    chosen = labels != IGNORE_INDEX
    assert (labels[chosen] == tokens[chosen]).all()
    assert (inputs[~chosen] == tokens[~chosen]).all()
    assert not chosen[tokens == 5].any()
    assert chosen[tokens != 5].mean() == pytest.approx(0.15, abs=0.005)
    assert (inputs[chosen] == 4).mean() == pytest.approx(0.8, abs=0.01)
    assert (inputs[chosen] == tokens[chosen]).mean() == pytest.approx(0.1, abs=0.01)


def masked_batches(workers, batch_size=4, epoch=0):
    from datasets import Dataset

    from toolkit.config.sections import DataConfig, EvalConfig, ParallelConfig, TrainConfig

    tokenizer = new_tokenizer("masked")
    task_type = load_task_type(ROOT / "recipes" / f"{TASK}.py")
    task = task_type(SimpleNamespace(task=task_type.Options(objective="masked", block_size=8)))
    rows = Dataset.from_dict(
        {"text": TEXTS * 3, "_number": list(range(len(TEXTS) * 3)), "_file": [None] * len(TEXTS) * 3}
    )
    features = tokenise(rows, task, tokenizer, labelled=True)
    settings = SimpleNamespace(
        train=TrainConfig(per_device_train_batch_size=batch_size, dataloader_num_workers=workers),
        eval=EvalConfig(per_device_eval_batch_size=batch_size),
        parallel=ParallelConfig(),
        data=DataConfig(),
        seed=3,
    )
    loader, sampler = training_loader(features, task, tokenizer, settings, Mesh())
    sampler.seek(epoch)
    fixed = evaluation_loader(features, task, tokenizer, settings, Mesh())

    def by_row(batches):
        """Returns input ids and labels of each row, without padding."""
        found = {}
        for batch in batches:
            for i, row in enumerate(batch["row_ids"].tolist()):
                real = batch["inputs"]["attention_mask"][i].bool()
                found[row] = (batch["inputs"]["input_ids"][i][real].tolist(), batch["labels"][i][real].tolist())
        return found

    return by_row(loader), by_row(fixed)


def test_masks_depend_on_seed_epoch_and_row_alone():
    trained, evaluated = masked_batches(workers=0)
    assert masked_batches(workers=2) == (trained, evaluated)
    assert masked_batches(workers=0, batch_size=1) == (trained, evaluated)
    later, later_evaluated = masked_batches(workers=0, epoch=1)
    assert later_evaluated == evaluated
    assert later.keys() == trained.keys()
    assert later != trained


# Runs


@pytest.mark.fast(1)
@pytest.mark.parametrize("config", CONFIGS)
def test_every_split_of_a_window_gives_the_same_training(config, tmp_path):
    settings = (*SGD, "data.max_train_samples=13", "train.max_steps=4", "eval.eval_steps=null",
                "checkpoint.save_steps=null", "task.packing=false")  # fmt: skip
    for batch, accumulation in ((8, 1), (4, 2), (2, 4)):
        split = (f"train.per_device_train_batch_size={batch}", f"train.gradient_accumulation_steps={accumulation}")
        train(config, tmp_path / str(batch), *settings, *split, double=True)
    for other in ("4", "2"):
        assert_close(lines(tmp_path / "8", "loss"), lines(tmp_path / other, "loss"), FLOAT64)
        for name, value in weights(tmp_path / "8").items():
            torch.testing.assert_close(value, weights(tmp_path / other)[name], rtol=FLOAT64, atol=FLOAT64)


def test_metrics_are_those_of_transformers_own_loss_on_the_same_blocks(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path / "run"
    train(TASK, folder, *FEW, double=True)
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float64)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    rows = (ROOT / "recipes/data" / TASK / "validation.txt").read_text(encoding="utf-8").splitlines()[:7]
    ids = tokenizer(tokenizer.eos_token + "".join(row + tokenizer.eos_token for row in rows))["input_ids"]
    total = 0.0  # transformers computes its loss in float32, whatever the model
    for start in range(0, len(ids) - 1, 64):
        block = torch.tensor([ids[start : start + 65]])
        inputs, targets = block[:, :-1], block[:, 1:]
        with torch.no_grad():
            total += float(model(inputs, labels=inputs, shift_labels=targets).loss) * targets.numel()
    evaluation = lines(folder, "eval_loss")[-1]
    assert evaluation["eval_loss"] == pytest.approx(total / (len(ids) - 1), rel=float32_tolerance())
    assert evaluation["eval_perplexity"] == pytest.approx(math.exp(total / (len(ids) - 1)), rel=float32_tolerance())
    num_bytes = sum(len(row.encode()) for row in rows)
    assert evaluation["eval_bits_per_byte"] == pytest.approx(total / math.log(2) / num_bytes, rel=float32_tolerance())


def test_records_are_documents_and_add_up_to_the_metrics(finished):
    rows = (ROOT / "recipes/data" / TASK / "validation.txt").read_text(encoding="utf-8").splitlines()[:7]
    records = predictions(finished)
    assert [record["text"] for record in records] == rows
    evaluation = lines(finished, "eval_loss")[-1]
    tokens = sum(record["num_tokens"] for record in records)
    mean = sum(record["loss"] * record["num_tokens"] for record in records) / tokens
    assert mean == pytest.approx(evaluation["eval_loss"], rel=float32_tolerance())
    assert all(record["perplexity"] == pytest.approx(math.exp(record["loss"])) for record in records)
    assert 0 <= evaluation["eval_token_accuracy"] <= 1


def test_the_report_has_samples_that_a_second_run_makes_again(finished, tmp_path):
    page = (finished / "report.md").read_text()
    samples = page.split("## Samples")[1].split("\n## ")[0]
    assert samples.count("```text") == 2
    assert "```text\nThe river" in samples
    train(TASK, tmp_path / "again", *FEW)
    assert samples in (tmp_path / "again" / "report.md").read_text()
    assert "pipeline_tag: text-generation" in (finished / "model" / "README.md").read_text()


def test_predict_scores_new_documents_the_shortest_too(finished, tmp_path):
    (tmp_path / "new.txt").write_text("a\n\nThe river is high.\n")
    command = ("predict", finished, "--input", tmp_path / "new.txt", "--output", tmp_path / "out.jsonl")
    assert run_command(*command, "--score") == 0
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [record["text"] for record in records] == ["a", "The river is high."]
    assert records[0]["num_tokens"] == 2  # itself and the end
    assert run_command("evaluate", finished, "--data", tmp_path / "new.txt") == 0


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["true", "false"])
def test_gpt2_trains_and_its_tokenizer_is_saved(packing, tmp_path):
    gpt2 = {"model_type": "gpt2", "vocab_size": 300, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
    tiny = [setting for setting in TINY if not setting.startswith("model.")]
    task_type = load_task_type(ROOT / "recipes" / f"{TASK}.py")
    config = tmp_path / "gpt2.yaml"
    config.write_text(json.dumps({
        "output_dir": str(tmp_path / "run"), "task": {"block_size": 32}, "model": {"from_config": gpt2},
        "data": {"train_file": str(ROOT / f"recipes/data/{TASK}/train.txt")},
    }))  # fmt: skip
    import toolkit.run

    cfg = load_settings(task_type, config, [*tiny, *FEW, f"task.packing={packing}"]).config
    toolkit.run.run(cfg, task_type(cfg), ROOT / "recipes" / f"{TASK}.py")
    saved = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert saved["vocab_size"] == 300
    assert saved["eos_token_id"] == saved["bos_token_id"] == 0
    assert len(predictions(tmp_path / "run")) == 7
    folder = exported(tmp_path / "run", tmp_path)
    assert code_lines(folder) <= 66
    new = write_rows(tmp_path / "new.csv", [{"text": text} for text in (*TEXTS, "", "The end.")])
    (answer,) = toolkit.load(tmp_path / "run").predict([{"text": "The end"}])
    assert isinstance(answer["prediction"], str)
    assert_equal_answers(tmp_path / "run", folder, new, 0.0)  # continuations


def test_why_a_masked_model_has_no_script_is_said(tmp_path):
    task_type = load_task_type(ROOT / "recipes" / f"{TASK}.py")
    task = task_type(SimpleNamespace(task=task_type.Options(objective="masked")))
    with pytest.raises(InputError, match=r"predict\.py, .*random masks.*pipeline\('fill-mask'\)"):
        task.script()


def test_a_pretrained_model_whose_padding_is_a_token_of_the_text_keeps_learning_it():
    task_type = load_task_type(ROOT / "recipes" / f"{TASK}.py")
    task = task_type(load_settings(task_type, ROOT / f"recipes/configs/{TASK}/smoke.yaml").config)
    config = SimpleNamespace(pad_token_id=2, bos_token_id=1, eos_token_id=2)
    task.configure(config)
    assert config.pad_token_id is None
    encoder = SimpleNamespace(pad_token_id=0, bos_token_id=None, eos_token_id=None, is_decoder=False)
    task.configure(encoder)
    assert encoder.is_decoder
    assert encoder.pad_token_id == 0


def test_settings_without_effect_and_models_without_the_head_are_rejected(tmp_path):
    with pytest.raises(ConfigError, match=r"task\.mlm_probability: .*task\.objective 'causal'"):
        train(TASK, tmp_path / "run", "task.mlm_probability=0.2")
    with pytest.raises(ConfigError, match=r"task\.prompts: .*task\.objective 'masked'"):
        train("language_modeling/smoke_masked", tmp_path / "run", "task.prompts=[a]")
    with pytest.raises(ConfigError, match=r"AutoModelForMaskedLM .*llama"):
        train(TASK, tmp_path / "run", "task.objective=masked", "task.prompts=null", "task.max_new_tokens=64")
    with pytest.raises(ConfigError, match=r"task\.block_size: received 65, .*llama .*64 tokens"):
        train(TASK, tmp_path / "run", "task.block_size=65")


def test_a_row_that_is_not_text_is_named(tmp_path):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"body": row}) + "\n" for row in ["Rain.", 3, "Wind."]))
    files = (f"data.train_file={tmp_path / 'rows.jsonl'}", "data.validation_file=null", "data.columns.text=body")
    with pytest.raises(DataError, match=r"row 2: column 'text' .*3"):
        train(TASK, tmp_path / "run", *files)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(("name", "processes"), [("tensor", 2), ("pipeline", 2), ("tensor_pipeline_data", 8)])
def test_shipped_configurations_of_split_models_train_like_one_process(tmp_path, name, processes):
    config = ROOT / f"recipes/configs/language_modeling/{name}.yaml"
    short = ("train.max_steps=3", "data.max_eval_samples=7", "tracking.logging_steps=1")
    args = [ROOT / "recipes/language_modeling.py", "--config", config, *short]
    start = launch if processes == 2 else fork  # eight ranks of a launcher import everything eight times
    start([*args, f"output_dir={tmp_path / 'split'}"], processes)
    unsplit = [f"parallel.{size}=1" for size in ("replicas", "tensor", "pipeline")]
    rows = ("train.per_device_train_batch_size=4", "train.gradient_accumulation_steps=4")
    train(f"language_modeling/{name}", tmp_path / "one", *short, *unsplit, *rows, "parallel.schedule=1f1b", sizes=())
    mesh = json.loads((tmp_path / "split/run.json").read_text())["mesh"]
    assert math.prod(mesh.values()) == processes
    one, split = (lines(tmp_path / run, "loss") for run in ("one", "split"))
    assert_close(one, split, float32_tolerance(steps=3, terms=1000))
