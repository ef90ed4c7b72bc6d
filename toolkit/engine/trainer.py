"""The engine `trainer`: the same windows and hooks inside `transformers.Trainer`, with its callbacks.

The Trainer provides the loop over epochs and steps, the callbacks and the preparation of the model. Row order, loss,
gradients, optimizer, schedule, evaluation and checkpoints are the toolkit's and are connected through the Trainer's
hooks. A run therefore ends with bit-identical parameters under `engine: loop`, and each engine can resume from the
other's checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback, Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState

from toolkit.api.batch import Batch
from toolkit.api.run import FitResult, Run
from toolkit.api.training import Callback
from toolkit.base.console import progress
from toolkit.checkpoint.state import SavedState
from toolkit.data.batching.batches import Windows
from toolkit.engine.trainer_arguments import callbacks, training_arguments
from toolkit.engine.training import Session
from toolkit.optim.optimizers import build_optimizer
from toolkit.optim.schedules import build_schedule, in_steps
from toolkit.system.phases import in_phase, phase

CALLBACK_STATES = "trainer_callbacks"
"""Name of the callbacks' states in a checkpoint, which are stored by the callback's name in the YAML."""


def fit(run: Run, observers: Sequence[Callback] = ()) -> FitResult:
    """Trains a run to its end; see `toolkit.engine.fit`.

    Raises:
        ConfigError: if the Trainer rejects its arguments.
        RunError: if an update would be non-finite, or a checkpoint cannot be written.
        Interrupted: after a stop signal, once a checkpoint has been written.
    """
    with Session.opened(run, observers) as session:
        trainer, start = WindowTrainer(session), run.resume.step if run.resume else 0
        with progress(session.milestones.total_steps, "train", initial=start) as trainer.bar:
            trainer.train()
        if not session.over:
            session.end()
        return session.finish()


class WindowTrainer(Trainer):
    """A Trainer whose optimizer steps are the toolkit's windows; the session is open and not started."""

    def __init__(self, session: Session) -> None:
        self.session, self.run = session, session.run
        run = session.run
        self.bar: Any
        self.schedule: LambdaLR
        self.window: list[Batch] = []
        # Windows then differ in their number of micro-batches, so each is one item for the Trainer.
        self.has_budget = run.cfg.train.max_tokens_per_batch is not None
        self.scale = self.grad_norm = 0.0
        self.loss_sum: torch.Tensor
        # Counted once, and before the strategy can leave empty parameters.
        self.num_weights: int = run.model.num_parameters(exclude_embeddings=True)
        validation = run.data.evals.get("validation")
        own = callbacks(run.cfg.trainer)
        self.exportable = {name: callback for name, callback in own.items() if isinstance(callback, ExportableState)}
        super().__init__(
            model=run.model,
            args=training_arguments(run, session.milestones),
            eval_dataset=validation.features if validation else None,
            callbacks=[_Steps(self), *own.values()],
        )
        self.remove_callback(PrinterCallback)
        self.callback_handler.processing_class = run.processor  # if passed above, the Trainer would change its tokens

    def create_accelerator_and_postprocess(self) -> None:
        """Uses the run's Accelerator, because its scaler and gradient exchange affect the results."""
        super().create_accelerator_and_postprocess()
        self.accelerator = self.run.accelerator

    def get_train_dataloader(self) -> Any:
        """Returns the toolkit's loader, which is already split over the ranks; with a token budget, that of windows."""
        loader = self.session.loader
        return Windows(loader, self.session.sampler) if self.has_budget else loader

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """Builds the configured optimizer and its schedule, which needs the optimizer before it is prepared."""
        optimizer = build_optimizer(self.run.model, self.run.cfg.train, self.run.strategy.outline)
        self.run.strategy.prepare_optimizer(optimizer)
        milestones = self.session.milestones
        lengths = in_steps(self.run.cfg.train, milestones.steps_per_epoch)
        self.schedule = build_schedule(optimizer, lengths, milestones.total_steps)
        self.optimizer = optimizer
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LambdaLR:
        """Returns the configured schedule."""
        self.lr_scheduler = self.schedule
        return self.schedule

    def _init_training_state(self, *arguments: Any) -> tuple[int, int]:
        """Returns the first epoch, and no batches to skip, because the sampler starts at the right window."""
        first = super()._init_training_state(*arguments)
        if self.run.resume is None:
            return first
        self.state.global_step = self.run.resume.step
        for name, state in (SavedState.from_json(self.run.resume.state).trainer_callbacks or {}).items():
            for attribute, value in state.items() if name in self.exportable else ():
                setattr(self.exportable[name], attribute, value)
        return self.run.resume.step // self.session.milestones.steps_per_epoch, 0

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], None]:
        """Fetches a window and counts its items; returns an empty window at the end of the run or epoch."""
        with phase("fetch"):
            found = [] if self.session.over else list(islice(epoch_iterator, num_batches))
        self.window = found[0] if found and self.has_budget else found
        if self.window:
            self.scale = self.session.begin_window(self.window)
        return found, None

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Computes the gradient of the window at its last micro-batch and returns its loss, zero before."""
        if not self.accelerator.sync_gradients:
            return torch.zeros((), device=self.accelerator.device)
        self.loss_sum = self.session.window_gradient(self.window, self.scale)
        return self.loss_sum * self.scale

    @in_phase("clip")
    def _clip_grad_norm(self, model: nn.Module) -> float:
        """Clips the gradient and returns its norm before clipping."""
        return self.run.strategy.clip(self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> float:
        """Returns the norm before clipping, and checks the update."""
        with phase("clip"):
            self.grad_norm = self.run.strategy.clip(0.0) if grad_norm is None else float(grad_norm)
        self.session.check_update(self.grad_norm)
        return self.grad_norm

    def _maybe_log_save_evaluate(self, *arguments: Any, **more: Any) -> None:
        """Logs, evaluates and saves when a milestone or a callback requests it."""
        if self.control.should_log and self.session.state.num_items:
            self.log(self.session.log())
        if self.control.should_evaluate:
            self.evaluate()
        if self.control.should_save:
            self.session.save()
            self.control.should_save = False
        self.control.should_training_stop |= self.session.over
        self.session.meter.start()

    def evaluate(self, *arguments: Any, **more: Any) -> dict[str, float]:
        """Evaluates on the validation rows like every engine, and notifies the callbacks."""
        return self.session.evaluate(self._tell_evaluation)

    def _tell_evaluation(self, metrics: dict[str, float]) -> None:
        self.log(dict(metrics))
        # Callbacks compare with the best metric before this evaluation, as those of the library do.
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self._tell_best()

    def on_save(self) -> None:
        """Notifies the callbacks of a checkpoint, whether due to a milestone, the best metric or the run's end."""
        self._tell_best()
        self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    def _tell_best(self) -> None:
        self.state.best_metric = self.session.state.best_metric
        self.state.best_global_step = self.session.state.best_step

    def floating_point_ops(self, inputs: Any) -> int:
        """Estimates an item's operations like the library, without counting the parameters every time."""
        batches = inputs if self.has_budget else [inputs]
        mains = [batch["inputs"].get(self.run.model.main_input_name) for batch in batches]
        return sum(6 * main.numel() * self.num_weights for main in mains if main is not None)

    def callback_states(self) -> dict[str, Any]:
        """Returns the callbacks' states for a checkpoint."""
        return {CALLBACK_STATES: {name: callback.state()["attributes"] for name, callback in self.exportable.items()}}


class _Steps(TrainerCallback):
    """Calls the session's hooks at the Trainer's events."""

    def __init__(self, trainer: WindowTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        t, optimizer = self.trainer, cast(Optimizer, self.trainer.optimizer)
        # Everything is prepared and nothing has been fetched yet, so the checkpoint is restored here.
        t.session.start(t.model_wrapped, optimizer, t.schedule, t.callback_states, t.on_save, t.evaluate)
        t.model_wrapped.train()
        t._tell_best()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.trainer.session.seek()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.learning_rate = float(self.trainer.schedule.get_last_lr()[0])
        self.outer = self.trainer.session.phases.enter("update")

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        t, session = self.trainer, self.trainer.session
        session.phases.leave(self.outer)
        session.count_step(t.loss_sum, t.grad_norm, self.learning_rate)
        state.epoch = session.epoch
        due = session.milestones.after(session.state.step)
        control.should_log |= due.log
        control.should_evaluate |= due.evaluate
        control.should_save |= due.save
        t.bar.set_postfix(session.shown(), refresh=False)
        t.bar.update()
