"""Modalities: one module each, with the functions of `toolkit.api.modality.Modality`.

Modalities whose rows can be classified (text, image, audio) also have the functions of `InputModality`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.base.package import import_object

if TYPE_CHECKING:
    from toolkit.api.modality import InputModality, Modality

MODALITIES = {
    "text": "toolkit.modalities.text",
    "seq2seq": "toolkit.modalities.seq2seq",
    "image": "toolkit.modalities.image",
    "audio": "toolkit.modalities.audio",
}


def load(name: str) -> Modality:
    """Imports a modality by name, for example `text`."""
    modality: Modality = import_object(MODALITIES[name])
    return modality


def load_input(name: str) -> InputModality:
    """Imports a modality whose rows can be classified: `text`, `image` or `audio`."""
    modality: InputModality = import_object(MODALITIES[name])
    return modality
