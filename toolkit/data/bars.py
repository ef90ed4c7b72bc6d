"""Progress bars of `datasets`, shown only for large tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def progress_bars(shown: bool) -> Iterator[None]:
    """Shows the progress bars of `datasets` inside the block only if `shown`."""
    import datasets

    if shown or datasets.are_progress_bars_disabled():
        yield
        return
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.enable_progress_bars()
