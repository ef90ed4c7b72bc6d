"""Modalities: one module each, with the functions of `toolkit.api.modality.Modality`.

Modalities whose rows can be classified (text, image, audio) also have the functions of `InputModality`. One whose
pretrained models may come without a vocabulary has `lacks_vocabulary` and `complete_processor`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolkit.base.package import import_object

if TYPE_CHECKING:
    from toolkit.api.modality import InputModality, Modality
    from toolkit.config.sections import ModelConfig

MODALITIES = {
    "text": "toolkit.modalities.text",
    "seq2seq": "toolkit.modalities.seq2seq",
    "image": "toolkit.modalities.image",
    "audio": "toolkit.modalities.audio",
    "speech": "toolkit.modalities.speech",
}


def load(name: str) -> Modality:
    """Imports a modality by name, for example `text`."""
    modality: Modality = import_object(MODALITIES[name])
    return modality


def completes_processor(name: str, model: ModelConfig, options: Any) -> bool:
    """Whether a pretrained model comes without a vocabulary, which is then made from the training rows."""
    lacks = getattr(load(name), "lacks_vocabulary", None)
    return model.name_or_path is not None and lacks is not None and lacks(model, options)


def load_input(name: str) -> InputModality:
    """Imports a modality whose rows can be classified: `text`, `image` or `audio`."""
    modality: InputModality = import_object(MODALITIES[name])
    return modality
