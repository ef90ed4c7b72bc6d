"""Evaluation: predicts, gathers predictions, orders them by row id and computes the task's metrics.

Rows are split over ranks without repetition and predictions are ordered by row id, so metrics depend neither on the
number of processes nor on the batch size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from toolkit.api.batch import IGNORE_INDEX, Batch, EvalData, Predictions, Record, logits_at_labels, to_device
from toolkit.api.run import Evaluation, Predictor
from toolkit.api.training import Training
from toolkit.base.console import progress
from toolkit.base.errors import RunError
from toolkit.data.batching.batches import evaluation_loader
from toolkit.data.batching.workers import ended_workers, num_workers
from toolkit.distributed.collectives import data_sum, on_main
from toolkit.engine.own_metrics import own_scores
from toolkit.engine.stopping import Abandoned, abandon_together, any_rank_stops, interruptible
from toolkit.system.phases import in_phase

if TYPE_CHECKING:
    from accelerate import Accelerator


Part = tuple[np.ndarray, dict[str, np.ndarray]]


def scatter(parts: list[Part], num_rows: int) -> Predictions:
    """Puts the predictions of batches into row order, `[num_rows, ...]`, with `IGNORE_INDEX` behind short ones."""
    ids = np.concatenate([row_ids for row_ids, _ in parts])
    if not np.array_equal(np.sort(ids), np.arange(num_rows)):
        raise AssertionError(f"expected one prediction for each of {num_rows} rows, got {len(ids)} predictions")
    result: Predictions = {}
    for name, first in parts[0][1].items():
        arrays = [part[name] for _, part in parts]
        shape = np.max([array.shape[1:] for array in arrays], axis=0).astype(int)
        out = np.full((num_rows, *shape), IGNORE_INDEX, dtype=first.dtype)
        for (row_ids, _), array in zip(parts, arrays, strict=True):
            place: Any = (row_ids, *(slice(size) for size in array.shape[1:]))
            out[place] = array
        result[name] = out
    return result


def predict(
    predictor: Predictor,
    model: nn.Module,
    data: EvalData,
    title: str,
    beat: Callable[[], None] | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
) -> tuple[Predictions, float, float]:
    """Predicts every row of an evaluation set, with a model without DDP, which would wait for ranks with fewer batches.

    During training, `beat` is called after each batch, while the progress bar of the training is shown, and
    `is_stopping` says whether this process should abandon the evaluation.

    Returns:
        Predictions `[rows, ...]` by name in row order on the main process (empty on others), and the summed loss and
        the number of items on every process.

    Raises:
        Abandoned: on every process, if any of them should abandon the evaluation.
    """
    accelerator, task = predictor.accelerator, predictor.task
    workers = num_workers(predictor.cfg.train, task, accelerator.device)
    loader = evaluation_loader(
        data.features, task, predictor.processor, predictor.cfg, predictor.mesh, workers, data.kept
    )
    parts, loss_sum, num_items = list[Part](), 0.0, 0.0
    bar = progress(len(data.features), title, inner=beat is not None, unit="row")
    stoppable = interruptible(model, predictor.mesh, is_stopping)
    with torch.no_grad(), _evaluating(model), ended_workers(loader), stoppable, kept_casts(predictor), bar:
        for asked, cpu_batch in zip(loader.batch_sampler or (), loader, strict=True):
            if any_rank_stops(predictor, is_stopping):
                break
            num_items += float(task.count_items(cpu_batch))
            loss, found = predict_batch(predictor, model, _checked(asked, cpu_batch))
            loss_sum += loss
            parts += found
            # All ranks together; the last of their batches may have fewer rows.
            bar.update(min(len(cpu_batch["row_ids"]) * predictor.mesh.data_size, bar.total - bar.n))
            if beat is not None:
                beat()
    abandon_together(accelerator, is_stopping)
    loss_sum, num_items = data_sum(accelerator, predictor.mesh, loss_sum, num_items)
    gathered = gather(accelerator, parts if predictor.mesh.counts else [])
    rows = scatter(gathered, len(data.features)) if accelerator.is_main_process else {}
    return rows, loss_sum, num_items


def _checked(asked: list[int], batch: Batch) -> Batch:
    """Returns a batch after checking that it has the rows that were asked for: others have other labels."""
    got = batch["row_ids"].tolist()
    if got != (asked or [-1]):
        raise AssertionError(f"the rows {asked} were asked for, and the loader returned the rows {got}")
    return batch


def kept_casts(predictor: Predictor) -> AbstractContextManager[Any]:
    """Lets each pass, whose autocast is inside, find the 16-bit weights of the one before; they must not change.

    Weights that processes share are gathered anew in each pass, and would all be kept.
    """
    kind = predictor.accelerator.device.type
    return nullcontext() if predictor.mesh.is_split else torch.autocast(kind, enabled=False)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def predict_batch(predictor: Predictor, model: nn.Module, cpu_batch: Batch) -> tuple[float, list[Part]]:
    """Returns the summed loss and the predictions of a collated batch; empty but on the last stage of a pipeline.

    The model is in evaluation mode; the caller disables gradients.
    """
    task, row_ids = predictor.task, cpu_batch["row_ids"]
    batch = to_device(cpu_batch, predictor.accelerator.device)
    with logits_at_labels(batch):
        outputs = task.forward(model, batch)
    if outputs is None:
        return 0.0, []
    loss, predictions = float(task.loss_sum(outputs, batch)), task.predict(model, outputs, batch)
    if not (row_ids >= 0).all():  # a batch without rows holds a masked one
        return loss, []
    return loss, [(row_ids.numpy(), {name: tensor.cpu().numpy() for name, tensor in predictions.items()})]


class NonFiniteLoss(RunError):  # noqa: N818 - the name says it
    """The loss of an evaluation is not finite; raised on every process."""

    shared = True


def evaluate(
    predictor: Predictor,
    model: nn.Module,
    data: EvalData,
    title: str,
    beat: Callable[[], None] | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """Predicts an evaluation set and computes its metrics; arguments, and Abandoned, as for `predict`.

    Returns:
        Metrics on every process, and predictions on the main process. Without items, the loss is NaN.

    Raises:
        NonFiniteLoss: on every process, if the loss of items is not finite.
    """
    predictions, loss_sum, num_items = predict(predictor, model, data, title, beat, is_stopping)
    if num_items and not math.isfinite(loss_sum):
        raise NonFiniteLoss(f"{title}: the loss is {loss_sum}, so the model's predictions cannot be used")
    loss = loss_sum / num_items if num_items else math.nan
    records: Iterable[Record] = ()
    generated: Iterable[Record] = ()
    written: Predictions = {}
    if data.prompts is not None:
        written, *_ = predict(predictor, model, data.prompts, f"{title}, generated", beat, is_stopping)

    def score() -> dict[str, float]:
        nonlocal records, generated
        records = predictor.task.decode(predictions, data)
        found = predictor.task.metrics(records, predictions, data)
        if data.prompts is not None:
            generated = predictor.task.decode(written, data.prompts)
            found |= predictor.task.generated_scores(generated)
        return found | own_scores(predictor.cfg, predictor.task, records, found)

    metrics = on_main(predictor.accelerator, score)
    return Evaluation({"loss": loss, **metrics}, predictions, records, generated)


def gather(accelerator: Accelerator, parts: list[Part]) -> list[Part]:
    """Returns the parts of all processes."""
    if accelerator.num_processes == 1:
        return parts
    gathered: list[list[Part] | None] = [None] * accelerator.num_processes
    torch.distributed.gather_object(parts, gathered if accelerator.is_main_process else None)
    return [part for rank_parts in gathered if rank_parts for part in rank_parts]


class Evaluator:
    """Evaluates a training's evaluation sets with the current parameters."""

    def __init__(self, training: Training, pause: Callable[[], None]) -> None:
        self.training, self._pause = training, pause
        self._validation: tuple[int, Evaluation] | None = None

    @in_phase("evaluate")
    def evaluate(self, name: str) -> Evaluation | None:
        """Evaluates `validation`, whose result is cached for its step, or `test`; None if the run has no such rows."""
        training, run = self.training, self.training.run
        if name not in run.data.evals:
            return None
        if name == "validation" and self._validation is not None and self._validation[0] == training.state.step:
            return self._validation[1]
        self._pause()
        result = None
        with training.as_result(), run.strategy.full_model() as model:
            try:
                result = evaluate(run, model, run.data.evals[name], name, training.beat, training.is_stopping)
            except Abandoned:  # parameters must be those of training again when it is raised
                pass
            except RunError as error:
                named = RunError(f"step {training.state.step}: {error}. Checkpoints of earlier steps are kept")
                named.shared = error.shared
                raise named from error
        if result is None:
            raise Abandoned
        if name == "validation":
            self._validation = (training.state.step, result)
        return result

    def forget(self) -> None:
        """Discards the cached result, because parameters have changed without a new step."""
        self._validation = None

    def note_best(self, metrics: dict[str, float]) -> bool:
        """Records the step as the best one, and returns true, if its `eval_` metrics are the best so far."""
        state, best = self.training.state, self.training.run.best
        value, sign = metrics[best.name], 1 if best.greater_is_better else -1
        if math.isnan(value) or (state.best_metric is not None and sign * value <= sign * state.best_metric):
            return False
        state.best_metric, state.best_step = value, state.step
        return True
