"""docs/outputs.md and docs/checkpoints.md list the paths of `RunFolder`."""

from __future__ import annotations

import re
from pathlib import Path

from toolkit.base.run_folder import CheckpointFolder, RunFolder

DOCS = Path(__file__).resolve().parents[3] / "docs"


def paths(folder: RunFolder | CheckpointFolder) -> set[str]:
    """Returns all paths that need no argument, relative to the folder."""
    found = [getattr(folder, name) for name in vars(type(folder)) if not name.startswith("_")]
    return {path.relative_to(folder.path).as_posix() for path in found if isinstance(path, Path)}


def test_the_table_of_outputs_names_every_file_of_a_run() -> None:
    run = RunFolder(Path("run"))
    several = [run.predictions("test"), run.confusion("<set>"), run.checkpoint(None).path, run.snapshot(0)]
    several += [run.system(), run.system(7), *map(run.generated, ("validation", "test", "start"))]
    several += [path for path in run.results() if path.stem == "calibration"]
    numbered = {re.sub("(step-|rank)(None|0|7)", r"\1<N>", path.relative_to("run").as_posix()) for path in several}
    expected = paths(run) | {run.predictions("validation").name} | numbered
    expected -= {run.checkpoints.name, run.snapshots.name}  # there as `checkpoints/step-<N>`, `snapshots/step-<N>...`
    expected -= {run.model_card.relative_to("run").as_posix()}  # described with `model/`
    page = (DOCS / "outputs.md").read_text(encoding="utf-8")
    table = page.partition("| file |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert {name.rstrip("/") for cell in cells for name in re.findall("`(.*?)`", cell)} == expected
    assert f"`{run.model_card.name}`" in page


def test_the_layout_of_a_checkpoint_names_every_file() -> None:
    folder = CheckpointFolder(Path("step-35"))
    page = (DOCS / "checkpoints.md").read_text(encoding="utf-8")
    layout = page.partition("```\n")[2].partition("```")[0].splitlines()
    assert layout[0].rstrip("/").endswith(RunFolder(Path("run")).checkpoint(35).path.relative_to("run").as_posix())
    expected = paths(folder) | {folder.callback("<callback>").name}
    assert {line.split()[0].rstrip("/") for line in layout[1:]} == expected
