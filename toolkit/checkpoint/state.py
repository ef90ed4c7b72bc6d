"""The content of a checkpoint's `state.json`, and which settings may differ on a resume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from pydantic import TypeAdapter, ValidationError

from toolkit.api.mesh import Mesh
from toolkit.api.state import TrainState
from toolkit.base.errors import CheckpointError

VERSIONS = "versions."
FREE = (
    "output_dir",
    "offline_dir",
    "engine",
    "trainer.callbacks",
    "train.max_steps",
    "train.num_train_epochs",
    "train.max_time",
    "train.target_metric*",
    "train.dataloader_*",
    "train.ddp_timeout",
    "train.heartbeat_timeout",
    "train.non_finite",
    "train.max_non_finite_steps",
    "train.refit",
    "callbacks",
    "eval.*",
    "checkpoint.*",
    "tracking.*",
    "parallel.*",
    "num_processes",
    # Paths may change as long as the content is the same, which the training fingerprint verifies.
    "data.train_file",
    "data.validation_file",
    "data.test_file",
    "task.augment.synonyms_file",
    "data.fingerprint.validation",
    "data.fingerprint.test",
    "data.preprocessing_num_workers",
    "data.media_cache",
    "data.stage_to",
    "data.max_eval_samples",
    "data.id_column",
    f"{VERSIONS}*",
)
"""Settings that may change when a run is resumed (`*` matches anything); all others must be the same."""

EVALUATION = ("eval.metric_for_best_model", "data.fingerprint.validation", "data.max_eval_samples")
"""What decides whether a metric can be compared with one before the resume."""
BATCH, ACCUMULATION = "train.per_device_train_batch_size", "train.gradient_accumulation_steps"
WINDOW, BUDGET = "train.global_batch_size", "train.max_tokens_per_batch"
DIMENSIONS = tuple(Mesh().sizes)
MESH = tuple(f"mesh.{name}" for name in DIMENSIONS)
SPLIT = (BATCH, ACCUMULATION, BUDGET, *MESH)
"""What decides how an update's rows and the model are split over processes. It may change if the rows stay the same,
except with local SGD, where each process trains a model of its own on its part."""
UNPADDED, BACKEND = "train.unpadded", "parallel.backend"
OLDER: dict[str, Any] = {
    WINDOW: None, UNPADDED: False, "data.folds": None, "data.fold": 1, "data.fingerprint": "content",
    "data.strip_html": False, "data.drop_duplicates": False, "data.join_validation": False, "task.decimal": None,
    "data.mix": [], "task.generation": {}, "train.max_grad_value": None, "train.activation_compression": "none",
    "data.train_fraction": 1.0, "train.ddp_comm_hook": "no", "train.power_sgd_rank": 4, "task.scale_targets": False,
    "task.image.mixup_alpha": 0.0, "task.image.cutmix_alpha": 0.0, "task.audio.time_masks": 0,
    "task.audio.time_mask_width": 0.1, "task.audio.frequency_masks": 0, "task.audio.frequency_mask_width": 0.2,
    "task.truncation": "longest_first", "task.long_texts": "truncate", "task.doc_stride": None, "task.pooling": "mean",
    "task.ranking": False, "train.chunked_loss": False, "task.thinking": "keep",
    "model.peft.init_lora_weights": "default", "model.peft.trainable_token_indices": [],
    "mesh.context": 1, "mesh.expert": 1, "model.initializer": "default",
    "task.image.rand_augment": 0, "task.image.rand_augment_magnitude": 9, "task.audio.noise": 0.0,
    "task.audio.noise_snr": 10.0, "task.augment.random_deletion": 0.0, "task.augment.random_swap": 0.0,
    "task.augment.synonym_replacement": 0.0, "task.augment.synonyms_file": None,
}  # fmt: skip
"""What runs of versions without a setting did."""


def layout(mesh: Mesh) -> dict[str, int]:
    """Returns the entries of a run's identity that say how its processes were arranged."""
    return {"num_processes": mesh.size} | {f"mesh.{name}": size for name, size in mesh.sizes.items()}


def layout_of(saved: Mapping[str, Any]) -> Mesh:
    """Returns how the processes of a saved run were arranged; older versions had replicas."""
    if "mesh.replicas" not in saved:
        return Mesh(replicas=_count(saved, "num_processes"))
    return Mesh(**{name: _count(OLDER | dict(saved), f"mesh.{name}") for name in DIMENSIONS})


def _count(identity: Mapping[str, Any], key: str) -> int:
    """Returns a positive number of a run's identity."""
    value = identity.get(key)
    if type(value) is not int or value < 1:
        raise CheckpointError(
            f"state.json of the checkpoint has no usable {key} (it says {value!r}); it was not written by the toolkit: "
            "use another checkpoint"
        )
    return value


def _completed(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the identity of a saved run with what older versions did not know."""
    return {BUDGET: None} | dict(saved) | layout(layout_of(saved))


def window_rows(identity: Mapping[str, Any]) -> int:
    """Returns the rows of a complete window, over all processes."""
    if identity.get(WINDOW) is not None:
        return _count(identity, WINDOW)
    accumulation = 1 if identity.get(ACCUMULATION) is None else _count(identity, ACCUMULATION)
    return _count(identity, BATCH) * accumulation * layout_of(identity).data_size


def changed_settings(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Returns a message for each setting or fact, by dotted key, that may not differ from the saved run's."""
    now = OLDER | json.loads(json.dumps(dict(current)))  # tuples become lists, as in the saved JSON
    before = OLDER | _completed(saved)
    # Otherwise, results depend on the number of processes.
    elastic = before.get("train.strategy") != "local_sgd" and before.get("train.ddp_comm_hook", "no") == "no"
    elastic = elastic and now.get("train.strategy") != "local_sgd"
    free = (*FREE, WINDOW, *SPLIT) if elastic else FREE
    if elastic and any(key in before and before[key] != now.get(key) for key in (BACKEND, *MESH)):
        free = (*free, UNPADDED)  # not every way to split a model can skip padding
    if not any(key.startswith("model.files.") for key in before):  # of a version that did not note them
        free = (*free, "model.files.*")
    changes = [
        f"{key}: the run was started {_with(before, key)}, now {_shown(now, key)}{_advice(before, key)}"
        for key in sorted({*before, *now})
        if not any(fnmatchcase(key, pattern) for pattern in free)
        and (key in before, before.get(key)) != (key in now, now.get(key))
    ]
    return changes + (_window_problems(before, now) if elastic else [])


def changed_layout(saved: Mapping[str, Any], current: Mapping[str, Any]) -> str | None:
    """Returns a note if rows or the model are split over the processes in another way than before."""
    before = _completed(saved)
    if all((before[key] or 1) == (current.get(key) or 1) for key in SPLIT):
        return None
    return (
        f"the checkpoint was saved by {described(before)}; this run uses {described(current)}. Rows and updates stay "
        "the same, results differ by rounding, and by the random numbers of dropout"
    )


def changed_versions(saved: Mapping[str, Any], current: Mapping[str, Any]) -> str | None:
    """Returns a note if libraries have other versions than those that the checkpoint was saved with."""
    keys = [key for key in current if key.startswith(VERSIONS) and saved.get(key, current[key]) != current[key]]
    if not keys:
        return None
    changes = [f"{key.removeprefix(VERSIONS)} {saved[key]} -> {current[key]}" for key in keys]
    return f"resumed with other versions: {', '.join(changes)}; results can differ by rounding or more"


def changed_evaluation(saved: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    """Returns which settings changed whose values before and after cannot be compared; empty if none has."""
    keys = [key for key in EVALUATION if key in saved and _metric(saved, key) != _metric(current, key)]
    return ", ".join(f"{key}: {_shown(saved, key)}, now {_shown(current, key)}" for key in keys)


def _metric(settings: Mapping[str, Any], key: str) -> Any:
    """Returns a setting; metrics may have the prefix `eval_`."""
    value = settings.get(key)
    return value.removeprefix("eval_") if isinstance(value, str) else value


def require_same_settings(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Raises CheckpointError if settings that must not change on a resume have changed; lists all of them."""
    if changes := changed_settings(saved, current):
        title = "cannot resume with different settings:"
        advice = "Restore the previous values, or start a new run in another output_dir."
        raise CheckpointError("\n".join([title, *(f"  - {change}" for change in changes), advice]))


def _window_problems(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Returns a message if an update would have another number of rows."""
    before, now = window_rows(saved), window_rows(current)
    if before == now:
        return []
    return [f"{WINDOW}: the run was started with {before} rows per step, now {now}; set {WINDOW}={before}"]


def described(identity: Mapping[str, Any]) -> str:
    """Returns how the processes of a run were arranged, in words."""
    mesh = layout_of(identity)
    sizes = ", ".join(f"{name} {size}" for name, size in mesh.sizes.items() if size > 1)
    processes = "1 process" if mesh.size == 1 else f"{mesh.size} processes ({sizes})"
    budget = "" if identity.get(BUDGET) is None else f", cut by {BUDGET} {identity[BUDGET]}"
    return f"{processes} with {identity[BATCH]} x {identity[ACCUMULATION] or 1} rows per data rank{budget}"


def _advice(saved: Mapping[str, Any], key: str) -> str:
    """Returns how to restore a setting; facts about data and processes are no settings."""
    if key not in saved or key.startswith(("data.fingerprint.", "data.num_train_rows", "mesh.")):
        return ""
    return f"; set {key}={_shown(saved, key)}"


def _with(settings: Mapping[str, Any], key: str) -> str:
    return f"with {_shown(settings, key)}" if key in settings else "without it"


def _shown(settings: Mapping[str, Any], key: str) -> str:
    return json.dumps(settings[key], ensure_ascii=False) if key in settings else "it is not set"


_PARTS = ("train", "identity", "extensions", "trainer_callbacks", "scaler", "metrics")


@dataclass(frozen=True)
class SavedState:
    """Everything in a checkpoint except its tensors."""

    train: Mapping[str, Any]  # fields of `toolkit.api.state.TrainState`
    identity: Mapping[str, Any]  # settings and fingerprints that must not change on resume, by dotted key
    # values of the toolkit's callbacks and of the strategy, by name
    callbacks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # attributes of a user's callbacks under `engine: trainer`, by name; None under `engine: loop`
    trainer_callbacks: Mapping[str, Mapping[str, Any]] | None = None
    scaler: Mapping[str, Any] | None = None  # state of the fp16 gradient scaler, or None
    metrics: Mapping[str, Any] | None = None  # size and sha256 of `metrics.jsonl`, or None

    def to_json(self) -> dict[str, Any]:
        """Returns the content of the file."""
        content = {
            "train": dict(self.train),
            "identity": dict(self.identity),
            "trainer_callbacks": self.trainer_callbacks,
            "scaler": self.scaler,
            "metrics": self.metrics,
            "extensions": dict(self.callbacks),  # the name in the file format
        }
        return {name: value for name, value in content.items() if value is not None}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> SavedState:
        """Reads the content of the file, or raises CheckpointError; ignores additional entries of older versions."""
        parts: dict[str, Any] = {name: content.get(name) for name in _PARTS} if isinstance(content, Mapping) else {}
        wrong = [name for name, value in parts.items() if not isinstance(value, Mapping | None)]
        missing = [name for name in ("train", "identity") if parts.get(name) is None]
        unusable = [*wrong, *missing] or [
            *_wrong_progress(content["train"]), *_wrong_marks(content.get("metrics")), *_wrong_states(content)
        ]  # fmt: skip
        if unusable:
            raise CheckpointError(
                f"state.json of a checkpoint has no usable {', '.join(unusable)}; it was not written by the toolkit: "
                "use another checkpoint"
            )
        return SavedState(callbacks=parts.pop("extensions") or {}, **parts)


def _wrong_progress(train: Mapping[str, Any]) -> list[str]:
    """Returns the dotted keys of `train` whose values are missing or of another type."""
    try:
        TypeAdapter(TrainState).validate_json(json.dumps(dict(train)), strict=True)
    except ValidationError as error:
        return [f"train.{place['loc'][0]}" for place in error.errors()]
    return [] if "step" in train and train["step"] >= 0 else ["train.step"]


def _wrong_marks(metrics: Mapping[str, Any] | None) -> list[str]:
    if metrics is None or (type(metrics.get("bytes")) is int and isinstance(metrics.get("sha256"), str)):
        return []
    return ["metrics"]


def _wrong_states(content: Mapping[str, Any]) -> list[str]:
    """Returns the dotted keys of callbacks and strategies whose states are not objects."""
    return [
        f"{part}.{name}"
        for part in ("extensions", "trainer_callbacks")
        for name, state in (content.get(part) or {}).items()
        if not isinstance(state, Mapping)
    ]
