"""The paths of all files in a run's folder; docs/outputs.md and docs/checkpoints.md describe them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class _Inside:
    """The path of a file or folder with a fixed name inside a run or checkpoint."""

    def __init__(self, name: str, doc: str) -> None:
        self.name, self.__doc__ = name, doc

    def __get__(self, folder: RunFolder | CheckpointFolder, owner: type) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """Paths of the files in a run's `output_dir`, which need not exist."""

    path: Path

    config = _Inside("config.yaml", "Every setting, resolved.")
    facts = _Inside("run.json", "Facts about the run, and its results.")
    diff = _Inside("uncommitted.diff", "Uncommitted changes of the recipe's git checkout.")
    metrics = _Inside("metrics.jsonl", "One line per logged step and per evaluation.")
    metrics_damaged = _Inside("metrics.jsonl.damaged", "The former file, if a resume found its lines changed.")
    checkpoints = _Inside("checkpoints", "Folder of the checkpoints.")
    model = _Inside("model", "Folder of the final model and its processor.")
    model_card = _Inside("model/README.md", "The model card.")
    decision = _Inside("decision.json", "How the model's answers are decided, by `toolkit calibrate`.")
    base = _Inside("base", "Folder of a new base model while its adapters are trained; at the end, `model/base`.")
    processor = _Inside("processor", "Folder of a processor that was built from the training rows.")
    report_html = _Inside("report.html", "The report for a browser.")
    report_md = _Inside("report.md", "The report as Markdown.")
    curves = _Inside("curves.svg", "All curves, for the Markdown report.")
    bad_rows = _Inside("bad_rows.jsonl", "Rows that the run skipped.")
    bad_rows_evaluate = _Inside("bad_rows_evaluate.jsonl", "Rows that `toolkit evaluate` skipped.")
    refit = _Inside("refit", "Output folder of the run that trains again on all rows (`train.refit`).")
    snapshots = _Inside("snapshots", "Folder of the models of a snapshot ensemble.")
    merged = _Inside("merged", "Folder of the model that `toolkit merge` makes.")
    tracking = _Inside("tracking", "Folder for trackers.")
    stacks = _Inside("stacks", "Folder of the stacks of all ranks, if one of them stalled.")
    lock = _Inside(".lock", "The lock file of a run in progress.")
    lock_owner = _Inside(".lock.owner", "The file that stands for a lock where the file system has none.")
    lock_removal = _Inside(".lock.owner.removal", "The file of a process that removes the `lock_owner` of a dead run.")

    def system(self, rank: int = 0) -> Path:
        """Returns the file of samples of a process's use of its machine."""
        return self.path / (f"system-rank{rank}.jsonl" if rank else "system.jsonl")

    def checkpoint(self, step: int | None) -> CheckpointFolder:
        """Returns the folder of the checkpoint of a step."""
        return CheckpointFolder(self.checkpoints / f"step-{step}")

    def predictions(self, dataset: str) -> Path:
        """Returns the file of the predictions on an evaluation set, `validation` or `test`."""
        return self.path / ("predictions.jsonl" if dataset == "validation" else f"predictions_{dataset}.jsonl")

    def generated(self, dataset: str) -> Path:
        """Returns the file of the generated answers to the rows of an evaluation set; `start`: before training."""
        return self.path / ("answers.jsonl" if dataset == "validation" else f"answers_{dataset}.jsonl")

    def confusion(self, dataset: str) -> Path:
        """Returns the image of the confusion matrix of an evaluation set."""
        return self.path / f"confusion_{dataset}.png"

    def results(self) -> list[Path]:
        """Returns the files of predictions and of the report, which describe the model."""
        names = ("validation", "test", "earlier")
        sets = [path for name in names for path in (self.predictions(name), self.confusion(name), self.generated(name))]
        calibration = [self.path / f"calibration.{suffix}" for suffix in ("html", "md", "svg")]
        return [*sets, self.report_html, self.report_md, self.curves, self.decision, *calibration]

    def snapshot(self, step: int) -> Path:
        """Returns the file of the weights of a step's snapshot."""
        return self.snapshots / f"step-{step}.safetensors"


@dataclass(frozen=True)
class CheckpointFolder:
    """Paths of a checkpoint's files, which need not exist.

    With `checkpoint.format: sharded`, tensors are in folders instead (`shard`).
    """

    path: Path

    model = _Inside("model.safetensors", "Parameters and buffers.")
    optimizer = _Inside("optimizer.safetensors", "The optimizer's state.")
    state = _Inside("state.json", "Counters, and the settings that must be the same on resume.")
    processor = _Inside("processor", "Folder of the tokenizer, image processor or feature extractor.")
    manifest = _Inside("manifest.json", "Size and sha256 of every other file; written last.")

    def callback(self, name: str) -> Path:
        """Returns the file of a callback's tensors."""
        return self.path / f"{name}.safetensors"

    def shard(self, name: str, number: int, count: int) -> Path:
        """Returns file `number`, from 0, of `count` with parts of the tensors `name`; processes alternate.

        The tensors are `model`, `optimizer` or those of a callback.
        """
        return self.path / name / f"shard-{number + 1:05d}-of-{count:05d}.safetensors"
