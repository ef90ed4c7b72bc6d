"""Writes the tables of docs/parallel.md: which tasks each strategy trains like one process, and what processes hold.

python docs/render_strategies.py

The bytes are those of benchmarks/results/sharding.json and context.json (bench_sharding.py, bench_context.py). The
figures in docs/strategies.json are measured by the slow tests of tests/contracts/test_split_models.py, which write them
if WRITE_FIGURES is set. Why the others are refused is asked of the toolkit.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from toolkit.document.render import table
from toolkit.recipe import load_task_type, validate

HERE = Path(__file__).resolve().parent
PAGE, FIGURES, RECIPES = HERE / "parallel.md", HERE / "strategies.json", HERE.parent / "recipes"
BEGIN, END = "<!-- strategies: written by docs/render_strategies.py -->\n", "\n<!-- end of strategies -->"
BYTES = HERE.parent / "benchmarks/results/sharding.json"
BYTES_BEGIN, BYTES_END = "<!-- bytes: written by docs/render_strategies.py -->\n", "\n<!-- end of bytes -->"
LONG = HERE.parent / "benchmarks/results/context.json"
LONG_BEGIN, LONG_END = "<!-- context: written by docs/render_strategies.py -->\n", "<!-- end of context -->"
STRATEGIES = {
    "ddp": "data parallel",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "fsdp": "FSDP2",
    "hsdp": "HSDP",
    "tensor": "tensor",
    "replicas-tensor": "replicas, tensor",
    "fsdp-tensor": "FSDP2, tensor",
    "context": "context",
    "replicas-context": "replicas, context",
    "fsdp-context": "FSDP2, context",
    "context-tensor": "context, tensor",
    "pipeline": "pipeline",
    "replicas-pipeline": "replicas, pipeline",
    "tensor-pipeline": "tensor, pipeline",
    "fsdp-pipeline": "FSDP2, pipeline",
    "3d": "replicas, tensor, pipeline (3D)",
    "zero1-tensor": "ZeRO-1, replicas, tensor",
    "sequence": "tensor, sequence",
    "expert": "expert",
    "fsdp-expert": "FSDP2, expert",
}
TASKS = {
    "reviews": "text classification (BERT)",
    "qa": "question answering (BERT)",
    "translation": "translation (T5)",
    "language_modeling": "causal LM (Llama)",
    "masked": "masked LM (BERT)",
    "vit": "image classification (ViT)",
    "image": "image classification (ConvNeXt)",
    "speech": "audio classification (Wav2Vec2)",
    "moe": "mixture of experts (Mixtral)",
}
ENGINES = ("loop", "trainer")


def refused(recipe: str, *settings: str) -> str:
    """Returns why the toolkit refuses a task with these settings; empty if it does not.

    Args:
        recipe: name of a recipe, or `<recipe>/<configuration>`.
        *settings: `section.key=value` each.
    """
    name, _, config = recipe.partition("/")
    file = RECIPES / "configs" / name / f"{config or 'smoke'}.yaml"
    found = validate(load_task_type(RECIPES / f"{name}.py"), file, settings, elsewhere=True).problems
    # Without the place of the setting, the supported models, and what to do instead.
    return " ".join(re.split(r"; |, only for ", problem.split(": ", 1)[1])[0] + "." for problem in found[:1])


def cell(strategy: dict[str, Any], task: dict[str, Any], name: str, reasons: list[str]) -> str:
    """Returns the figures of both engines, or the numbers of the reasons why they are refused.

    Args:
        strategy: settings and figures of a strategy.
        task: recipe and settings of a task.
        name: name of the task.
        reasons: all reasons so far; new ones are added.

    Raises:
        ValueError: if an engine was not measured although it is not refused.
    """
    figures, words = strategy["differences"].get(name, {}), []
    for engine in ENGINES:
        if engine in figures:
            words.append(f"{figures[engine]:.0e}")
            continue
        why = refused(task["recipe"], *task["settings"], *strategy["settings"], f"engine={engine}")
        if not why:
            raise ValueError(f"{name} with {strategy['settings']} under {engine}: neither measured nor refused")
        if why not in reasons:
            reasons.append(why)
        words.append(f"no ({reasons.index(why) + 1})")
    return " / ".join(dict.fromkeys(words))


def rendered() -> str:
    """Returns the page with the table as figures and rules have it."""
    page, found = PAGE.read_text(encoding="utf-8"), json.loads(FIGURES.read_text(encoding="utf-8"))
    reasons: list[str] = []
    rows = [
        [title, *(cell(strategy, task, name, reasons) for name, task in found["tasks"].items())]
        for title, strategy in ((STRATEGIES[name], each) for name, each in found["strategies"].items())
    ]
    notes = "\n".join(f"{number}. {why}" for number, why in enumerate(reasons, start=1))
    text = f"{table(['strategy', *(TASKS[name] for name in found['tasks'])], rows, marked_up=True)}\n\n{notes}"
    return with_long_inputs(with_bytes(between(page, BEGIN, text, END)))


def with_long_inputs(page: str) -> str:
    """Returns the page with the table of bytes for a long text."""
    cases = json.loads(LONG.read_text(encoding="utf-8"))["cases"]
    first = {name.rpartition(", ")[1]: each["counted"] for name, each in reversed(cases.items())}
    rows = [
        [name, f"{each['counted']:.0f}", f"{each['counted'] / first[name.rpartition(', ')[1]]:.0%}",
         f"{each['sent']:.0f}"]
        for name, each in cases.items()
    ]  # fmt: skip
    titles = ["case", "counted peak, MiB", "of one process's", "sent in a step, MiB"]
    return between(page, LONG_BEGIN, f"{table(titles, rows, marked_up=True)}\n", LONG_END)


def with_bytes(page: str) -> str:
    """Returns the page with the table of counted bytes."""
    cases = json.loads(BYTES.read_text(encoding="utf-8"))["cases"]
    rows = [
        [name, f"{each['counted']:.0f}", f"{each['planned']:.0f} ({each['planned'] / each['counted'] - 1:+.0%})",
         f"{each['sent']:.0f}"]
        for name, each in cases.items()
    ]  # fmt: skip
    text = table(["case", "counted peak, MiB", "planned", "sent in a step, MiB"], rows, marked_up=True)
    return between(page, BYTES_BEGIN, text, BYTES_END)


def between(page: str, begin: str, text: str, end: str) -> str:
    """Returns the page with a text between two marks."""
    before, rest = page.split(begin)
    return before + begin + text + end + rest.split(end)[1]


if __name__ == "__main__":
    PAGE.write_text(rendered(), encoding="utf-8")
