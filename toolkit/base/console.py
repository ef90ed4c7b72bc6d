"""Console output: records of `logging.getLogger("toolkit")`, which the command lines print.

Only the main process logs. `import toolkit` installs no handler and sets no level, so users of the library decide what
happens to the records; `log_to_console` prints them as the command lines do.
"""

from __future__ import annotations

import io
import logging
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

from toolkit.base.processes import is_first_rank

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

LOGGER = logging.getLogger("toolkit")
"""The logger of all output for users."""
LOGGER.addHandler(logging.NullHandler())  # without any handler, Python would print warnings to stderr

PLAIN_WIDTH = 80
"""Columns of output that is no terminal."""
_BLANK_LINE = "blank_line_before"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class ConsoleHandler(logging.Handler):
    """Prints records: errors to stderr, others to stdout, warnings with a prefix; raises errors of writing."""

    def emit(self, record: logging.LogRecord) -> None:
        """Prints one record, above the progress bars if there are any."""
        bars = sys.modules.get("tqdm")
        with bars.tqdm.external_write_mode(sys.stdout) if bars is not None else nullcontext():
            self._print(record)

    def _print(self, record: logging.LogRecord) -> None:
        before = "\n" if getattr(record, _BLANK_LINE, False) else ""
        if isinstance(record.msg, _Rendered):
            rich_console().print(record.msg.renderable)
        elif record.levelno >= logging.ERROR:
            print(f"{before}{printable(record.getMessage())}", file=sys.stderr, flush=True)
        else:
            level = "warning: " if record.levelno >= logging.WARNING else ""
            print(f"{before}{level}{printable(record.getMessage())}", flush=True)


def printable(text: str) -> str:
    """Returns text whose control characters and halves of characters are escaped, except tabs and line breaks.

    Texts of rows, labels and file names could otherwise change the terminal: its title, its colors, earlier output.
    """
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def plain(value: Any) -> Text:
    """Returns a value for a table of rich, as `format_value` and `printable` show it; its brackets are no markup."""
    from rich.text import Text

    return Text(printable(format_value(value)))


class _Rendered:
    """A message that the console shows with styles, and every other handler as plain text."""

    def __init__(self, renderable: RenderableType) -> None:
        self.renderable = renderable

    def __str__(self) -> str:
        from rich.console import Console

        plain = Console(file=io.StringIO(), width=PLAIN_WIDTH, highlight=False)
        with plain.capture() as captured:
            plain.print(self.renderable)
        return "\n".join(line.rstrip() for line in captured.get().splitlines())


def log_to_console() -> None:
    """Prints the toolkit's log records and progress bars, as its command lines do.

    Every command line calls it; a notebook may call it, too. The toolkit's logger then no longer propagates records to
    the root logger, which would print them twice. A level that was set before is kept.
    """
    if not logs_to_console():
        LOGGER.addHandler(ConsoleHandler())
    LOGGER.propagate = False
    if LOGGER.level == logging.NOTSET:
        LOGGER.setLevel(logging.INFO)


def logs_to_console() -> bool:
    """Whether `log_to_console` was called in this process."""
    return any(isinstance(handler, ConsoleHandler) for handler in LOGGER.handlers)


def say(text: str, blank_line_before: bool = False) -> None:
    """Logs a line on the main process, after an empty line on the console if asked."""
    if is_first_rank():
        LOGGER.info("%s", text, extra={_BLANK_LINE: blank_line_before})


def warn(text: str) -> None:
    """Logs a warning on the main process."""
    if is_first_rank():
        LOGGER.warning("%s", text)


def report_error(text: str, blank_line_before: bool = True) -> None:
    """Logs an error, on any process; the console prints an empty line before it, if not told otherwise."""
    LOGGER.error("%s", text, extra={_BLANK_LINE: blank_line_before})


def progress(total: int, description: str, initial: int = 0, inner: bool = False, unit: str = "it") -> Any:
    """Returns a tqdm progress bar, which is shown on the main process if records of level INFO are printed.

    If the output is not a terminal, where each update is a line, bars inside others (`inner`) are not shown and the
    rest are updated every ten seconds. `initial` counts updates already made, of `unit` each.
    """
    from tqdm import tqdm

    shown = is_first_rank() and logs_to_console() and LOGGER.isEnabledFor(logging.INFO)
    return tqdm(
        total=total,
        initial=initial,
        desc=description,
        unit=unit,
        disable=not shown or (inner and not sys.stderr.isatty()),
        dynamic_ncols=True,
        mininterval=0.5 if sys.stderr.isatty() else 10.0,
        leave=False,
    )


def quiet_libraries(only_data: bool = False) -> AbstractContextManager[object]:
    """Turns off the progress bars of transformers and datasets, and all their messages except errors.

    `only_data` skips transformers, whose import takes long. The returned context manager restores the previous state;
    command lines need not use it.
    """
    import datasets

    before, libraries = ExitStack(), [datasets.utils.logging]
    if not only_data:
        import transformers

        libraries.append(transformers.utils.logging)
        if transformers.utils.logging.is_progress_bar_enabled():
            before.callback(transformers.utils.logging.enable_progress_bar)
            transformers.utils.logging.disable_progress_bar()
        logger = logging.getLogger("bitsandbytes")  # it suggests installing a kernel from the hub
        before.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)
    for library in libraries:
        before.callback(library.set_verbosity, library.get_verbosity())
        library.set_verbosity_error()
    if not (is_first_rank() and logs_to_console()) and not datasets.are_progress_bars_disabled():
        before.callback(datasets.enable_progress_bars)
        datasets.disable_progress_bars()
    return before


def format_value(value: Any) -> str:
    """Formats a number for a table, with four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def format_bytes(size: float) -> str:
    """Formats a number of bytes with three digits, in the binary unit that gives a number below 1000.

    pydantic's `ByteSize.human_readable` always writes one decimal: `1.0 MiB`, `1000.0 MiB`.
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1000 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or abs(size) >= 99.95 else f"{size:.3g} {unit}"


def format_seconds(seconds: float) -> str:
    """Formats a short time with three digits: `12.3 us`, `12.3 ms`, `1.23 s`; a long one in seconds: `1,234 s`."""
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if seconds * scale < 999.5:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"


def format_duration(seconds: float) -> str:
    """Formats a duration roughly, for people: `8.2 s`, `12 min`, `3.5 h`, `2.1 days`."""
    if seconds < 99.5:
        return f"{seconds:.2g} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"


def rich_console() -> Console:
    """Returns a console as wide as the terminal, or 80 columns wide if there is none."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)


def print_table(title: str, rows: Mapping[str, Any]) -> None:
    """Logs a two-column table with its title above it on the main process."""
    if not is_first_rank():
        return
    from rich.console import Group
    from rich.table import Table

    table = Table(box=None, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(plain(name), plain(value))
    # A table's own title would be wrapped to the width of the table.
    LOGGER.info(_Rendered(Group(plain(title), table)))


def counted(count: int, noun: str) -> str:
    """Returns a count with its noun, in the plural unless the count is one."""
    return f"{count:,} {noun}{'' if count == 1 else 'es' if noun.endswith('s') else 's'}"


def shorten(text: str, width: int = 70) -> str:
    """Returns text as one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def print_lines(title: str, lines: Iterable[str]) -> None:
    """Logs a titled block of lines on the main process."""
    say(title, blank_line_before=True)
    for line in lines:
        say(f"  {line}")
