from __future__ import annotations


def page(found):
    return ""
