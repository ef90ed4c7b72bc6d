"""Runs in Trackio: a database in `tracking/trackio/`."""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.api.exhibits import Exhibits, Histogram
from toolkit.document import render
from toolkit.tracking.sink import TrackedRun, final_numbers, report_tag
from toolkit.tracking.wandb import histogram_values

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
