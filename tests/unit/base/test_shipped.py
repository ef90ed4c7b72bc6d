"""Files that come with the toolkit are found by their paths in the repository."""

from __future__ import annotations

import pytest

from toolkit.base.package import find_shipped


def test_a_shipped_file_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = find_shipped("recipes/qa.py")
    assert found is not None
    assert found.is_file()


@pytest.mark.parametrize("name", ["recipes/none.py", "toolkit/run.py", f"recipes/{'a' * 300}.csv", "recipes/a\0.csv"])
def test_what_is_not_shipped_is_not_found(name):
    assert find_shipped(name) is None
