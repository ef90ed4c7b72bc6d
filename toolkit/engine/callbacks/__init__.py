"""The toolkit's callbacks, by what they act on, listed in a dictionary here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from toolkit.api.training import Callback, Training
from toolkit.base.package import import_object
from toolkit.config.sections import Config
from toolkit.optim.presets import PRESETS
from toolkit.optim.schedules import is_cycled

CALLBACKS: dict[str, tuple[Callable[[Config], bool], str]] = {
    "costs": (lambda cfg: True, "costs.Costs"),
    "target": (lambda cfg: bool(cfg.train.target_metric), "limits.Target"),
    "clip_value": (lambda cfg: cfg.train.max_grad_value is not None, "gradients.ClippedValues"),
    "compression": (lambda cfg: cfg.train.activation_compression != "none", "gradients.CompressionError"),
    "early_stopping": (lambda cfg: cfg.train.early_stopping_patience is not None, "limits.EarlyStopping"),
    "plateau": (lambda cfg: cfg.train.lr_scheduler_type == "reduce_lr_on_plateau", "schedule.Plateau"),
    "momentum": (lambda cfg: is_cycled(cfg.train), "schedule.CycledMomentum"),
    "schedule_free": (lambda cfg: PRESETS[cfg.train.optim].averages, "averages.ScheduleFree"),
    "snapshots": (lambda cfg: cfg.train.snapshot_ensemble, "snapshots.Snapshots"),
    "unfreezing": (lambda cfg: bool(cfg.model.unfreeze), "unfreezing.Unfreezing"),
    "max_time": (lambda cfg: cfg.train.max_time is not None, "limits.MaxTime"),
    "histograms": (lambda cfg: cfg.tracking.histogram_steps is not None, "gradients.Histograms"),
    "graph": (lambda cfg: cfg.tracking.graph, "graph.Graph"),
    "peak": (lambda cfg: cfg.tracking.count_memory, "peak.CountedPeak"),
    "ema": (lambda cfg: cfg.train.ema_decay is not None, "averages.AveragedWeights"),
}
"""For each callback, by its name in checkpoints: whether a configuration enables it, and its class in this folder."""


def build_callbacks(training: Training) -> dict[str, Callback]:
    """Builds the callbacks that the run's configuration enables, by name."""
    cfg = training.run.cfg
    places = {name: f"{__name__}.{place}" for name, (is_asked, place) in CALLBACKS.items() if is_asked(cfg)}
    return {
        name: import_object(place)(training)
        for name, place in (places | {each: each for each in cfg.callbacks}).items()
    }


def own_callback_problems(cfg: Config) -> Iterator[str]:
    """Yields why entries of `callbacks` cannot be used, as full messages."""
    for name in cfg.callbacks:
        try:
            found = import_object(name)
        except Exception as error:  # importing a user's module can raise anything
            yield f"callbacks: cannot use {name!r}: {type(error).__name__}: {error}"
            continue
        if not (isinstance(found, type) and issubclass(found, Callback)):
            yield f"callbacks: {name} is no class that derives from toolkit.api.training.Callback"
