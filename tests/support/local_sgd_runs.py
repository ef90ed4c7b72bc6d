"""Runs with `train.strategy: local_sgd` on two processes, for `test_local_sgd`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from accelerate.state import AcceleratorState
from runs import SGD, train, weights
from stopping import StoppedError
from torch import distributed as dist

import toolkit.models.build
from toolkit.base.errors import RunError
from toolkit.distributed.strategies.local_sgd import LocalSGD
from toolkit.engine.training import Session

LOCAL = "train.strategy=local_sgd"
ROWS = (
    "data.max_train_samples=37",
    "train.num_train_epochs=3",
    "train.per_device_train_batch_size=2",
    "train.gradient_accumulation_steps=2",
    "eval.eval_steps=null",
    "checkpoint.save_steps=null",
)
"""Windows of 8 rows, five per epoch; the last one has five rows, so that processes get different numbers of rows."""
EXACT = (*ROWS, *SGD, "train.max_grad_norm=0", "train.optim_args.momentum=0.9", "train.weight_decay=0.1",
         "train.learning_rate=0.1")  # fmt: skip
EVERY_STEP = (LOCAL, "train.local_sgd_steps=1", "train.local_sgd_average_moments=true")
EMPTY = ("data.max_train_samples=3", "train.per_device_train_batch_size=4", "train.gradient_accumulation_steps=1")
"""With three rows in windows of 8, the second process has no rows."""
SHORT = ("train.max_steps=6",)
"""Few steps for float32, where rounding errors grow with each step."""
DROPOUT = ("model.config_overrides.hidden_dropout_prob=0.1", "model.config_overrides.attention_probs_dropout_prob=0.1")
RESUMED = (*ROWS, *DROPOUT, LOCAL, "train.local_sgd_steps=3", "train.local_sgd_warmup_steps=2", "eval.eval_steps=7",
           "checkpoint.save_steps=4", "train.local_sgd_outer_lr=0.7", "tracking.logging_steps=3")  # fmt: skip
"""AdamW with clipping; averages after steps 5, 8, 11, 14, and evaluations or checkpoints after 4, 7, 8, 12, 14, 15."""


def main(output: Path) -> None:
    """Trains all runs that the tests compare."""
    train("reviews", output / "local-sync", *EXACT, double=True)
    train("reviews", output / "local-1", *EXACT, *EVERY_STEP, double=True)
    train("reviews", output / "local-1-float", *EXACT, *EVERY_STEP, *SHORT)
    train("reviews", output / "local-sync-float", *EXACT, *SHORT)
    train("reviews", output / "local-warm", *EXACT, LOCAL, "train.local_sgd_warmup_steps=14", double=True)
    train("reviews", output / "local-nesterov", *EXACT, "train.optim_args.nesterov=true", double=True)
    # Plain SGD with an outer Nesterov optimizer equals Nesterov SGD, with the product of both learning rates.
    train("reviews", output / "local-outer", *EXACT, *EVERY_STEP, "train.optim_args.momentum=0.0",
          "train.learning_rate=0.2", "train.local_sgd_outer_lr=0.5", double=True)  # fmt: skip
    train("reviews", output / "local-empty", *EXACT, *EVERY_STEP, *EMPTY, double=True)
    for period in (1, 8):
        with checked_averages(output / f"averages-{period}.json"):
            train("reviews", output / f"period-{period}", *ROWS, LOCAL, f"train.local_sgd_steps={period}",
                  "train.max_steps=16", "tracking.logging_steps=1")  # fmt: skip
    for engine in ("loop", "trainer"):
        train("reviews", output / f"local-{engine}", *RESUMED, f"engine={engine}")
    AcceleratorState._reset_state()  # the precision is global to the process
    train("reviews", output / "local-bf16", *RESUMED, "train.mixed_precision=bf16")
    AcceleratorState._reset_state()
    stopped_and_resumed(output / "local-parts")
    with_buffers_and_frozen_parameters(output)
    failed_on_one_rank(output)


@contextmanager
def checked_averages(file: Path) -> Iterator[None]:
    """Asserts after each average that all ranks have the same weights, and writes the steps of the averages."""
    average, steps = LocalSGD.average, []

    def checked(self: LocalSGD) -> None:
        average(self)
        own = torch.stack([value.double().sum() for value in self.model.state_dict().values()])
        others = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(others, own)
        assert all(torch.equal(own, other) for other in others)
        steps.append(self.replica.state.step)

    with patch.object(LocalSGD, "average", checked):
        yield
    file.write_text(json.dumps(steps))


def with_buffers_and_frozen_parameters(output: Path) -> None:
    """Trains a model with batch normalisation, frozen embeddings and an unused parameter."""
    build, kept = toolkit.models.build.build_model, {}

    def changed(*arguments):
        model = build(*arguments)
        model.classifier = torch.nn.Sequential(torch.nn.BatchNorm1d(32), model.classifier)
        model.unused = torch.nn.Parameter(torch.ones(3))
        model.bert.embeddings.requires_grad_(False)
        kept.update({name: value.clone() for name, value in model.bert.embeddings.state_dict().items()})
        return model

    with patch("toolkit.models.build.build_model", changed), checked_averages(output / "averages-buffers.json"):
        train("reviews", output / "local-buffers", *ROWS, LOCAL, "train.local_sgd_steps=2", "train.max_steps=5",
              "train.local_sgd_warmup_steps=1", "train.local_sgd_average_moments=true", "data.max_train_samples=40",
              "tracking.logging_steps=1", "checkpoint.save_steps=2")  # fmt: skip
    saved = weights(output / "local-buffers")
    assert all(
        torch.equal(saved[f"bert.embeddings.{name}"], value) for name, value in kept.items() if "ids" not in name
    )


def stopped_and_resumed(folder: Path) -> None:
    """Stops a run between two averages, as if killed, and resumes it with the other engine; twice."""
    begin = Session.begin_window
    for step, engine in ((7, "loop"), (11, "trainer"), (None, "loop")):

        def begin_or_stop(self, batches, step=step):
            if self.state.step + 1 == step:
                raise StoppedError
            return begin(self, batches)

        with patch.object(Session, "begin_window", begin_or_stop):
            try:
                train("reviews", folder, *RESUMED, f"engine={engine}", "checkpoint.resume=auto")
            except StoppedError:
                assert step is not None


def failed_on_one_rank(output: Path) -> None:
    """Makes the gradient of one rank NaN in a step without an average, and writes the error of each rank."""
    check = Session.check_update

    def bad_on_one(self, grad_norm):
        bad = self.state.step + 1 == 3 and self.run.accelerator.process_index == 1
        return check(self, float("nan") if bad else grad_norm)

    for engine in ("loop", "trainer"):
        with patch.object(Session, "check_update", bad_on_one):
            try:
                train("reviews", output / f"local-nan-{engine}", *ROWS, LOCAL, f"engine={engine}")
            except RunError as error:
                (output / f"nan-{engine}-{dist.get_rank()}").write_text(str(error))


if __name__ == "__main__":
    import sys

    main(Path(sys.argv[1]))
