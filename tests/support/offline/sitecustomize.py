"""Cuts the network for a Python process and all that it starts: this folder is first on their PYTHONPATH.

Python imports this module at its start. Any use of an address or name outside of the loopback interface then fails, as
on a machine without a network. Libraries may catch that error, so each attempt is also noted in the file `OFFLINE_LOG`.
"""

import errno
import ipaddress
import os
import sys
import traceback
from contextlib import suppress

ADDRESS_EVENTS = ("socket.bind", "socket.connect", "socket.sendto", "socket.sendmsg")
NAME_EVENTS = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")


def is_here(host: object) -> bool:
    """Whether a host is this machine's loopback interface; None stands for it in getaddrinfo."""
    name = host.decode() if isinstance(host, bytes) else host
    if name is None or name in ("localhost", "ip6-localhost"):
        return True
    with suppress(ValueError):  # a name
        return ipaddress.ip_address(name).is_loopback
    return False


def cut(event: str, arguments: tuple) -> None:
    """Audit hook that raises for what would leave this machine."""
    if event in ADDRESS_EVENTS:
        address = arguments[1]
        allowed = not isinstance(address, tuple) or is_here(address[0])  # Unix and netlink sockets have no host
    elif event in NAME_EVENTS:
        address = allowed = arguments[0]
        allowed = is_here(address)
    else:
        return
    if not allowed:
        with open(os.environ["OFFLINE_LOG"], "a", encoding="utf-8") as log:  # noqa: PTH123
            log.write(f"{event} {address!r} by {sys.argv}\n{''.join(traceback.format_stack())}\n")
        raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH), repr(address))


sys.addaudithook(cut)
