"""Runs at Weights & Biases, or in `tracking/wandb/` if it is offline; Trackio has the same functions."""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from toolkit.api.exhibits import Exhibits, Histogram
from toolkit.document import render
from toolkit.document.blocks import Table, shown
from toolkit.tracking.sink import TrackedRun, final_numbers, report_tag


class WandB:
    """Sends to W&B; see `toolkit.tracking.sink.Sink`."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb
        from accelerate.tracking import WandBTracker

        self._library: Any = wandb
        # "allow" continues the run of this id if the server has it.
        options: dict[str, Any] = {"name": run.name, "resume": "allow"}
        options["id"] = os.environ.get("WANDB_RUN_ID") or run.ids.get("wandb") or uuid.uuid4().hex[:8]
        if "WANDB_DIR" not in os.environ:
            options["dir"] = str(run.folder)
        self._tracker = WandBTracker(run.project, **options)
        self._tracker.start()
        self.id: str | None = self._tracker.run.id
        # A server ignores steps that it has. Offline, each start has a folder, and `wandb sync --append` joins them.
        self.keeps_sent = bool(self._tracker.run.offline)
        if not run.start_step:
            self._tracker.store_init_configuration(run.plain_settings)

    def numbers(self, values: Mapping[str, int | float], step: int) -> None:
        """Logs numbers."""
        self._tracker.log(dict(values), step=step)

    def histograms(self, found: Mapping[str, Histogram], step: int) -> None:
        """Logs histograms."""
        self._tracker.log(histogram_values(self._library.Histogram, found), step=step)

    def show(self, exhibits: Exhibits) -> None:
        """Logs images, tables and the report, and the final metrics as the run's summary."""
        from PIL import Image

        wandb, values = self._library, dict[str, Any]()
        for title, png in exhibits.pictures.items():
            values[report_tag(title)] = wandb.Image(Image.open(io.BytesIO(png)))
        for title, table in exhibits.tables.items():
            values[report_tag(title)] = wandb.Table(columns=list(table.header), data=text_rows(table))
        if exhibits.page:
            values["report/page"] = wandb.Html(exhibits.page, inject=False)
        if values:
            self._tracker.log(values, step=exhibits.step)
        self._tracker.run.summary.update(final_numbers(exhibits))

    def finish(self) -> None:
        """Ends the run of W&B."""
        self._tracker.finish()


def histogram_values(kind: Callable[..., Any], found: Mapping[str, Histogram]) -> dict[str, Any]:
    """Returns histograms as objects of W&B's or Trackio's class."""
    return {name: kind(np_histogram=(list(each.counts), list(each.edges))) for name, each in found.items()}


def text_rows(table: Table) -> list[list[str]]:
    """Returns the rows of a table as texts; in a column of W&B, all values have one type."""
    return [[shown(value) for value in row] for row in table.rows]


FOLDER = "TRACKIO_DIR"
"""Environment variable with Trackio's folder, which it reads when it is imported."""


class Trackio:
    """Writes into Trackio's database; see `toolkit.tracking.sink.Sink`.

    Raises:
        RuntimeError: if this process has used Trackio with another folder.
    """

    keeps_sent = True

    def __init__(self, run: TrackedRun) -> None:
        import trackio
        from accelerate.tracking import TrackioTracker

        self._library: Any = trackio
        if Path(trackio.TRACKIO_DIR).absolute() != Path(os.environ[FOLDER]).absolute():
            raise RuntimeError(
                f"this process has used Trackio in {trackio.TRACKIO_DIR}, and it cannot change its folder; start the "
                f"run in a process of its own, or set {FOLDER} for all"
            )
        # The name is the run's id.
        self.id: str | None = run.ids.get("trackio") or self._free_name(run)
        self._tracker = TrackioTracker(run.project, name=self.id, resume="allow")
        self._tracker.start()
        if not run.start_step:
            self._tracker.store_init_configuration(run.plain_settings)

    def _free_name(self, run: TrackedRun) -> str:
        """Returns the run's name, with a suffix if a former run in this folder has it."""
        try:
            former = [each.name for each in self._library.Api().runs(run.project)]
        except ValueError:  # the project is new
            former = []
        return f"{run.name}-{uuid.uuid4().hex[:4]}" if run.name in former else run.name

    def numbers(self, values: Mapping[str, int | float], step: int) -> None:
        """Logs numbers."""
        self._tracker.log(dict(values), step=step)

    def histograms(self, found: Mapping[str, Histogram], step: int) -> None:
        """Logs histograms."""
        self._tracker.log(histogram_values(self._library.Histogram, found), step=step)

    def show(self, exhibits: Exhibits) -> None:
        """Logs the final metrics, images, and tables as Markdown."""
        from PIL import Image

        values: dict[str, Any] = dict(final_numbers(exhibits))
        for title, png in exhibits.pictures.items():
            values[report_tag(title)] = self._library.Image(Image.open(io.BytesIO(png)))
        for title, table in exhibits.tables.items():
            values[report_tag(title)] = self._library.Markdown(render.table(table.header, table.rows))
        self._tracker.log(values, step=exhibits.step)

    def finish(self) -> None:
        """Ends Trackio's run."""
        self._tracker.finish()
