"""Asks the Hub which commit a revision is."""

from __future__ import annotations

from typing import Literal

from toolkit.base.console import warn
from toolkit.base.files import expanded, kind_of
from toolkit.base.offline import prepare_download


def commit_of(name: str, revision: str | None, kind: Literal["model", "dataset"]) -> str | None:
    """Returns the commit that a revision is now; None for a local folder, or if the Hub does not say.

    Args:
        name: Hub id or folder.
        revision: branch, tag or commit; None means `main`.
        kind: what it is.
    """
    from huggingface_hub import HfApi, constants

    prepare_download(name)
    if kind_of(expanded(name)) == "folder" or constants.is_offline_mode():
        return None
    try:
        return HfApi().repo_info(name, revision=revision, repo_type=kind).sha
    except Exception as error:  # of the Hub or the network
        reason = f"{type(error).__name__}: {str(error).strip()}".split("\n")[0]
        warn(f"the Hub does not say which commit {name!r} is ({reason}); an earlier copy is kept")
        return None
