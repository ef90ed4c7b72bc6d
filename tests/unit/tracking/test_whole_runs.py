"""Whole runs with real trackers: one run before and after a resume, and all that a finished run has to show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import torch
from runs import ROOT, lines, train, weights
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from wandb.proto import wandb_internal_pb2

from toolkit.engine.callbacks.gradients import BINS, histogram
from toolkit.tracking.mlflow import store
from toolkit.tracking.tensorboard import TensorBoard

pytestmark = pytest.mark.slow
FEW = ("data.max_train_samples=24", "data.max_eval_samples=12", "checkpoint.save_steps=2", "eval.eval_steps=2")
BLOCK, HEADER = 32768, 7
"""Bytes of a block of a W&B file, which has the format of LevelDB's log, and of the header of each of its parts."""


def wandb_records(file: Path) -> Iterator[wandb_internal_pb2.Record]:
    """Yields the records of a run that W&B wrote offline."""
    content, place, parts = file.read_bytes(), HEADER, b""
    while place + HEADER <= len(content):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        parts += content[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(parts)
            parts = b""


def named(items) -> dict[str, Any]:
    """Returns the values of a record by name; W&B writes each field of a nested value for itself."""
    found: dict[str, Any] = {}
    for item in items:
        *path, last = item.nested_key or [item.key]
        place = found
        for part in path:
            place = place.setdefault(part, {})
        place[last] = json.loads(item.value_json)
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Iterator[Path]:
    """Returns a finished run with all trackers, which ended after two of four steps and was resumed."""
    place = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("home", "here"):
            (place / name).mkdir()
        patch.setenv("HOME", str(place / "home"))
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_CONSOLE", "off")  # pytest has the console
        patch.setenv("WANDB__SERVICE_WAIT", "300")
        patch.chdir(place / "here")
        files = (f"data.train_file={ROOT}/recipes/data/reviews/train.csv",)
        tracked = ("tracking.report_to=[tensorboard,wandb,mlflow]", "tracking.run_name=mine",
                   "tracking.histogram_steps=2", "tracking.graph=true")  # fmt: skip
        for steps in (2, 4):
            train("reviews", place / "run", *FEW, *files, *tracked, f"train.max_steps={steps}",
                  "checkpoint.resume=auto")  # fmt: skip
        yield place / "run"


def test_trackers_write_only_into_the_run(run):
    assert {path.relative_to(run.parent).parts[0] for path in run.parent.rglob("*") if path.is_file()} == {"run"}


def test_tensorboard_shows_curves_histograms_figures_texts_and_settings_with_final_metrics(run):
    (folder,) = {file.parent for file in run.rglob("events.out.tfevents*")}
    assert folder == run / "tracking" / "finetune-toolkit" / "mine"
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0, "histograms": 0}).Reload()
    assert [each.step for each in events.Scalars("train/loss")] == [line["step"] for line in lines(run, "loss")]
    final = weights(run)
    for name in ("classifier.weight", "bert.embeddings.word_embeddings.weight"):
        shown = events.Histograms(f"weights/{name}")
        assert [each.step for each in shown] == [2, 4]
        last = shown[-1].histogram_value
        assert (last.num, len(last.bucket)) == (final[name].numel(), BINS)
        assert (last.min, last.max) == (float(final[name].min()), float(final[name].max()))
        assert last.sum == pytest.approx(float(final[name].double().sum()), rel=1e-3, abs=1e-3)
        assert [each.step for each in events.Histograms(f"gradients/{name}")] == [2, 4]
    nodes = {node.name: node for node in events.Graph().node}
    assert {"inputs/input_ids", "bert/encoder/layer/1/output/dense/weight"} <= nodes.keys()
    assert nodes["classifier/linear"].input[1:] == ["classifier/weight", "classifier/bias"]
    assert all(used in nodes for node in nodes.values() for used in node.input)
    assert set(events.Tags()["images"]) == {"report/curves", "report/classes_validation"}
    assert events.Images("report/curves")[-1].encoded_image_string.startswith(b"\x89PNG")
    text = events.Tensors("report/example_predictions/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert text.startswith("| input | prediction | expected |\n|---|")
    assert "report/largest_errors/text_summary" in events.Tags()["tensors"]
    result = json.loads((run / "run.json").read_text())["result"]
    assert events.Scalars("final/eval_accuracy")[-1].value == pytest.approx(result["eval_accuracy"])
    content = events.summary_metadata["_hparams_/experiment"].plugin_data.content
    experiment = HParamsPluginData.FromString(content).experiment
    assert "train.learning_rate" in {each.name for each in experiment.hparam_infos}
    assert "final/eval_accuracy" in {each.name.tag for each in experiment.metric_infos}


def test_mlflow_has_one_run_with_every_step_once_and_the_report(run):
    client = mlflow.MlflowClient(store(run / "tracking"))
    experiments = [each.experiment_id for each in client.search_experiments()]
    (found,) = client.search_runs(experiments)
    assert found.info.run_name == "mine"
    steps = [each.step for each in client.get_metric_history(found.info.run_id, "train/loss")]
    assert steps == [line["step"] for line in lines(run, "loss")]
    files = {each.path for each in client.list_artifacts(found.info.run_id, "report")}
    assert {"report/report.html", "report/curves.png", "report/largest_errors.md"} <= files
    assert "final/eval_accuracy" in found.data.metrics


def test_wandb_has_one_id_and_every_step_once_offline(run):
    files = sorted((run / "tracking" / "wandb").glob("offline-run-*/run-*.wandb"))
    ids = json.loads((run / "tracking" / "ids.json").read_text())
    assert {file.stem.removeprefix("run-") for file in files} == {ids["wandb"]}
    records = [record for file in files for record in wandb_records(file)]
    assert {each.run.display_name for each in records if each.HasField("run")} == {"mine"}
    history = [named(each.history.item) for each in records if each.HasField("history")]
    steps = [line["_step"] for line in history if "train/loss" in line]
    assert steps == [line["step"] for line in lines(run, "loss")]
    weights_of = [line for line in history if "weights/classifier.weight" in line]
    assert [sum(line["weights/classifier.weight"]["values"]) for line in weights_of] == [64, 64]
    kinds = {name: value["_type"] for line in history for name, value in line.items() if name.startswith("report/")}
    assert kinds["report/curves"] == "image-file"
    assert kinds["report/example_predictions"] == "table-file"
    assert kinds["report/page"] == "html-file"
    summary = {name: value for each in records if each.HasField("summary")
               for name, value in named(each.summary.update).items()}  # fmt: skip
    assert summary["final/eval_accuracy"] == json.loads((run / "run.json").read_text())["result"]["eval_accuracy"]


@pytest.mark.parametrize("values", [[0.5, -1.0, 2.0, 2.0], [3.0, 3.0], [1.0, float("nan"), 5.0]])
def test_a_histogram_counts_every_finite_value(values):
    found = histogram(torch.tensor(values, dtype=torch.float64).reshape(1, -1))
    finite = np.array(values)[np.isfinite(values)]
    assert found is not None
    counts, edges = np.array(found.counts), np.array(found.edges)
    assert (counts.sum(), len(edges)) == (len(finite), len(counts) + 1)
    assert edges[0] <= finite.min() <= finite.max() <= edges[-1]
    assert (found.total, found.squares) == pytest.approx((finite.sum(), (finite**2).sum()))


def test_a_tensor_without_finite_values_has_no_histogram():
    assert histogram(torch.tensor([float("inf")])) is None
    assert histogram(torch.empty(0)) is None


def test_samples_of_a_language_model_are_texts(tmp_path):
    few = ("data.max_train_samples=16", "data.max_eval_samples=4", "train.max_steps=1", "eval.eval_steps=null")
    train("language_modeling", tmp_path / "run", *few, "tracking.report_to=[tensorboard]")
    (file,) = (tmp_path / "run").rglob("events.out.tfevents*")
    events = EventAccumulator(str(file.parent), size_guidance={"tensors": 0}).Reload()
    (text,) = [each.tensor_proto.string_val[0].decode() for each in events.Tensors("report/samples/text_summary")]
    assert text.startswith("| sample |\n|---|\n| ")
    assert events.Tags()["images"] == []  # a line needs two points
    assert events.Tags()["histograms"] == []


def test_a_run_that_fails_closes_its_trackers(tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(TensorBoard, "finish", lambda self: closed.append(self._tracker.finish()))
    monkeypatch.setattr("toolkit.run.write_results", lambda *_: 1 / 0)
    few = ("data.max_train_samples=16", "data.max_eval_samples=4", "train.max_steps=1", "eval.eval_steps=null")
    with pytest.raises(ZeroDivisionError):
        train("reviews", tmp_path / "run", *few, "tracking.report_to=[tensorboard]")
    assert len(closed) == 1
