"""How files are read, as the settings in `data` say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from toolkit.config.sections import DataConfig

_TAB = ("\\t", "tab")
Fingerprint = Literal["content", "stat"]
"""Values of `data.fingerprint`."""


@dataclass(frozen=True)
class Reading:
    """How to read a file. None means that it is recognised from the file's content.

    Args:
        delimiter: separator of the columns of .csv and .tsv files, one character.
        encoding: encoding of text files that are not UTF-8 and have no byte-order mark.
        header: whether the first row of a table names its columns; otherwise their names are `1`, `2` and so on.
        quoting: `minimal` if fields of .csv and .tsv files may be quoted, `none` if quotes are part of the text.
        unescape_html: whether HTML entities such as `&amp;` are decoded.
        sheet: sheet of an Excel file, or group of an HDF5 file, from the file's name; None means the first sheet, and
            the datasets outside groups.
        fingerprint: whether the bytes of files, or their sizes and times, tell that they have changed.
    """

    delimiter: str | None = None
    encoding: str | None = None
    header: bool = True
    quoting: Literal["minimal", "none"] | None = None
    unescape_html: bool = False
    sheet: str | None = None
    fingerprint: Fingerprint = "content"

    @classmethod
    def of(cls, data: DataConfig) -> Reading:
        """Returns the reading that the YAML's `data` section asks for."""
        delimiter = "\t" if data.delimiter in _TAB else data.delimiter
        return cls(
            delimiter, data.encoding, data.header, data.quoting, data.unescape_html, fingerprint=data.fingerprint
        )


RECOGNISED = Reading()
"""Everything is recognised."""
