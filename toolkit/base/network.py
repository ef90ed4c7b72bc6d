"""Whether the Hub can be reached."""

from __future__ import annotations

import socket
import sys
from functools import cache
from urllib.parse import urlsplit
from urllib.request import getproxies

from toolkit.base.console import say
from toolkit.base.files import expanded, kind_of

SECONDS = 5.0
"""How long a connection may take to be opened."""


def prepare_download(name: str) -> None:
    """Makes Hugging Face's libraries use only their caches for a Hub id, in this process, if the Hub cannot be reached.

    They would retry each file for half a minute.

    Args:
        name: Hub id, or a local folder, for which nothing is done.
    """
    if kind_of(expanded(name)) != "folder":
        _go_offline_without_network()


@cache
def _go_offline_without_network() -> None:
    from huggingface_hub import constants

    if constants.is_offline_mode() or getproxies():  # a proxy may reach what this machine cannot
        return
    hub = urlsplit(constants.ENDPOINT)
    try:
        socket.create_connection((hub.hostname, hub.port or (443 if hub.scheme == "https" else 80)), SECONDS).close()
    except OSError as error:
        say(f"{hub.hostname} cannot be reached ({error}); only what is in the local cache is used")
        constants.HF_HUB_OFFLINE = True
        if "datasets" in sys.modules:
            sys.modules["datasets"].config.HF_HUB_OFFLINE = True
