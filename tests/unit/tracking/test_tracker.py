"""Trackers write inside the run's folder, under the run's name, and a resumed run continues what they have."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, get_args, get_type_hints

import mlflow
import numpy as np
import pytest
from runs import ROOT

from toolkit.api.exhibits import Exhibits, Histogram
from toolkit.base.cli_errors import unexpected
from toolkit.base.errors import ConfigError, RunError
from toolkit.base.package import import_object
from toolkit.config.keys import written
from toolkit.config.sections import CheckpointConfig, Config, TrackingConfig
from toolkit.document.blocks import Table
from toolkit.lab.compare.variants import LOGGED
from toolkit.lab.jobs.training import QUIET, STEPS_ONLY
from toolkit.recipe import load_settings, load_task_type
from toolkit.tracking.jsonl import read_metrics
from toolkit.tracking.mlflow import MLflow, store
from toolkit.tracking.sink import finite_numbers
from toolkit.tracking.tracker import TRACKERS, RunTrackers, Tracker, tracker_problems

MAIN = SimpleNamespace(is_main_process=True, num_processes=1)


def settings(output_dir: Path, *overrides: str) -> Config:
    task_type = load_task_type(ROOT / "recipes/reviews.py")
    file = ROOT / "recipes/configs/reviews/smoke.yaml"
    overrides = (f"output_dir={output_dir}", *overrides)
    return load_settings(task_type, file, overrides, environ={}, check_files=False).config


@contextmanager
def opened(cfg: Config, start_step: int = 0) -> Iterator[Tracker]:
    path = Path(cfg.output_dir) / "metrics.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with Tracker(MAIN, cfg, path, start_step) as tracker:
        tracker.connect()
        tracker.open()
        yield tracker


def write(cfg: Config, steps: range, value: float) -> None:
    """Writes lines like a run that resumed from the step before the first of them."""
    with opened(cfg, steps.start - 1) as tracker:
        for step in steps:
            tracker.log({"step": step, "loss": value + step})


@pytest.fixture
def output_dir(tmp_path: Path, monkeypatch) -> Path:
    """Returns a run's folder; home and current directory are separate and empty."""
    for name in ("home", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    for name in ("WANDB_DIR", "WANDB_RUN_ID", "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "run"


def only_the_run_is_written(output_dir: Path) -> bool:
    places = {path.relative_to(output_dir.parent).parts[0] for path in output_dir.parent.rglob("*") if path.is_file()}
    return places == {"run"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux that is always full")
def test_a_full_disk_is_told_of_the_file_that_is_written(output_dir: Path) -> None:
    path = output_dir / "metrics.jsonl"
    output_dir.mkdir()

    def fill(logged: bool) -> None:
        with Tracker(MAIN, settings(output_dir), path, 0) as tracker:  # type: ignore[arg-type]
            tracker.open()
            os.dup2(os.open("/dev/full", os.O_WRONLY), tracker.file.fileno())  # type: ignore[union-attr]
            tracker.log({"step": 1, "loss": 2.0}) if logged else tracker.file.write("as it is closed")

    for logged, needed in ((True, "25 B are needed, "), (False, "")):
        with pytest.raises(OSError, match="No space") as raised:
            fill(logged)
        assert unexpected(raised.value).startswith(f"{path}: No space left on device; {needed}")
        assert unexpected(raised.value).endswith(f" are free in {output_dir}")


def test_every_tracker_that_may_be_named_can_be_made():
    (names,) = get_args(get_type_hints(TrackingConfig)["report_to"])
    assert set(get_args(names)) == TRACKERS.keys()
    assert all(callable(import_object(place)) for place in TRACKERS.values())


LAB = {key: value for key, value in STEPS_ONLY.items() if key.startswith(("tracking.", "checkpoint."))}


@pytest.mark.parametrize("overrides", [QUIET, LOGGED, LAB], ids=["reproduce", "compare", "lab"])
def test_tools_that_train_leave_no_setting_of_a_tracker(output_dir, overrides):
    tracked = ("tracking.report_to=[wandb]", "tracking.project=p", "tracking.run_name=r", "tracking.histogram_steps=5")
    hub = {"push_to_hub": "true", "hub_model_id": "a/b", "hub_private_repo": "true", "hub_revision": "c"}
    pushed = [f"checkpoint.{name}={value}" for name, value in hub.items()]
    cfg = settings(output_dir, *tracked, *pushed, *written(overrides))  # which refuses settings without effect
    assert cfg.tracking == replace(TrackingConfig(), logging_steps=cfg.tracking.logging_steps)
    own = CheckpointConfig()
    assert [getattr(cfg.checkpoint, name) for name in hub] == [getattr(own, name) for name in hub]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("tracking.report_to=[mlflow]", "only TensorBoard, W&B and Trackio show histograms"),
        ("tracking.report_to=[]", "only TensorBoard, W&B and Trackio show histograms"),
        ("parallel.backend=deepspeed", "DeepSpeed keeps the gradient in buffers of its own"),
    ],
)
def test_histograms_that_cannot_be_shown_are_rejected(output_dir, override, message):
    with pytest.raises(ConfigError) as refused:
        settings(output_dir, "tracking.report_to=[wandb, mlflow]", "tracking.histogram_steps=5", override)
    assert any(message in problem for problem in refused.value.problems)


def test_tensorboard_has_the_name_and_every_step_once_after_a_resume(output_dir):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    cfg = settings(output_dir, "tracking.report_to=[tensorboard]", "tracking.run_name=first try")
    write(cfg, range(1, 6), 0.0)
    write(cfg, range(4, 8), 0.5)
    events = EventAccumulator(str(output_dir / "tracking" / "finetune-toolkit" / "first try")).Reload()
    found = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert found == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.5), (5, 5.5), (6, 6.5), (7, 7.5)]
    assert found == [(line["step"], line["loss"]) for line in read_metrics(output_dir / "metrics.jsonl")]
    hparams = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"train.learning_rate" in hparams
    assert only_the_run_is_written(output_dir)


def test_numbers_are_grouped_and_what_is_no_curve_is_left_out(output_dir, wandb):
    cfg = settings(output_dir, "tracking.report_to=[wandb]")
    line = {"epoch": 0.5, "num_items": 8, "loss": 1.0, "train_items_per_second": 2.0, "eval_f1": 0.5, "test_loss": 3.0}
    with opened(cfg) as tracker:
        tracker.log({"step": 1, **line})
    (logged,) = wandb.logged
    assert logged == (1, {"train/loss": 1.0, "train/items_per_second": 2.0, "eval/f1": 0.5, "test/loss": 3.0})
    assert read_metrics(output_dir / "metrics.jsonl") == [{"step": 1, **line}]


def test_no_name_leads_out_of_the_run(output_dir):
    cfg = settings(
        output_dir, "tracking.report_to=[tensorboard]", "tracking.project=../../../up", "tracking.run_name=.."
    )
    write(cfg, range(1, 2), 0.0)
    assert list((output_dir / "tracking").rglob("events.out.tfevents*")) != []
    assert only_the_run_is_written(output_dir)


def test_a_process_that_does_not_open_it_writes_nothing(output_dir):
    output_dir.mkdir()
    cfg = settings(output_dir, "tracking.report_to=[tensorboard]")
    with Tracker(MAIN, cfg, output_dir / "metrics.jsonl", 0) as tracker:
        tracker.log({"step": 1, "loss": 1.0})
        tracker.flush()
    assert list(output_dir.iterdir()) == []


def test_what_is_no_finite_number_breaks_nothing(output_dir):
    line = {
        "step": 1,
        "loss": math.nan,
        "none": None,
        "text": "abc",
        "per_class": {"a b": {"f1": np.float32(0.5)}, "count": np.int64(3)},
        "eval_f1": 0.25,
    }
    assert dict(finite_numbers(line)) == {"step": 1, "per_class/a b/f1": 0.5, "per_class/count": 3, "eval_f1": 0.25}
    cfg = settings(output_dir, "tracking.report_to=[tensorboard]")
    with opened(cfg) as tracker:
        tracker.log(line)
    (written,) = read_metrics(output_dir / "metrics.jsonl")
    assert written == {**line, "loss": None, "per_class": {"a b": {"f1": 0.5}, "count": 3}}


class FakeWandb(ModuleType):
    """Replaces `wandb` and records what is logged."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.inits: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.config = SimpleNamespace(update=lambda values, allow_val_change: None)
        self.finished, self.offline = 0, False

    def init(self, **options: Any) -> SimpleNamespace:
        self.inits.append(options)
        return SimpleNamespace(id=options["id"], log=self._log, finish=self._finish, offline=self.offline)

    def _log(self, values: dict[str, float], step: int) -> None:
        self.logged.append((step, values))

    def _finish(self) -> None:
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch) -> FakeWandb:
    module = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_wandb_writes_into_the_run_and_continues_it(output_dir, wandb):
    cfg = settings(output_dir, "tracking.report_to=[wandb]", "tracking.project=mine")
    write(cfg, range(1, 4), 0.0)
    write(cfg, range(3, 5), 0.0)
    first, second = wandb.inits
    assert first == second
    assert (first["project"], first["name"], first["resume"]) == ("mine", "run", "allow")
    assert first["dir"] == str(output_dir / "tracking")
    assert [step for step, _ in wandb.logged] == [1, 2, 3, 3, 4]
    assert wandb.finished == 2
    write(cfg, range(1, 2), 0.0)
    assert wandb.inits[2]["id"] != first["id"]


def test_a_folder_that_the_user_gave_wandb_is_kept(output_dir, wandb, monkeypatch):
    monkeypatch.setenv("WANDB_DIR", "/elsewhere")
    write(settings(output_dir, "tracking.report_to=[wandb]"), range(1, 2), 0.0)
    assert "dir" not in wandb.inits[0]


def test_a_tracker_that_fails_is_reported_once_and_the_run_continues(output_dir, wandb, monkeypatch, capsys):
    def fail(values: dict[str, float], step: int) -> None:
        raise ConnectionError(f"no server at step {step}\nand more")

    monkeypatch.setattr(wandb, "_log", fail)
    write(settings(output_dir, "tracking.report_to=[wandb]"), range(1, 4), 0.0)
    assert capsys.readouterr().out.count("wandb failed and receives no more numbers") == 1
    assert len(read_metrics(output_dir / "metrics.jsonl")) == 3
    assert wandb.finished == 1


def test_a_tracker_that_cannot_be_started_says_what_to_do(output_dir, wandb, monkeypatch):
    def fail(**options: Any) -> None:
        raise RuntimeError("api_key not configured (no-tty)")

    monkeypatch.setattr(wandb, "init", fail)
    with pytest.raises(RunError, match=r"wandb .*: api_key .* WANDB_MODE=offline"):
        write(settings(output_dir, "tracking.report_to=[wandb]"), range(1, 2), 0.0)


def test_wandb_gets_no_step_twice_where_no_server_would_ignore_it(output_dir, wandb):
    cfg = settings(output_dir, "tracking.report_to=[wandb]")
    write(cfg, range(1, 4), 0.0)
    wandb.offline = True
    write(cfg, range(3, 5), 0.0)
    assert [step for step, _ in wandb.logged] == [1, 2, 3, 4]
    write(settings(output_dir, "tracking.report_to=[wandb]"), range(1, 3), 0.0)  # a new run has sent nothing
    assert [step for step, _ in wandb.logged] == [1, 2, 3, 4, 1, 2]


class FakeTrackio(ModuleType):
    """Replaces `trackio`, which keeps the lines of each run by its name."""

    def __init__(self, folder: str) -> None:
        super().__init__("trackio")
        self.TRACKIO_DIR, self.config = folder, dict[str, Any]()
        self.found: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        self.Histogram = self.Image = self.Markdown = lambda *values, **named: (values, named)

    def init(self, project: str, name: str, resume: str) -> SimpleNamespace:
        assert (project, resume) == ("finetune-toolkit", "allow")
        lines = self.found.setdefault(name, [])
        return SimpleNamespace(log=lambda values, step: lines.append((step, values)), finish=lambda: None)

    def Api(self) -> SimpleNamespace:  # noqa: N802 - its name in Trackio
        return SimpleNamespace(runs=self._runs)

    def _runs(self, project: str) -> list[SimpleNamespace]:
        if not self.found:
            raise ValueError(f"Project '{project}' does not exist")
        return [SimpleNamespace(name=name) for name in self.found]


@pytest.fixture
def trackio(output_dir, monkeypatch) -> FakeTrackio:
    module = FakeTrackio(str(output_dir / "tracking" / "trackio"))
    monkeypatch.setitem(sys.modules, "trackio", module)
    return module


def test_trackio_continues_the_run_of_the_same_name(output_dir, trackio):
    cfg = settings(output_dir, "tracking.report_to=[trackio]", "tracking.run_name=mine")
    write(cfg, range(1, 4), 0.0)
    write(cfg, range(3, 5), 0.0)
    assert [step for step, _ in trackio.found["mine"]] == [1, 2, 3, 4]
    assert trackio.config["train.optim"] == cfg.train.optim
    write(cfg, range(1, 2), 0.0)
    (other,) = trackio.found.keys() - {"mine"}
    assert other.startswith("mine-")
    assert "TRACKIO_DIR" not in os.environ


def test_trackio_gets_what_a_finished_run_shows(output_dir, trackio):
    trackers = RunTrackers(settings(output_dir, "tracking.report_to=[trackio]"), output_dir)
    trackers.start(0)
    trackers.histograms({"weights/a": Histogram([2], [0.0, 1.0], 1.0, 0.5)}, 3)
    trackers.show(Exhibits(4, {"eval_f1": 0.5}, tables={"Samples": Table(["sample"], [["Once"]])}))
    trackers.close()
    (_, logged), (_, final) = trackio.found["run"]
    assert logged == {"weights/a": ((), {"np_histogram": ([2], [0.0, 1.0])})}
    assert final == {"final/eval_f1": 0.5, "report/samples": (("| sample |\n|---|\n| Once |",), {})}


def test_trackio_in_another_folder_is_rejected_because_it_would_write_there(output_dir, trackio):
    trackio.TRACKIO_DIR = "/of/a/former/run"
    with pytest.raises(RunError, match="/of/a/former/run"):
        write(settings(output_dir, "tracking.report_to=[trackio]"), range(1, 2), 0.0)


def test_a_tracker_that_is_missing_is_named_with_its_extra(output_dir, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    cfg = settings(output_dir, "tracking.report_to=[mlflow, trackio]")
    assert tracker_problems(cfg.tracking) == [
        f"tracking.report_to: {name} is not installed (pip install 'finetune-toolkit[{extra}]')"
        for name, extra in (("mlflow", "tracking"), ("trackio", "trackio"))
    ]


@pytest.mark.slow
def test_mlflow_keeps_one_run_with_every_step_once(output_dir):
    cfg = settings(output_dir, "tracking.report_to=[mlflow]", "tracking.run_name=mine")
    write(cfg, range(1, 4), 0.0)
    write(cfg, range(3, 6), 0.0)
    with opened(cfg, 5) as tracker:
        tracker.log({"step": 6, "eval_f1/3 stars!": 0.5})
    assert not mlflow.tracking.is_tracking_uri_set()  # a later run of the process writes into its own folder
    client = mlflow.MlflowClient(store(output_dir / "tracking"))
    (experiment,) = [each for each in client.search_experiments() if each.name != "Default"]
    assert experiment.artifact_location == (output_dir / "tracking" / "mlflow").as_uri()
    (run,) = client.search_runs([experiment.experiment_id])
    assert json.loads((output_dir / "tracking" / "ids.json").read_text()) == {"mlflow": run.info.run_id}
    assert (run.info.run_name, run.info.status) == ("mine", "FINISHED")
    assert run.data.params["train.optim"] == cfg.train.optim
    losses = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(each.step, each.value) for each in losses] == [(step, float(step)) for step in range(1, 6)]
    assert run.data.metrics["eval/f1/3 stars_"] == 0.5
    assert only_the_run_is_written(output_dir)


@pytest.mark.slow
def test_an_mlflow_run_that_fails_is_not_in_the_way_of_the_next(output_dir, monkeypatch):
    def fail(sink: MLflow, values: dict[str, float], step: int) -> None:
        raise ConnectionError("no server")

    with monkeypatch.context() as patch:
        patch.setattr(MLflow, "numbers", fail)
        write(settings(output_dir, "tracking.report_to=[mlflow]"), range(1, 3), 0.0)
    assert mlflow.active_run() is None
    next_one = output_dir.with_name("next")
    write(settings(next_one, "tracking.report_to=[mlflow]"), range(1, 2), 0.0)
    assert (next_one / "tracking" / "mlflow.db").is_file()


@pytest.mark.slow
def test_a_server_that_the_user_gave_mlflow_is_kept(output_dir, tmp_path, monkeypatch):
    server = f"sqlite:///{tmp_path}/here/server.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    write(settings(output_dir, "tracking.report_to=[mlflow]"), range(1, 2), 0.0)
    assert mlflow.get_tracking_uri() == server
    client = mlflow.MlflowClient(server)
    ids = [each.experiment_id for each in client.search_experiments() if each.name == "finetune-toolkit"]
    assert [run.data.metrics for run in client.search_runs(ids)] == [{"train/loss": 1.0}]
    assert not (output_dir / "tracking" / "mlflow.db").exists()
