"""Runs at Weights & Biases, or in `tracking/wandb/` if it is offline; Trackio has the same functions."""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Mapping
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
        self._start(WandBTracker(run.project, **options), run)
        self.id: str | None = self._tracker.run.id
        # A server ignores steps that it has. Offline, each start has a folder, and `wandb sync --append` joins them.
        self.keeps_sent = bool(self._tracker.run.offline)

    def _start(self, tracker: Any, run: TrackedRun) -> None:
        self._tracker = tracker
        tracker.start()
        if not run.start_step:
            tracker.store_init_configuration(run.plain_settings)

    def numbers(self, values: Mapping[str, int | float], step: int) -> None:
        """Logs numbers."""
        self._tracker.log(dict(values), step=step)

    def histograms(self, found: Mapping[str, Histogram], step: int) -> None:
        """Logs histograms as objects of the library's class."""
        kind = self._library.Histogram
        values = {name: kind(np_histogram=(list(each.counts), list(each.edges))) for name, each in found.items()}
        self._tracker.log(values, step=step)

    def show(self, exhibits: Exhibits) -> None:
        """Logs images, tables and the report, and the final metrics as the run's summary."""
        values = self._exhibited(exhibits)
        if exhibits.page:
            values["report/page"] = self._library.Html(exhibits.page, inject=False)
        if values:
            self._tracker.log(values, step=exhibits.step)
        self._tracker.run.summary.update(final_numbers(exhibits))

    def _exhibited(self, exhibits: Exhibits) -> dict[str, Any]:
        """Returns images and tables as objects of the library, by their tags."""
        from PIL import Image

        pictures, tables = exhibits.pictures.items(), exhibits.tables.items()
        return {
            **{report_tag(title): self._library.Image(Image.open(io.BytesIO(png))) for title, png in pictures},
            **{report_tag(title): self._table(table) for title, table in tables},
        }

    def _table(self, table: Table) -> Any:
        # In a column of W&B, all values have one type.
        return self._library.Table(columns=list(table.header), data=[list(map(shown, row)) for row in table.rows])

    def finish(self) -> None:
        """Ends the run."""
        self._tracker.finish()


FOLDER = "TRACKIO_DIR"
"""Environment variable with Trackio's folder, which it reads when it is imported."""


class Trackio(WandB):
    """Writes into Trackio's database; a RuntimeError if this process has used Trackio with another folder."""

    def __init__(self, run: TrackedRun) -> None:
        import trackio
        from accelerate.tracking import TrackioTracker

        self._library = trackio
        if Path(trackio.TRACKIO_DIR).absolute() != Path(os.environ[FOLDER]).absolute():
            raise RuntimeError(
                f"this process has used Trackio in {trackio.TRACKIO_DIR}, and it cannot change its folder; start the "
                f"run in a process of its own, or set {FOLDER} for all"
            )
        # The name is the run's id.
        self.id, self.keeps_sent = run.ids.get("trackio") or self._free_name(run), True
        self._start(TrackioTracker(run.project, name=self.id, resume="allow"), run)

    def _free_name(self, run: TrackedRun) -> str:
        """Returns the run's name, with a suffix if a former run in this folder has it."""
        try:
            former = [each.name for each in self._library.Api().runs(run.project)]
        except ValueError:  # the project is new
            former = []
        return f"{run.name}-{uuid.uuid4().hex[:4]}" if run.name in former else run.name

    def show(self, exhibits: Exhibits) -> None:
        """Logs the final metrics, images, and tables as Markdown; Trackio has no pages."""
        self._tracker.log(final_numbers(exhibits) | self._exhibited(exhibits), step=exhibits.step)

    def _table(self, table: Table) -> Any:
        return self._library.Markdown(render.table(table.header, table.rows))
