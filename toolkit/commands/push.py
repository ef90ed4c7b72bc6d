"""Push a finished run's model to the Hub: `toolkit push RUN [--repo owner/name] [--private]`."""

from __future__ import annotations

import argparse

from toolkit.base.files import expanded
from toolkit.commands import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run, and the repository."""
    options.add(parser, "run")
    repository = "checkpoint.hub_model_id of the run, or its folder's name in your namespace"
    parser.add_argument("--repo", metavar="OWNER/NAME", help=f"repository to push to (default: {repository})")
    parser.add_argument("--private", action="store_true", help="make a new repository private")


def work(arguments: argparse.Namespace) -> None:
    """Says what is uploaded and where to, and uploads `model/` with its card.

    Raises:
        InputError: if the run cannot be pushed.
        RunError: if the upload fails.
    """
    from toolkit.base.console import counted, format_bytes, say, warn
    from toolkit.base.errors import RunError
    from toolkit.deploy.push import planned
    from toolkit.system.launcher import refuse_launcher

    refuse_launcher("push")
    push = planned(expanded(arguments.run), arguments.repo, arguments.private)
    upload = push.upload
    kind = {True: "private", False: "public", None: "of your default visibility"}[upload.private]
    branch = f", branch {upload.revision}" if upload.revision else ""
    total = format_bytes(sum(push.files.values()))
    say(f"{counted(len(push.files), 'file')} ({total}) go to {upload.repository}{branch}; if it is new, it is {kind}:")
    for name, size in push.files.items():
        say(f"  {name} ({format_bytes(size)})")
    for note in push.notes:
        warn(note)
    try:
        address = upload.send()
    except Exception as error:  # network, permission and naming errors of several libraries alike
        raise RunError(
            f"cannot push to {upload.repository!r}: {type(error).__name__}: {error}\n  Nothing of the run has changed."
        ) from error
    say(f"pushed to {address}")
