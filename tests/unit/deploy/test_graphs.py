"""`toolkit export` as ONNX, `torch.export`, int8 and merged: the same outputs and answers, or nothing is written."""

from __future__ import annotations

import argparse
import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import onnx
import pytest
import torch
import transformers
from commands import run_command
from exports import (
    assert_equal_answers,
    assert_same_answers,
    exported_as,
    isolated_answers,
    script_answers,
    toolkit_answers,
    write_rows,
)
from runs import ROOT, train

from toolkit.base.errors import InputError
from toolkit.commands import deploy
from toolkit.deploy.export import formats, generating
from toolkit.deploy.export.formats import Graph

FEW = ("train.max_steps=2", "data.max_train_samples=24", "data.max_eval_samples=5", "checkpoint.save_steps=null")
CLOSE = 2e-4
"""Allowed difference of probabilities and losses of a graph, whose outputs may differ by 1e-4."""
TEXTS = ["A fine pair of boots.", "It broke at once, &amp; soon.", "Good. " * 200, ""]


def media(folder: str) -> list[str]:
    return sorted(str(path) for path in (ROOT / "recipes/data" / folder / "validation").rglob("*.*"))[::20]


KINDS = {
    "reviews": [{"text": text} for text in TEXTS],
    "qa": [{"question": "What grows?", "context": "Clover grows here. " * count} for count in (1, 40)],
    "embeddings": [{"question": "What grows?"}, {"question": "Rain " * 90}],
    "token_classification": [{"tokens": "Anna drove to Kiel ."}, {"tokens": "Rain " * 90}],
    "language_modeling": [{"text": "The river is high."}, {"text": "Rain."}],
    "language_modeling/smoke_chat": [{"messages": [{"role": "user", "content": word}]} for word in ("Hello", "Bread?")],
    "translation": [{"source": "A man in a hat."}, {"source": "Two dogs."}],
    "reviews/smoke_image": [{"image": path} for path in media("images")],
    "reviews/smoke_audio": [{"audio": path} for path in media("audio")],
    "speech_recognition/smoke_ctc": [{"audio": path} for path in media("audio")],
}
"""Rows for a run of each kind of graph."""
ONNX_ONLY = ("token_classification", "language_modeling/smoke_chat", "reviews", "translation")
"""Of which another kind, or another test, has the same model as a `torch.export`."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("reviews") / "run"
    train("reviews", run, *FEW, "train.unpadded=true")
    return run


@pytest.fixture
def run(finished, tmp_path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.slow
def test_an_onnx_file_answers_as_the_run_and_is_described(run, tmp_path, capsys):
    folder, parity = exported_as(run, "onnx", tmp_path, "--parity-rows", "3")
    assert parity["format"] == "onnx"
    assert parity["rows"] == 3
    assert parity["largest_difference"] <= parity["allowed_difference"] == 1e-4
    assert parity["metric"] == "accuracy"
    assert parity["metric_change"] == 0
    assert set(parity["rows_per_second"]) == set(parity["bytes"]) == {"run", "export"}
    assert parity["bytes"]["export"] == (folder / "model.onnx").stat().st_size
    shown = capsys.readouterr().out
    assert "largest difference of an output on 3 rows" in shown
    assert "(at most 1.0e-04 is allowed)" in shown
    for card in (folder / "README.md", run / "model/README.md"):
        assert "## Export: onnx\n\n|  | run | onnx |" in card.read_text()
    assert "onnxruntime.InferenceSession" in (folder / "README.md").read_text()
    assert "library_name" not in (folder / "README.md").read_text()
    assert (folder / "requirements.txt").read_text().startswith("onnxruntime>=")
    assert list(json.loads((folder / "config.json").read_text())["id2label"].values()) == ["negative", "positive"]
    given = onnx.load(folder / "model.onnx").graph.input
    sizes = {each.name: [size.dim_param for size in each.type.tensor_type.shape.dim] for each in given}
    assert sizes == {name: ["batch", "length"] for name in ("input_ids", "attention_mask", "token_type_ids")}
    private = (str(run), str(run.parent), str(Path.home()), str(ROOT))
    for path in folder.iterdir():
        assert [name for name in private if name.encode() in path.read_bytes()] == [], path
    assert sorted(path.name for path in tmp_path.iterdir()) == ["onnx of run", "run"]
    assert run_command("verify", run) == 0
    new = write_rows(tmp_path / "new.csv", KINDS["reviews"])
    assert_equal_answers(run, folder, new, CLOSE)
    assert script_answers(folder, "--text", TEXTS[0])[0]["prediction"] in ("negative", "positive")


@pytest.mark.slow
def test_int8_states_what_it_changes(run, tmp_path):
    folder, parity = exported_as(run, "int8", tmp_path)
    assert parity["allowed_difference"] is None
    assert 0 < parity["largest_difference"] < 0.1
    assert parity["quantised_layers"] == 14  # six in each of two layers, the pooler and the head
    assert parity["metrics"]["loss"]["export"] != parity["metrics"]["loss"]["run"]
    kinds = [node.op_type for node in onnx.load(folder / "model.onnx").graph.node]
    assert kinds.count("MatMulInteger") == 14
    assert "14 linear layers have 8-bit weights." in (folder / "README.md").read_text()
    assert not (folder / "float32").exists()
    new = write_rows(tmp_path / "new.csv", KINDS["reviews"])
    answers = (toolkit_answers(run, new), script_answers(folder, new))
    ours, theirs = ([float(row["score"] or "nan") for row in rows] for rows in answers)
    assert theirs == pytest.approx(ours, abs=0.1, nan_ok=True)  # the label may differ where two are as likely


@pytest.mark.slow
def test_adapters_are_merged_into_every_format(tmp_path, capsys):
    adapters = ("model.peft.method=lora", "train.learning_rate=0.5")
    train("token_classification", tmp_path / "run", *FEW, *adapters)
    folder, parity = exported_as(tmp_path / "run", "torch_export", tmp_path)
    assert parity["largest_difference"] <= parity["allowed_difference"]
    new = tmp_path / "new.jsonl"
    new.write_text("".join(json.dumps(row) + "\n" for row in KINDS["token_classification"]))
    assert_equal_answers(tmp_path / "run", folder, new, CLOSE)
    given = str(ROOT / "recipes/data/token_classification/validation.conll")
    merged, parity = exported_as(tmp_path / "run", "merged", tmp_path, "--data", given)
    assert parity["rows"] > 5  # not those of the run
    assert parity["largest_difference"] <= parity["allowed_difference"]
    assert not (merged / "adapter_config.json").exists()
    loaded = transformers.pipeline("token-classification", str(merged), ignore_labels=[])
    assert loaded("Anna drove to Kiel.")
    assert merged.stat().st_mode == folder.stat().st_mode
    assert "## Export: merged" in (merged / "README.md").read_text()
    assert "library_name: transformers" in (merged / "README.md").read_text()


@pytest.mark.slow
def test_an_export_that_differs_is_rejected_and_leaves_nothing(run, tmp_path, monkeypatch, capsys):
    class Wrong(formats.Graph):
        def forward(self, **inputs):
            outputs = super().forward(**inputs)
            outputs["logits"] = outputs.logits + 0.25
            return outputs

    card = (run / "model/README.md").read_text()
    monkeypatch.setattr(formats, "Graph", Wrong)
    assert run_command("export", run, "--format", "torch_export", "--output", tmp_path / "new") == 1
    message = "the torch_export export differs from the run: an output by 2.5e-01 on 5 rows, at most 1.0e-04 is allowed"
    assert message in capsys.readouterr().err
    monkeypatch.setattr(torch.export, "export", lambda *_, **__: 1 / 0)
    assert run_command("export", run, "--format", "torch_export", "--output", tmp_path / "new") == 1
    message = "this bert cannot be traced: ZeroDivisionError: division by zero\n  Export it with --format zip instead"
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (run / "model/README.md").read_text() == card


def test_wrong_requests_are_rejected_before_a_model_is_loaded(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("toolkit.deploy.export.folder.open_run", lambda *_: pytest.fail("a model is loaded"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("")
    refused = {
        ("--format", "onnx", "--output", tmp_path / "full"): "--output: .*full is not an empty folder",
        ("--format", "onnx", "--output", tmp_path / "no/where"): "--output: there is no folder .*no; create it first",
        ("--format", "merged", "--output", tmp_path / "new"): "nothing to merge: it trained the full model",
        ("--format", "onnx", "--data", "nowhere.csv", "--output", tmp_path / "new"): "nowhere.csv",
    }
    for arguments, message in refused.items():
        assert run_command("export", run, *arguments) == 2
        assert re.search(message, capsys.readouterr().err), arguments
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**facts, "data_fingerprints": {"train": "other"}}))
    assert run_command("export", run, "--format", "onnx", "--output", tmp_path / "new") == 2
    assert "the data files have changed since" in capsys.readouterr().err
    own = tmp_path / "own.py"
    own.write_text((ROOT / "recipes/reviews.py").read_text() + "# somebody else's\n")
    (run / "run.json").write_text(json.dumps({**facts, "recipe": str(own)}))
    assert run_command("export", run, "--format", "onnx", "--output", tmp_path / "new") == 2
    assert "if you trust it, name it with --recipe" in capsys.readouterr().err
    monkeypatch.setattr(formats, "find_spec", lambda name: None if name == "onnxscript" else find_spec(name))
    (run / "run.json").write_text(json.dumps(facts))
    assert run_command("export", run, "--format", "int8", "--output", tmp_path / "new") == 2
    assert "--format: needs onnxscript, which is not installed; pip install" in capsys.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match=r"toolkit export .*launcher"):
        deploy.run_export(argparse.Namespace())
    assert not (tmp_path / "new").exists()


def test_a_single_graph_does_not_generate(monkeypatch):
    monkeypatch.setattr(generating, "load_graph", lambda *_: None)
    with pytest.raises(InputError, match=r"--format: .*zip or merged"):
        Graph(Path("model.onnx"), []).generate()


MBART = (
    "model.from_config={model_type: mbart, vocab_size: 300, d_model: 16, encoder_layers: 1, decoder_layers: 1, "
    "encoder_attention_heads: 2, decoder_attention_heads: 2, encoder_ffn_dim: 16, decoder_ffn_dim: 16, "
    "max_position_embeddings: 64}",
    "task.max_target_length=12",
)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["qa", "reviews"])
def test_an_encoder_decoder_that_does_not_generate_is_one_graph(task, tmp_path):
    bart = MBART[0].replace("mbart", "bart").replace("max_position_embeddings: 64", "max_position_embeddings: 128")
    train(task, tmp_path / "run", *FEW, bart, sizes=())
    folder, parity = exported_as(tmp_path / "run", "onnx", tmp_path)
    assert parity["largest_difference"] <= parity["allowed_difference"]
    assert (folder / "model.onnx").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "beams"), [("onnx", 3), ("torch_export", 1)])
def test_an_encoder_decoder_generates_as_its_run_does(name, beams, tmp_path):
    """With the beams of the run, from an encoder and a decoder that take any numbers of rows and tokens."""
    train("translation", tmp_path / "run", *FEW, *MBART, f"task.num_beams={beams}", sizes=())
    folder, parity = exported_as(tmp_path / "run", name, tmp_path)
    assert parity["largest_difference"] <= parity["allowed_difference"]
    assert {pair["export"] - pair["run"] for key, pair in parity["metrics"].items() if key != "loss"} == {0}
    ending = "onnx" if name == "onnx" else "pt2"
    assert {f"{side}_model.{ending}" for side in ("encoder", "decoder")} <= {path.name for path in folder.iterdir()}
    assert f"decoder_model.{ending}" in (folder / "README.md").read_text()
    rows = write_rows(tmp_path / "new.csv", [{"source": text} for text in ("A dog.", "Two men in hats. " * 9, "")])
    assert_equal_answers(tmp_path / "run", folder, rows, CLOSE)
    assert any(row["prediction"] for row in script_answers(folder, rows))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "labels", "settings"),
    [
        ("multi_label_classification", ["a,b", "b", "c,a", ","], ()),
        ("regression", ["1", "2.5", "-1", "4"], ()),
        ("regression", ["[1000, 0]", "[2500, 3]", "[-1000, 7]", "[4000, 5]"], ("task.scale_targets=true",)),
    ],
)
def test_scripts_of_graphs_predict_several_labels_and_numbers(kind, labels, settings, tmp_path):
    rows = [{"text": f"{place} fine words", "label": labels[place % len(labels)]} for place in range(24)]
    own = (f"data.train_file={write_rows(tmp_path / 'rows.csv', rows)}", "data.validation_split=0.2")
    train("reviews", tmp_path / "run", *FEW, *own, "data.validation_file=null", f"task.problem_type={kind}", *settings)
    folder, parity = exported_as(tmp_path / "run", "torch_export", tmp_path)
    assert parity["largest_difference"] <= parity["allowed_difference"]
    new = write_rows(tmp_path / "new.csv", [{"text": text, "label": "9"} for text in TEXTS])
    assert_equal_answers(tmp_path / "run", folder, new, CLOSE)


@pytest.mark.slow
def test_every_kind_of_graph_answers_where_the_toolkit_is_missing(tmp_path):
    files: dict[tuple[str, ...], dict[Path, Path]] = {("toolkit",): {}, ("toolkit", "torch"): {}}
    expected: dict[Path, list] = {}
    for kind, rows in KINDS.items():
        root = tmp_path / kind.replace("/", "-")
        root.mkdir()
        train(kind, root / "run", *FEW)
        for name in ("onnx", *(() if kind in ONNX_ONLY else ("torch_export",))):
            file = root / f"{name}.jsonl"
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            folder, parity = exported_as(root / "run", name, root)
            assert parity["largest_difference"] <= parity["allowed_difference"]
            needed = (folder / "requirements.txt").read_text().splitlines()
            assert ("torch" in needed) == (name == "torch_export" or kind in ("reviews/smoke_audio", "translation"))
            files[("toolkit",) if "torch" in needed else ("toolkit", "torch")][folder] = file
            expected[folder] = toolkit_answers(root / "run", file)
    for without, inputs in files.items():
        for folder, theirs in zip(inputs, isolated_answers(inputs, without), strict=True):
            columns = theirs[0].keys() | {"error"}
            ours = [{column: cell for column, cell in row.items() if column in columns} for row in expected[folder]]
            assert_same_answers(ours, theirs, CLOSE)


@pytest.mark.slow
def test_a_masked_model_fills_masks(tmp_path):
    train("language_modeling/smoke_masked", tmp_path / "run", *FEW)
    folder, parity = exported_as(tmp_path / "run", "onnx", tmp_path)
    assert parity["largest_difference"] <= parity["allowed_difference"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = f"The {tokenizer.mask_token} is {tokenizer.mask_token}."
    (answer,) = script_answers(folder, "--text", text)
    inputs = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        logits = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "run/model")(**inputs).logits
    scores = logits[inputs["input_ids"] == tokenizer.mask_token_id].softmax(-1).max(-1).values
    assert json.loads(answer["score"]) == pytest.approx(scores.tolist(), abs=CLOSE)
    assert len(scores) == 2
