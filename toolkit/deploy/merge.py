"""Merges adapters into the model's weights and verifies that the outputs stay the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.base.files import expanded

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from toolkit.api.task import Batch
    from toolkit.config.sections import Config
    from toolkit.deploy.trained import TrainedRun


ROWS = 8
"""Number of rows on which the merged model is compared with the adapters."""
TOLERANCE = 1e-4
"""Largest allowed difference of logits, relative to the largest logit."""


def refuse_unmergeable(cfg: Config) -> None:
    """Refuses a run whose adapters are not part of weights.

    Raises:
        InputError: with the reason.
    """
    from toolkit.base.errors import InputError

    reasons = {
        "none": "it trained the full model, which is in its folder model/",
        "prompt_tuning": "virtual tokens are inputs, not weights; load its folder model/ with peft",
        "qlora": "4-bit weights cannot hold the sum, and others would change the outputs; load its folder "
        "model/ with peft",
    }
    if why := reasons.get(cfg.model.peft.method):
        raise InputError(f"this run (model.peft.method={cfg.model.peft.method}) has nothing to merge: {why}.")


def rows_file(cfg: Config, given: str | None) -> str:
    """Returns the file whose first rows are used to verify the merge.

    Raises:
        InputError: if neither it nor one of the run's own files exists.
    """
    from toolkit.base.errors import InputError
    from toolkit.config.paths import files_of

    own = [name for name in (cfg.data.validation_file, cfg.data.train_file) if name]
    for name in [given] if given else own:
        if all(expanded(part).exists() for part in files_of(name)):
            return name
    known = f"({', '.join(own)})" if own else "(they came from the Hub)"
    raise InputError(f"--data: give a file with rows to compare on; the run's own files were not found {known}")


def batch_of(run: TrainedRun, file: str) -> Batch:
    """Returns the first rows of a file as a batch of model inputs."""
    from toolkit.api.device import to_device
    from toolkit.api.mesh import Mesh
    from toolkit.data.bad_rows import apply_policy
    from toolkit.data.batches import evaluation_loader
    from toolkit.data.prepare import tokenise
    from toolkit.data.reading import Reading
    from toolkit.data.rows import load_table

    data = run.cfg.data
    tables = {"input": load_table(file, run.task, data.columns, labelled=False, reading=Reading.of(data))}
    apply_policy(tables, "skip")
    rows = tables["input"].rows
    features = tokenise(rows.select(range(min(ROWS, len(rows)))), run.task, run.processor, labelled=False)
    cfg = replace(run.cfg, eval=replace(run.cfg.eval, per_device_eval_batch_size=ROWS))
    loader = evaluation_loader(features, run.task, run.processor, cfg, Mesh())
    return to_device(next(iter(loader)), run.accelerator.device)


def logits_of(model: Any, batch: Batch) -> Tensor:
    """Returns all outputs of a model as one tensor `[N]`."""
    import torch

    model.eval()
    with torch.no_grad():
        outputs = model(**batch["inputs"])
    names = ("logits", "start_logits", "end_logits")
    return torch.cat([outputs[name].double().flatten().cpu() for name in names if name in outputs])


def write_merged(run: TrainedRun, folder: Path) -> None:
    """Merges the adapters of a run in place, and writes the model and its processor."""
    from toolkit.models.adapters import merged

    merged(run.accelerator.unwrap_model(run.model)).save_pretrained(folder)
    run.processor.save_pretrained(folder)


def reloaded(run: TrainedRun, folder: Path) -> PreTrainedModel:
    """Loads a model of a run with transformers alone, as users will, in float32."""
    import torch
    import transformers

    auto_class = getattr(transformers, run.task.auto_model(run.accelerator.unwrap_model(run.model).config))
    remote = run.cfg.model.trust_remote_code
    model = auto_class.from_pretrained(folder, trust_remote_code=remote, dtype=torch.float32)
    return model.to(run.accelerator.device).eval()
