"""Pages and charts: escaped, closed to the network, sortable, readable on a phone."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from browser import needs_browser, open_page
from launching import ROOT
from markdown_it import MarkdownIt

from toolkit.document import render
from toolkit.document.blocks import Cell, Code, Figure, Folded, Gallery, Highlights, Marked, Section, Table, Text
from toolkit.document.charts import MOST_POINTS, axis, line_chart, number_text

NASTY = "<script>alert(1)</script> & \"q\" 'a' ``` | <img src=x onerror=alert(1)>"
SVG = "{http://www.w3.org/2000/svg}"


def everything() -> list[Section]:
    """Returns one block of each type, with user text wherever possible."""
    chart = line_chart({NASTY: ([1, 2], [1.0, 2.0]), "b": ([1], [3])}, title=NASTY, x_label=NASTY, y_label=NASTY)
    words = Marked([(NASTY, mark) for mark in ("", "mark", "ins", "del")])
    rows = [[NASTY, 3.0], ["b", Cell("twenty", 20.0, 0.5)], ["a", None], ["c", -1], ["d", math.nan]]
    blocks = [
        Text(NASTY),
        Highlights([(NASTY, NASTY)]),
        Gallery([Figure(NASTY, chart), Figure("p", png=b"png")], NASTY),
        Table(["words"], [[words]]),
    ]
    return [
        Section("One", [Table([NASTY, "size"], rows, sortable=True, caption=NASTY)]),
        Section(NASTY, blocks),
        Section("Three", [Folded(NASTY, [Code(NASTY), Code("x" * 500)])]),
    ]


def drawn(svg: str) -> ElementTree.Element:
    """Parses an SVG, which must be well formed."""
    return ElementTree.fromstring(svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in drawn(svg).iter(f"{SVG}text")]


def chart(*values: float | None, **more: bool) -> str:
    return line_chart({"v": (range(1, len(values) + 1), values)}, title="t", x_label="step", y_label="v", **more).svg()


def test_text_of_rows_stays_text() -> None:
    html = render.render_html(NASTY, NASTY, everything())
    assert html.count("<script") == 1
    assert "<img src=x" not in html
    assert html.count("&lt;script&gt;") >= 12
    text = render.render_markdown(NASTY, NASTY, everything())
    outside = re.sub(r"````text\n.*?\n````", "", text, flags=re.DOTALL)
    assert "<script" not in outside
    assert "<img" not in outside
    assert f"````text\n{NASTY}\n````" in text


def test_markup_in_rows_stays_text() -> None:
    text = "![x](http://a.example/p.png) [y](http://a.example) *a* _b_ __c__ ~~d~~ `e` \\ a_b *f*g &amp; <b>h</b> | i"
    sections = [Section(text, [Text(text), Table([text], [[text]], caption=text), Highlights([(text, text)])])]
    tokens = MarkdownIt().enable(["table", "strikethrough"]).parse(render.render_markdown(text, text, sections))
    inner = [child for token in tokens for child in token.children or []]
    kinds = {child.type for child in inner}
    assert kinds - {"text_special"} == {"text", "strong_open", "strong_close"}  # a highlight's value is bold
    whole = ["".join(child.content for child in token.children) for token in tokens if token.type == "inline"]
    assert [found.replace(text, "T") for found in whole] == ["T", "T", "T", "T", "T:", "T", "T", "T T"]


def test_marked_words_are_marked_in_html_and_markdown() -> None:
    words = Marked([("*one*", ""), ("t|o", "mark"), ("uh", "ins"), ("<four>", "del"), ("…", "")])
    sections = [Section("s", [Table(["words", "size"], [[words, 1]], sortable=True)])]
    html = render.render_html("t", "", sections)
    assert "<span>*one* <mark>t|o</mark> <ins>uh</ins> <del>&lt;four&gt;</del> …</span></td>" in html
    assert "| \\*one\\* **t\\|o** *uh* ~~&lt;four>~~ … | 1 |" in render.render_markdown("t", "", sections)
    text = MarkdownIt().enable(["table", "strikethrough"]).render(render.render_markdown("t", "", sections))
    assert "<td>*one* <strong>t|o</strong> <em>uh</em> <s>&lt;four&gt;</s> …</td>" in text


def test_a_page_asks_for_nothing() -> None:
    html = render.render_html("t", "", everything())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    assert policy[1].startswith("default-src &#39;none&#39;;")
    assert "://" not in html
    assert re.findall(r'(?:src|href)="(?!data:|#)', html) == []


def test_both_forms_say_the_same() -> None:
    sections = [Section("Rows", [Text("Two."), Table(["a", "b"], [["x|y", 1234], ["z", 0.123456]])])]
    assert render.render_markdown("Run", "Done.", sections) == (
        "# Run\n\nDone.\n\n## Rows\n\nTwo.\n\n| a | b |\n|---|---|\n| x\\|y | 1,234 |\n| z | 0.1235 |\n"
    )
    html = render.render_html("Run", "Done.", sections)
    for part in ("<h1>Run</h1>", "Done.", ">Rows</h2>", "<p>Two.</p>", ">x|y</td>", ">1,234</td>", ">0.1235</td>"):
        assert part in html


def test_templates_are_part_of_the_package(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path / "lib"),
         "egg_info", "-e", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    built = tmp_path / "lib" / "toolkit"
    assert {path.name for path in (built / "document" / "templates").iterdir()} == {
        path.name for path in render.TEMPLATES.iterdir()
    }
    for name in ("recipes/reviews.py", "recipes/configs/reviews/smoke.yaml", "accelerate_configs/cpu.yaml"):
        assert (built / "shipped" / name).is_file()


def test_values_of_a_chart_can_be_read() -> None:
    words = texts(chart(0.5, 1.0, 2.0))
    assert words[:5] == ["0.5", "1.0", "1.5", "2.0", "1"]
    assert words[-1] == "v"
    titles = [each.text for each in drawn(chart(0.5, 1.0, 2.0)).iter(f"{SVG}title")]
    assert titles == ["v, step 1: 0.5", "v, step 2: 1", "v, step 3: 2"]


@pytest.mark.parametrize(
    ("value", "step", "text"),
    [
        (2e-5, 1e-5, "2e-5"),
        (2.5e-5, 5e-6, "2.5e-5"),
        (0.0, 1e-5, "0"),
        (0.25, 0.05, "0.25"),
        (1500, 500, "1500"),
        (25000, 5000, "25k"),
        (1.5e6, 5e5, "1.5M"),
        (2e9, 1e9, "2G"),
        (-0.5, 0.5, "-0.5"),
    ],
)
def test_ticks_have_short_names(value: float, step: float, text: str) -> None:
    assert number_text(value, step) == text


def test_an_axis_holds_its_values_and_says_round_ones() -> None:
    found = axis(np.array([3.2, 17.0, np.nan]), 100.0, 0.0)
    assert found.low < 3.2 < 17.0 < found.high
    assert [name for _, name in found.ticks] == ["5", "10", "15"]
    assert found.place(np.array([found.low, found.high])).tolist() == [100.0, 0.0]
    assert axis(np.array([5.0, 9.0]), 0, 1, zero=True).low == 0.0
    whole = axis(np.array([1.0, 2.0]), 0, 1, whole=True)
    assert [name for _, name in whole.ticks] == ["1", "2"]
    logs = axis(np.array([1e-3, 10.0, -1.0]), 0.0, 4.0, log=True)
    assert [name for _, name in logs.ticks] == ["0.001", "0.01", "0.1", "1", "10"]
    steps = np.diff(logs.place(np.array([0.01, 0.1, 1.0])))
    assert steps[0] == pytest.approx(steps[1])


@pytest.mark.parametrize(
    "values",
    [(), (1.0,), (0.0, 0.0), (7.0,) * 9, (None, None), (math.nan, 1.0, math.inf), (-1.0, 0.0), (1e300, 1.0), (1e-300,)],
)
@pytest.mark.parametrize("log", [False, True])
def test_odd_series_are_drawn(values: tuple, log: bool) -> None:
    svg = chart(*values, log=log, zero=not log)
    drawn(svg)
    assert "nan" not in svg
    assert "inf" not in svg


def test_what_is_missing_leaves_a_gap_and_is_counted() -> None:
    svg = chart(1.0, None, math.nan, 2.0, 3.0)
    (path,) = drawn(svg).iter(f"{SVG}path")
    assert path.get("d", "").count("M") == 2
    assert "v (2 not finite)" in texts(svg)


def test_long_lines_are_thinned_but_keep_their_peaks() -> None:
    values = np.sin(np.arange(100_000) / 9e3)
    values[[777, 50_001]] = 50.0, -50.0
    (path,) = drawn(chart(*values)).iter(f"{SVG}path")
    places = re.findall(r"[ML]([\d.]+) ([\d.]+)", path.get("d", ""))
    assert MOST_POINTS / 2 < len(places) <= MOST_POINTS + 2
    heights = [float(y) for _, y in places]
    assert max(heights) - min(heights) > 150


def test_charts_are_cheap() -> None:
    steps, values = list(range(100)), [1.0 / (i + 1) for i in range(100)]
    spent = []
    for _ in range(5):
        begun = time.perf_counter()
        for _ in range(6):
            line_chart({"a": (steps, values), "b": (steps, values)}, title="t", x_label="x", y_label="y")
        spent.append(time.perf_counter() - begun)
    assert min(spent) < 0.1  # about 5 ms on a machine that is not busy


def test_png_pictures_are_in_the_page() -> None:
    html = render.render_html("t", "", [Section("s", [Figure('A "picture"', png=b"\x89PNG", file="a.png")])])
    assert 'src="data:image/png;base64,iVBORw==" alt="A &#34;picture&#34;"' in html
    assert '![A "picture"](a.png)' in render.render_markdown(
        "t", "", [Section("s", [Figure('A "picture"', file="a.png")])]
    )


ORDER = """
const heads = [...document.querySelectorAll("table.sortable th")];
const found = [], note = () => found.push([heads.map((h) => h.getAttribute("aria-sort")).join(" "),
  [...document.querySelectorAll("table.sortable tbody tr")].map((row) => row.cells[1].textContent)]);
note();
heads[1].querySelector("button").click(); note();
heads[1].querySelector("button").click(); note();
heads[0].querySelector("button").click(); note();
const wide = [1280, 400].map((width) => {  // a window is never narrower than 500 pixels
  document.body.style.width = `${width}px`;
  return document.body.scrollWidth;
});
return [found, heads.map((h) => h.querySelector("button").tabIndex), wide];
"""


@pytest.mark.slow
@needs_browser
def test_columns_sort_in_a_browser(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(render.render_html(NASTY, NASTY, everything()), encoding="utf-8")
    document, (found, tab_indices, wide) = open_page(tmp_path / "page.html", ORDER)
    assert document.count("<button") == 2, "the page's own policy keeps its script from running"
    assert found == [
        ["none none", ["3", "twenty", "-", "-1", "nan"]],
        ["none ascending", ["-1", "3", "twenty", "-", "nan"]],
        ["none descending", ["twenty", "3", "-1", "-", "nan"]],
        ["ascending none", ["3", "-", "twenty", "-1", "nan"]],
    ]
    assert tab_indices == [0, 0]
    assert wide == [1280, 400], "the page scrolls sideways"
