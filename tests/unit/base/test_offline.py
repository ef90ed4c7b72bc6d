"""Without a network, the Hub is tried once."""

from __future__ import annotations

import socket
from pathlib import Path

import datasets
import pytest
from huggingface_hub import constants

from toolkit.base import offline


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Returns the addresses that were tried, all in vain."""
    made: list[tuple[str, int]] = []

    def refuse(address: tuple[str, int], timeout: float) -> None:
        made.append(address)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(offline, "getproxies", dict)
    for module in (constants, datasets.config):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "https://huggingface.co")
    offline.go_offline_without_network.cache_clear()
    return made


def test_an_unreachable_hub_is_tried_once(tries, caplog) -> None:
    caplog.set_level("INFO", logger="toolkit")
    for _ in range(2):
        offline.prepare_download("google-bert/bert-base-uncased")
    assert tries == [("huggingface.co", 443)]
    assert constants.is_offline_mode()
    assert datasets.config.HF_HUB_OFFLINE
    (message,) = caplog.messages
    assert message.startswith("huggingface.co cannot be reached ([Errno -2] Name or service not known)")


def test_local_folders_and_proxies_are_left_alone(tries, tmp_path: Path, monkeypatch) -> None:
    offline.prepare_download(str(tmp_path))
    monkeypatch.setattr(offline, "getproxies", lambda: {"https": "http://proxy:3128"})
    offline.prepare_download("google-bert/bert-base-uncased")
    assert tries == []
    assert not constants.is_offline_mode()


def test_a_hub_that_answers_is_used(tries, monkeypatch) -> None:
    monkeypatch.setattr(socket, "create_connection", lambda *arguments: socket.socket())
    offline.prepare_download("google-bert/bert-base-uncased")
    assert not constants.is_offline_mode()
