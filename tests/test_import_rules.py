"""The test of the layers detects every forbidden import, at any place in a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from import_rules import Import, circles, read_imports, upward


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("base/a.py", "from toolkit.engine import b"),
        ("base/a.py", "from toolkit.engine.b import name"),
        ("base/a.py", "import toolkit.engine.b"),
        ("base/a.py", "from ..engine import b"),
        ("base/a.py", "from toolkit import engine"),
        ("base/a.py", "def f():\n    from toolkit.engine.b import name"),
        ("base/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from toolkit.engine.b import name"),
        ("base/a.py", "TABLE = {'b': 'toolkit.engine.b.Name'}"),
        ("base/a.py", "def f(name):\n    return import_module(f'toolkit.engine.{name}')"),
        ("base/a.py", "run([executable, '-m', 'toolkit.engine.b'])"),
        ("engine/b.py", "run([executable, '-m', 'toolkit', 'predict'])"),
        ("engine/b.py", "import toolkit"),
    ],
)
def test_an_import_that_goes_up_is_found(tmp_path: Path, file: str, text: str) -> None:
    found = planted(tmp_path, {file: text})
    (line,) = upward(found, ("base", "engine", "__init__", "__main__"))
    assert line.startswith(f"toolkit.{file[:-3].replace('/', '.')}:{text.count(chr(10)) + 1} -> toolkit")


@pytest.mark.parametrize(
    ("files", "where"),
    [
        ({"engine/b.py": "import toolkit.engine.c", "engine/c.py": "import toolkit.engine.b"}, "files"),
        ({"engine/b.py": "import toolkit.engine.c", "engine/c.py": "def f():\n    import toolkit.engine.b"}, "files"),
        ({"engine/b.py": "T = {'c': 'toolkit.engine.c.C'}", "engine/c.py": "import toolkit.engine.b"}, "files"),
        ({"base/a.py": "import toolkit.engine.c", "engine/b.py": "import toolkit.base.d"}, "toolkit"),
        ({"lab/x/a.py": "import toolkit.lab.y.a", "lab/y/b.py": "import toolkit.lab.x.b"}, "toolkit.lab"),
    ],
)
def test_a_circle_is_found(tmp_path: Path, files: dict[str, str], where: str) -> None:
    others = dict.fromkeys(("engine/c.py", "base/d.py", "lab/x/b.py", "lab/y/a.py"), "")
    assert where in {line.partition(":")[0] for line in circles(planted(tmp_path, others | files))}


def test_what_goes_down_or_starts_a_process_is_no_circle(tmp_path: Path) -> None:
    found = planted(
        tmp_path,
        {
            "engine/b.py": "from toolkit.base.a import name\nlogging.getLogger('toolkit')",
            "engine/c.py": "from toolkit.engine import b\nrun(['-m', 'toolkit.engine.worker'])",
            "engine/worker.py": "import toolkit.engine.c",
        },
    )
    assert [str(each) for each in found] == [
        "toolkit.engine.b:1 -> toolkit.base.a",
        "toolkit.engine.c:1 -> toolkit.engine.b",
        "toolkit.engine.c:2 -> toolkit.engine.worker",
        "toolkit.engine.worker:1 -> toolkit.engine.c",
    ]
    assert upward(found, ("base", "engine")) == []
    assert circles(found) == []


def planted(folder: Path, files: dict[str, str]) -> list[Import]:
    """Returns the imports of a small package with these files."""
    usual = dict.fromkeys(("__init__.py", "__main__.py", "base/a.py", "engine/__init__.py", "engine/b.py"), "")
    for name, text in (usual | files).items():
        path = folder / "toolkit" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return read_imports(folder / "toolkit")
