"""Every modality has the functions of its protocol, with the same arguments."""

from __future__ import annotations

import inspect
from importlib.util import find_spec

import pytest

from toolkit import modalities
from toolkit.api.modality import InputModality, Modality

INPUT_MODALITIES = ("text", "image", "audio")


def functions(protocol: type) -> dict[str, list[str]]:
    """Returns the arguments of each function of a protocol and its bases."""
    found = {}
    for part in protocol.__mro__:
        for name, value in vars(part).items():
            if inspect.isfunction(value) and not name.startswith("_"):
                found[name] = list(inspect.signature(value).parameters)[1:]
    return found


@pytest.mark.parametrize("name", modalities.MODALITIES)
def test_a_modality_has_the_functions_of_its_protocol(name: str) -> None:
    module = modalities.load(name)
    wanted = functions(InputModality if name in INPUT_MODALITIES else Modality)
    assert {"load_processor", "new_processor", "configure", "check_model"} <= wanted.keys()
    for function, parameters in wanted.items():
        received = list(inspect.signature(getattr(module, function)).parameters)
        assert len(received) == len(parameters), (name, function, received, parameters)
        last = [each for each in parameters if each in ("config", "options", "new", "random", "model")]
        assert [each for each in received if each in last] == last, (name, function)
    assert module.AUTO_PROCESSOR.startswith("Auto")
    assert all(find_spec({"pillow": "PIL"}.get(library, library.replace("-", "_"))) for library in module.LIBRARIES)


def test_what_has_another_form_has_another_name() -> None:
    others = functions(InputModality).keys() - functions(Modality).keys()
    assert not {name for name in others if hasattr(modalities.load("seq2seq"), name)}
