"""Files that are skipped in folders and archives of images and audio: hidden files, system files and notes."""

from __future__ import annotations

_SYSTEM = ("@eadir", "__macosx", "desktop.ini", "ehthumbs.db", "thumbs.db")
"""Files and folders of Windows, macOS and network drives, in lower case."""
_NOTES = (".md", ".txt")


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name, without its parents, is hidden or of the system."""
    return (name.startswith(".") and name not in (".", "..")) or name.lower() in _SYSTEM


def is_note(name: str) -> bool:
    """Whether a file is a note beside the data, such as a licence."""
    return name.lower().endswith(_NOTES)


def is_skipped(path: str) -> bool:
    """Whether a file of this path, inside its folder or archive, is hidden, of the system, or a note."""
    return is_note(path) or any(map(is_hidden, path.split("/")))
