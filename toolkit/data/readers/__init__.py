"""Readers of data files, one module for each kind of format."""

from toolkit.data.readers.raw import RawRow, check_names, not_text

__all__ = ["RawRow", "check_names", "not_text"]
