"""Chat and instruction data in the language modelling recipe, from end to end."""

from __future__ import annotations

import json
import math

import pytest
import torch
from commands import run_command
from exports import assert_equal_answers, code_lines, exported, script_answers, write_rows
from runs import ROOT, SGD, assert_close, assert_splits_agree, lines, predictions, train
from tolerances import float32_tolerance

import toolkit
from toolkit.base.errors import ConfigError, DataError, InputError
from toolkit.metrics.generation import scores_of_answers

CHAT = "language_modeling/smoke_chat"
FEW = ("train.max_steps=3", "data.max_train_samples=12", "data.max_eval_samples=5")
DATA = ROOT / "recipes/data/language_modeling"
PAIRS = ("task.data_format=prompt_completion", "task.chat_template=null")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat") / "run"
    train(CHAT, folder, *FEW, "task.prompts=null", double=True)
    return folder


def talks(part: str, count: int) -> list[list[dict[str, str]]]:
    rows = (DATA / f"chat_{part}.jsonl").read_text("utf-8").splitlines()[:count]
    return [json.loads(row)["messages"] for row in rows]


def loss_by_hand(folder, talk) -> tuple[float, int]:
    """Returns the summed loss of the answers of a conversation, found in its text, and their number of tokens."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float64)
    page = tokenizer.apply_chat_template(talk, tokenize=False)
    encoded = tokenizer(page, return_offsets_mapping=True, add_special_tokens=False)
    answers = [message["content"] + tokenizer.eos_token for message in talk if message["role"] == "assistant"]
    spans = [(page.index(answer), page.index(answer) + len(answer)) for answer in answers]
    chosen = [any(start <= a and b <= end for start, end in spans) for a, b in encoded["offset_mapping"]]
    ids = torch.tensor([encoded["input_ids"]])
    with torch.no_grad():
        scores = model(ids).logits[0, :-1].log_softmax(-1)
    losses = -scores.gather(1, ids[0, 1:, None])[:, 0]
    return float(losses[torch.tensor(chosen[1:])].sum()), sum(chosen[1:])


def test_the_loss_is_that_of_the_answers_alone(finished):
    expected = [loss_by_hand(finished, talk) for talk in talks("validation", 5)]
    records = predictions(finished)
    assert [record["num_tokens"] for record in records] == [count for _, count in expected]
    for record, (loss, count) in zip(records, expected, strict=True):
        assert record["loss"] == pytest.approx(loss / count, rel=float32_tolerance())
    evaluation = lines(finished, "eval_loss")[-1]
    mean = sum(loss for loss, _ in expected) / sum(count for _, count in expected)
    assert evaluation["eval_loss"] == pytest.approx(mean, rel=float32_tolerance())
    assert evaluation["eval_perplexity"] == pytest.approx(math.exp(mean), rel=float32_tolerance())
    assert "eval_bits_per_byte" not in evaluation


def test_the_saved_tokenizer_has_the_template_and_the_report_answers(finished):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(finished / "model")
    assert "<|assistant|>" in tokenizer.chat_template
    samples = (finished / "report.md").read_text().split("## Samples")[1].split("\n## ")[0]
    assert samples.count("```text") == 3
    for talk in talks("train", 3):
        assert f"user: {talk[0]['content']}" in samples


def test_predict_answers_and_evaluate_scores(finished, tmp_path):
    files = {"new": [talk[:1] for talk in talks("validation", 2)], "known": talks("validation", 5)}
    for name, rows in files.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in rows))
    assert run_command("predict", finished, "--data", tmp_path / "new.jsonl", "--output", tmp_path / "out.jsonl") == 0
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [record["messages"] for record in records] == files["new"]
    assert [record["prediction"] for record in records] == [greedy(finished, talk) for talk in files["new"]]
    arguments = ("--data", tmp_path / "known.jsonl", "--output", tmp_path / "scores.json")
    assert run_command("evaluate", finished, *arguments) == 0
    expected = {name: value for name, value in lines(finished, "eval_loss")[-1].items() if name.startswith("eval_")}
    assert_close(json.loads((tmp_path / "scores.json").read_text()), expected, float32_tolerance())


@pytest.mark.slow
def test_an_exported_run_answers_conversations_with_transformers(finished, tmp_path):
    asked = [talk[:1] for talk in talks("validation", 3)] + talks("validation", 2) + [talks("train", 1)[0] * 12]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps({"messages": talk, "n": 1}) + "\n" for talk in asked))
    folder = exported(finished, tmp_path)
    assert code_lines(folder) <= 66
    assert_equal_answers(finished, folder, tmp_path / "new.jsonl", 0, ("loss", "num_tokens"))
    (answer,) = script_answers(folder, "--text", *asked[0][0]["content"].split())
    assert answer["prediction"] == greedy(finished, asked[0])


def greedy(folder, talk) -> str:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    ids = tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    output = model.generate(ids, do_sample=False, max_new_tokens=32, pad_token_id=tokenizer.pad_token_id)
    return tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True).strip()


def test_prompts_and_completions_come_from_any_table(tmp_path):
    rows = ["prompt,answer", *(f'"{talk[-2]["content"]} ","{talk[-1]["content"]}"' for talk in talks("train", 12))]
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    files = (f"data.train_file={tmp_path / 'rows.csv'}", "data.validation_file=null", "data.columns.completion=answer")
    train(CHAT, tmp_path / "run", *FEW, *PAIRS, *files)
    folder = exported(tmp_path / "run", tmp_path)
    new = write_rows(tmp_path / "new.csv", [{"prompt": talk[-2]["content"]} for talk in talks("validation", 3)])
    assert_equal_answers(tmp_path / "run", folder, new, 0, ("loss", "num_tokens"))
    record = predictions(tmp_path / "run")[0]
    assert record["num_tokens"] > 1
    assert f"{record['prompt']},{record['completion']}" in "\n".join(rows).replace('"', "")
    assert "How do I bake bread?" in (tmp_path / "run" / "report.md").read_text()


def test_every_split_of_a_window_gives_the_same_training(tmp_path):
    assert_splits_agree(CHAT, tmp_path, *SGD, "data.max_train_samples=13", "train.max_steps=4", "eval.eval_steps=null",
                        "checkpoint.save_steps=null")  # fmt: skip


def test_what_was_cut_and_what_was_lost_is_in_the_report(tmp_path):
    short = ("task.block_size=16", "task.max_new_tokens=8")
    with pytest.raises(DataError, match=r"3 of 12 rows have no answer within task\.block_size \(16\) tokens: 3, 7, 11"):
        train(CHAT, tmp_path / "all", *FEW, *short)
    with pytest.raises(DataError, match=r"data\.max_bad_rows to at least 0\.25"):
        train(CHAT, tmp_path / "many", *FEW, *short, "data.bad_rows=skip")
    train(CHAT, tmp_path / "run", *FEW, *short, "data.bad_rows=skip", "data.max_bad_rows=0.5")
    report = (tmp_path / "run" / "report.md").read_text()
    assert "inputs truncated to task.block_size=16 |" in report
    assert "| rows have no answer within task.block_size (16) tokens | 3 of 12 | 25.0% | 3, 7, 11 |" in report
    assert json.loads((tmp_path / "run/run.json").read_text())["bad_rows"]["train"] == 3
    with pytest.raises(DataError, match=r"task\.block_size: .*answers"):
        train(CHAT, tmp_path / "none", *FEW, "task.block_size=2", "task.max_new_tokens=2")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("task.data_format=text",), r"task\.chat_template: has no effect with task\.data_format 'text'"),
        (("task.packing=false",), r"task\.packing: has no effect with task\.data_format 'messages'"),
        (("task.objective=masked", "task.prompts=null", "task.max_new_tokens=64"), r"task\.objective: has no effect"),
    ],
)
def test_settings_that_do_not_fit_chat_data_are_rejected(settings, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        train(CHAT, tmp_path / "run", *settings)


def test_other_columns_and_a_missing_template_are_rejected_with_advice(tmp_path):
    with pytest.raises(DataError, match=r"'text': .*\(task\.data_format: text\)"):
        train(CHAT, tmp_path / "run", "task.data_format=text", "task.chat_template=null")
    with pytest.raises(InputError, match=r"task\.chat_template"):
        train(CHAT, tmp_path / "bare", *FEW, "task.chat_template=null")


def test_adapters_train_on_chat_data(tmp_path):
    train(CHAT, tmp_path / "run", *FEW, "model.peft.method=lora")
    assert (tmp_path / "run" / "model" / "chat_template.jinja").exists()
    assert "## Samples" in (tmp_path / "run" / "report.md").read_text()


def test_answers_are_generated_and_scored_in_each_evaluation(tmp_path):
    run = tmp_path / "run"
    settings = ("eval.generate=true", "eval.generate_rows=10", "eval.eval_on_start=true", "data.max_eval_samples=12")
    train(CHAT, run, *FEW, *settings)
    answered, before = ([json.loads(line) for line in (run / f"{name}.jsonl").read_text().splitlines()]
                        for name in ("answers", "answers_start"))  # fmt: skip
    assert [len(answered), len(before)] == [10, 10]
    expected = toolkit.load(run).predict([{"messages": row["messages"][:-1]} for row in answered])
    assert [row["prediction"] for row in answered] == [row["prediction"] for row in expected]
    result = json.loads((run / "run.json").read_text())["result"]
    given = [row["messages"][-1]["content"] for row in answered]
    scores = scores_of_answers([row["prediction"] for row in answered], given)
    assert {name: result[f"eval_{name}"] for name in scores} == pytest.approx(scores)
    assert "start_answer_chrf" in result
    for name, value in scores.items():
        assert result[f"eval_{name}_low"] <= value <= result[f"eval_{name}_high"]
    page = (run / "report.md").read_text()
    assert "| prompt | given | before training | after training |" in page
    found = toolkit.load(run).evaluate([{"messages": talk} for talk in talks("validation", 12)])
    assert found["eval_answer_chrf"] == pytest.approx(scores["answer_chrf"])
    with pytest.raises(ConfigError, match=r"eval\.generate: received true"):
        train("language_modeling", tmp_path / "text", *FEW, "eval.generate=true")


def test_scores_of_answers_ignore_blanks_at_their_ends():
    found = scores_of_answers(["a cat ", "dogs"], ["a cat", "a dog"])
    assert found["answer_exact_match"] == 0.5
    assert 0.5 <= found["answer_f1"] < 1
    perfect = scores_of_answers(["hay is dry"], ["hay is dry"])
    assert [*perfect.values()] == pytest.approx([1, 1, 1, 100])


def test_transformers_pipeline_answers_from_the_folder_as_predict_does(finished):
    """As other tools read it: with its chat template and generation config."""
    from transformers import pipeline

    question = [{"role": "user", "content": "When should onions be planted?"}]
    (expected,) = toolkit.load(finished).predict([{"messages": question}])
    answers = pipeline("text-generation", model=str(finished / "model"), device="cpu")
    (found,) = answers(question, max_new_tokens=32, do_sample=False)
    assert found["generated_text"][-1]["content"] == expected["prediction"]
    assert (finished / "model/generation_config.json").exists()
    assert answers.tokenizer.chat_template
