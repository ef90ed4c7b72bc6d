"""What a person sees while a run goes on: only the main process speaks."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from toolkit.base.processes import is_first_rank

if TYPE_CHECKING:
    from rich.console import Console


def say(text: str) -> None:
    """Prints a line on the main process."""
    if is_first_rank():
        print(text, flush=True)


def progress(total: int, description: str, initial: int = 0, inner: bool = False) -> Any:
    """Returns a tqdm bar on the main process, a silent one elsewhere; in a log file inner bars are silent, too."""
    from tqdm import tqdm

    return tqdm(
        total=total,
        initial=initial,
        desc=description,
        disable=not is_first_rank() or (inner and not sys.stderr.isatty()),
        dynamic_ncols=True,
        mininterval=0.5 if sys.stderr.isatty() else 10.0,
        leave=False,
    )


def quiet_libraries() -> None:
    """Turns off the libraries' own bars and all but their errors: what matters of it is said in our words."""
    import datasets
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.utils.logging.set_verbosity_error()
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it wants a kernel from the hub
    if not is_first_rank():
        datasets.disable_progress_bars()


def format_value(value: Any) -> str:
    """Formats a number for a table, with four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def format_bytes(size: float) -> str:
    """Formats an amount of memory in the binary unit that gives a number below 1000, with three digits.

    pydantic's `ByteSize.human_readable` writes one decimal of whatever it is: `1.0 MiB`, `1000.0 MiB`.
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1000 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or abs(size) >= 99.95 else f"{size:.3g} {unit}"


def rich_console() -> Console:
    """Returns a console as wide as the terminal, or of 80 columns where there is none."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 80, highlight=False)


def print_table(title: str, rows: Mapping[str, Any]) -> None:
    """Prints a two-column table on the main process."""
    if not is_first_rank():
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(Text(name), Text(format_value(value)))
    rich_console().print(table)


def shorten(text: str, width: int = 70) -> str:
    """Returns one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def print_lines(title: str, lines: Iterable[str]) -> None:
    """Prints a titled block of lines on the main process."""
    say(f"\n{title}")
    for line in lines:
        say(f"  {line}")
