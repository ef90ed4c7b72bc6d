"""Simulates a device with too little memory for large micro-batches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from runs import SGD

import toolkit.models.build

RUN = (*SGD, "data.max_train_samples=37", "data.max_eval_samples=8", "train.per_device_train_batch_size=6",
       "train.gradient_accumulation_steps=2", "train.num_train_epochs=2", "checkpoint.save_steps=1")  # fmt: skip


AUTO = "train.auto_batch_size=true"


def small_memory(monkeypatch: pytest.MonkeyPatch, max_rows: Callable[[], int], when: str = "forward") -> list[int]:
    """Makes training passes with more than `max_rows()` rows run out of memory; returns the rows of each pass."""
    build, passes = toolkit.models.build.build_model, []

    def fail(rows: int) -> None:
        if rows > max_rows():
            raise torch.OutOfMemoryError(f"simulated: {rows} rows")

    def built(*arguments):
        model = build(*arguments)

        def forward(module, inputs, named):
            if module.training:
                passes.append(len(next(iter(named.values()))))
                if when == "forward":
                    fail(passes[-1])

        def backward(module, inputs, embedded):
            if module.training:
                embedded.register_hook(lambda gradient: fail(len(gradient)))

        model.register_forward_pre_hook(forward, with_kwargs=True)
        if when == "backward":
            # The embeddings are last in the backward pass, when all other gradients have been added.
            model.base_model.embeddings.register_forward_hook(backward)
        return model

    monkeypatch.setattr(toolkit.models.build, "build_model", built)
    return passes
