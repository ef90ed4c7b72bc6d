"""The site of the documentation is built without a warning, is whole, and loads nothing from another host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from browser import needs_browser, open_page
from launching import ROOT

import toolkit
from toolkit.commands.cli import COMMANDS

LOADED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"([^\"]+)\"|<link\b[^>]*\bhref=\"([^\"]+)\"")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Returns the folder of the site."""
    folder = tmp_path_factory.mktemp("documentation") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


def text(page: Path) -> str:
    """Returns the words of a page, without markup."""
    return re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    pages = sorted(site.glob("**/*.html"))
    assert len(pages) > 100
    loaded = {link for page in pages for pair in LOADED.findall(page.read_text(encoding="utf-8")) for link in pair}
    assert {link for link in loaded if re.match(r"(\w+:)?//", link)} == set()
    styles = "".join(file.read_text(encoding="utf-8") for file in site.glob("**/*.css"))
    assert not re.search(r"url\(['\"]?(\w+:)?//|@import", styles)


@pytest.mark.slow
def test_every_link_between_pages_leads_to_a_file(site: Path) -> None:
    missing = {
        f"{page.relative_to(site)}: {link}"
        for page in site.glob("**/*.html")
        for link in re.findall(r"<(?:a|img)\b[^>]*\b(?:href|src)=\"([^\"#?]+)", page.read_text(encoding="utf-8"))
        if page.name != "404.html"
        if not re.match(r"\w+:", link) and not (page.parent / link).exists()
    }
    assert missing == set()


@pytest.mark.slow
def test_the_reference_is_that_of_the_code(site: Path) -> None:
    commands = text(site / "commands.html")
    assert [name for name in COMMANDS if f"\n{name}" not in commands] == []
    interface = text(site / "python_reference.html")
    for part in (
        "overrides: str | Sequence[str] | Mapping[str, Any] = ()",
        "if settings are invalid; lists all of them",
    ):
        assert part in interface
    assert ":::" not in interface
    named = (ROOT / "docs/python_reference.md").read_text(encoding="utf-8")
    assert [name for name in toolkit.__all__ if f".{name} -->" not in named] == ["__version__"]


@pytest.mark.slow
def test_files_outside_the_docs_are_pages_that_show_them(site: Path) -> None:
    assert "def loss_sum" in text(site / "repository/recipes/qa.py.html")
    assert "fsdp2_cpu.yaml" in text(site / "repository/accelerate_configs/files.html")
    assert "How to add a setting" in re.findall(
        r"<h2[^>]*>([^<]+)", (site / "repository/CONTRIBUTING.html").read_text()
    )
    assert (site / "repository/benchmarks/results/plan.json").is_file()


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 400])
def test_pages_open_as_files_without_a_message(site: Path, width: int) -> None:
    for name in ("index", "settings"):
        document, _ = open_page(site / f"{name}.html", width=width)
        assert "md-content" in document


def test_markdown_of_repository_hosts_is_changed_where_python_markdown_reads_it_differently(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "website"))
    hooks = import_module("hooks")
    assert hooks.indented("1. one\n\n   ```bash\n   x\n   ```\n\nafter\n   b\n") == (
        "1. one\n\n    ```bash\n    x\n    ```\n\nafter\n   b\n"
    )
    assert hooks.titled("   ```csv data/train.csv\n") == '   ```csv title="data/train.csv"\n'
    assert hooks.without_comments("<!-- x -->\n| a |\n<!-- ::: toolkit.train -->\n") == (
        "\n\n\n| a |\n\n::: toolkit.train\n\n"
    )


def test_links_lead_to_the_places_of_the_site(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "website"))
    repository = import_module("repository")
    code = "```\n[f](../README.md)\n```\n"
    links = "[a](data.md#labels) [b](../recipes/qa.py) [c](https://x.org) [d](#e) [g](../README.md)\n"
    assert (
        repository.relinked(links + code + links, "docs/plan.md").split(code)
        == ["[a](data.md#labels) [b](repository/recipes/qa.py.md) [c](https://x.org) [d](#e) [g](index.md)\n"] * 2
    )
