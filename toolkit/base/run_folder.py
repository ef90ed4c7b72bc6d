"""The paths of all files in a run's folder; docs/outputs.md and docs/checkpoints.md describe them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run's files, which need not exist.

    Args:
        path: the run's `output_dir`.
    """

    path: Path

    @property
    def config(self) -> Path:
        """Every setting, resolved."""
        return self.path / "config.yaml"

    @property
    def facts(self) -> Path:
        """Facts about the run, and its results."""
        return self.path / "run.json"

    @property
    def diff(self) -> Path:
        """Uncommitted changes of the recipe's git checkout."""
        return self.path / "uncommitted.diff"

    @property
    def metrics(self) -> Path:
        """One line per logged step and per evaluation."""
        return self.path / "metrics.jsonl"

    def system(self, rank: int = 0) -> Path:
        """Returns the file of samples of what a process uses."""
        return self.path / (f"system-rank{rank}.jsonl" if rank else "system.jsonl")

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    def checkpoint(self, step: int | None) -> CheckpointFolder:
        """Returns the folder of the checkpoint of a step."""
        return CheckpointFolder(self.checkpoints / f"step-{step}")

    @property
    def model(self) -> Path:
        """Folder of the final model and its processor."""
        return self.path / "model"

    @property
    def model_card(self) -> Path:
        """The model card."""
        return self.model / "README.md"

    @property
    def base(self) -> Path:
        """Folder of a new base model while its adapters are trained; it becomes `model/base` at the end."""
        return self.path / "base"

    @property
    def processor(self) -> Path:
        """Folder of a processor that was built from the training rows."""
        return self.path / "processor"

    def predictions(self, dataset: str) -> Path:
        """Returns the file of the predictions on an evaluation set, `validation` or `test`."""
        return self.path / ("predictions.jsonl" if dataset == "validation" else f"predictions_{dataset}.jsonl")

    @property
    def report_html(self) -> Path:
        """The report for a browser."""
        return self.path / "report.html"

    @property
    def report_md(self) -> Path:
        """The report as Markdown."""
        return self.path / "report.md"

    @property
    def curves(self) -> Path:
        """All curves, for the Markdown report."""
        return self.path / "curves.svg"

    def confusion(self, dataset: str) -> Path:
        """Returns the image of the confusion matrix of an evaluation set."""
        return self.path / f"confusion_{dataset}.png"

    def results(self) -> list[Path]:
        """Returns the files of predictions and of the report, which describe the model."""
        sets = [path for name in ("validation", "test") for path in (self.predictions(name), self.confusion(name))]
        return [*sets, self.report_html, self.report_md, self.curves]

    @property
    def bad_rows(self) -> Path:
        """Rows that the run skipped."""
        return self.path / "bad_rows.jsonl"

    @property
    def bad_rows_evaluate(self) -> Path:
        """Rows that `toolkit evaluate` skipped."""
        return self.path / "bad_rows_evaluate.jsonl"

    @property
    def snapshots(self) -> Path:
        """Folder of the models of a snapshot ensemble."""
        return self.path / "snapshots"

    def snapshot(self, step: int) -> Path:
        """Returns the file of the weights of a step's snapshot."""
        return self.snapshots / f"step-{step}.safetensors"

    @property
    def merged(self) -> Path:
        """Folder of the model that `toolkit merge` makes."""
        return self.path / "merged"

    @property
    def tracking(self) -> Path:
        """Folder for trackers."""
        return self.path / "tracking"

    @property
    def stacks(self) -> Path:
        """Folder of the stacks of all ranks, if one of them stalled."""
        return self.path / "stacks"

    @property
    def lock(self) -> Path:
        """The lock file of a run in progress."""
        return self.path / ".lock"

    @property
    def lock_owner(self) -> Path:
        """The file that stands for a lock where the file system has none."""
        return self.path / ".lock.owner"

    @property
    def lock_removal(self) -> Path:
        """The file of a process that removes the `lock_owner` of a dead run."""
        return self.path / ".lock.owner.removal"


@dataclass(frozen=True)
class CheckpointFolder:
    """Paths of a checkpoint's files, which need not exist.

    With `checkpoint.format: sharded`, tensors are in folders instead (`shard`).

    Args:
        path: the checkpoint's folder.
    """

    path: Path

    @property
    def model(self) -> Path:
        """Parameters and buffers."""
        return self.path / "model.safetensors"

    @property
    def optimizer(self) -> Path:
        """The optimizer's state."""
        return self.path / "optimizer.safetensors"

    @property
    def state(self) -> Path:
        """Counters, and the settings that must be the same on resume."""
        return self.path / "state.json"

    @property
    def processor(self) -> Path:
        """Folder of the tokenizer, image processor or feature extractor."""
        return self.path / "processor"

    def callback(self, name: str) -> Path:
        """Returns the file of a callback's tensors."""
        return self.path / f"{name}.safetensors"

    def shard(self, name: str, number: int, count: int) -> Path:
        """Returns a file with parts of the tensors `name`: `model`, `optimizer` or those of a callback.

        Args:
            name: name of the tensors.
            number: the file's number, from 0; files of several processes alternate.
            count: number of files.
        """
        return self.path / name / f"shard-{number + 1:05d}-of-{count:05d}.safetensors"

    @property
    def manifest(self) -> Path:
        """Size and sha256 of every other file; written last."""
        return self.path / "manifest.json"
